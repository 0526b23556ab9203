"""Calls on threads end with their callers, or are left behind."""

import threading

import anyio
import pytest

from kproxy.loop.threads import Stop, Stopped, left_behind, stoppable


async def test_a_cancelled_caller_leaves_a_silent_call_behind() -> None:
    answered = threading.Event()
    with anyio.fail_after(5), anyio.move_on_after(0.01) as scope:
        await left_behind(answered.wait)
    assert scope.cancelled_caught
    answered.set()


async def test_a_cancelled_call_is_stopped_before_its_caller_goes_on() -> None:
    ended = False

    def call(stop: Stop) -> None:
        nonlocal ended
        try:
            while True:
                stop.check()
        finally:
            ended = True

    with anyio.fail_after(5), anyio.move_on_after(0.01):
        await stoppable(call)
    assert ended


async def test_result_of_a_stopped_call_is_let_go() -> None:
    let_go: list[str] = []

    def call(stop: Stop) -> str:
        while True:
            try:
                stop.check()
            except Stopped:
                return "a file"

    with anyio.fail_after(5), anyio.move_on_after(0.01):
        await stoppable(call, let_go.append)
    assert let_go == ["a file"]


async def test_results_and_errors_come_back() -> None:
    def fail(stop: Stop) -> None:
        raise ValueError("so")

    assert await left_behind(lambda: 7) == 7
    assert await stoppable(lambda stop: 8) == 8
    with pytest.raises(ValueError, match="so"):
        await stoppable(fail)
    with pytest.raises(ZeroDivisionError):
        await left_behind(lambda: 1 // 0)
