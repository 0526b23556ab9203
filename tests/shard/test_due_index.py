"""Looks at an index whose rows are done, stay, or are filed by a clock that was ahead."""

import random
from types import SimpleNamespace
from typing import Any, cast

from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.shard import Shard
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.state import State
from tests.fakes import DictKv
from tests.running.together import together

SLICE = 3
DAY = 100


def key(time: int, name: int = 0) -> bytes:
    return b"c%06d-%03d" % (time, name)


def time_of(found: bytes) -> int:
    return int(found[1:7])


class Index:
    """An index that tells where scans of it began."""

    def __init__(self) -> None:
        self.kv = DictKv()
        self.state = State(self.kv)
        self.starts: list[bytes] = []
        self.now = 1000
        scan = self.kv.scan

        def scanned(start: bytes, end: bytes) -> Any:
            self.starts.append(start)
            return scan(start, end)

        self.kv.scan = scanned  # type: ignore[method-assign]

    def file(self, *keys: bytes) -> None:
        self.change(dict.fromkeys(keys, b""))

    def change(self, changes: dict[bytes, bytes | None]) -> None:
        self.state.put_all(changes)
        self.kv.write(self.state.drain())


class Some(DueIndexScanner):
    """A scanner that deletes the keys that it gets."""

    def __init__(self, index: Index) -> None:
        shard = SimpleNamespace(state=index.state, kv=index.kv, serving=True)
        super().__init__(cast(Shard, shard), RowKind.RETENTION_DUE, SLICE, 1.0)
        self.index = index
        self.seen: list[bytes] = []
        self.kept: set[bytes] = set()
        self.failing = 0

    async def scan_once(self) -> bool:
        now = self.index.now
        keys, more = self._next_due(key(now), key(now + DAY + 1))
        if self.failing:
            self.failing -= 1
            self._retry()
            return False
        for one in keys:
            if one in self.kept:
                self._leave(one)
        self.seen += keys
        self.index.change({one: None for one in keys if one not in self.kept})
        return more

    async def passes(self) -> list[bytes]:
        """Return all keys that are given until there are no more."""
        self.seen = []
        while await self.scan_once():
            pass
        return self.seen


async def test_deleted_keys_are_not_stepped_over_again() -> None:
    """FAULT: each look began with the index, and RocksDB stepped over all that had been there."""
    index = Index()
    looks = Some(index)
    index.file(*(key(time) for time in range(900, 910)))
    assert len(await looks.passes()) == 10
    index.starts.clear()
    assert await looks.passes() == []
    assert index.starts == [key(1000)] or not index.starts
    index.now = 1010
    index.file(key(1005), key(2))  # the one that is lower is heard of
    assert await looks.passes() == [key(2), key(1005)]
    index.starts.clear()
    index.now = 1011
    assert await looks.passes() == []
    assert not [start for start in index.starts if start < key(1010)]


async def test_keys_of_a_clock_that_was_ahead_are_given_at_once() -> None:
    """FAULT: it was looked at when the clock was there again."""
    index = Index()
    looks = Some(index)
    assert await looks.passes() == []
    index.now = 50_000
    ahead = [key(index.now + DAY, name) for name in range(10)]
    index.file(*ahead)
    assert await looks.passes() == []  # in time, by that clock
    index.now = 1001
    index.file(key(1050), key(1001 + DAY))
    assert await looks.passes() == ahead
    index.starts.clear()
    assert await looks.passes() == []
    assert not [start for start in index.starts if start > key(1001 + DAY)]
    index.now = 1200
    assert await looks.passes() == [key(1050), key(1001 + DAY)]


async def test_staying_keys_are_given_once_in_each_pass() -> None:
    index = Index()
    looks = Some(index)
    filed = [key(900 + number) for number in range(8)] + [key(9000 + number) for number in range(8)]
    index.file(*filed)
    looks.kept = {filed[1], filed[6], filed[12]}
    assert await looks.passes() == filed
    assert await looks.passes() == sorted(looks.kept)
    looks.failing = 1
    assert await looks.passes() == []
    assert await looks.passes() == sorted(looks.kept)


@together("seed", range(200))
async def test_nothing_is_passed_over(seed: int) -> None:
    """Every filed key is found, wherever the clock jumps, also in the middle of a pass."""
    choose = random.Random(seed)
    index = Index()
    looks = Some(index)

    async def some_looks(count: int) -> None:
        for _ in range(count):
            await looks.scan_once()

    for _ in range(30):
        index.file(*(key(choose.randrange(3000), choose.randrange(9)) for _ in range(5)))
        looks.kept = set(choose.sample(sorted(index.kv.rows), 1)) if index.kv.rows else set()
        looks.failing = choose.randrange(2)
        await some_looks(choose.randrange(4))
        index.now = choose.choice([index.now + 5, choose.randrange(3000)])
        if choose.random() < 0.2:
            looks.failing, looks.kept = 0, set()
            await looks.passes()
            await looks.passes()  # keys that stayed in one are in the next
            for filed in index.kv.rows:
                assert index.now <= time_of(filed) <= index.now + DAY
