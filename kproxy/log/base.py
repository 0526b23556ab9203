"""What a shard needs of a log, whichever keeps it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from kproxy.errors import KafkaError
from kproxy.virtual.envelope import Envelope
from kproxy.virtual.outcome import Outcome, Place

Deliver = Callable[[int, list[Envelope], list[Place], tuple[int, int]], list[Outcome]]
"""deliver(first log offset, envelopes, places, (segment, position) behind them) -> outcomes.

Called once for each envelope, in log order, only with what is durable.
"""


class Ticket:
    """Envelopes on their way: `wait` gives their outcomes once they are durable and applied."""

    __slots__ = ("_error", "_outcomes", "_then", "envelopes", "size")

    def __init__(self, envelopes: list[Envelope]) -> None:
        self.envelopes = envelopes
        self.size = sum(len(envelope.body) for envelope in envelopes)  # bytes
        self._outcomes: list[Outcome] | None = None
        self._error: KafkaError | None = None
        self._then: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self._outcomes is not None or self._error is not None

    def settle(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes
        self._tell()

    def fail(self, error: KafkaError) -> None:
        self._error = error
        self._tell()

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when it is done: now, if it is."""
        if self.done:
            callback()
        else:
            self._then.append(callback)

    def _tell(self) -> None:
        for callback in self._then:
            callback()
        self._then.clear()

    async def wait(self) -> list[Outcome]:
        """As `outcomes`, once it is done."""
        if not self.done:
            event = anyio.Event()
            self.then(event.set)
            await event.wait()
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """In the order of the envelopes. Raises KafkaError if none was appended."""
        if self._error is not None:
            raise self._error
        assert self._outcomes is not None
        return self._outcomes


class Log(Protocol):
    """One shard's log."""

    next_offset: int
    """Of the next envelope to be applied; set at a start, once the local copy was folded."""

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

    def sync_rest(self) -> None:
        """Force what was applied since `sync` to disk as well, where rows must not run ahead."""
        ...

    async def roll(self) -> None:
        """Let the next envelope begin a new segment, so that the active one can be freed."""
        ...
