"""Bounds on the bytes that all connections together hold in memory."""

from collections.abc import Callable

import anyio

from kproxy.loop.asking import ASKING
from kproxy.loop.pace import Pace
from kproxy.protocol.varint import Malformed
from kproxy.security.parts import TIMES_FREE, Parts

_NOTED_BYTES = 256 << 10
_FREED_AT_ONCE_BYTES = 8 << 20
_LITTLE = 8
"""One of so many parts of what is left."""


class MemoryBudget:
    """Bytes that requests, or answers, of all connections hold.

    Above the limit nothing new is begun. Unfinished requests can go on to twice the limit, where
    whoever sends more is disconnected.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._waiting: dict[Callable[[], None], None] = {}
        self.used = 0

    def mine(self) -> "MemoryBudget":
        """Return the budget of the holder for whom this task works."""
        return self

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
        """Forget a callback whose owner has gone."""
        self._waiting.pop(callback, None)

    async def wait_for_room(self) -> None:
        while not self.has_room:
            room = anyio.Event()
            self.when_room(room.set)
            try:
                await room.wait()
            finally:
                self.wait_no_more(room.set)


class SharedBudget(MemoryBudget):
    """A budget of which nobody has all: `part` of each holder (`security.parts`)."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.parts = Parts(bytes_max)
        # The parts that wait for room, by holder
        self._short: dict[str, dict[MemoryPart, None]] = {}
        self._telling = False

    def part(self, holder: str) -> "MemoryPart":
        return MemoryPart(self, holder)

    def wait(self, part: "MemoryPart") -> None:
        self._short.setdefault(part.holder, {})[part] = None

    def wait_no_longer(self, part: "MemoryPart") -> None:
        waiting = self._short.get(part.holder)
        if waiting is not None and part in waiting:
            del waiting[part]
            if not waiting:
                del self._short[part.holder]

    def give_back(self, count: int) -> None:
        self.used -= count
        if self._waiting:
            super().give_back(0)
        if self._short and not self._telling:
            self._tell()

    def _tell(self) -> None:
        """Tell the waiting parts of each holder, in turn, while there is room for it."""
        self._telling = True
        try:
            for holder in list(self._short):
                while waiting := self._short.get(holder):
                    part = next(iter(waiting))
                    if not part.has_room:
                        break
                    self.wait_no_longer(part)
                    part.room()
        finally:
            self._telling = False


class AskersBudget(SharedBudget):
    """The memory that tasks take, each of its holder's part.

    A task that waits for room holds none of it: else a holder's tasks would wait for each other.
    """

    def mine(self) -> "MemoryPart":
        """Return the part of the holder for whom the running task works."""
        return self.part(ASKING.get().holder)

    async def wait_for_room(self) -> None:
        await self.mine().wait_for_room()


class AnswerBudget(AskersBudget):
    """The memory of answers. `found`: the places of records that are not read yet."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.found = AskersBudget(bytes_max)

    @property
    def held(self) -> int:
        """All that answers hold."""
        return self.used + self.found.used

    async def wait_for_room(self) -> None:
        await self.found.wait_for_room()
        await super().wait_for_room()


class MemoryPart(MemoryBudget):
    """The part of a shared budget that one connection holds, for its holder."""

    def __init__(self, whole: SharedBudget, holder: str) -> None:
        super().__init__(whole.bytes_max)
        self._whole = whole
        self.holder = holder

    def take(self, count: int) -> None:
        self.used += count
        self._whole.used += count
        self._whole.parts.take(self.holder, count)

    @property
    def exhausted(self) -> bool:
        """Whether its holder has more than its part of twice the limit: others go on."""
        return self._of_all > TIMES_FREE * self._left

    @property
    def has_room(self) -> bool:
        """Whether there is room.

        A holder of little may begin something whatever others have begun and do not end.
        """
        whole = self._whole
        if whole.used <= whole.parts.plenty:
            return True
        if whole.used <= whole.bytes_max and whole.parts.may(self.holder, 0):
            return True
        return self._of_all <= self._left // _LITTLE

    @property
    def _of_all(self) -> int:
        return self._whole.parts.of(self.holder)

    @property
    def _left(self) -> int:
        """The rest of twice the limit."""
        return 2 * self.bytes_max - self._whole.used

    def give_back(self, count: int) -> None:
        if count:
            self.used -= count
            self._whole.parts.give_back(self.holder, count)
            self._whole.give_back(count)

    def when_room(self, callback: Callable[[], None]) -> None:
        super().when_room(callback)
        self._whole.wait(self)

    def wait_no_more(self, callback: Callable[[], None]) -> None:
        super().wait_no_more(callback)
        self._whole.wait_no_longer(self)

    def room(self) -> None:
        """Call back: there is room, and it is this connection's turn."""
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback()


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
    def counted(self) -> int:
        """The bytes that its parts were counted with."""
        return self._held + self._made

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
        """Count one more part, about so many bytes. Raises Malformed: they are too many."""
        self._made += size
        if self._made >= _NOTED_BYTES:
            await self._note()
        if self.due:
            await self.rest()

    async def _note(self) -> None:
        if not self._held:
            self._memory = self._memory.mine()
            await self._memory.wait_for_room()
        memory = self._memory
        memory.take(self._made)
        self._held += self._made
        self._made = 0
        if memory.exhausted or self._held > memory.bytes_max:
            raise Malformed("the answer takes more memory than answer_bytes_buffered_max allows")
