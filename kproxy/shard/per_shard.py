"""The parts of a worker that each shard has one of, for as long as it is served by one claim."""

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from kproxy.loop.pulse import pulse
from kproxy.shard.shard import Shard

_FOLLOW_S = 0.25

Part = TypeVar("Part")


class Claim:
    """A claim by which a worker serves a shard. The same worker's next one is another."""

    __slots__ = ("_log_offset", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._log_offset = shard.claim_offset

    def is_of(self, shard: Shard) -> bool:
        """Return whether a shard is served by this claim."""
        return self._shard is shard and self._log_offset == shard.claim_offset

    @property
    def serves(self) -> bool:
        return self._shard.serving and self._log_offset == self._shard.claim_offset


class PerShard(Generic[Part]):
    """One part for each shard that is served here, made anew for each claim."""

    def __init__(self, serving: Callable[[], list[Shard]], make: Callable[[Shard], Part]) -> None:
        self._serving = serving
        self._make = make
        self._parts: dict[int, tuple[Claim, Part]] = {}
        self._new: dict[int, tuple[Shard, Part]] = {}
        """The parts that `run` has not started yet."""

    def known(self, shard: Shard) -> Part | None:
        """Return the part of a shard as it is served now, if there is one already."""
        found = self._parts.get(shard.shard)
        return found[1] if found is not None and found[0].is_of(shard) else None

    def of(self, shard: Shard) -> Part:
        """Return the part of a shard as it is served now; one that nobody keeps if it is not."""
        part = self.known(shard)
        if part is None:
            part = self._make(shard)
            if shard.serving:  # else the place may be that of the shard as it was opened since
                self._parts[shard.shard] = Claim(shard), part
                self._new[shard.shard] = shard, part
        return part

    def all(self) -> list[Part]:
        return [part for _, part in list(self._parts.values())]

    async def run(self, start: Callable[[Part, TaskGroup], object]) -> None:
        """Make and start the parts of the shards that are served, and forget those of others."""
        async with anyio.create_task_group() as tasks:
            while True:
                shards = self._serving()
                for index in self._parts.keys() - {shard.shard for shard in shards}:
                    del self._parts[index]
                    self._new.pop(index, None)
                for shard in shards:
                    self.of(shard)
                while self._new:
                    _, (shard, part) = self._new.popitem()
                    start(part, shard.tasks or tasks)
                await pulse(_FOLLOW_S)
