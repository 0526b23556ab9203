"""The acknowledgements of members for their records (KIP-932): checked, logged, then answered.

The acknowledgements of one partition take effect together or not at all. Other partitions of the
request go on.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import ge, gt
from typing import NamedTuple

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.pace import Pace, slices
from kproxy.metadata.group_settings import GroupSettings
from kproxy.shard.located import Located
from kproxy.shares.counting import By
from kproxy.shares.lanes.lane_window import TOGETHER_MIN, LaneWindow
from kproxy.shares.sessions import Ident, ShareSession
from kproxy.shares.share_partition import SharePartition
from kproxy.shares.share_partitions import Logged, PartitionChange, SharePartitions, codes_once_done
from kproxy.shares.window import RENEW, WINDOW_MAX, BeyondEnd, InvalidState, Pending, Window
from kproxy.virtual.commands.shares import Run
from kproxy.virtual.rows.shares import TERMINAL

Said = tuple[int, int, Sequence[int]]
"""First and last offset, and one type for all of them or one for each."""


BATCHES_MAX = 5000
"""Acknowledgements of one partition in a request: as many as a window may have records."""


class Acknowledged(NamedTuple):
    """The result of a partition's acknowledgements."""

    code: Code = Code.NONE
    message: str | None = None


DONE = Acknowledged()
_AT_ONCE = 500  # acknowledgements of records that are held by lane: about a millisecond
_NOWHERE = -(1 << 63) - 1  # before any offset that a client can name


def check_form(said: Sequence[Said], *, renews: bool) -> None:
    """Refuse what is wrong whatever the partition holds. Raise KafkaError (INVALID_REQUEST)."""
    if len(said) > BATCHES_MAX:
        raise KafkaError(
            Code.INVALID_REQUEST, f"A partition takes {BATCHES_MAX} acknowledgements at once."
        )
    if not said:
        return
    last_type = RENEW if renews else RENEW - 1
    firsts, lasts, kinds = zip(*said, strict=True)
    wrong = min(lasts) < 0 or any(map(gt, firsts, lasts)) or any(map(gt, lasts, firsts[1:]))
    wrong = wrong or any(
        len(types) != 1 and len(types) != last - first + 1 for first, last, types in said
    )
    if wrong or any(min(types) < 0 or max(types) > last_type for types, _ in groupby(kinds)):
        raise KafkaError(Code.INVALID_REQUEST)


class Acknowledging:
    """Acknowledgements of one request, by one member of a group: `take`, then `done`."""

    def __init__(
        self, shares: SharePartitions, partition: Callable[[bytes, int], Located],
        session: ShareSession, settings: GroupSettings, *, renews: bool,
        unreadable: Callable[[str | bytes], Code] | None = None,
    ) -> None:  # fmt: skip
        """Begin a request; `settings`: the group's; `renews`: the request may renew locks.

        `unreadable`: why the client may not read a queue, by its id; NONE where it may.
        """
        self._unreadable = unreadable
        self._shares = shares
        self._partition = partition
        self._session = session
        self._renews = renews
        self._settings = settings
        self._changes: list[PartitionChange] = []
        self._idents: dict[int, Ident] = {}
        self._logged: list[Logged] = []
        self.results: dict[Ident, Acknowledged] = {}
        self.refused: dict[Ident, Code] = {}
        """The partitions that the log refused, once it is done."""
        self.final = True
        """Whether nobody is given again what was said to be released."""

    async def take(self, said: Sequence[tuple[Ident, Sequence[Said]]], pace: Pace) -> None:
        """Check what is said, and put it in line for the log."""
        for ident, some in said:
            try:
                await self._take(ident, some, pace)
            except KafkaError as error:
                self.results[ident] = Acknowledged(error.code, error.message)
            if pace.due:
                self._log()
                await pace.rest()
        self._log()

    async def done(self) -> dict[Ident, Acknowledged]:
        """Return the result of each partition, once the log has it."""
        for ticket, some in self._logged:
            for change, code in zip(some, await codes_once_done(ticket, len(some)), strict=True):
                if code:
                    ident = self._idents[id(change)]
                    self.results[ident] = Acknowledged(code)
                    self.refused[ident] = code
        return self.results

    async def _take(self, ident: Ident, said: Sequence[Said], pace: Pace) -> None:
        """Take a partition's acknowledgements. Raise KafkaError: nothing of it was done."""
        if self._unreadable is not None and (code := self._unreadable(ident[0])):
            raise KafkaError(code)
        share = self._located(ident)
        check_form(said, renews=self._renews)
        self.results[ident] = DONE
        if not said:
            return
        if not self._settings.renew_enabled and any(RENEW in types for _, _, types in said):
            raise KafkaError(
                Code.INVALID_RECORD_STATE,
                "Renewing acquisition locks is not enabled for the group.",
            )
        if share is None:
            _, key, shard = self._partition(*ident)
            share = self._shares.find(shard, key, self._session.group)
        try:
            pending = await self._said(share, said, pace)
        finally:
            self._shares.let_go(share)
        if pending.runs:
            change = PartitionChange(share, pending.runs, pending, By.MEMBER)
            self._changes.append(change)
            self._idents[id(change)] = ident

    def _located(self, ident: Ident) -> SharePartition | None:
        """Return the share partition, if known. Raise KafkaError: the partition is not here."""
        followed = self._session.partitions.get(ident)
        share = None if followed is None else followed.share
        if share is not None and share.is_current:
            return share
        self._partition(*ident)
        return None

    async def _said(self, share: SharePartition, said: Sequence[Said], pace: Pace) -> Pending:
        """Do all that is said of a partition, in slices, or nothing. Raise KafkaError.

        Done records are pending: while this rests nobody else can touch them.
        """
        row = share.shard.state.partition(share.key)
        if row is not None:
            share.window.trim(row.log_start)
        pending = Pending([], [])
        renewals: list[tuple[int, int]] = []
        try:
            before = _NOWHERE
            for some in _alike(said) if share.lanes is not None else (said,):
                at_once = self._at_once(share.window, before, some, pending)
                for one in () if at_once else some:
                    self._one(share.window, before, one, pending, renewals)
                    before = one[1]
                    if pace.due:
                        self._log()
                        await pace.rest()
                before = some[-1][1]
                if at_once and pace.due:
                    self._log()
                    await pace.rest()
            if renewals:
                self._renew(share.window, renewals)
        except BaseException as error:
            self._shares.take_back(share, pending)
            if isinstance(error, InvalidState):
                raise KafkaError(Code.INVALID_RECORD_STATE, str(error)) from error
            if isinstance(error, BeyondEnd):
                raise KafkaError(Code.INVALID_REQUEST, str(error)) from error
            raise
        self.final = self.final and all(TERMINAL[run.byte] for run in pending.runs)
        return pending

    def _one(
        self, window: Window, before: int, said: Said, pending: Pending,
        renewals: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Check one acknowledgement and do it. Raise InvalidState, BeyondEnd."""
        first, last, types = said
        if first <= before:  # Kafka lets that through, and finds it done already
            raise InvalidState("The offset cannot be acknowledged. The offset is not acquired.")
        window.check(self._session.member, first, last)
        some = window.acknowledge(first, last, types, self._settings.delivery_count_limit, renewals)
        _add(pending, some)

    def _at_once(
        self, window: LaneWindow, before: int, said: Sequence[Said], pending: Pending
    ) -> bool:
        """Do what is said of records that are held by lane, wherever they lie; or nothing."""
        kinds = said[0][2]
        if window.lanes is None or len(kinds) != 1 or said[0][0] <= before:
            return False
        offsets = _offsets_of(said)
        some = offsets and window.acknowledge_scattered(
            self._session.member, offsets, kinds[0], self._settings.delivery_count_limit
        )
        if not some:
            return False
        _add(pending, some)
        return True

    def _renew(self, window: Window, renewals: Sequence[tuple[int, int]]) -> None:
        """Hold records for longer, if they are all held still. Raise InvalidState."""
        for first, last in renewals:
            window.check(self._session.member, first, last)
        deadline = self._shares.now() + self._settings.lock_duration_ms / 1000
        for first, last in renewals:
            window.renew(first, last, deadline)

    def _log(self) -> None:
        changes, self._changes = self._changes, []
        self._logged += self._shares.log(self._session.group, changes)


def _alike(said: Sequence[Said]) -> Iterator[list[Said]]:
    """Yield acknowledgements of the same types, so many at a time; those of many records apart."""
    for _, alike in groupby(said, _types_and_width):
        yield from slices(list(alike), _AT_ONCE)


def _types_and_width(one: Said) -> tuple[Sequence[int], bool]:
    return one[2], one[1] - one[0] >= TOGETHER_MIN - 1


def _offsets_of(said: Sequence[Said]) -> list[int]:
    """Return the records of ascending acknowledgements; none where these overlap, or are wide."""
    firsts, lasts, _ = zip(*said, strict=True)
    if sum(lasts) - sum(firsts) > WINDOW_MAX or any(map(ge, lasts, firsts[1:])):
        return []
    if firsts == lasts:
        return list(firsts)
    return [offset for first, last, _ in said for offset in range(first, last + 1)]


def _add(pending: Pending, some: Pending) -> None:
    pending.held.extend(some.held)
    if not some.runs:
        return
    first, *more = some.runs
    if pending.runs and (joined := _joined(pending.runs[-1], first)) is not None:
        pending.runs[-1] = joined
    else:
        pending.runs.append(first)
    pending.runs.extend(more)


def _joined(before: Run, run: Run) -> Run | None:
    """Return two runs as one; None where they are not one."""
    if before.first + before.records != run.first or before[2:] != run[2:]:
        return None
    return before._replace(records=before.records + run.records)
