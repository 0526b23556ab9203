"""Bounds on the bytes that all connections together hold in memory."""

from collections.abc import Callable

import anyio

from kproxy.loop.pace import Pace
from kproxy.protocol.varint import Malformed

_NOTED_BYTES = 256 << 10
_FREED_AT_ONCE_BYTES = 8 << 20


class MemoryBudget:
    """Bytes that requests, or answers, of all connections hold.

    Above the limit nothing new is begun. Unfinished requests can go on to twice the limit, where
    whoever sends more is disconnected.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._waiting: dict[Callable[[], None], None] = {}
        self.used = 0

    def take(self, count: int) -> None:
        self.used += count

    @property
    def exhausted(self) -> bool:
        return self.used > 2 * self.bytes_max

    @property
    def has_room(self) -> bool:
        return self.used <= self.bytes_max

    def give_back(self, count: int) -> None:
        self.used -= count
        while self._waiting and self.has_room:
            callback = next(iter(self._waiting))
            del self._waiting[callback]
            callback()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back when something new may be begun; who waits longest is first."""
        self._waiting[callback] = None

    def wait_no_more(self, callback: Callable[[], None]) -> None:
        """Whoever asked to be called back has gone."""
        self._waiting.pop(callback, None)

    async def wait_for_room(self) -> None:
        while not self.has_room:
            room = anyio.Event()
            self.when_room(room.set)
            try:
                await room.wait()
            finally:
                self.wait_no_more(room.set)


class ResponseBudget(Pace):
    """An answer while it is made: in slices, and its bytes counted before it is whole.

    `step` with each part of it. A short answer is counted only when it is sent; a long one waits
    until there is room for more, and ends its connection where it would take all there is.
    """

    __slots__ = ("_held", "_made", "_memory")

    def __init__(self, memory: MemoryBudget) -> None:
        super().__init__()
        self._memory = memory
        self._made = self._held = 0

    def __enter__(self) -> "ResponseBudget":
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._memory.give_back(self._held)
        self._made = self._held = 0

    @property
    def long(self) -> bool:
        """Whether what was made is worth another thread's while."""
        return self._held > 0

    @property
    def large(self) -> bool:
        """Whether to free what it was made of would hold the loop."""
        return self._held > _FREED_AT_ONCE_BYTES

    def add(self, size: int) -> bool:
        """Count one more part, about so many bytes; whether `step` is due now.

        For parts of some microseconds: to await costs as much as they do.
        """
        self._made += size
        return self._made >= _NOTED_BYTES or self.due

    async def step(self, size: int = 0) -> None:
        """One more part was made, about so many bytes. Raises Malformed: they are too many."""
        self._made += size
        if self._made >= _NOTED_BYTES:
            await self._note()
        if self.due:
            await self.rest()

    async def _note(self) -> None:
        memory = self._memory
        if not self._held:
            await memory.wait_for_room()
        memory.take(self._made)
        self._held += self._made
        self._made = 0
        if memory.exhausted or self._held > memory.bytes_max:
            raise Malformed("the answer takes more memory than answer_bytes_buffered_max allows")
