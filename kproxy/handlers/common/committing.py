"""The common part of OffsetCommit and TxnOffsetCommit: which offsets may go into the log."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from kproxy.common.errors import Code
from kproxy.groups.model.group import Group
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.metadata.queue_settings import settings_of
from kproxy.protocol.codec import ZERO_UUID
from kproxy.security.acls import Op
from kproxy.virtual.commands.offsets import OffsetCommit
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request

OFFSETS_AT_ONCE = 500  # in one envelope: it is applied in one turn
_METADATA_AT_ONCE = 1 << 19
PART_BYTES = 600  # bytes of an answer: about what a partition takes until it is encoded


class Committer(NamedTuple):
    """A member that commits: its epoch as the fold is to have it, and its fault in a partition.

    A member that was told of an epoch late may commit what it has had since the one that it names
    (KIP-1251).
    """

    epoch: int
    fault_in: Callable[[str, int], Code] | None = None


def committer(group: Group | None, member_id: str, epoch: int) -> Committer:
    """Return the committer that a request names, once its group has no fault with it."""
    if isinstance(group, StreamsGroup):
        member = group.members.get(member_id)
        if member is not None and 0 <= epoch < member.epoch:
            return Committer(member.epoch, partial(group.task_fault, member_id, epoch))
    return Committer(epoch)


Wanted = tuple[dict[str, Any], OffsetCommit]
"""The place of an offset in the answer, and the offset."""


def queue_of(worker: GroupNeeds, topic: Any, by_id: bool) -> Queue | None:
    if by_id:
        topic_id: UUID | None = topic.topic_id
        return worker.catalogue.find_id(QueueId((topic_id or ZERO_UUID).bytes))
    return worker.catalogue.find(topic.name)


async def sort_out(
    worker: GroupNeeds,
    request: Request,
    group_fault: Code,
    *,
    by_id: bool = False,
    fault_in: Callable[[str, int], Code] | None = None,
) -> tuple[list[dict[str, Any]], list[Wanted]]:
    """Return the answer's topics, and the offsets that are to be committed."""
    absent = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
    metadata_max = worker.config.offset_metadata_bytes_max
    topics: list[dict[str, Any]] = []
    wanted: list[Wanted] = []
    for topic in request.body.topics:
        await request.budget.step(PART_BYTES)
        queue = queue_of(worker, topic, by_id)
        deny = queue is not None and settings_of(queue.configs).rewind_denied
        name = topic.name if not by_id else (queue.name if queue is not None else None)
        barred = name is not None and not group_fault and not request.permits.topic(Op.READ, name)
        fault = Code.TOPIC_AUTHORIZATION_FAILED if barred else group_fault
        parts = []
        for part in topic.partitions:
            index, metadata = part.partition_index, part.committed_metadata or ""
            answer: dict[str, Any] = {"partition_index": index, "error_code": fault}
            parts.append(answer)
            await request.budget.step(PART_BYTES)
            if fault:
                continue
            if queue is None or not 0 <= index < queue.partitions:
                answer["error_code"] = absent if queue is None else Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata.encode()) > metadata_max:
                answer["error_code"] = Code.OFFSET_METADATA_TOO_LARGE
            elif fault_in is not None and (stale := fault_in(queue.name, index)):
                answer["error_code"] = stale
            else:
                epoch = getattr(part, "committed_leader_epoch", -1)
                offset = part.committed_offset
                commit = OffsetCommit(queue.queue_id, index, offset, epoch, metadata, deny)
                wanted.append((answer, commit))
        label = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
        topics.append(label | {"partitions": parts})
    return topics, wanted


def lots(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """Yield some hundreds at a time: each lot is applied in one turn."""
    lot: list[Wanted] = []
    metadata_size = 0
    for one in wanted:
        metadata_size += len(one[1].metadata)
        if lot and (metadata_size > _METADATA_AT_ONCE or len(lot) == OFFSETS_AT_ONCE):
            yield lot
            lot, metadata_size = [], len(one[1].metadata)
        lot.append(one)
    if lot:
        yield lot


def note(lot: Iterable[Wanted], codes: Iterable[Code], absent: Code) -> None:
    """Note in the answer what became of offsets; `absent`: of those whose queue is gone by now."""
    for (answer, _), code in zip(lot, codes, strict=True):
        answer["error_code"] = absent if code == Code.UNKNOWN_TOPIC_ID else code
