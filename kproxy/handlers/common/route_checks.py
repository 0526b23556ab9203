"""The checks of a queue's settings of routes against other queues, asked of the catalogue."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import Definitions
from kproxy.metadata.redrive_settings import read_target
from kproxy.metadata.route_settings import QUEUES_MAX, names_conflict, partitions_conflict
from kproxy.metadata.setting import SET_BY
from kproxy.routes.rights import may_read, may_write
from kproxy.security.acls import Op, Resource
from kproxy.security.permits import Permits
from kproxy.virtual.folds.redrives import FILTER as REDRIVE_FILTER
from kproxy.virtual.folds.redrives import JOB, TIMES_MAX
from kproxy.virtual.folds.redrives import TO as REDRIVE_TO
from kproxy.virtual.folds.route_definitions import (
    CONFIGS,
    FROM,
    FROM_SETTINGS,
    ROUTE_SPEC,
    TO,
    UNROUTABLE,
    source_of,
)
from kproxy.virtual.rows.routes import EPOCHS_MAX, route_in
from kproxy.worker.request import Request

_TO_SETTINGS = (TO, UNROUTABLE, CONFIGS, QUEUES_MAX)
"""The settings of where records go, and of what is made for them."""
_OF_REDRIVES = (REDRIVE_TO, REDRIVE_FILTER, TIMES_MAX, JOB)
_OF_ROUTES = FROM_SETTINGS.union(_TO_SETTINGS, _OF_REDRIVES)


def check_routes(
    worker: Definitions,
    permits: Permits,
    name: str,
    partitions: int,
    values: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    named: Collection[str] = (),
) -> None:
    """Check settings that the queue `name` is to have. Raise KafkaError (INVALID_CONFIG,
    TOPIC_AUTHORIZATION_FAILED).

    `before`: those it has. The source of a route may be gone since, and nobody is to be kept from
    changing another setting: only what changes is looked up. `named`: those that the request sets
    or drops; this worker may not know yet that another has changed one.
    """
    was = before or {}
    if not permits.all:
        _check_permits(
            permits, name, values, lambda key: key in named or values.get(key) != was.get(key)
        )
    if before is not None and (fault := _too_many_epochs(worker, name, before, values)):
        raise KafkaError(Code.INVALID_CONFIG, fault)
    if fault := _redrive_fault(worker, name, was, values):
        raise KafkaError(Code.INVALID_CONFIG, fault)
    source = values.get(FROM)
    if not source and not values.get(TO):
        if fault := partitions_conflict(values, partitions):
            raise KafkaError(Code.INVALID_CONFIG, fault)
        return
    fault = names_conflict(values, name) or partitions_conflict(values, partitions)
    if fault is None and source and source != was.get(FROM):
        fault = _source_fault(worker, permits, source)
    if fault:
        raise KafkaError(Code.INVALID_CONFIG, fault)


def _redrive_fault(
    worker: Definitions, name: str, was: Mapping[str, str], values: Mapping[str, str]
) -> str | None:
    to = values.get(REDRIVE_TO)
    if not to:
        return None
    if was.get(REDRIVE_TO) and was.get(JOB) == values.get(JOB):
        for key in (REDRIVE_TO, REDRIVE_FILTER, TIMES_MAX):
            if was.get(key) != values.get(key):
                return f"{key}: a redrive goes on as it began: change {JOB} as well, for another"
    queue, _ = read_target(to)
    if to == was.get(REDRIVE_TO) or not queue:
        return None
    if queue == name:
        return f"{REDRIVE_TO}={queue} is this queue itself: name another one"
    if worker.catalogue.find(queue) is None:
        return f"{REDRIVE_TO}={queue}: there is no such queue: create it first"
    return None


def _too_many_epochs(
    worker: Definitions, name: str, before: Mapping[str, str], values: Mapping[str, str]
) -> str | None:
    """Return why a route is not changed once more while so many changes wait for their records.

    The fold keeps so many epochs of a partition, and refuses or puts off one more. This says so
    for a validation, too, of the partitions that this worker serves.
    """
    if all(before.get(setting) == values.get(setting) for setting in (FROM, *ROUTE_SPEC)):
        return None
    definer = worker.catalogue.find(name)
    source = worker.catalogue.find(source_of(before, name) or "")
    if definer is None or source is None:
        return None
    for index in range(source.partitions):
        with suppress(KafkaError):  # another worker serves it
            state, key = worker.shard(source.name, index).state, (source.queue_id, index)
            route, row = route_in(state.get, key, definer.queue_id), state.partition(key)
            if route is not None and row is not None and len(route.epochs) >= EPOCHS_MAX:
                if route.epochs[-1].start < row.next_offset:
                    return (
                        f"{EPOCHS_MAX} changes of this route wait for records of {source.name},"
                        f" partition {index}, to be passed on: try again once its LAG is less"
                    )
    return None


def signed(
    worker: Definitions, request: Request, before: Mapping[str, str], given: dict[str, str],
    dropped: Collection[str] = (), *, replace_all: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Return what is given, and who has set the route, if it is changed, or was before."""
    touched = not _OF_ROUTES.isdisjoint(given) or not _OF_ROUTES.isdisjoint(dropped)
    if touched:
        return given | worker.signatures.sign(request.peer)
    if replace_all and SET_BY in before:
        return given | {SET_BY: before[SET_BY]}
    return given


def _check_permits(
    permits: Permits, name: str, values: Mapping[str, str], touched: Callable[[str], bool]
) -> None:
    """Check that the definer may do what the route does: READ its source, WRITE its targets.

    An entrance makes the queues that its template names: CREATE as well. A client that changes a
    part of a route, its filter for example, is asked the same. Raise KafkaError.
    """
    allowed = True
    if any(map(touched, (*FROM_SETTINGS, *_OF_REDRIVES))):
        allowed = may_read(permits, values, name)
    if any(map(touched, (*_TO_SETTINGS, *_OF_REDRIVES))):
        allowed = allowed and may_write(permits, values)
    if not allowed:
        text = "a route reads and writes what its definer may read and write, as its names say"
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, text)


def _source_fault(worker: Definitions, permits: Permits, source: str) -> str | None:
    found = worker.catalogue.find(source)
    if found is None:
        return f"{FROM}={source}: there is no such queue: create it first"
    beyond = found.configs.get(FROM)
    if beyond:
        shown = f"{beyond}, " if permits.sees(Op.DESCRIBE, Resource.TOPIC, beyond) else "the queue "
        return (
            f"{FROM}={source}: that queue gets records by a route itself, and those are not routed"
            f" on: name {shown}where they come from"
        )
    return None
