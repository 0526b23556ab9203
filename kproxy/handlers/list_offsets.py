"""ListOffsets (key 2, versions 1 to 11) and OffsetForLeaderEpoch (key 23, versions 2 to 4).

By time: the index finds the batch, and only that batch's records are looked at. Tiered storage
(-5, -6) does not exist here, and is answered as Kafka does without it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from anyio import to_thread
from anyio.lowlevel import checkpoint

from kproxy.errors import Code, KafkaError
from kproxy.fetching.reading import LEADER_EPOCH
from kproxy.protocol.answers import Listed, list_offsets_body
from kproxy.protocol.records import record_times
from kproxy.protocol.varint import Malformed
from kproxy.shard import Shard
from kproxy.virtual.rows import Batch, Partition
from kproxy.virtual.types import PartitionKey
from kproxy.worker import Request, Worker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
_TIERED = (-5, -6)
_SLICE = 1000
_UNKNOWN = (-1, -1)


async def handle(worker: Worker, request: Request) -> bytes:
    """A ListOffsetsResponse body; a partition's error is in its part."""
    topics = []
    for number, topic in enumerate(request.body.topics, 1):
        parts = [await _one(worker, topic.name, part) for part in topic.partitions]
        topics.append((topic.name, parts))
        if not number % _SLICE:
            await checkpoint()
    return list_offsets_body(request.version, topics)


def _check_epoch(part: Any) -> None:
    if getattr(part, "current_leader_epoch", -1) > LEADER_EPOCH:
        raise KafkaError(Code.UNKNOWN_LEADER_EPOCH)


def _find(worker: Worker, name: str, index: int) -> tuple[Shard, PartitionKey, Partition]:
    """Raises KafkaError where it is not here, or not at all."""
    queue = worker.catalogue.find(name)
    if queue is None or not 0 <= index < queue.partitions:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    shard, key = worker.shard(name, index), (queue.queue_id, index)
    row = shard.state.partition(key)
    if row is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    return shard, key, row


async def _one(worker: Worker, name: str, part: Any) -> Listed:
    index: int = part.partition_index
    try:
        shard, key, row = _find(worker, name, index)
        _check_epoch(part)
    except KafkaError as error:
        return Listed(index, error.code)
    wanted: int = part.timestamp
    time_ms = -1
    if wanted == LATEST:
        offset = row.next_offset
    elif wanted in (EARLIEST, EARLIEST_LOCAL):
        offset = row.log_start
    elif wanted in _TIERED:
        offset = -1
    elif wanted == MAX_TIMESTAMP:
        time_ms, offset = await _latest_time(shard, key, row)
    elif wanted < 0:
        return Listed(index, Code.UNSUPPORTED_VERSION)
    else:
        time_ms, offset = await _by_time(shard, key, row, wanted)
    epoch = LEADER_EPOCH if offset >= 0 else -1
    return Listed(index, Code.NONE, time_ms, offset, epoch)


async def _by_time(shard: Shard, key: PartitionKey, row: Partition, wanted: int) -> tuple[int, int]:
    """(timestamp, offset) of the first record at or after a time."""
    start = shard.state.first_batch(key, lambda batch: batch.max_time_through_ms >= wanted)
    if start is None:
        return _UNKNOWN
    offset = start[0]
    while offset < row.next_offset:  # one step, but where older maxima were trimmed away
        for last_offset, batch in _slice(shard, key, offset, row):
            offset = last_offset + 1
            if batch.max_time_ms >= wanted:
                found = await _in_batch(
                    shard, last_offset, batch, row.log_start, lambda time_ms: time_ms >= wanted
                )
                if found is not None:
                    return found
        await checkpoint()
    return _UNKNOWN


def _slice(shard: Shard, key: PartitionKey, offset: int, row: Partition) -> list[tuple[int, Batch]]:
    rows = []
    for entry in shard.state.batches(key, offset, row.next_offset):
        rows.append(entry)
        if len(rows) == _SLICE:
            break
    return rows


async def _latest_time(shard: Shard, key: PartitionKey, row: Partition) -> tuple[int, int]:
    """(timestamp, offset) of the first record with the largest timestamp (KIP-734)."""
    best: tuple[int, Batch] | None = None
    if row.max_time_offset >= row.log_start:
        batch = shard.state.batch_at(key, row.max_time_offset)
        best = None if batch is None else (row.max_time_offset, batch)
    else:  # the record with the largest was trimmed: look at the index of what is left
        offset = row.log_start
        while offset < row.next_offset and (part := _slice(shard, key, offset, row)):
            for last_offset, batch in part:
                offset = last_offset + 1
                if best is None or batch.max_time_ms > best[1].max_time_ms:
                    best = (last_offset, batch)
            await checkpoint()
    if best is None or row.next_offset == row.log_start:
        return _UNKNOWN
    last_offset, batch = best
    latest = batch.max_time_ms
    found = await _in_batch(
        shard, last_offset, batch, row.log_start, lambda time_ms: time_ms == latest
    )
    return found or _UNKNOWN


async def _in_batch(
    shard: Shard, last_offset: int, batch: Batch, log_start: int, wanted: Callable[[int], bool]
) -> tuple[int, int] | None:
    base_offset = last_offset - batch.last_delta

    def search() -> tuple[int, int] | None:
        data = bytearray(batch.length)
        shard.segments.read_into(memoryview(data), batch.segment, batch.position, wait=True)
        try:
            for delta, time_ms in record_times(bytes(data)):
                if base_offset + delta >= log_start and wanted(time_ms):
                    return time_ms, base_offset + delta
        except Malformed:
            # A batch of a broken client, kept as it came: its first offset is the best answer.
            return batch.max_time_ms, max(base_offset, log_start)
        return None

    with shard.segments.pinned({batch.segment}):
        return await to_thread.run_sync(search)


async def for_leader_epoch(worker: Worker, request: Request) -> Mapping[str, Any]:
    """An OffsetForLeaderEpochResponse: there is one epoch, and it ends at the queue's end."""
    topics = []
    for topic in request.body.topics:
        parts = []
        for part in topic.partitions:
            answer: dict[str, Any] = {"partition": part.partition}
            try:
                _, _, row = _find(worker, topic.topic, part.partition)
                _check_epoch(part)
            except KafkaError as error:
                parts.append(answer | {"error_code": error.code})
                continue
            if part.leader_epoch != LEADER_EPOCH:
                answer |= {"error_code": Code.NONE}
            else:
                answer |= {
                    "error_code": Code.NONE,
                    "leader_epoch": LEADER_EPOCH,
                    "end_offset": row.next_offset,
                }
            parts.append(answer)
        topics.append({"topic": topic.topic, "partitions": parts})
    return {"topics": topics}
