"""The bound on what connections hold in memory."""

import anyio

from kproxy.memory_budget import MemoryBudget, ResponseBudget
from tests.harness import until


async def test_everyone_who_waits_for_room_is_woken() -> None:
    memory = MemoryBudget(10)
    memory.take(11)
    with anyio.fail_after(2):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(memory.wait_for_room)
            await anyio.sleep(0.01)
            memory.give_back(5)


async def test_a_long_answer_waits_for_room() -> None:
    memory = MemoryBudget(1 << 20)
    memory.take(3 << 19)
    done = []

    async def make_answer() -> None:
        with ResponseBudget(memory) as budget:
            await budget.step(1 << 19)
            done.append(memory.used)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(make_answer)
        await anyio.sleep(0.01)
        assert not done
        memory.give_back(1 << 20)
        await until(lambda: done, 5)
    assert done == [1 << 20]
    assert memory.used == 1 << 19


async def test_who_has_gone_waits_no_more() -> None:
    memory = MemoryBudget(10)
    memory.take(11)
    called: list[int] = []
    memory.when_room(lambda: called.append(1))
    gone = called.copy
    memory.when_room(gone)
    memory.wait_no_more(gone)
    with anyio.move_on_after(0.01):
        await memory.wait_for_room()
    assert len(memory._waiting) == 1
    memory.give_back(11)
    assert called == [1]
