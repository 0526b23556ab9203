"""The reading of a batch's records before it is appended, for queues whose settings ask for it.

These are compacted queues (each record needs a key), queues with a bound on how old a timestamp may
be, queues with a compression of their own, and queues whose records may say when they are due or
on what condition they are appended. An entrance asks for a look at batches that may hold a larger
record than a route passes on, `max.decompressed.message.bytes` at what may unpack to more. Rules,
codes and messages follow Kafka's `LogValidator`. All others are appended as they came: nobody looks
inside.
"""

from anyio import to_thread

from kproxy.common.errors import Code
from kproxy.delays.schedules import CRON
from kproxy.delays.splitting import Split, split
from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.handlers.produce.conditions import Conditional, condition
from kproxy.loop.asking import counted
from kproxy.metadata.delay_settings import MODE
from kproxy.metadata.demands import Demands, Fault
from kproxy.metadata.queue_settings import CONDITION, QueueSettings, settings_of
from kproxy.protocol.batch import HEADER_BYTES, BadBatch, BatchHeader, Records, check, read_header
from kproxy.protocol.codecs import TooLarge, unpacked_most
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.protocol.record_runs import RECORD_BYTES_MAX, body_runs
from kproxy.protocol.records import (
    INSPECTED_BYTES_MAX,
    Body,
    keyed_records,
    repacked,
    unpacked,
)
from kproxy.protocol.varint import Malformed, varlong
from kproxy.routes.cutting import RECORD_MAX
from kproxy.virtual.folds.route_definitions import TO
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request

Found = Records | Split | Conditional
"""A batch as it is appended, and what its records say of that."""
Inspected = dict[PartitionKey, Found | BadBatch]
"""The batches to append in the place of what came, or why nothing is."""

_AT_ONCE_BYTES = 4096  # uncompressed: a millisecond
_READ_AT_ONCE_BYTES = 32_768  # in a request, if only headers are looked for
_TOLD_MAX = 3
_BLAMED_MAX = 1000


async def inspect(worker: ProduceNeeds, request: Request, body: ProduceRequest) -> Inspected:
    """Inspect all batches of a Produce that are for such queues."""
    found: Inspected = {}
    bytes_max = worker.batch_limits.of
    for topic, partitions in body.topics:
        await request.budget.step()
        queue = _queue(worker, topic)
        settings = None if queue is None else settings_of(queue.configs)
        if queue is None or settings is None:
            continue
        for index, records in partitions:
            if not (settings.inspects or may_be_too_large(settings, records)):
                continue
            key = (queue.queue_id, index)
            try:
                header = check(records, bytes_max(settings), request.version)
                assert records is not None
                packs = header.codec or settings.demands.codec is not None
                if not packs and len(records) <= _AT_ONCE_BYTES:
                    found[key] = _inspected(worker, queue, index, settings, records)
                else:
                    found[key] = await _aside(worker, queue, index, settings, records)
            except BadBatch as error:
                found[key] = error
            await request.budget.step()
    return found


def read_at_once(
    worker: ProduceNeeds, settings: QueueSettings, records: Records | None, version: int
) -> Split | Conditional | None:
    """Return what the records of a small batch say; None: nothing. Raise BadBatch."""
    header = check(records, worker.batch_limits.of(settings), version)
    delay = settings.delay
    assert records is not None
    try:
        data = unpacked(records)
        if settings.conditional:
            return condition(records, header, data)
        assert delay is not None
        return split(header, records, data, delay, worker.now_ms(), worker.delays.batch_bytes_max)
    except Malformed as error:
        raise BadBatch(Code.CORRUPT_MESSAGE, str(error)) from error


def is_read_at_once(settings: QueueSettings, records: Records | None, read: int) -> bool:
    """Return whether a batch is small, and only headers of its records are looked for.

    `read`: the bytes that were read at once of others of its request.
    """
    if settings.demands.of_records or not records or len(records) < HEADER_BYTES:
        return False
    size = len(records)
    if read + size > _READ_AT_ONCE_BYTES or read_header(records).codec:
        return False
    delay = settings.delay
    schedules = size > _AT_ONCE_BYTES and delay is not None and delay.by_header and delay.by_key
    return not schedules or CRON not in bytes(records)  # a line takes 0.2 ms


def may_be_too_large(settings: QueueSettings, records: Records | None) -> bool:
    """Return whether a batch may hold a record that no route takes, or that unpacks to too much."""
    if not settings.bounds_records or not records or len(records) < HEADER_BYTES:
        return False
    head, routed = read_header(records), settings.route_lag_max is not None
    if not head.codec:
        return routed and len(records) > RECORD_MAX
    most = min(settings.unpacked_record_max, RECORD_MAX if routed else RECORD_BYTES_MAX)
    return unpacked_most(bytes(records[HEADER_BYTES:]), head.codec) > most


def _check_sizes(settings: QueueSettings, header: BatchHeader, records: Records) -> None:
    """Raise BadBatch: a record is larger than a route passes on, or than may be unpacked.

    TooLarge: there are too many.
    """
    routed = settings.route_lag_max is not None
    most = settings.unpacked_record_max if header.codec else RECORD_BYTES_MAX
    try:
        for run in body_runs(header, records, headers=False):
            if most < RECORD_BYTES_MAX and any(_size(header, one) > most for one in run):
                raise BadBatch(Code.INVALID_RECORD, f"a record unpacks to more than {most} bytes")
            size = max(len(body) or RECORD_MAX + 1 for _, _, _, body, _ in run)
            if routed and size > RECORD_MAX:
                raise BadBatch(
                    Code.MESSAGE_TOO_LARGE,
                    f"a record has more than {RECORD_MAX} bytes: a queue with {TO} passes on no"
                    " larger ones",
                )
    except TooLarge:
        raise
    except Malformed:
        return  # it goes to the unroutable ones as it is


def _size(header: BatchHeader, record: Body) -> int:
    """Return the bytes of a record behind its length, as Kafka counts them."""
    delta, time_ms, _, body, _ = record
    if not body:
        return RECORD_BYTES_MAX + 1
    since_ms = 0 if header.is_log_append_time else time_ms - header.base_timestamp
    return 1 + len(varlong(since_ms)) + len(varlong(delta)) + len(body)


def _queue(worker: ProduceNeeds, topic: str | bytes) -> Queue | None:
    if isinstance(topic, bytes):
        return worker.catalogue.find_id(QueueId(topic))
    return worker.catalogue.find(topic)


async def _aside(
    worker: ProduceNeeds, queue: Queue, index: int, settings: QueueSettings, records: Records
) -> Found:
    """Inspect on a thread, of which there are few, and with memory for what it unpacks to."""
    memory, size = worker.answer_memory.mine(), 2 * max(INSPECTED_BYTES_MAX, len(records))
    await memory.wait_for_room()
    async with worker.searchers:
        memory.take(size)
        try:
            work = counted(_inspected)
            return await to_thread.run_sync(work, worker, queue, index, settings, records)
        finally:
            memory.give_back(size)


def _inspected(
    worker: ProduceNeeds, queue: Queue, index: int, settings: QueueSettings, records: Records
) -> Found:
    """Return a batch as it is appended. Raise BadBatch."""
    header, now_ms = read_header(records), worker.now_ms()
    try:
        if may_be_too_large(settings, records):
            _check_sizes(settings, header, records)
        if not settings.inspects:
            return records
        data = unpacked(records)
        checked = records
        if settings.demands.of_records:
            checked = _checked(now_ms, queue, index, settings.demands, records, header, data)
        if settings.conditional:
            return condition(checked, header, data) or checked
        delay = settings.delay
        if delay is None or not (delay.by_header or delay.by_key):
            return checked
        most = worker.delays.batch_bytes_max
        return split(read_header(checked), checked, data, delay, now_ms, most) or checked
    except TooLarge as error:
        what = f"{error}, and the queue's {_asking(settings)} needs a look at each of them"
        raise BadBatch(Code.MESSAGE_TOO_LARGE, what) from error
    except Malformed as error:
        raise BadBatch(Code.CORRUPT_MESSAGE, str(error)) from error


def _asking(settings: QueueSettings) -> str:
    """Return the name of the setting for which records are looked at."""
    if settings.compacted:
        return "cleanup.policy"
    if settings.demands.codec is not None:
        return "compression.type"
    if settings.demands.of_records:
        return "message.timestamp.before.max.ms"
    if settings.conditional:
        return CONDITION
    return TO if settings.delay is None else MODE


def _checked(
    now_ms: int, queue: Queue, index: int, demands: Demands, records: Records,
    header: BatchHeader, data: bytes,
) -> Records:  # fmt: skip
    """Return the records as they are stored. Raise BadBatch, Malformed."""
    blamed: list[tuple[int, str]] = []
    code = Code.INVALID_RECORD
    for number, record in enumerate(keyed_records(header, data)):
        if len(blamed) >= _BLAMED_MAX:
            continue
        fault = demands.fault_of(record.key, record.time_ms, now_ms)
        if fault is Fault.NO_KEY:
            blamed.append(
                (number, "Compacted topic cannot accept message without key in topic partition"
                 f" {queue.name}-{index}.")
            )  # fmt: skip
        elif fault is Fault.TIME:
            blamed.append((number, _mistimed(number, record.time_ms, now_ms, demands)))
            code = Code.INVALID_TIMESTAMP
    if blamed:
        raise BadBatch(code, _told(blamed), blamed)
    if demands.codec is None or demands.codec == header.codec:
        return records
    packed = repacked(header, data, demands.codec, demands.compression_level)
    if demands.bytes_max is not None and len(packed) > demands.bytes_max:
        raise BadBatch(
            Code.MESSAGE_TOO_LARGE,
            f"the record batch has {len(packed)} bytes once it is packed as compression.type says",
        )
    return packed


def _mistimed(number: int, time_ms: int, now_ms: int, demands: Demands) -> str:
    least = now_ms - demands.before_max_ms
    most = now_ms + demands.after_max_ms
    return (
        f"Timestamp {time_ms} of message with offset {number} is out of range. The timestamp"
        f" should be within [{least}, {most}]"
    )


def _told(blamed: list[tuple[int, str]]) -> str:
    told = ", ".join(message for _, message in blamed[:_TOLD_MAX])
    return (
        f"One or more records have been rejected due to {len(blamed)} record errors in total, and"
        f" only showing the first three errors at most: [{told}]"
    )
