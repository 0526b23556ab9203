"""The appends of a Produce to a queue with delays: a batch that waits, or a refusal."""

from kproxy.common.errors import Code
from kproxy.delays.splitting import Split
from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.handlers.produce.conditions import Conditional
from kproxy.metadata.delay_settings import RECORDS_MAX
from kproxy.metadata.queue_settings import QueueSettings
from kproxy.protocol.batch import TRANSACTIONAL, BadBatch, BatchHeader, Records, stamp, stamped
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.delays import Later, key_of
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.folds.delays import waiting_of
from kproxy.virtual.levels import PRODUCERS_FROM
from kproxy.virtual.rows.delays import digest_of, waiting_in
from kproxy.virtual.types import PartitionKey


def waits(settings: QueueSettings, header: BatchHeader, said: Split | Conditional | None) -> bool:
    """Return whether any record of a batch waits. Raise BadBatch: a transaction's must not."""
    assert settings.delay is not None
    found = said.waits if isinstance(said, Split) else settings.delay.fixed_ms > 0
    if found and header.attributes & TRANSACTIONAL:
        raise BadBatch(
            Code.INVALID_RECORD,
            "a record of a transaction cannot wait: send it without one, or without a delay",
        )
    return found


def _lack_room(
    shard: Shard, key: PartitionKey, records: int, split: Split | None, most: int
) -> bool:
    """Return whether too many would wait: those that they replace, or cancel, need no room."""
    over = waiting_in(shard.state.get, key).records + records - most
    if over <= 0:
        return False
    if split is None or split.gone is None:
        return True
    keys = {digest for digest, _ in split.gone}
    keys.update(digest_of(key_of(one) or b"") for one in split.later)
    replaced = sum(waiting_of(shard.state, key, one) is not None for one in keys)
    return replaced < min(over, records)


def later(
    worker: ProduceNeeds, shard: Shard, key: PartitionKey, settings: QueueSettings,
    batch: Records, header: BatchHeader, said: Split | Conditional | None, now_ms: int,
    look_ms: int,
) -> Envelope:  # fmt: skip
    """Return a LATER. Raise BadBatch: too much waits."""
    delay = settings.delay
    assert delay is not None
    split = said if isinstance(said, Split) else None
    records = header.record_count if split is None else split.waiting
    if records and _lack_room(shard, key, records, split, delay.records_max):
        what = f"{delay.records_max} records of this partition may wait, no more ({RECORDS_MAX})"
        raise BadBatch(Code.POLICY_VIOLATION, what)
    size = len(batch) if split is None else len(split.now) + sum(map(len, split.later))
    if size > worker.delays.batch_bytes_max:
        what = f"{size} bytes are too many to wait, {worker.delays.batch_bytes_max} is the most"
        raise BadBatch(Code.MESSAGE_TOO_LARGE, what)
    by_time = worker.level.reaches(PRODUCERS_FROM)
    if split is None:
        due_ms = worker.delays.due_ms(shard, key, delay.fixed_ms, now_ms)
        whole = bytearray(batch)
        stamp(whole, due_ms)
        return Later.envelope(
            key, [whole], delay_ms=delay.fixed_ms, time_ms=now_ms, look_ms=look_ms,
            by_time=by_time,
        )  # fmt: skip
    stamps = bool(split.now) and settings.demands.log_append_time
    now = stamped(split.now, now_ms) if stamps else split.now
    return Later.envelope(
        key, split.later, now=now, split=split.header_bytes, time_ms=now_ms, look_ms=look_ms,
        by_time=by_time, gone=split.gone,
    )  # fmt: skip
