"""A share partition while somebody follows it: its window, who waits for records, what is logged.

It is made from the rows when somebody asks for it, and forgotten once nobody follows it and the
rows say all there is to say.
"""

from collections.abc import Iterator
from math import inf
from typing import Protocol

from anyio import CapacityLimiter, to_thread

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.aborted import AbortedSearch
from kproxy.metadata.group_settings import GroupSettings
from kproxy.shard.shard import Shard
from kproxy.shares.aborted_stretch import AbortedStretch, transactions_of
from kproxy.shares.expiries import Expiries, read_times
from kproxy.shares.lanes.cutting import Span
from kproxy.shares.lanes.lane_window import LaneWindow
from kproxy.shares.lanes.share_lanes import LaneMemory, ShareLanes
from kproxy.shares.readable import Readable
from kproxy.shares.taking import Limits, Range, Stretch
from kproxy.shares.window import WINDOW_MAX, Acquired, Pending
from kproxy.store.rocks import Checkpoint
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.batches import NO_TRANSACTION, NOT_SAID, StoredBatch
from kproxy.virtual.rows.shares import SHARE_PARTITIONS, freed_key
from kproxy.virtual.rows.shares import SharePartition as Row
from kproxy.virtual.types import PartitionKey

_ANY = 1 << 62
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


class SharePartition:
    """One queue partition for one group, in a shard that this worker serves.

    `followers`: how many sessions have it. `due`: when its timer fires, infinity without one.
    """

    __slots__ = (
        "_aborted", "_as_of", "_claim", "_expiries", "_look_end", "_search", "_unread",
        "as_of_queues", "due", "epoch", "expires", "followers", "group", "key", "lanes", "shard",
        "waiters", "window",
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
        self.window = LaneWindow(row.start, states)
        self.lanes: ShareLanes | None = None
        self._look_end = -1  # up to which lanes are to be looked for before it can be said
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
        aborted, or has expired; KafkaError: the first batch is damaged.
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
        self._expiries.begin()
        found = Readable()
        records, damage = 0, self.shard.segments.damage
        for looked_at, (first, last, batch) in enumerate(self._stretches(at, end), 1):
            if batch is not None:
                if damage.seen and damage.at(batch[1], batch[2]):
                    if not found.stretches:
                        raise KafkaError(Code.CORRUPT_MESSAGE, "the next batch is damaged")
                    break
                if aborted is not None and self._is_aborted(batch, last, aborted):
                    batch = None
                else:
                    records += last - max(first, at) + 1
            if batch is not None and self.expires:
                upto = min(last, window.next_available(first) + WINDOW_MAX - 1)
                for stretch in self._expiries.cut(first, upto, batch, now_ms):
                    found.add(*stretch)
                if upto < last:  # the next look goes on in this very large batch
                    at = upto + 1
                    break
            else:
                found.add(first, last, batch)
            at = last + 1
            if records >= records_max or looked_at == _LOOKED_AT_MAX:
                break
        if self.unprepared:
            raise Searching
        self._expiries.settle()
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
        return bool(self._unread or self._expiries.unread) or self._look_end >= 0

    async def prepare(self, readers: CapacityLimiter) -> None:
        """Read, on a thread, the headers of batches whose rows do not say what they are part of,
        and when records expire; or the lanes of records.

        Raise OSError.
        """
        if self.lanes is not None and self._look_end >= 0:
            end, self._look_end = self._look_end, -1
            await self.lanes.scan(end, readers)
            return
        unread, self._unread = self._unread, []
        segments, timed = self.shard.segments, self._expiries.unread[:_TIMED_MAX]
        if timed:
            with segments.pinned({batch[1] for batch, _ in timed}):
                times = await to_thread.run_sync(read_times, segments, timed, limiter=readers)
            self._expiries.add(times)
        with segments.pinned({segment for _, segment, _, _ in unread}):
            found = await to_thread.run_sync(transactions_of, segments, unread, limiter=readers)
        if self._aborted is not None:
            self._aborted.read |= found

    def acquire(
        self, member: str, readable: Readable, limits: Limits, deadline: float, number: int
    ) -> Acquired:
        return self.window.acquire(member, readable.stretches, limits, deadline, number)

    @property
    def has_more(self) -> bool:
        """Whether there may be more to be given: what is behind the end, or in the window."""
        if self.lanes is not None:
            return self.lanes.index.is_ready or bool(self.window.holes)
        row = self.shard.state.partition(self.key)
        return row is not None and self.window.next_available() < row.next_offset

    # -- lanes

    def use_lanes(self, settings: GroupSettings, memory: LaneMemory) -> ShareLanes | None:
        """Return the lanes as the group has them now; None: it has none."""
        lanes, rules = self.lanes, settings.lanes
        if lanes is None and rules is None:
            return None
        if lanes is not None:
            if lanes.is_by(rules, settings.read_committed, self.expires):
                return lanes
            self.leave_lanes()
        if rules is not None:
            self.lanes = ShareLanes(
                self.shard, self.key, self.group, self.window, rules, settings.read_committed,
                memory, self.epoch, self.expires, lanes,
            )  # fmt: skip
            if rules.holds:
                self.shard.watchers.add(freed_key(self.key), self)
        return self.lanes

    def leave_lanes(self) -> None:
        if self.lanes is not None:
            self.lanes.close()
            self.shard.watchers.discard(freed_key(self.key), self)
            self.lanes = None
            self.window.leave_lanes()
            self._look_end = -1

    def look_by_lane(
        self, lanes: ShareLanes, goals: "dict[SharePartition, int]", held_max: int = _ANY
    ) -> bool:
        """Return whether there may be records whose turn it is, or holes to be archived.

        None may while members hold `held_max`.

        `goals`: up to which offset who asks wants to have looked; what comes later can wait. Raise
        Searching: there is more to be looked at; KafkaError: the next batch is damaged.
        """
        row = self.shard.state.partition(self.key)
        if row is None:
            return False
        self.window.trim(row.log_start)
        index = lanes.index
        if not (lanes.hold_again() and index.clean()):
            raise Searching
        end = lanes.end_of_look(row.last_stable if lanes.committed else row.next_offset)
        goal = min(goals.setdefault(self, end), end)
        ready = index.is_ready or bool(self.window.holes)
        if index.end >= goal and lanes.is_sure and (ready or index.end >= end):
            return bool(self.window.holes) or (ready and self.window.held < held_max)
        if index.end >= end and not lanes.is_sure_now():
            return False  # some of what is held lies behind all that may be read
        if lanes.is_damaged(end):
            if not ready:
                raise KafkaError(Code.CORRUPT_MESSAGE, "the next batch is damaged")
            return True
        aborted: AbortedStretch | None = None
        if lanes.committed and row.any_aborted:
            aborted = self._aborted_from(index.end, end)
            end = min(end, aborted.end)
        lanes.plan(aborted)
        if not lanes.scan_at_once(end):
            self._look_end = end
        raise Searching

    def spans_of(self, ranges: list[Range], lanes: ShareLanes) -> list[Span]:
        """Return the batches that have any of the records of ascending ranges."""
        found: list[Span] = []
        state, ends = self.shard.state, lanes.ends
        end = 0
        for first, last, _ in ranges:
            while (end := max(first, end)) <= last:
                span = ends.span_of(state.get, self.key, end)
                if span is None:  # it lies elsewhere by now, or was never noted
                    some = list(state.stored_spans(self.key, end, last + 1))
                    found += some
                    end = max(last + 1, some[-1][1] + 1 if some else 0)
                    break
                found.append(span)
                end = span[1] + 1
        return found

    # -- waiting

    def changed(self, key: PartitionKey) -> None:
        """Wake a waiter: there may be something new, or either partition is gone."""
        if self.lanes is not None and key != self.key:
            self.lanes.is_stale = True
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
