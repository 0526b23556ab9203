"""Long work as generators that yield on the way, so that it can be cut into slices.

Small work is done within the request. It is counted in yields and not by a clock, so that the same
request has the same answer on any machine. The rest of large work is done in slices.
"""

import heapq
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Generic, TypeVar

from kproxy.loop.pace import Pace

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A generator that yields every few hundred elements and returns its result."""

EVERY = 256
"""Elements from one yield to the next, about."""
AT_ONCE = 20
"""The number of yields that a request may do itself: some milliseconds."""


class Work(Generic[Result]):
    """Steps on their way to a result."""

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self._result: list[Result] = []

    def advance(self) -> bool:
        """Go to the next yield; whether all is done."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._result.append(end.value)
            return True
        return False

    def begin(self) -> bool:
        """Do what may be done at once; whether that was all."""
        return any(self.advance() for _ in range(AT_ONCE))

    @property
    def result(self) -> Result:
        return self._result[0]


async def finish(work: Work[Result], wanted: Callable[[], bool]) -> bool:
    """Go on to the end, or until nobody wants it any more; whether it is done."""
    pace = Pace()
    while wanted():
        if work.advance():
            return True
        await pace.step()
    return False


async def done(steps: Steps[Result]) -> Result:
    """Return the result of steps: at once where they are few."""
    work = Work(steps)
    if not work.begin():
        await finish(work, lambda: True)
    return work.result


def at_once(steps: Steps[Result]) -> Result:
    """Return the result, however long it takes."""
    work = Work(steps)
    while not work.advance():
        pass
    return work.result


def spent(count: int) -> Steps[None]:
    """Yield for so many elements that were worked on in one go."""
    for _ in range(count // EVERY):
        yield


class Spending:
    """The count of elements worked on in small parts: it yields once they are many."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def add(self, count: int) -> Steps[None]:
        self._count += count
        if self._count >= EVERY:
            yield from spent(self._count)
            self._count = 0


def once_in_order(names: Iterable[str]) -> Steps[list[str]]:
    """Return the names sorted, each once."""
    found: set[str] = set()
    left = iter(names)
    while piece := list(islice(left, 4 * EVERY)):
        found.update(piece)
        yield
    return (yield from in_order(found))


def in_order(names: Iterable[str]) -> Steps[list[str]]:
    """Return the names sorted; many are sorted piece by piece, as sorting all is one long call."""
    pieces, left = [], iter(names)
    while piece := sorted(islice(left, 4 * EVERY)):
        pieces.append(piece)
        yield
    if len(pieces) < 2:
        return pieces[0] if pieces else []
    found: list[str] = []
    merged = heapq.merge(*pieces)
    while piece := list(islice(merged, EVERY)):
        found += piece
        yield
    return found
