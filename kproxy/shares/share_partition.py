"""A share partition while somebody follows it: its window, who waits for records, what is logged.

It is made from the rows when somebody asks for it, and forgotten once nobody follows it and the
rows say all there is to say.
"""

from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from typing import Protocol

from anyio import CapacityLimiter, to_thread

from kproxy.fetching.aborted import AbortedSearch
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.shard.shard import Shard
from kproxy.shares.expiries import Expiries, read_times
from kproxy.shares.taking import EXPIRED, Limits, Stretch
from kproxy.shares.window import Acquired, Pending, Window
from kproxy.store.rocks import Checkpoint
from kproxy.store.segments import Segments
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.batches import NO_TRANSACTION, NOT_SAID, StoredBatch, transaction_of
from kproxy.virtual.rows.shares import SHARE_PARTITIONS
from kproxy.virtual.rows.shares import SharePartition as Row
from kproxy.virtual.types import PartitionKey

_LOOKED_AT_MAX = 500  # batches in one look: some milliseconds
_TIMED_MAX = 50  # batches that are read at once for when their records expire
_COMMITTED_MAX = 4000  # offsets in one, of which it is found what was aborted


class Searching(Exception):
    """An availability that takes another look, once `SharePartition.prepare` is done."""


class Waiter(Protocol):
    """A follower of a share partition, for a member."""

    def woken(self) -> bool:
        """Report news; return whether it looks at once, else somebody else is to be told."""
        ...

    def look_again(self) -> None:
        """Look again: the followed partition is gone, or another by now."""
        ...


class Readable:
    """A look at a share partition: batches with something for a member, and holes between them.

    A hole is a stretch that the look saw to have nothing to be given: nothing lies there any more,
    or all of it was aborted. `cut_short`: there may be more behind what was looked at.
    """

    __slots__ = ("cut_short", "stretches")

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.cut_short = False

    @property
    def batches(self) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        for _, _, batch in self.stretches:
            if batch is not None and batch is not EXPIRED and (not found or found[-1] != batch):
                found.append(batch)
        return found

    def add(self, first: int, last: int, batch: StoredBatch | None) -> None:
        """Add what comes next; holes that touch are one."""
        if batch is None and self.stretches:
            before = self.stretches[-1]
            if before[2] is None and before[1] + 1 == first:
                self.stretches[-1] = before[0], last, None
                return
        self.stretches.append((first, last, batch))

    def cut(self, size_max: int) -> None:
        """Leave out batches that are more bytes than fit; the first one stays whatever its size."""
        size, before = 0, None
        for number, (_, _, batch) in enumerate(self.stretches):
            length = 0 if batch is None or batch == before else batch[3]
            before = before if batch is None or batch is EXPIRED else batch
            if size and size + length > size_max:
                del self.stretches[number:]
                return
            size += length


class AbortedStretch:
    """The aborted transactions of a partition's stretch: by producer (first offset, marker's).

    `read`: by its base offset, the transaction of each batch that was read as its row did not say.
    """

    __slots__ = ("_by_producer", "end", "least", "most", "read", "start")

    def __init__(self, start: int, search: AbortedSearch) -> None:
        self.start, self.end = start, search.end
        self.read: dict[int, int] = {}
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for (producer_id, first), marker in zip(search.found, search.markers, strict=True):
            self._by_producer.setdefault(producer_id, []).append((first, marker))
        self.least = min((first for _, first in search.found), default=search.end)
        self.most = max(search.markers, default=start)

    def has(self, producer_id: int, offset: int) -> bool:
        """Return whether a batch was aborted: a producer's transactions follow one another."""
        mine = self._by_producer.get(producer_id, ())
        at = bisect_right(mine, offset, key=_first_offset) - 1
        return at >= 0 and offset < mine[at][1]


def _transactions(segments: Segments, batches: list[StoredBatch]) -> dict[int, int]:
    """Return the transaction of each batch by its base offset."""
    found, head = {}, bytearray(HEADER_BYTES)
    for base, segment, position, _ in batches:
        segments.read_into(memoryview(head), segment, position, wait=True)
        found[base] = transaction_of(read_header(bytes(head)))
    return found


def _first_offset(one: tuple[int, int]) -> int:
    return one[0]


class SharePartition:
    """One queue partition for one group, in a shard that this worker serves.

    `followers`: how many sessions have it. `due`: when its timer fires, infinity without one.
    """

    __slots__ = (
        "_aborted", "_as_of", "_claim", "_expiries", "_search", "_unread", "as_of_queues", "due",
        "epoch", "expires", "followers", "group", "key", "shard", "waiters", "window",
    )  # fmt: skip

    def __init__(self, shard: Shard, key: PartitionKey, group: str, row: Row) -> None:
        self.shard, self.key, self.group = shard, key, group
        self._claim = shard.claim_offset
        self._as_of: Checkpoint | None = None  # the applied offset when it was found current
        self._search: AbortedSearch | None = None  # that the next look goes on with
        self._aborted: AbortedStretch | None = None
        self._unread: list[StoredBatch] = []  # batches to be read before they can be judged
        self._expiries = Expiries()
        self.expires = False
        """Whether headers of records say when they expire."""
        self.as_of_queues = -1  # changes of queues that there had been when that was looked up
        self.epoch = row.epoch
        states = share_rows.states(shard.state.get, key, group, row.start, row.end)
        self.window = Window(row.start, states)
        self.waiters: dict[Waiter, None] = {}
        self.followers = 0
        self.due = inf

    @property
    def is_current(self) -> bool:
        """Whether it still stands for its row: no reset, deletion or takeover came between."""
        shard = self.shard
        if not shard.serving or shard.claim_offset != self._claim:
            return False
        if shard.applied_through is self._as_of:  # no row has changed since
            return True
        if shard.state.partition(self.key) is None:
            return False
        row = SHARE_PARTITIONS.get(shard.state.get, self.key, self.group)
        if row is None or row.epoch != self.epoch or row.since_ms >= 0:
            return False
        self.window.trim(row.start)
        self._as_of = shard.applied_through
        return True

    @property
    def is_idle(self) -> bool:
        return not self.followers and self.window.idle

    # -- reading

    def readable(
        self, read_committed: bool, window_max: int, records_max: int, now_ms: int = -1
    ) -> Readable | None:
        """Return what is available, as far as one look goes; None if nothing is.

        `now_ms`: for records that expire. Raise Searching: look again, it is not known yet what was
        aborted, or has expired.
        """
        row = self.shard.state.partition(self.key)
        if row is None:
            return None
        window = self.window
        window.trim(row.log_start)
        behind = end = row.last_stable if read_committed else row.next_offset
        at = window.next_available()
        if at >= end or (at >= window.end and not window.has_room(window_max)):
            return None
        aborted: AbortedStretch | None = None
        if read_committed and row.any_aborted:
            aborted = self._aborted_from(at, end)
            end = min(end, aborted.end)
        self._unread.clear()
        self._expiries.unread.clear()
        found = Readable()
        records = 0
        for looked_at, (first, last, batch) in enumerate(self._stretches(at, end), 1):
            if batch is not None:
                if aborted is not None and self._is_aborted(batch, last, aborted):
                    batch = None
                else:
                    records += last - max(first, at) + 1
            if batch is not None and self.expires:
                for stretch in self._expiries.cut(first, last, batch, now_ms):
                    found.add(*stretch)
            else:
                found.add(first, last, batch)
            at = last + 1
            if records >= records_max or looked_at == _LOOKED_AT_MAX:
                break
        if self.unprepared:
            raise Searching
        found.cut_short = at < behind
        return found

    def _stretches(self, at: int, end: int) -> Iterator[Stretch]:
        """Yield batches that begin before `end` and have available records, and holes between.

        `end` may lie within a batch, which is looked at then: a hole is only what was seen as one.
        """
        state, key, window = self.shard.state, self.key, self.window
        while at < end:
            for batch, last in state.stored_spans(key, at, end):
                if batch[0] > at:
                    yield at, batch[0] - 1, None
                at = window.next_available(max(batch[0], at))
                if at > last:  # nothing of it: go on where there is something
                    break
                yield max(batch[0], window.start), last, batch
                at = last + 1
            else:
                if at < end:
                    yield at, end - 1, None
                return

    def _aborted_from(self, start: int, end: int) -> AbortedStretch:
        """Return what was aborted of a stretch from `start` on. Raise Searching.

        Nothing of it changes any more, so it is looked for once.
        """
        known = self._aborted
        if known is not None and known.start <= start < known.end:
            return known
        search = self._search
        if search is None or not search.is_of(self.key, start) or search.end > end:
            search = AbortedSearch(self.key, start, min(end, start + _COMMITTED_MAX))
        if search.look(self.shard.state) < search.end:
            self._search = search
            raise Searching
        self._search = None
        found = self._aborted = AbortedStretch(start, search)
        return found

    def _is_aborted(self, batch: StoredBatch, last: int, aborted: AbortedStretch) -> bool:
        """Return whether a batch was aborted; one whose row does not say is to be read first."""
        base = batch[0]
        if not aborted.least <= base < aborted.most:
            return False
        transaction = aborted.read.get(base)
        if transaction is None:
            row = self.shard.state.batch_at(self.key, last)
            transaction = NO_TRANSACTION if row is None else row.transaction
            if transaction == NOT_SAID:
                self._unread.append(batch)
                return False
        return transaction != NO_TRANSACTION and aborted.has(transaction, base)

    @property
    def unprepared(self) -> bool:
        """Whether `prepare` has something to do."""
        return bool(self._unread or self._expiries.unread)

    async def prepare(self, readers: CapacityLimiter) -> None:
        """Read, on a thread, the headers of batches whose rows do not say what they are part of,
        and when records expire.

        Raise OSError, EOFError.
        """
        unread, self._unread = self._unread, []
        segments, timed = self.shard.segments, self._expiries.unread[:_TIMED_MAX]
        if timed:
            with segments.pinned({segment for _, segment, _, _ in timed}):
                times = await to_thread.run_sync(read_times, segments, timed, limiter=readers)
            self._expiries.add(times)
        with segments.pinned({segment for _, segment, _, _ in unread}):
            found = await to_thread.run_sync(_transactions, segments, unread, limiter=readers)
        if self._aborted is not None:
            self._aborted.read |= found

    def acquire(
        self, member: str, readable: Readable, limits: Limits, deadline: float, number: int
    ) -> Acquired:
        return self.window.acquire(member, readable.stretches, limits, deadline, number)

    @property
    def has_more(self) -> bool:
        """Whether there may be more to be given: what is behind the end, or in the window."""
        row = self.shard.state.partition(self.key)
        return row is not None and self.window.next_available() < row.next_offset

    # -- waiting

    def changed(self, key: PartitionKey) -> None:
        """Wake a waiter: either partition may have something new, or is gone."""
        if not self.waiters:
            return
        if self.is_current:
            self.wake_next()
        else:
            self.give_up()

    def give_up(self) -> None:
        """Make all waiters look for what is there now."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter.look_again()

    def wake_next(self) -> None:
        """Let one look who waits: all for one record would cost as much as there are of them."""
        waiters = self.waiters
        while waiters:
            first = next(iter(waiters))
            del waiters[first]
            if first.woken():
                return

    # -- the log

    def settle(self, pending: Pending, backoff: tuple[float, ...], now: float) -> None:
        self.window.settle(pending, backoff, now)
        if self.waiters:
            self.wake_next()

    def take_back(self, pending: Pending, until: float) -> None:
        self.window.take_back(pending, until)
