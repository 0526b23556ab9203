"""The process that `kproxy serve` becomes: a worker, or the supervisor of several."""

import sys
from typing import Any

import anyio

from kproxy.common.logs import configure
from kproxy.config.server import Config
from kproxy.loop.allocator import keep_less
from kproxy.loop.garbage import collect_less
from kproxy.server.descriptors import raise_limit
from kproxy.server.listener import serve
from kproxy.supervisor import Supervisor, instructed

try:
    import uvloop  # noqa: F401
except ImportError:  # not on every platform; asyncio's own loop serves as well, more slowly
    _LOOP: dict[str, Any] = {}
else:
    _LOOP = {"use_uvloop": True}


_SWITCH_S = 0.001
"""The seconds for which a thread that computes keeps the event loop from going on.

Python's own are 5 ms, and an answer waits so long several times.
"""


def run(config: Config | None) -> None:
    """Serve until stopped. None: the supervisor says the settings."""
    supervised = config is None
    config, together = instructed() if config is None else (config, [])
    configure(config.log_level, config.log_format, config.listen if supervised else None)
    keep_less()
    collect_less()
    sys.setswitchinterval(_SWITCH_S)
    raise_limit()
    if config.workers > 1:
        anyio.run(Supervisor(config).run, backend_options=_LOOP)
    else:
        anyio.run(serve, config, supervised, together, backend_options=_LOOP)
