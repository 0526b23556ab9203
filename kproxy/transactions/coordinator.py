"""The coordinator of one shard's transactional ids: it sees decided ends through.

All is decided in the fold (`virtual.folds.transactions`). A coordinator reads what rows say is left
to do, and appends it: a MARKER to each shard that takes part, and COMPLETE once all are durable.
Two coordinators of one transaction append the same, and the second time has no effect.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

import anyio
import structlog
from anyio.abc import TaskGroup

from kproxy.log.base import Ticket
from kproxy.loop.pace import scanned
from kproxy.protocol.batch import control_batch
from kproxy.shard.appends import ShardLogs, outcomes_of
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.transactions import MARKED_MAX, NAMED_MAX, Complete, Marker
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.transactions import (
    PARTICIPANTS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
)
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_AGAIN_S, _AGAIN_MAX_S = 0.1, 2.0
_DRIVEN_MAX = 200  # transactions whose ends are told at a time, of one shard
_BY_WRITING = 2  # the version by which nobody says who takes part (KIP-890)
_BEGUN_MAX = 10_000  # open ones of which it is known on which connection they began


class TransactionCoordinator:
    """One shard's. `drive` ends what is decided; handlers wait for it."""

    def __init__(self, shard: Shard, logs: ShardLogs, now_ms: Callable[[], int]) -> None:
        self.shard = shard
        self._logs = logs
        self._now_ms = now_ms
        self._driven: dict[str, anyio.Event] = {}
        self._room = anyio.Semaphore(_DRIVEN_MAX)
        self._begun: dict[str, tuple[int, int]] = {}

    def row(self, transactional_id: str) -> Transaction | None:
        return TRANSACTIONS.get(self.shard.state.get, transactional_id)

    # -- which connection a transaction was begun on

    def is_late(self, transactional_id: str, connection: int) -> bool:
        """Return whether a request came on a connection older than the one that began what is open.

        Without KIP-890 nothing in it tells a request for an earlier transaction that was delayed
        from one for this (KAFKA-17754). A client that reconnected has given the older one up.
        Nor does it tell it from one for a transaction that was begun by KIP-890, as its producer
        may change from one to the next: whoever means that asks once more, on a new connection.
        """
        row = self.row(transactional_id)
        if row is None or row.state != TransactionState.ONGOING:
            return False
        begun = self._begun.get(transactional_id)
        if begun is None or begun[0] != row.number:
            if row.version < _BY_WRITING:
                return False
            begun = row.number, connection + 1
            self.note_begun(transactional_id, *begun)
        return connection < begun[1]

    def note_begun(self, transactional_id: str, number: int, connection: int) -> None:
        """Note that a transaction without KIP-890 took part in something, on this connection."""
        known = self._begun.pop(transactional_id, (-1, 0))
        if known[0] == number:
            connection = known[1]
        elif len(self._begun) >= _BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        self._begun[transactional_id] = number, connection

    # -- ending

    def drive(self, transactional_id: str, tasks: TaskGroup) -> anyio.Event:
        """See a decided end through; the event is set when it is, or the shard is another's."""
        known = self._driven.get(transactional_id)
        if known is not None:
            return known
        event = self._driven[transactional_id] = anyio.Event()
        tasks.start_soon(self._drive, transactional_id, event)
        return event

    async def _drive(self, transactional_id: str, event: anyio.Event) -> None:
        wait_s, told = _AGAIN_S, _Told(-1)
        try:
            while self.shard.serving:
                row = self.row(transactional_id)
                if row is None or not row.state.is_ending:
                    return
                if row.number != told.number:  # the one before is complete, whatever its log said
                    told = _Told(row.number)
                if await self._end(transactional_id, row, told, event):
                    return
                await anyio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_MAX_S)
        finally:
            if self._driven.get(transactional_id) is event:
                del self._driven[transactional_id]
            event.set()

    async def _end(
        self, transactional_id: str, row: Transaction, told: "_Told", event: anyio.Event
    ) -> bool:
        """Tell all who take part; whether they know and it is complete."""
        ending = _Ending(row, self._now_ms())
        tickets: list[Ticket] = []
        if not told.partitions:
            async with self._room:  # not while it waits: somebody may be away for long
                tickets, told.groups = await self._tell(row.number, ending)
        left = await self._end_groups(told.groups, ending)
        if not await _done(tickets):
            return False
        told.partitions = True
        while left:
            told.groups = left
            left = await self._end_groups(left, ending)
        if left is None:
            return False
        told.groups = []
        complete = Complete(transactional_id, row.number, self._now_ms()).envelope
        lots_named = range(0, max(1, row.participants), NAMED_MAX)
        completed = self.shard.append([complete() for _ in lots_named])
        event.set()  # later envelopes of this log come behind it
        return await _done([completed])

    async def _tell(self, number: int, ending: "_Ending") -> tuple[list[Ticket], list[Participant]]:
        """Send the MARKERs of all partitions; the groups are still to be told."""
        tickets: list[Ticket] = []
        groups: list[Participant] = []
        async with aclosing(self._participants(number)) as lots:
            async for shard, some in lots:
                keys = [one.key for one in some if one.key is not None]
                groups += [one for one in some if one.key is None]
                if keys:
                    tickets.append(self._logs.land(shard, [ending.marker(keys, ())]))
        return tickets, groups

    async def _end_groups(
        self, groups: Sequence[Participant], ending: "_Ending"
    ) -> list[Participant] | None:
        """End the transaction in groups; return those with more offsets, None if not known."""
        outcomes = await outcomes_of(
            [self._logs.ask(one.shard, ending.marker((), (one.group,))) for one in groups]
        )
        if any(outcome.code for outcome in outcomes):
            return None
        found = zip(groups, outcomes, strict=True)
        return [group for group, outcome in found if outcome.number > 0]

    async def _participants(
        self, number: int
    ) -> AsyncGenerator[tuple[int, list[Participant]], None]:
        """Yield (shard, participants there), `MARKED_MAX` at most; others have turns in between."""
        some: list[Participant] = []
        rows = scanned(self.shard.kv.scan, *PARTICIPANTS.range(number), MARKED_MAX)
        async with aclosing(rows) as lots:
            async for found in lots:
                for key, _ in found:
                    participant = transaction_rows.participant_of(key)
                    if some and (some[0].shard != participant.shard or len(some) == MARKED_MAX):
                        yield some[0].shard, some
                        some = []
                    some.append(participant)
        if some:
            yield some[0].shard, some


class _Told:
    """The places that know of one transaction's end: all `partitions`, but not these `groups`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.partitions = False
        self.groups: list[Participant] = []


class _Ending:
    """The fields that all markers of one transaction's end share."""

    def __init__(self, row: Transaction, time_ms: int) -> None:
        self._row = row
        self._time_ms = time_ms
        self._commit = row.state == TransactionState.PREPARE_COMMIT
        self._batch = control_batch(
            row.ending_producer_id, row.marker_epoch, commit=self._commit, time_ms=time_ms
        )

    def marker(self, keys: Sequence[PartitionKey], groups: Sequence[str]) -> Envelope:
        row = self._row
        return Marker(
            self._batch, row.ending_producer_id, row.ending_epoch, row.number, self._commit,
            keys, groups, self._time_ms,
        ).envelope()  # fmt: skip


async def _done(tickets: Iterable[Ticket]) -> bool:
    """Return whether all are durable."""
    return not any(outcome.code for outcome in await outcomes_of(tickets))
