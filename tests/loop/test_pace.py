"""Long work gives way to others."""

import asyncio
import weakref
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import anyio

from kproxy.loop.pace import Pace, slices
from tests.held import HELD_S, held_by, slowness


@dataclass
class Part:
    number: int


@dataclass
class Whole:
    parts: list[Part]
    more: dict[str, Any]


async def test_long_work_takes_turns() -> None:
    """One slice of one work in each turn of the loop."""

    turns: list[int] = []

    async def work(number: int) -> None:
        pace = Pace()
        for _ in range(5):
            await pace.rest()
            turns.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(work, number)
        while len(turns) < 15:
            before = len(turns)
            await asyncio.sleep(0)
            assert len(turns) <= before + 1
    assert turns == [0, 1, 2] * 5


async def test_cancelled_waiter_holds_up_nobody() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Pace().rest()
    with anyio.fail_after(5):
        await Pace().rest()


def test_slices() -> None:
    assert list(slices(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(slices((), 2)) == []


async def test_large_collection_is_counted_and_freed_in_slices() -> None:
    """Ids of queues are compared in Python; a request of 240,000 elements was freed in 70 ms."""

    ids = [UUID(int=i % 200_000) for i in range(240_000)]
    times, held = await held_by(Pace().count(ids))
    assert held < HELD_S * slowness()
    assert list(times) == ids[:200_000]
    assert [times[ids[0]], times[ids[-1]], times[ids[100_000]]] == [2, 2, 1]
    wholes: list[Any] = [Whole([Part(number)], {"a": (number,)}) for number in range(300_000)]
    last = weakref.ref(wholes[0])
    wholes = [tuple(wholes)]
    _, held = await held_by(Pace().let_go(wholes))
    assert held < HELD_S * slowness()
    assert last() is None
