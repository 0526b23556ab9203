"""The delivery of batches that are due: planned on the loop, made on a thread."""

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from kproxy.delays.schedules import SCHEDULES, schedule_in
from kproxy.delays.splitting import Piece, grouped, parts, waiting_by_key
from kproxy.protocol.batch import BatchHeader, read_header, stamp
from kproxy.protocol.made_batches import batch_of_bodies
from kproxy.protocol.records import bodies, unpacked
from kproxy.shard.shard import Shard
from kproxy.store.segments import Segments
from kproxy.virtual.commands.delays import SCHEDULED_EPOCH, Due
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.delays import WAITING_BATCHES, hidden, waiting_range
from kproxy.virtual.types import PartitionKey

BATCHES_AT_ONCE = 200
"""The batches in one DUE: so many are applied in some milliseconds."""
BYTES_AT_ONCE = 512 << 10
READ_BYTES = 4 << 20
"""The bytes that one turn reads, over all partitions."""
UNPACKED_MAX = 8 << 20
"""The unpacked bytes of batches for one DUE; the first may have more."""


class Plan(NamedTuple):
    """Batches of one partition that are due, in the order in which they are: last offset, row.

    `until_ms`: nothing else is due before.
    """

    key: PartitionKey
    batches: list[tuple[int, Batch]]
    until_ms: int

    @property
    def size(self) -> int:
        return sum(batch.length for _, batch in self.batches)


def plan(
    shard: Shard, key: PartitionKey, from_ms: int, now_ms: int, passed: int = 0,
    most: int | None = None,
) -> Plan:  # fmt: skip
    """Return what is due of a partition of which nothing waits that was due before `from_ms`.

    Nor just then, before the offset `passed`. `most`: batches; None: as many as usual.
    """
    found: list[tuple[int, Batch]] = []
    size, aside = 0, hidden(key)
    most = BATCHES_AT_ONCE if most is None else most
    for row_key, _ in shard.state.kv.walk(*waiting_range(key, from_ms, passed)):
        due_ms, last_offset = WAITING_BATCHES.parts(row_key)[1:]
        if due_ms > now_ms:
            break
        batch = shard.state.batch_at(aside, last_offset)
        if batch is None:
            continue  # its queue is gone, and is being swept
        size += batch.length
        if found and (size > BYTES_AT_ONCE or len(found) >= most):
            return Plan(key, found, due_ms)
        found.append((last_offset, batch))
    return Plan(key, found, now_ms)


class Aside(Exception):
    """A task for a thread: the disk is to be read, or something is to be unpacked."""


def make(
    segments: Segments, plans: Sequence[Plan], now_ms: int, look_ms: Sequence[int], most: int,
    *, wait: bool = True,
) -> list[Envelope | str]:  # fmt: skip
    """Return a DUE for each plan, or for the beginning of it, or why it cannot be made.

    `look_ms`: for each, when to look at its retention. `most`: bytes in one. On a thread, or with
    `wait` false on the loop. Raise Aside.
    """
    made: list[Envelope | str] = []
    for one, look in zip(plans, look_ms, strict=True):
        try:
            made.append(_Delivery(segments, one, now_ms, most, wait=wait).envelope(look))
        except (OSError, ValueError) as error:
            made.append(str(error))
    return made


class _Part(NamedTuple):
    """A batch that is due, or one record of a mixed one."""

    due_ms: int
    batch: bytearray | None
    body: bytes
    codec: int


class _Delivery:
    """A delivery to one partition: what was due first comes first, whichever batches have it."""

    def __init__(
        self, segments: Segments, planned: Plan, now_ms: int, most: int, *, wait: bool
    ) -> None:
        self._planned = planned
        self._most = most
        self._now_ms = now_ms
        self._until_ms = planned.until_ms
        self._removed: list[int] = []
        self._parts: list[_Part] = []
        self._mixed: list[tuple[BatchHeader, bytes]] = []
        self._scheduled: list[bytes] = []
        size, full = 0, min(UNPACKED_MAX, most * 3 // 4)
        for last_offset, batch in planned.batches:
            data = segments.batch(batch.segment, batch.position, batch.length, wait=wait)
            if data is None:
                raise Aside
            head = read_header(memoryview(data))
            if not wait and head.codec and not head.is_log_append_time:
                raise Aside
            records = b"" if head.is_log_append_time else unpacked(bytes(data))
            again = self._again(head, data, batch.max_time_ms)
            size += (len(records) or len(data)) + len(again)
            if self._removed and size > full:  # packed again, they may take as much
                self._until_ms = batch.max_time_ms
                break
            self._removed.append(last_offset)
            if again:
                self._scheduled.append(again)
            if head.is_log_append_time:
                self._parts.append(_Part(batch.max_time_ms, data, b"", 0))
            else:
                self._mixed.append((head, records))

    def envelope(self, look_ms: int) -> Envelope:
        left: list[Piece] = []
        codec = 0
        for head, records in self._mixed:
            codec = codec or head.codec
            for _, due_ms, _, body, _ in bodies(head, records, headers=False):
                if due_ms <= self._until_ms:
                    self._parts.append(_Part(due_ms, None, body, head.codec))
                else:
                    left.append((due_ms, body))
        self._parts.sort(key=itemgetter(0))  # records of one time stay in their order
        now = self._batches()
        size, room = self._planned.size, self._most - sum(map(len, now))
        later = grouped(left, codec, size, room, self._now_ms) if left else []
        return Due.envelope(
            self._planned.key, self._removed, now, [*later, *self._scheduled],
            time_ms=self._now_ms, look_ms=look_ms,
        )  # fmt: skip

    def _again(self, head: BatchHeader, data: bytearray, due_ms: int) -> bytes:
        """Return the batch that waits for the next time of a schedule; empty: it is none.

        One whose schedule cannot be read any more was its last.
        """
        if head.leader_epoch != SCHEDULED_EPOCH:
            return b""
        ((_, _, _, body, headers),) = bodies(head, unpacked(bytes(data)), headers=SCHEDULES)
        try:
            found = schedule_in(headers)
        except ValueError:
            return b""
        next_ms = None if found is None else found.after(due_ms, self._now_ms)
        return b"" if next_ms is None else waiting_by_key(next_ms, body, scheduled=True)

    def _batches(self) -> list[bytes | bytearray]:
        """Return batches as they came; what is between two of them is one."""
        made: list[bytes | bytearray] = []
        run: list[_Part] = []
        for part in (*self._parts, None):
            if part is not None and part.batch is None:
                run.append(part)
                continue
            if run:
                made += self._of_records(run)
                run = []
            if part is not None and part.batch is not None:
                stamp(part.batch, self._now_ms)
                made.append(part.batch)
        return made

    def _of_records(self, run: Sequence[_Part]) -> list[bytes]:
        """Return batches of records, packed if any of the records was."""
        codec = next((one.codec for one in run if one.codec), 0)
        records = [(one.body, self._now_ms) for one in run]
        return [
            batch_of_bodies(records[part.start : part.stop], codec, self._now_ms)
            for part in parts([len(one.body) for one in run], self._most)
        ]
