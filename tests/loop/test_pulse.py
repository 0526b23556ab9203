"""The pulse: who sleeps for periods wakes together, and never twice in one."""

import itertools

import anyio

from kproxy.loop.pulse import pulse


async def test_sleepers_of_the_same_period_wake_in_the_same_turn() -> None:
    woken: list[list[float]] = [[], [], []]

    async def beat(mine: list[float], begin_s: float) -> None:
        await anyio.sleep(begin_s)
        for _ in range(3):
            before = anyio.current_time()
            await pulse(0.1)
            now = anyio.current_time()
            assert now - before >= 0.05
            mine.append(round(now / 0.1))

    async with anyio.create_task_group() as tasks:
        for number, mine in enumerate(woken):
            tasks.start_soon(beat, mine, number * 0.013)
    together = {beat for mine in woken for beat in mine}
    assert len(together) <= 5  # not nine


async def test_a_long_step_skips_beats_instead_of_making_up_for_them() -> None:
    beats = []
    for _ in range(3):
        await pulse(0.05)
        beats.append(anyio.current_time())
        await anyio.sleep(0.12)
    beats = beats
    assert all(after - before >= 0.12 + 0.025 for before, after in itertools.pairwise(beats))
