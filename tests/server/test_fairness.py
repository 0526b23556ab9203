"""Long work of one client does not keep another's waiting."""

import asyncio
from collections import deque

from kproxy.loop import pace
from kproxy.loop.asking import ASKING, Asking
from kproxy.loop.fair_threads import FairThreads


async def test_clients_have_their_turns_of_the_loop() -> None:
    """FAULT: thirty long requests of one client had thirty turns before another's had one."""
    had: list[str] = []

    async def works(holder: str, slices: int) -> None:
        ASKING.set(Asking(holder))
        for _ in range(slices):
            await pace.turn()
            had.append(holder)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(30):
            tasks.create_task(works("mallory", 10))
        tasks.create_task(works("alice", 5))
    turns = [number for number, holder in enumerate(had) if holder == "alice"]
    assert turns[-1] < 40
    assert len(had) == 305
    assert not pace.waits()


async def test_one_slice_is_done_in_a_turn_of_the_loop_and_others_go_on() -> None:
    loop, turns, done = asyncio.get_running_loop(), [0], deque[int]()

    def count() -> None:
        turns[0] += 1
        loop.call_soon(count)

    async def works() -> None:
        await pace.turn()
        done.append(turns[0])

    loop.call_soon(count)
    await asyncio.gather(*(works() for _ in range(20)))
    assert len(set(done)) == 20


async def test_next_work_waits_behind_work_of_the_same_client_alone() -> None:
    ASKING.set(Asking("mallory"))
    long = asyncio.create_task(pace.turn())
    await asyncio.sleep(0)
    assert pace.waits()
    ASKING.set(Asking("alice"))
    assert not pace.waits()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    await pace.turn()
    ASKING.set(Asking("mallory"))
    assert not pace.waits()


async def test_clients_have_their_turns_of_a_thread() -> None:
    threads, had = FairThreads(1), []

    async def works(holder: str) -> None:
        await threads.run(holder, lambda: had.append(holder))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(30):
            tasks.create_task(works("mallory"))
        tasks.create_task(works("alice"))
    assert had.index("alice") <= 2
    assert threads.free == 1
