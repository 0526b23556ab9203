"""The order in which passwords are checked."""

import asyncio
import random
import threading

import pytest

from kproxy.security import hashing
from kproxy.security.hashing import Hashing


class Site:
    """One thread, which is busy until `go`; who had it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hashing, "THREADS", 1)
        self.now = 0.0
        self.hashing = Hashing(lambda: self.now)
        self.had: list[str] = []
        self.go = threading.Event()

    async def comes(self, *addresses: str) -> list[asyncio.Task[None]]:
        tasks = []
        for address in addresses:
            tasks.append(asyncio.create_task(self.hashing.run(address, lambda a=address: self(a))))
            await asyncio.sleep(0)
        return tasks

    def __call__(self, address: str) -> None:
        assert self.go.wait(60)
        self.had.append(address)


async def test_addresses_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: one line for all: 900 guesses of an address came before another's password."""
    site = Site(monkeypatch)
    tasks = await site.comes("a", *["mallory"] * 50, "alice", "bob")
    site.go.set()
    await asyncio.gather(*tasks)
    assert site.had[:4] == ["a", "mallory", "alice", "bob"]
    assert len(site.had) == 53
    assert site.hashing._threads.free == 1


async def test_address_with_a_recent_failure_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    for number in range(40):
        site.hashing.wrong(f"m{number}")
    tasks = await site.comes("a", *[f"m{number}" for number in range(40)], "alice")
    site.go.set()
    await asyncio.gather(*tasks)
    assert site.had[:3] == ["a", "alice", "m0"]
    site.now, site.had = 61.0, []
    site.go.clear()
    tasks = await site.comes("a", "m1", "alice")
    site.go.set()
    await asyncio.gather(*tasks)
    assert site.had == ["a", "m1", "alice"]


async def test_waiter_that_leaves_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    site, dice = Site(monkeypatch), random.Random(7)
    tasks = await site.comes(*[dice.choice("abcd") for _ in range(60)])
    for task in dice.sample(tasks[1:], 40):
        task.cancel()
    await asyncio.sleep(0)
    site.go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(site.had) == 20
    assert site.hashing._threads.free == 1
    assert not any(site.hashing._threads.lines)


async def test_remembered_addresses_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_ADDRESSES_MAX", 10)
    site = Site(monkeypatch)
    for number in range(30):
        site.hashing.wrong(str(number))
    assert list(site.hashing._wrong) == [str(number) for number in range(20, 30)]
