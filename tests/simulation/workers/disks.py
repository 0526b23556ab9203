"""The disks of workers that crash, and their threads."""

import random
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.threads import Stop
from kproxy.store.damage import Damage
from tests.simulation.workers.cluster import DELAYS, World


class SimKv:
    """`RocksKv` over a dict, with a disk: what was flushed outlives its worker."""

    def __init__(self, world: World, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._world, self._path = world, path
        self._life = world.life_of(path)
        self.rows = dict(world.disk.get(path, {}))
        self._keys: list[bytes] | None = None
        self._coming: dict[bytes, bytes] = {}
        self.shut_down = False
        self.damage = Damage()

    def _check(self) -> None:
        if self.shut_down:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "closed")

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self.rows.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        if self._keys is None:
            self._keys = sorted(self.rows)
        keys, rows = self._keys, self.rows
        found = keys[bisect_left(keys, start) : bisect_left(keys, end)]
        return iter([(key, rows[key]) for key in found])

    walk = scan

    def let_go(self) -> None:
        pass

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        self._check()
        for key, value in changes.items():
            if value is None:
                if self.rows.pop(key, None) is not None:
                    self._keys = None
            else:
                if key not in self.rows:
                    self._keys = None
                self.rows[key] = value

    def last_write(self, changes: dict[bytes, bytes | None]) -> None:
        self.shut_down = False
        self.write(changes)

    def push(self) -> None:
        pass

    def unflushed_deletions(self) -> int:
        return 0

    def unflushed_bytes(self) -> int:
        return 0

    def begin_flush(self) -> None:
        self._coming = dict(self.rows)

    def finish_flush(self) -> None:
        if self._life.alive:
            self._world.disk[self._path] = self._coming

    def flush(self) -> None:
        self.begin_flush()
        self.finish_flush()

    def shut(self) -> None:
        self.shut_down = True

    def close(self) -> None:
        self.shut_down = True


class Threads:
    """The stand-in for anyio's `to_thread`: a call is done a little later."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def run_sync(self, function: Any, *args: Any, **_: Any) -> Any:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self._rng.choice(DELAYS) / 5)
        return function(*args)

    async def on_disk(self, call: Any) -> Any:
        """Stand in for `loop.threads.on_disk`."""
        return await self.run_sync(call)

    async def stoppable(self, call: Any, unused: Any = None) -> Any:
        """Stand in for `loop.threads.stoppable`."""
        return await self.run_sync(call, Stop())
