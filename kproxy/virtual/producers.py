"""Idempotent producers: is a batch next in sequence, a duplicate, or out of order?

Rules: Kafka's `ProducerStateManager` and `ProducerAppendInfo` (KIP-98, KIP-360). Each partition
remembers the last five batches of a producer. A producer that is not remembered may start
anywhere.

A partition's row has the few producers that came last; other producers have rows of their own. So
an append costs the same whether a queue has one producer or those of a million devices.

Producers with rows of their own are remembered for a time: FORGET_PRODUCERS names the ones that
were not used for long (`shard.producer_expiry`). A batch without a time was written below level 8.
It is folded as releases of then did: a partition's row has those used last; beside them so many are
remembered, and those are forgotten first whose last offset is lowest.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from kproxy.common.errors import Code
from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.producers import (
    BatchMetadata,
    ProducerState,
    decode_producer,
    producer_cleared,
    producer_id_of,
    producer_newest,
    producer_start,
    producer_with,
    used_ms_of,
    with_time,
    without_time,
)
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import OPEN_TRANSACTIONS
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

PRODUCERS_INLINE = 4  # in a partition's row, those used last: what an append writes is bounded
PRODUCERS_REMEMBERED = 1000  # beside those, where they are not remembered by time
_SEQUENCE_MAX = 0x7FFFFFFF
_FORGOTTEN_AT_ONCE = 100  # to find those idle longest, all are looked at


def last_sequence(header: BatchHeader) -> int:
    """Return the sequence of a batch's last record; sequences wrap from 2^31-1 to 0."""
    return (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MAX


def find(state: State, key: PartitionKey, row: Partition, producer_id: int) -> bytes | None:
    """Return what a partition remembers of a producer."""
    if row.producers:
        start = producer_start(producer_id)
        for data in reversed(row.producers):
            if data.startswith(start):
                return data
    spilled = state.producer(rows.producer_key(*key, producer_id)) if row.spilled else None
    return None if spilled is None else without_time(spilled)


def judge(
    known: bytes | None, header: BatchHeader, row: Partition, time_ms: int
) -> Code | BatchMetadata | None:
    """Return an error code, the batch that this one repeats, or None if it is next in sequence.

    `known`: what is remembered of its producer. `time_ms`: as in `remember`. POLICY_VIOLATION: the
    partition's row cannot count one more.
    """
    if known is None:
        most = rows.SPILLED_MAX_BY_TIME if row.by_time or time_ms else rows.SPILLED_MAX
        full = row.spilled + len(row.producers) >= most
        return Code.POLICY_VIOLATION if full else None
    epoch, newest = producer_newest(known)
    if header.producer_epoch < epoch:
        return Code.INVALID_PRODUCER_EPOCH
    if header.producer_epoch > epoch:
        return None if header.base_sequence == 0 else Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    if header.base_sequence == (newest + 1) & _SEQUENCE_MAX:
        return None
    return _batch_of(known, header) or Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def repeated(known: bytes | None, header: BatchHeader) -> BatchMetadata | None:
    """Return the batch that this one repeats, as `judge` finds it.

    Batches that come before this one may be on their way still: one that is ahead of all that are
    remembered repeats none, and that is nearly every one.
    """
    if known is None:
        return None
    epoch, newest = producer_newest(known)
    ahead = (header.base_sequence - newest - 1) & _SEQUENCE_MAX
    if header.producer_epoch != epoch or ahead <= _SEQUENCE_MAX // 2:
        return None
    return _batch_of(known, header)


def _batch_of(known: bytes, header: BatchHeader) -> BatchMetadata | None:
    last = last_sequence(header)
    for sent in decode_producer(known).batches:
        if sent.last_sequence == last and sent.last_delta == header.last_offset_delta:
            return sent
    return None


def remember(
    state: State, key: PartitionKey, row: Partition, known: bytes | None, header: BatchHeader,
    base_offset: int, time_ms: int,
) -> None:  # fmt: skip
    """Note an accepted batch. `row` is still to be put.

    `time_ms`: when it came, 0 in what was written below level 8. From the first time on a partition
    remembers by it: a producer that has a row of its own keeps that, and a new one takes the place
    of the one in the partition's row that was used before the others there.
    """
    producer_id = header.producer_id
    sent = last_sequence(header), header.last_offset_delta, base_offset, header.max_timestamp
    newest = producer_with(known, producer_id, header.producer_epoch, sent)
    others = row.producers
    if others and others[-1] is known:
        others = others[:-1]
    elif known in others:
        others = tuple(data for data in others if data is not known)
    elif known is not None:
        own_key = rows.producer_key(*key, producer_id)
        if row.by_time and time_ms:
            state.put_producer(own_key, with_time(newest, time_ms))
            return
        state.put_producer(own_key, None)
        row.spilled -= 1
    while len(others) >= PRODUCERS_INLINE:  # more than once: the row is of an earlier kproxy
        spilled_key = rows.producer_key(*key, producer_id_of(others[0]))
        state.put_producer(spilled_key, with_time(others[0], time_ms))
        row.spilled += 1
        others = others[1:]
    row.producers = (*others, newest)
    if row.spilled:
        if time_ms and not row.by_time:
            row.by_time = True
            state.file(rows.producers_due_key(time_ms, key))
    else:
        row.by_time = False
    if known is None and not row.by_time:
        over = row.spilled - PRODUCERS_REMEMBERED - _FORGOTTEN_AT_ONCE
        if over >= 0 and not over % _FORGOTTEN_AT_ONCE:
            _forget_idlest(state, key, row)


def fence(
    state: State, key: PartitionKey, row: Partition, producer_id: int, epoch: int, time_ms: int
) -> None:
    """Fence a producer at a marker of a transaction: a higher epoch clears the sequences.

    `row` is still to be put. `time_ms`: when it came.
    """
    known = find(state, key, row, producer_id)
    if known is None or producer_newest(known)[0] >= epoch:
        return
    cleared = producer_cleared(producer_id, epoch)
    if known in row.producers:
        row.producers = tuple(cleared if data is known else data for data in row.producers)
    else:
        state.put_producer(
            rows.producer_key(*key, producer_id), with_time(cleared, time_ms if row.by_time else 0)
        )


def forget(
    state: State, key: PartitionKey, row: Partition, named: Sequence[tuple[int, int]]
) -> int:
    """Forget producers, as (id, time it was used), that were not used since; how many those are.

    Keep those with open transactions: a retry must be known.
    """
    forgotten = 0
    for producer_id, used_ms in named:
        data = state.get(producer_key := rows.producer_key(*key, producer_id))
        if data is None or used_ms_of(data) != used_ms:
            continue
        if row.first_open >= 0 and state.get(OPEN_TRANSACTIONS.key(key, producer_id)):
            continue
        state.put_producer(producer_key, None)
        forgotten += 1
    if forgotten:
        row.spilled -= forgotten
        row.by_time = row.by_time and row.spilled > 0
        state.put_quietly(key, row)
    return forgotten


def _forget_idlest(state: State, key: PartitionKey, row: Partition) -> None:
    by_use = sorted(
        state.scan(*rows.producers_range(*key)),
        key=lambda found: decode_producer(without_time(found[1])).newest.base_offset,
    )
    if row.first_open >= 0:  # an open producer is not forgotten: a retry must be known
        by_use = [
            found for found in by_use
            if state.get(OPEN_TRANSACTIONS.key(key, producer_id_of(found[1]))) is None
        ]  # fmt: skip
    idle = by_use[:_FORGOTTEN_AT_ONCE]
    for producer_key, _ in idle:
        state.put_producer(producer_key, None)
    row.spilled -= len(idle)
    state.forgotten_early += len(idle)


def remembered(
    state: State, key: PartitionKey, row: Partition
) -> Iterator[tuple[int, ProducerState]]:
    """Yield (producer id, producer) of all that a partition remembers, as it was at the beginning.

    For readers between two writes.
    """
    spilled = iter(state.kv.scan(*rows.producers_range(*key)) if row.spilled else ())
    first = next(spilled, None)  # the scan begins with the row
    for data in row.producers:
        yield producer_id_of(data), decode_producer(data)
    for _, data in () if first is None else chain((first,), spilled):
        yield producer_id_of(data), decode_producer(without_time(data))
