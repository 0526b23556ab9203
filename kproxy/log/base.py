"""The interface of a log, as a shard needs it, wherever the log is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import anyio

from kproxy.common.errors import KafkaError
from kproxy.log.weight import TURN, weight
from kproxy.loop.callbacks import after
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.outcome import LogLocation, Outcome

Deliver = Callable[[int, list[Envelope], list[LogLocation], tuple[int, int]], list[Outcome]]
"""deliver(first log offset, envelopes, places, (segment, position) behind them) -> outcomes.

Called once for each envelope, in log order, only with what is durable.
"""

_APPEND = int(Kind.APPEND)


class Ticket:
    """Envelopes on their way: `wait` gives their outcomes once they are durable and applied."""

    __slots__ = ("_outcomes", "_then", "envelopes", "error", "size", "weight")

    def __init__(self, envelopes: list[Envelope]) -> None:
        self.envelopes = envelopes
        size = units = 0
        for envelope in envelopes:
            size += len(envelope.body)
            units += 1 if envelope.kind == _APPEND else weight(envelope)
        self.size = size  # bytes
        self.weight = units  # the cost of applying it
        self._outcomes: list[Outcome] | None = None
        self.error: KafkaError | None = None
        self._then: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self._outcomes is not None or self.error is not None

    def set_outcomes(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes
        self._tell()

    def set_error(self, error: KafkaError) -> None:
        self.error = error
        self._tell()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when it is done: now, if it is."""
        if self._outcomes is None and self.error is None:
            self._then.append(callback)
        else:
            callback()

    def _tell(self) -> None:
        for callback in self._then:
            callback()
        self._then.clear()

    async def wait(self) -> list[Outcome]:
        """Return the `outcomes`, once it is done."""
        if not self.done:
            event = anyio.Event()
            self.add_done_callback(event.set)
            await event.wait()
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes in the order of the envelopes.

        Raises KafkaError if none was appended.
        """
        if self.error is not None:
            raise self.error
        assert self._outcomes is not None
        return self._outcomes


def cut(ticket: Ticket) -> list[Ticket]:
    """Return the tickets that go into a log in its place: each is applied in one turn of the loop.

    They succeed or fail each by itself; the whole fails where all of them do.
    """
    parts = [Ticket(part) for part in _parts(ticket)]
    if len(parts) == 1:
        return [ticket]
    one_more = after(len(parts), partial(_merge_outcomes, ticket, parts))
    for part in parts:
        part.add_done_callback(one_more)
    return parts


def _parts(ticket: Ticket) -> Iterator[list[Envelope]]:
    envelopes = ticket.envelopes
    if ticket.weight == len(envelopes):
        for start in range(0, len(envelopes), TURN):
            yield envelopes[start : start + TURN]
        return
    start = units = 0
    for number, envelope in enumerate(envelopes):
        one = weight(envelope)
        if units and units + one > TURN:
            yield envelopes[start:number]
            start, units = number, 0
        units += one
    yield envelopes[start:]


def _merge_outcomes(ticket: Ticket, parts: list[Ticket]) -> None:
    errors = [part.error for part in parts if part.error is not None]
    if len(errors) == len(parts):
        ticket.set_error(errors[0])
        return
    outcomes: list[Outcome] = []
    for part in parts:
        if part.error is None:
            outcomes += part.outcomes()
        else:
            refused = Outcome(part.error.code, message=part.error.message)
            outcomes += [refused] * len(part.envelopes)
    ticket.set_outcomes(outcomes)


class Log(Protocol):
    """One shard's log."""

    on_refusal: Callable[[], None]
    """A callback for a refused or unsure append: later batches must wait."""

    next_offset: int
    """The offset of the next envelope to be applied; set at a start, once the local copy was
    folded.
    """

    @property
    def waiting(self) -> int:
        """The amount that was appended and is not settled, as the log counts it."""
        ...

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        """Put envelopes in line, in this order, behind all that were put there before."""
        ...

    async def run(self) -> None:
        """Serve appends until cancelled or closed."""
        ...

    def close(self) -> None:
        """Refuse new appends and let `run` return."""
        ...

    async def catch_up(self) -> None:
        """Wait until everything that is in the log by now is applied. Raises KafkaError."""
        ...

    async def sync(self) -> None:
        """Force the local copy of all that was applied to disk."""
        ...

    def synced(self) -> AbstractAsyncContextManager[None]:
        """Have all that was applied on disk for the length of a block, which may not wait.

        Nothing is applied in it where rows must not run ahead of the log.
        """
        ...

    async def roll(self) -> None:
        """Let the next envelope begin a new segment, so that the active one can be freed."""
        ...
