"""The bound on what connections hold in memory."""

from collections.abc import Awaitable, Callable

import anyio

from kproxy.common.memory_budget import (
    AnswerBudget,
    AskersBudget,
    MemoryBudget,
    ResponseBudget,
    SharedBudget,
)
from kproxy.fetching.streamed_response import Stored, StreamedResponse
from kproxy.loop.asking import ASKING, Asking
from kproxy.protocol.varint import Malformed
from tests.harness import until


class Segments:
    """A log that keeps whatever is there."""

    def pin(self, segments: set[int]) -> None:
        pass

    unpin = pin


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


async def test_departed_waiter_waits_no_more() -> None:
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


def test_one_holder_cannot_have_all_request_memory() -> None:
    """FAULT: frames of one client took all, and nobody else's socket was read."""
    memory = SharedBudget(1000)
    hogs = [memory.part("User:mallory") for _ in range(20)]
    told: list[int] = []
    for number, part in enumerate(hogs):
        if part.has_room:
            part.take(100)
        else:
            part.when_room(lambda number=number: told.append(number))
    assert memory.used == 800
    alice = memory.part("User:alice")
    assert alice.has_room
    alice.take(50)
    hogs[0].give_back(100)
    assert told == list(range(8, 20)), "those that wait are told once their holder has room"


def test_unfinished_frames_of_one_holder_keep_nobody_else_out() -> None:
    """FAULT: they grew to all there is, and nobody else's socket was read, or it was ended."""
    memory = SharedBudget(1000)
    hogs = [memory.part("User:mallory") for _ in range(7)]
    for part in hogs:
        part.take(1)
    while not any(part.exhausted for part in hogs):
        for part in hogs:
            part.take(10)
    assert memory.used > 1000, "what has begun may go on beyond the limit"
    alice, waits = memory.part("User:alice"), memory.part("User:mallory")
    assert not waits.has_room
    assert alice.has_room
    alice.take(50)
    assert not alice.exhausted
    assert memory.used < 2000


def test_small_holder_begins_nothing_where_all_is_taken() -> None:
    memory = SharedBudget(1000)
    for number in range(21):
        memory.part(f"User:{number}").take(100)
    alice = memory.part("User:alice")
    assert alice.exhausted
    assert not alice.has_room


def test_a_part_that_leaves_is_told_nothing() -> None:
    memory, told = SharedBudget(100), []
    first, second = memory.part("a"), memory.part("a")
    first.take(100)
    callback = lambda: told.append(1)  # noqa: E731
    second.when_room(callback)
    second.wait_no_more(callback)
    first.give_back(100)
    assert not told
    assert not memory._short
    assert not memory.parts._of


async def test_slow_reader_does_not_keep_answers_of_others_waiting() -> None:
    """FAULT: one user's slow readers filled the memory of answers, and nobody had a Fetch."""
    answers = AnswerBudget(1000)
    slow = [answers.part("User:mallory") for _ in range(11)]
    for part in slow:
        part.take(100)
    assert not answers.has_room
    went_on = []

    async def asks(name: str) -> None:
        ASKING.set(Asking(name))
        await answers.wait_for_room()
        went_on.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks, "User:mallory")
        tasks.start_soon(asks, "User:alice")
        await until(lambda: went_on, 5)
        assert went_on == ["User:alice"]
        for part in slow:
            part.give_back(100)
    assert went_on == ["User:alice", "User:mallory"]
    assert not answers._short


async def test_long_answers_of_one_holder_end_none_of_anothers() -> None:
    """FAULT: while they were made they were nobody's, and filled all: others' were refused."""
    answers = AnswerBudget(8 << 20)
    refused: list[str] = []
    over = anyio.Event()

    async def makes(name: str, mib: int) -> None:
        ASKING.set(Asking(name))
        with ResponseBudget(answers) as budget:
            try:
                for _ in range(mib * 4):
                    await budget.step(256 << 10)
                    await anyio.lowlevel.checkpoint()
            except Malformed:
                refused.append(name)
                return
            if name == "User:mallory":
                await over.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(makes, "User:mallory", 5)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await makes("User:alice", 2)
        tasks.cancel_scope.cancel()
    assert "User:alice" not in refused
    assert answers.used == 0
    assert not answers.parts._of


async def crowd(asks: Callable[[str], Awaitable[None]]) -> None:
    """Let Mallory ask ten times, and then Alice."""
    async with anyio.create_task_group() as tasks:
        for name in (*["User:mallory"] * 10, "User:alice"):
            tasks.start_soon(asks, name)
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_answers_that_one_holder_does_not_read_are_found_in_its_own_part() -> None:
    """FAULT: what was found for them was nobody's, and nothing was found for others."""
    answers = AnswerBudget(1 << 20)
    stored = Stored([(0, 0, 0, 1)] * 1000, Segments())
    began: list[str] = []

    async def fetches(name: str) -> None:
        ASKING.set(Asking(name))
        await answers.wait_for_room()
        with StreamedResponse([stored], memory=answers).pinned():
            began.append(name)
            await anyio.sleep_forever()

    await crowd(fetches)
    assert began[-1] == "User:alice"
    assert 1 <= began.count("User:mallory") < 5
    assert answers.found.used == 0


async def test_large_requests_of_one_holder_wait_for_themselves() -> None:
    """FAULT: they took all the memory for such requests, and those of others were refused."""
    memory = AskersBudget(1000)
    began: list[str] = []

    async def asks(name: str) -> None:
        ASKING.set(Asking(name))
        mine = memory.mine()
        await mine.wait_for_room()
        mine.take(300)
        began.append(name)
        try:
            await anyio.sleep_forever()
        finally:
            mine.give_back(300)

    await crowd(asks)
    assert began == ["User:mallory"] * 3 + ["User:alice"]
    assert memory.used == 0
