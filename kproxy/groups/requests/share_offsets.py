"""The offsets of a share group in queues, as an administrator sets them, without members.

Each change first raises the group's version: a share partition takes only what is later than its
own epoch, so what an earlier change, or a former coordinator, sends late is void.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from anyio import CancelScope

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator, storage_code
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.upkeep.share_initialisation import land_changes
from kproxy.groups.upkeep.share_removal import Initialised
from kproxy.loop.pace import slices
from kproxy.virtual.commands.shares import (
    EARLIEST,
    SET_MAX,
    ShareAction,
    ShareChange,
)
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId


class NewStart(NamedTuple):
    """`start`: an offset, -1 for the end, or less for the log's start."""

    queue: Queue
    partition: int
    start: int


def _not_empty() -> KafkaError:
    return KafkaError(Code.NON_EMPTY_GROUP, "The group is not empty.")


async def reset(coordinator: Coordinator, group_id: str, starts: Sequence[NewStart]) -> None:
    """Set where a group begins; the group is made, if there is none. Raise KafkaError."""
    group = await coordinator.open_share(group_id, create=True)
    assert group is not None
    async with _held(coordinator, group), _rows_behind(coordinator, group):
        for some in slices(starts, SET_MAX):
            await _reset_some(coordinator, group, some)


@asynccontextmanager
async def _held(coordinator: Coordinator, group: ShareGroup) -> AsyncIterator[None]:
    """Hold a group's lock, and finish what is begun. Forget the group if it is idle then."""
    with CancelScope(shield=True):
        async with group.lock:
            try:
                yield
            finally:
                if group.idle:
                    coordinator.forget(group)


@asynccontextmanager
async def _rows_behind(coordinator: Coordinator, group: ShareGroup) -> AsyncIterator[None]:
    """Log that rows may not tell of all, in case that the work ends midway. Raise KafkaError."""
    group.making = True
    await _stamp(coordinator, group)
    yield
    group.making = False
    await _stamp(coordinator, group)


async def _stamp(coordinator: Coordinator, group: ShareGroup) -> None:
    """Raise an empty group's version. Raise KafkaError."""
    if group.members:
        raise _not_empty()
    if group.ended or not coordinator.has(group):
        raise KafkaError(Code.NOT_COORDINATOR)
    if code := await coordinator.stamp(group):
        raise KafkaError(storage_code(code))


async def _reset_some(
    coordinator: Coordinator, group: ShareGroup, starts: Sequence[NewStart]
) -> None:
    """Reset some; initialise partitions before one that is set: a row says up to which they are."""
    changes: dict[tuple[QueueId, int], tuple[str, ShareChange]] = {}
    upto: dict[QueueId, int] = {}
    for queue, index, start in starts:
        key = queue.queue_id, index
        change = ShareChange(key, ShareAction.RESET, group.version, max(EARLIEST, start))
        changes[key] = queue.name, change
    for queue, index, _ in starts:
        known = upto.get(queue.queue_id) or group.initialised.get(queue.queue_id, 0)
        if known <= index:
            upto[queue.queue_id] = index + 1
            for change in coordinator.shares.initial(group, queue, known, index):
                changes.setdefault(change.key, (queue.name, change))
    for some in slices(list(changes.values()), SET_MAX):
        now_ms = coordinator.now_ms()
        code = await land_changes(coordinator.landing, group.id, some, now_ms, set(), group.since)
        if code:
            raise KafkaError(code)
    if upto and (code := await coordinator.shares.note(group, list(upto.items()))):
        raise KafkaError(storage_code(code))


async def forget(
    coordinator: Coordinator, group_id: str, queues: Sequence[Queue]
) -> frozenset[QueueId]:
    """Drop a group's share partitions of queues; of which there were any. Raise KafkaError."""
    group = await coordinator.open_share(group_id, create=coordinator.head(group_id) is not None)
    if group is None:
        raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    async with _held(coordinator, group):
        if group.members:
            raise _not_empty()
        known = frozenset(queue.queue_id for queue in queues) & group.initialised.keys()
        if found := _to_forget(group, queues):
            group.since = coordinator.shard.applied_through.next_offset
            async with _rows_behind(coordinator, group):
                for some in slices(found, SET_MAX):
                    await _forget_some(coordinator, group, some)
    return known


def _to_forget(group: ShareGroup, queues: Sequence[Queue]) -> list[Initialised]:
    """Return queues with share partitions, and how many; all, if rows may not tell of all."""
    unsure = group.making_is_logged
    counts = [
        (queue.queue_id, max(group.initialised.get(queue.queue_id, 0), queue.partitions * unsure))
        for queue in queues
    ]
    return [one for one in counts if one[1]]


async def _forget_some(
    coordinator: Coordinator, group: ShareGroup, queues: list[Initialised]
) -> None:
    """Forget rows first: if some stay, the next subscriber makes all anew. Raise KafkaError."""
    code = await coordinator.shares.note(group, [(queue_id, 0) for queue_id, _ in queues])
    if not code:
        code = await coordinator.removal.drop(group.id, group.version, queues)
    if code:
        raise KafkaError(storage_code(code))
