"""The bound on what connections hold in memory."""

import anyio

from kproxy.memory import Memory


def test_everyone_who_waits_for_room_is_woken() -> None:
    async def run() -> None:
        memory = Memory(10)
        memory.take(11)
        with anyio.fail_after(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(memory.wait_for_room)
                await anyio.sleep(0.01)
                memory.give_back(5)

    anyio.run(run)
