"""Hearing of queues before a command about them is answered.

Another worker may have made, changed or dropped one a moment ago. In Kafka one controller decides
all commands in turn, so none is answered here from what was known before it came.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from anyio import move_on_after

from kproxy.common.errors import KafkaError
from kproxy.handlers.common.needs import ConfigNeeds, Queues
from kproxy.loop.pace import Pace, slices
from kproxy.metadata.group_settings import COPIES_RECORD, DEAD_LETTERS
from kproxy.metadata.setting import GROUP
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


async def hear_of_dead_letters(worker: ConfigNeeds, asked: Iterable[Any], pace: Pace) -> None:
    """Wait as `hear_of` does for dead-letter queues that are not known here.

    Whether it is to be made depends on that. `asked`: what the request has for each resource.
    """
    if not worker.config.errors_deadletterqueue_auto_create_topics_enable:
        return
    unknown: dict[str, None] = {}
    for one in asked:
        if one.resource_type != GROUP:
            continue
        given = {}
        for setting in one.configs:
            if setting.name in (DEAD_LETTERS, COPIES_RECORD):
                given[setting.name] = setting.value
            await pace.step()
        if not given:
            continue
        name = given.get(DEAD_LETTERS) or worker.group_settings(one.resource_name).dead_letter_queue
        if name and worker.catalogue.find(name) is None:
            unknown[name] = None
    await hear_of(worker, unknown, pace)
