"""The Python of what is written twice: `core/twins.json` has what the Rust was written after.

`python -m tests.native.twins` notes it anew, once core/src does what the Python does now.
"""

import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any

from kproxy.metadata.routing import Template
from kproxy.protocol import made_batches, records, varint
from kproxy.routes.batch_reading import Reading
from kproxy.routes.cutting import Cutter, Gathered, batch_of
from kproxy.routes.reading import gather
from kproxy.routes.shipping import parts_of
from kproxy.virtual.commands.routes import Batches
from kproxy.virtual.partitioner import hash_of
from tests.harness import ROOT

COMMAND = "python -m tests.native.twins"
NOTED = ROOT / "core" / "twins.json"
_TWINS: tuple[Callable[..., Any], ...] = (
    gather, Cutter.take, Cutter._take_run, Cutter._by_template, Cutter._add, Gathered.add,
    Gathered.parts.fget, Reading.read_on, Template.fill, Template._judged, batch_of, parts_of,
    Batches.of, hash_of, made_batches.batch_of_bodies, made_batches.fitted, records._parse,
    records._headers, records._header_bytes, varint.read_varlong, varint.uvarint,
)  # fmt: skip


def twins() -> dict[str, str]:
    """Return a digest of the source of each, by name."""
    return {
        f"{one.__module__}.{one.__qualname__}": hashlib.sha256(
            inspect.getsource(one).encode()
        ).hexdigest()[:16]
        for one in _TWINS
    }


if __name__ == "__main__":
    NOTED.write_text(json.dumps(twins(), indent=1) + "\n")
