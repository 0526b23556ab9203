"""The shards that Kafka's group assigned to this worker, one task each."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup

from kproxy.cluster.services import ShardServices
from kproxy.cluster.shard_owner import ShardOwner
from kproxy.log.base import Ticket
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.partitioner import shard_of

_log = structlog.get_logger()


class OwnedShards:
    """`Routes` of one worker among many."""

    def __init__(self, shards: int, directory: Path) -> None:
        self.shards = shards
        self._directory = directory
        self._wanted: frozenset[int] = frozenset()
        self._owners: dict[int, ShardOwner] = {}
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._leaving: set[int] = set()
        self._changed = anyio.Event()
        self.assigned_once = False
        self.submit: Callable[[str, Envelope], Ticket]
        """Put a command in line in the home shard of a queue, wherever that is."""
        self.ask: Callable[[int, Envelope], Ticket]
        """Append a command to a shard's log: settled with what its owner's fold decides."""
        self.land_elsewhere: Callable[[int, Sequence[Envelope]], Ticket]
        """Append to the log of a shard that is not served here: settled once it is durable."""
        self.settle: Callable[[], Awaitable[None]]
        """Wait until the cached catalogue is as new as the cluster's."""

    def serving(self, index: int) -> Shard | None:
        owner = self._owners.get(index)
        return None if owner is None else owner.shard

    def serving_name(self, name: str) -> Shard | None:
        """Return the home shard of a queue, if this worker serves it now."""
        return self.serving(shard_of(name, self.shards))

    def all(self) -> list[Shard]:
        return [h.shard for h in self._owners.values() if h.shard is not None]

    def owners(self) -> list[ShardOwner]:
        """Return the owners that hold a shard here, or try to."""
        return list(self._owners.values())

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        """Append to a shard's log, whoever serves it: settled once all are durable there."""
        shard = self.serving(index)
        return self.land_elsewhere(index, envelopes) if shard is None else shard.append(envelopes)

    async def wait_for_catalogue(self, names: Iterable[str | None]) -> None:
        if any(name is None or self.serving_name(name) is None for name in names):
            await self.settle()

    def assigned(self, wanted: frozenset[int]) -> None:
        """Take the group's new decision on which shards are this worker's."""
        _log.info("shards_assigned", shards=len(wanted))
        self._wanted = wanted
        self.assigned_once = True
        self._changed.set()

    async def run(self, services: ShardServices) -> None:
        """Hold what is assigned, hand over what is not, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed = anyio.Event()
                self._hand_over()
                for index in self._wanted - self._scopes.keys():
                    self._start(index, services, tasks)
                await self._changed.wait()

    def _hand_over(self) -> None:
        """Hand over shards that are not wanted any more: each is served until another worker claims
        it.
        """
        held = self._scopes.keys()
        for index in self._leaving & self._wanted & held:
            self._owners[index].keep()
        for index in (held - self._wanted) - self._leaving:
            self._owners[index].hand_over(self._scopes[index].cancel)
        self._leaving = held - self._wanted

    def _start(self, index: int, services: ShardServices, tasks: TaskGroup) -> None:
        owner = ShardOwner(index, self.shards, self._directory / f"shard-{index}", services)
        scope = self._scopes[index] = anyio.CancelScope()
        self._owners[index] = owner

        async def hold() -> None:
            with scope:
                await owner.run()
            del self._owners[index], self._scopes[index]
            self._changed.set()  # it may have been given back meanwhile

        tasks.start_soon(hold)
