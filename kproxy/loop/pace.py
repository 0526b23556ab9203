"""The cutting of long work into slices, so that the loop never stands still.

Each turn of the loop does one slice of all the work that was cut: of each client in turn, so that
many long requests of one do not keep another's waiting. Work that may be long begins by waiting for
a turn, too.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from time import monotonic
from typing import Any, TypeVar

from kproxy.loop.asking import ASKING

SLICE_S = 0.005

Item = TypeVar("Item")
Row = tuple[bytes, bytes]
"""A key and its value."""
Scan = Callable[[bytes, bytes], Iterable[Row]]
_LOT = 200
Key = TypeVar("Key", bound=Hashable)
_COUNTED_AT_ONCE = 500
FREED_AT_ONCE = 20_000
"""Small objects that are freed in some milliseconds; of more, `Pace.let_go`."""
_LET_GO_AT_ONCE = 200
_LEAVES = frozenset((int, str, bytes, bool, float, type(None)))
_Line = OrderedDict[str, deque[asyncio.Future[None]]]
"""The waiters for a turn, by whose work it is."""
_lines: dict[asyncio.AbstractEventLoop, _Line] = {}
"""The lines by loop, only while somebody waits: mostly it is empty, and each request asks."""


class Pace:
    """`step` with each small part of a work: a thousand cost little, and one that is due rests."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count the work from now on: the wait until now did not hold the loop."""
        self._until = monotonic() + SLICE_S

    @property
    def due(self) -> bool:
        """Whether the loop was held for long enough."""
        return monotonic() >= self._until

    async def step(self) -> None:
        if monotonic() >= self._until:
            await self.rest()

    async def rest(self) -> None:
        """Let others have their turn."""
        await turn()
        self.begin()

    async def count(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return how often each key is there, in the order in which they come first."""
        times: dict[Key, int] = {}
        for some in slices(keys, _COUNTED_AT_ONCE):
            for key in some:
                times[key] = times.get(key, 0) + 1
            await self.step()
        return times

    async def let_go(self, held: list[Any]) -> None:
        """Free the objects that only this list holds: at once it would take longer than a turn may.

        Only values among them are looked at: containers, and dataclasses' fields.
        """
        while held:
            _take_apart(held)
            if self.due:
                await self.rest()


def _take_apart(held: list[Any]) -> None:
    """Put what the last of them hold in their place."""
    some = held[-_LET_GO_AT_ONCE:]
    del held[-_LET_GO_AT_ONCE:]
    for value in some:
        kind = value.__class__
        if kind in _LEAVES:
            continue
        if issubclass(kind, tuple | list):
            held.extend(value)
        elif issubclass(kind, dict):
            held.extend(value.values())
        else:
            for name in _parts(kind):
                part = getattr(value, name)
                if isinstance(part, tuple | list | dict):
                    held.append(part)


@cache
def _parts(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass; none of anything else."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def waits() -> bool:
    """Whether work of the same client waits for its turn: what begins now comes behind it."""
    if not _lines:
        return False
    return ASKING.get().holder in _lines.get(asyncio.get_running_loop(), ())


async def turn() -> None:
    """Wait for a turn of the loop in which nothing else long is done."""
    loop = asyncio.get_running_loop()
    mine: asyncio.Future[None] = loop.create_future()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = OrderedDict()
        loop.call_soon(_give_turn, loop, line)
    line.setdefault(ASKING.get().holder, deque()).append(mine)
    await mine


def _give_turn(loop: asyncio.AbstractEventLoop, line: _Line) -> None:
    given = False
    while line and not given:
        holder, theirs = next(iter(line.items()))
        one = theirs.popleft()
        if theirs:
            line.move_to_end(holder)
        else:
            del line[holder]
        if not one.done():  # it was not cancelled
            one.set_result(None)
            given = True
    if line:
        loop.call_soon(_give_turn, loop, line)
    else:
        del _lines[loop]


def slices(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of so many items; the last may be shorter."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def lots(scan: Scan, start: bytes, end: bytes, size: int = _LOT) -> Iterator[list[Row]]:
    """Yield rows with start <= key < end, so many at a time, each lot as the rows stand by then.

    No scan is open between two lots.
    """
    while some := list(islice(scan(start, end), size)):
        yield some
        start = some[-1][0] + b"\0"


async def scanned(
    scan: Scan, start: bytes, end: bytes, size: int = _LOT
) -> AsyncGenerator[list[Row], None]:
    """Yield the same as `lots`; others have their turn between two lots."""
    pace = Pace()
    for some in lots(scan, start, end, size):
        yield some
        await pace.rest()
