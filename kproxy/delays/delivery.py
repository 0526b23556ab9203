"""What becomes of batches that are due: planned on the loop, made on a thread."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from kproxy.delays.splitting import cut
from kproxy.protocol.batch import read_header, stamped
from kproxy.shard.shard import Shard
from kproxy.store.segments import Segments
from kproxy.virtual.commands import Due
from kproxy.virtual.delay_rows import hidden, waiting_of, waiting_range
from kproxy.virtual.envelope import Envelope
from kproxy.virtual.rows import Batch
from kproxy.virtual.types import PartitionKey

BATCHES_AT_ONCE = 200
"""In one DUE: so many are applied in some milliseconds."""
BYTES_AT_ONCE = 512 << 10
READ_BYTES = 4 << 20
"""Of all partitions, in one turn."""


class Plan(NamedTuple):
    """Batches of one partition that are due, in the order in which they are: last offset, row."""

    key: PartitionKey
    batches: list[tuple[int, Batch]]

    @property
    def size(self) -> int:
        return sum(batch.length for _, batch in self.batches)


def plan(shard: Shard, key: PartitionKey, from_ms: int, now_ms: int) -> Plan:
    """What is due of a partition of which nothing waits that was due before `from_ms`."""
    found: list[tuple[int, Batch]] = []
    size, aside = 0, hidden(key)
    waiting = shard.state.kv.walk(*waiting_range(key, from_ms))
    for row_key, _ in islice(waiting, BATCHES_AT_ONCE):
        due_ms, last_offset = waiting_of(row_key)
        if due_ms > now_ms:
            break
        batch = shard.state.batch_at(aside, last_offset)
        if batch is None:
            continue  # its queue is gone, and is being swept
        if found and size + batch.length > BYTES_AT_ONCE:
            break
        found.append((last_offset, batch))
        size += batch.length
    return Plan(key, found)


def make(
    segments: Segments, plans: Sequence[Plan], now_ms: int, look_ms: Sequence[int], most: int
) -> list[Envelope]:
    """A DUE for each plan; where the next batch is mixed, it ends before it, or has it alone.

    `look_ms`: for each, when to look at its retention. `most`: bytes in one. On a thread. Raises
    OSError, EOFError.
    """
    return [
        _due(segments, plan, now_ms, look, most) for plan, look in zip(plans, look_ms, strict=True)
    ]


def _due(segments: Segments, plan: Plan, now_ms: int, look_ms: int, most: int) -> Envelope:
    removed: list[int] = []
    now: list[bytes] = []
    later: list[bytes] = []
    for last_offset, batch in plan.batches:
        data = memoryview(bytearray(batch.length))
        segments.read_into(data, batch.segment, batch.position, True)
        head = read_header(data)
        if not head.is_log_append_time:
            if removed:
                break
            ready, later = cut(head, bytes(data), now_ms, most)
            return Due.envelope(
                plan.key, [last_offset], [ready], later, time_ms=now_ms, look_ms=look_ms
            )
        removed.append(last_offset)
        now.append(stamped(data, now_ms))
    return Due.envelope(plan.key, removed, now, time_ms=now_ms, look_ms=look_ms)
