"""Long work gives way to others."""

import asyncio

import anyio

from kproxy.pace import Pace, slices


def test_what_is_long_takes_turns() -> None:
    """One slice of one work in each turn of the loop."""

    async def run() -> None:
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

    anyio.run(run)


def test_who_left_the_line_holds_up_nobody() -> None:
    async def run() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await Pace().rest()
        with anyio.fail_after(5):
            await Pace().rest()

    anyio.run(run)


def test_slices() -> None:
    assert list(slices(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(slices((), 2)) == []
