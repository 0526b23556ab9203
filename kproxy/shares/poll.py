"""A ShareFetch's poll: acquires what is available for a member, and waits while nothing is.

Records are acquired in one turn of the loop. Records that were delivered before are given once the
log has how often: a record that kills its readers is not given for ever.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.poll import NextRequest, Source
from kproxy.fetching.streamed_response import Pins, Stored
from kproxy.loop.pace import Pace
from kproxy.metadata.group_settings import GroupSettings
from kproxy.metadata.queue_settings import settings_of
from kproxy.shares.lanes.cutting import pieces_of
from kproxy.shares.lanes.scattered import Scattered
from kproxy.shares.lanes.share_lanes import ShareLanes
from kproxy.shares.readable import Readable
from kproxy.shares.sessions import Followed, Ident, ShareSession, ShareSessions
from kproxy.shares.share_partition import Searching, SharePartition
from kproxy.shares.share_partitions import Logged, PartitionChange, SharePartitions, codes_once_done
from kproxy.shares.taking import Limits, Range
from kproxy.shares.window import WINDOW_MAX

_FOUND_MAX = 1000  # partitions with records in an answer
_PATIENT_S = 5.0  # a look lasts, beyond what the client waits for; the next poll goes on with it


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """The limits that the request sets: bytes, records, seconds."""

    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    exact: bool
    max_wait_s: float


class Found(NamedTuple):
    """One partition's part of an answer: an error, or records and who holds them."""

    ident: Ident
    code: Code = Code.NONE
    message: str | None = None
    ranges: list[Range] = []  # noqa: RUF012 - never changed in place
    stored: Stored | None = None
    size: int = 0
    cut: Sequence[bytes | Stored] = ()
    """The records, where some are cut out of their batches, and others are not."""


@dataclass(slots=True)
class _Round:
    """The findings of one round over the partitions."""

    found: list[Found] = field(default_factory=list)
    news: bool = False  # an error that the client does not know of
    unlogged: list[PartitionChange] = field(default_factory=list)
    logged: list[Logged] = field(default_factory=list)
    places: dict[int, tuple[int, Followed]] = field(default_factory=dict)
    """The places in `found` of what was delivered before, by the change that says so."""
    cuts: list[tuple[int, Followed, Scattered]] = field(default_factory=list)
    """The places in `found` of records that are to be cut out of their batches."""
    bytes_left: int = 0
    records_left: int = 0
    again: bool = False


class SharePoll:
    """One ShareFetch's poll of a session. `pins` keeps readable what it returns."""

    def __init__(
        self, source: Source, shares: SharePartitions, sessions: ShareSessions,
        session: ShareSession, limits: ShareLimits, pace: Pace, pins: Pins,
        unreadable: Callable[[str | bytes], Code] | None = None,
    ) -> None:  # fmt: skip
        """Begin a poll; `unreadable`: why the client may not read a queue, by id; or NONE."""
        self._unreadable = unreadable
        self._source = source
        self._shares = shares
        self._sessions = sessions
        self._session = session
        self._limits = limits
        self._pace = pace
        self._pins = pins
        self.settings: GroupSettings  # as of the last round
        self._changed: anyio.Event | None = None  # while it waits
        self._told = False
        self._errors: list[Found] = []
        self._goals: dict[SharePartition, int] = {}  # up to where lanes are looked for first
        self._late_at = shares.now() + max(limits.max_wait_s, _PATIENT_S)

    async def run(self, next_request: NextRequest) -> list[Found]:
        """Poll and return the partitions' parts of the answer."""
        session, source, now = self._session, self._source, self._shares.now
        deadline = now() + self._limits.max_wait_s
        self.settings = self._shares.settings(session.group)
        session.look_again(self.settings)
        session.waiting.add(self)
        try:
            while True:
                await source.answer_memory.wait_for_room()
                self._told = False
                self.settings = self._shares.settings(session.group)
                if self._limits.min_bytes > 1:
                    left = deadline - now()
                    if left > 0 and await self._too_little() and not source.stopping:
                        session.gathering += 1
                        try:
                            await self._wait(next_request, left)
                        finally:
                            session.gathering -= 1
                        if not next_request.arrived:
                            continue
                seen = await self._round()
                if seen.found or seen.news:
                    given = await self._cut_out(seen, await self._given(seen))
                    if given or self._errors:
                        return [*given, *self._errors]
                    continue
                if seen.again and not self._is_late():
                    await self._pace.rest()
                    continue
                left = deadline - now()
                if source.stopping or next_request.arrived or session.ended or left <= 0:
                    return self._errors
                if session.dirty:
                    await self._pace.rest()
                else:
                    await self._wait(next_request, left)
        finally:
            session.waiting.discard(self)
            self._pass_on()

    def _is_late(self) -> bool:
        """Return whether the client has waited for long enough; first what is ready is given."""
        if self._shares.now() < self._late_at:
            return False
        goals, self._goals = self._goals, dict.fromkeys(self._goals, 0)
        return goals == self._goals

    def set(self) -> None:
        """Wake the poll: there may be something."""
        self._told = True
        if self._changed is not None:
            self._changed.set()

    async def _wait(self, next_request: NextRequest, seconds: float) -> None:
        """Wait until told since the last look, or another request comes; so long at most."""
        changed = self._changed = anyio.Event()
        if self._told:
            changed.set()
        next_request.wake(changed)
        try:
            await self._source.long_poll(changed, seconds)
        finally:
            self._changed = None

    async def _too_little(self) -> bool:
        """Return whether less is available than the client waits for; nothing is acquired.

        As in Kafka all counts that is there, however few records are asked for. A look that does
        not see the end is enough.
        """
        if self._source.stopping or self._session.ended:
            return False
        size, settings = 0, self.settings
        for followed in list(self._session.dirty):
            with suppress(KafkaError):
                share = self._locate(followed)
                lanes = share.use_lanes(settings, self._shares.lane_memory)
                try:
                    if lanes is not None:
                        if share.look_by_lane(lanes, self._goals):
                            size += int(lanes.index.available * lanes.bytes_each)
                        share.waiters[followed] = None
                        continue
                    readable = share.readable(
                        settings.read_committed, settings.record_locks_max, WINDOW_MAX,
                        self._shares.now_ms(),
                    )  # fmt: skip
                except Searching:
                    return False
                if readable is None:
                    self._session.dirty.pop(followed, None)
                    share.waiters[followed] = None
                    continue
                if readable.cut_short:
                    return False
                size += sum([batch[3] for batch in readable.batches])
                share.waiters[followed] = None  # told of what comes to it
            if followed.share is None or size >= self._limits.min_bytes:
                return False
            await self._pace.step()
        return True

    def _pass_on(self) -> None:
        """Pass unread wake-ups on to the next waiting poll."""
        told = self._session.told
        while told:
            share = told.pop().share
            if share is not None:
                share.wake_next()

    async def _round(self) -> _Round:
        seen = _Round(bytes_left=self._limits.max_bytes, records_left=self._limits.max_records)
        self._pace.begin()
        dirty = self._session.dirty
        try:
            for followed in list(dirty):
                if seen.records_left <= 0 or (seen.found and seen.bytes_left <= 0):
                    break
                if self._session.ended or (seen.again and self._shares.now() >= self._late_at):
                    break
                searching = self._look(followed, seen) if followed in dirty else None
                if searching is not None and searching.unprepared:
                    self._log(seen)
                    await searching.prepare(self._shares.readers)  # for the next look
                if len(seen.found) == _FOUND_MAX or (self._limits.exact and seen.found):
                    break
                if self._pace.due:
                    self._log(seen)
                    await self._pace.rest()
        finally:
            self._log(seen)
        return seen

    def _log(self, seen: _Round) -> None:
        """Log what became of records before anybody else has a turn."""
        changes, seen.unlogged = seen.unlogged, []
        seen.logged += self._shares.log(self._session.group, changes)
        self._pins.hold(one.stored for one in seen.found if one.stored is not None)

    def _look(self, followed: Followed, seen: _Round) -> SharePartition | None:
        """Take what a partition has; return it where another look is needed to say that."""
        session, settings = self._session, self.settings
        session.told.discard(followed)
        try:
            share = self._locate(followed)
            lanes = share.use_lanes(settings, self._shares.lane_memory)
            readable: Readable | None = None
            if lanes is not None:
                found = share.look_by_lane(lanes, self._goals, settings.record_locks_max)
            else:
                readable = share.readable(
                    settings.read_committed, settings.record_locks_max, seen.records_left,
                    self._shares.now_ms(),
                )  # fmt: skip
                found = readable is not None
        except Searching:
            seen.again = True
            followed.error = Code.NONE
            return share
        except KafkaError as error:
            session.dirty.pop(followed, None)
            session.again.add(followed)  # in the next poll: this one goes on with the others
            if len(self._errors) < _FOUND_MAX:
                self._errors.append(Found(followed.ident, error.code, error.message))
            seen.news = seen.news or followed.error != error.code
            followed.error = error.code
            return None
        followed.error = Code.NONE
        session.dirty.pop(followed, None)
        if not found:
            share.waiters[followed] = None
            return None
        if self._acquire(followed, share, readable, lanes, seen) and share.has_more:
            session.dirty[followed] = None  # had its turn: the others come first now
            share.wake_next()
        else:
            share.waiters[followed] = None
        return None

    def _locate(self, followed: Followed) -> SharePartition:
        """Return the share partition that an ident means now. Raise KafkaError."""
        if self._unreadable is not None and (code := self._unreadable(followed.ident[0])):
            raise KafkaError(code)
        share, as_of = followed.share, self._source.queue_changes
        if share is not None and share.is_current and share.as_of_queues == as_of:
            return share
        try:
            queue, key, shard = self._source.partition(*followed.ident)
            share = self._shares.find(shard, key, self._session.group)
            share.expires, share.as_of_queues = settings_of(queue.configs).expires_by_header, as_of
        except KafkaError:
            self._sessions.locate(followed, None)
            raise
        self._sessions.locate(followed, share)
        return share

    def _acquire(
        self, followed: Followed, share: SharePartition, readable: Readable | None,
        lanes: ShareLanes | None, seen: _Round,
    ) -> bool:  # fmt: skip
        """Return whether anything became of what is readable, or of lanes whose turn it is."""
        settings, asked = self.settings, self._limits
        limits = Limits(
            settings.delivery_count_limit, settings.record_locks_max, seen.records_left,
            asked.exact, asked.batch_size,
        )  # fmt: skip
        now = self._shares.now()
        deadline = now + settings.lock_duration_ms / 1000
        number, member = self._shares.next_number(), self._session.member
        if lanes is not None:
            limits = lanes.within(limits, seen.bytes_left)
            taken = share.window.acquire_by_lane(
                member, limits, deadline, number, now, self._shares.now_ms()
            )
            self._shares.held_until(share, lanes.index.due)
        else:
            assert readable is not None
            readable.cut(seen.bytes_left)
            taken = share.acquire(member, readable, limits, deadline, number)
        change = PartitionChange(share, taken.runs, taken.archived if taken.archived.runs else None)
        if taken.runs:
            seen.unlogged.append(change)
        if not taken.ranges:
            any_done = bool(taken.runs) or (lanes is not None and not lanes.index.passes)
            seen.again = seen.again or any_done
            return any_done
        self._shares.held_until(share, deadline)
        ranges = taken.ranges
        if lanes is None:
            assert readable is not None
            batches = readable.overlapping(ranges)
        else:
            spans = share.spans_of(ranges, lanes)
            batches = [batch for batch, _ in spans]
            pieces = pieces_of(spans, ranges)
            if pieces is not None:
                scattered = Scattered(share, pieces, seen.bytes_left)
                seen.cuts.append((len(seen.found), followed, scattered))
        size = sum([batch[3] for batch in batches])
        seen.bytes_left -= size
        seen.records_left -= sum([last - first + 1 for first, last, _ in ranges])
        if taken.redelivered:
            seen.places[id(change)] = len(seen.found), followed
        stored = Stored(batches, share.shard.segments)
        seen.found.append(Found(followed.ident, ranges=ranges, stored=stored, size=size))
        return True

    async def _given(self, seen: _Round) -> list[Found]:
        """Return what was found, once the log has what it must have before that is given."""
        for ticket, some in seen.logged if seen.places else ():
            for change, code in zip(some, await codes_once_done(ticket, len(some)), strict=True):
                if code and id(change) in seen.places:
                    place, followed = seen.places[id(change)]
                    self._give_back(followed, change.share, seen.found[place])
                    seen.found[place] = Found(seen.found[place].ident, code)
        return seen.found

    async def _cut_out(self, seen: _Round, found: list[Found]) -> list[Found]:
        """Cut scattered records out of their batches; return what there is to be given then."""
        limit = self.settings.delivery_count_limit
        for place, followed, scattered in seen.cuts:
            one = found[place]
            if not one.ranges:
                continue
            given = await scattered.cut(self._shares, self._session.member, one.ranges, limit)
            if given is None:
                continue
            if given.gone.runs:
                change = PartitionChange(scattered.share, given.gone.runs, given.gone)
                self._shares.log(self._session.group, [change])
            if given.left:
                self._look_again(followed, scattered.share)
            batches, size = given.batches, given.size
            found[place] = Found(one.ident, ranges=given.ranges, size=size, cut=batches)
        return [one for one in found if one.ranges or one.code]

    def _give_back(self, followed: Followed, share: SharePartition, found: Found) -> None:
        share.window.give_back(found.ranges)
        self._look_again(followed, share)

    def _look_again(self, followed: Followed, share: SharePartition) -> None:
        share.waiters.pop(followed, None)
        self._session.dirty[followed] = None
        share.wake_next()

    def give_back(self, found: list[Found], refused: Mapping[Ident, Code]) -> list[Found]:
        """Give nothing of partitions whose shard's log has refused what the member said."""
        if not refused:
            return found
        kept = []
        for one in found:
            followed = self._session.partitions.get(one.ident)
            if one.ident not in refused or followed is None or followed.share is None:
                kept.append(one)
                continue
            self._give_back(followed, followed.share, one)
            if one.code:
                kept.append(one)
        return kept
