"""Envelopes of one request on their way to one shard or several, and their outcomes in order."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Protocol

from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.loop.callbacks import after
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.outcome import Outcome

TICKET_MAX = 500  # envelopes
_NO_OUTCOME = Outcome()


class Appends:
    """`add` and `send`, also more than once, then `outcomes` in the order they were added in."""

    def __init__(self) -> None:
        self._by_shard: dict[Shard, tuple[list[Envelope], list[int]]] = {}
        self._tickets: list[tuple[Ticket, list[int]]] = []
        self._count = 0

    def add(self, shard: Shard, envelope: Envelope) -> None:
        mine = self._by_shard.get(shard)
        if mine is None:
            self._by_shard[shard] = [envelope], [self._count]
        else:
            mine[0].append(envelope)
            mine[1].append(self._count)
        self._count += 1

    def send(self) -> None:
        """Put what was added in line, in tickets that are applied in one turn of the loop each."""
        for shard, (envelopes, slots) in self._by_shard.items():
            if len(slots) <= TICKET_MAX:
                self._tickets.append((shard.append(envelopes), slots))
                continue
            for at in range(0, len(slots), TICKET_MAX):
                some = slice(at, at + TICKET_MAX)
                self._tickets.append((shard.append(envelopes[some]), slots[some]))
        self._by_shard.clear()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when all of it is durable and applied, or refused: now, if it is."""
        if len(self._tickets) == 1:
            self._tickets[0][0].add_done_callback(callback)
            return
        one_more = after(len(self._tickets), callback)
        for ticket, _ in self._tickets:
            ticket.add_done_callback(one_more)

    async def outcomes(self) -> list[Outcome]:
        """Return the `results`, once all is done."""
        for ticket, _ in self._tickets:
            with suppress(KafkaError):
                await ticket.wait()
        return self.results()

    def results(self) -> list[Outcome]:
        """Return an outcome for each envelope; one that could not be appended has the error's
        code.
        """
        if len(self._tickets) == 1 and (ticket := self._tickets[0][0]).error is None:
            return ticket.outcomes()
        results = [_NO_OUTCOME] * self._count
        for ticket, slots in self._tickets:
            try:
                for slot, outcome in zip(slots, ticket.outcomes(), strict=True):
                    results[slot] = outcome
            except KafkaError as error:
                for slot in slots:
                    results[slot] = Outcome(error.code, message=error.message)
        return results


async def outcomes_of(tickets: Iterable[Ticket]) -> list[Outcome]:
    """Return the outcomes of tickets of one envelope each; an error is an outcome with its code."""
    outcomes = []
    for ticket in tickets:
        try:
            outcomes += await ticket.wait()
        except KafkaError as error:
            outcomes.append(Outcome(error.code, message=error.message))
    return outcomes


async def outcome_of(ticket: Ticket) -> Outcome:
    """Return the outcome of a ticket of one envelope; an error is one with its code."""
    return (await outcomes_of([ticket]))[0]


class Verdict(Enum):
    """A decision on an envelope, by its outcome."""

    DONE = auto()
    LATER = auto()
    """A try at a later time may pass."""
    NEVER = auto()
    """A refusal for good: the writer makes another envelope, or reports what is left out."""
    NOT_MINE = auto()
    """Somebody else is at it by now, or what it is about is gone: the rows say what."""


_NEVER = frozenset((Code.MESSAGE_TOO_LARGE, Code.INVALID_RECORD, Code.CORRUPT_MESSAGE))
_NOT_MINE = frozenset((Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_ID))


def verdict(outcome: Outcome) -> Verdict:
    """Return to which class an outcome belongs."""
    if not outcome.code:
        return Verdict.DONE
    if outcome.code in _NEVER:
        return Verdict.NEVER
    return Verdict.NOT_MINE if outcome.code in _NOT_MINE else Verdict.LATER


class Asks(Protocol):
    """The way of commands to all shards."""

    shards: int

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        """Append a command to a shard's log: settled with what its owner's fold decides."""
        ...


class ShardLogs(Asks, Protocol):
    """The way to the logs of all shards."""

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        """Append to a shard's log, whoever serves it: settled once all are durable there."""
        ...


async def append(shard: Shard, envelope: Envelope) -> Outcome:
    """Append one envelope and wait for its outcome."""
    return (await append_all([(shard, envelope)]))[0]


async def append_all(pairs: Iterable[tuple[Shard, Envelope]]) -> list[Outcome]:
    """Append envelopes and wait for their outcomes."""
    appends = Appends()
    for shard, envelope in pairs:
        appends.add(shard, envelope)
    appends.send()
    return await appends.outcomes()
