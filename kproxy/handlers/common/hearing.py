"""Hearing of queues before a command about them is answered.

Another worker may have made, changed or dropped one a moment ago. In Kafka one controller decides
all commands in turn, so none is answered here from what was known before it came.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from anyio import move_on_after

from kproxy.common.errors import KafkaError
from kproxy.handlers.common.needs import Queues
from kproxy.loop.pace import Pace, slices
from kproxy.virtual.folds.route_definitions import FROM

_KNOWN_S = 5.0
_AT_ONCE = 500


async def hear_of(worker: Queues, names: Iterable[str | None], pace: Pace) -> None:
    """Wait until it is known what was decided about queues by now; None is one known by id alone.

    If the cluster does not answer, what is known serves.
    """
    for some in slices(names, _AT_ONCE):
        with suppress(KafkaError), move_on_after(_KNOWN_S):
            await worker.routes.wait_for_catalogue(some)
        await pace.step()


async def hear_of_sources(worker: Queues, asked: Iterable[Any], pace: Pace) -> None:
    """Wait as `hear_of` does for queues that are not known here and that a route is to be from.

    `asked`: what the request has for each queue, with its settings.
    """
    unknown: dict[str, None] = {}
    for one in asked:
        for setting in one.configs:
            if setting.name == FROM and setting.value:
                if worker.catalogue.find(setting.value) is None:
                    unknown[setting.value] = None
            await pace.step()
    await hear_of(worker, unknown, pace)
