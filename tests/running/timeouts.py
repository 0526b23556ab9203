"""A limit for each test, and no process left: one that hangs fails, with the place where it hangs.

These lines are what pytest-timeout would do here, without a dependency: a signal ends the test in
place, and its fixtures end as after any failure. If no Python code runs any more, the process
writes the stacks of all threads and ends; xdist then goes on with another one.

A test that leaves a process behind fails, too. The garbage collection finds such a process in the
midst of some later test, which would fail by its warning.
"""

import faulthandler
import signal
import subprocess
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

SECONDS = 600
"""The limit of a setup, a call or a teardown: several times the slowest on a busy machine."""
SECONDS_LONG = 4 * 3600
_MORE = 60
_LASTING = "tests.zygote"
"""The module of the process that forks served ones, which ends with the run."""

_begin = subprocess.Popen.__init__
_begun: "list[subprocess.Popen[Any]] | None" = None


def _noted(self: "subprocess.Popen[Any]", *values: Any, **named: Any) -> None:
    _begin(self, *values, **named)
    if _begun is not None and _LASTING not in self.args:  # type: ignore[operator]
        _begun.append(self)


subprocess.Popen.__init__ = _noted  # type: ignore[method-assign]


def _look() -> None:
    """Note processes that begin from now on."""
    global _begun
    _begun = []


def _end_left() -> list[str]:
    """Kill noted processes that still run; return their commands."""
    global _begun
    begun, _begun = _begun or [], None
    left = [process for process in begun if process.poll() is None]
    for process in left:
        process.kill()
        process.wait(30)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
    return [str(process.args) for process in left]


def _limited(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker("limit")
    seconds = SECONDS_LONG if item.get_closest_marker("long") else SECONDS
    seconds = marker.args[0] if marker else seconds

    def end(number: int, frame: Any) -> None:
        pytest.fail(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    kept = item.config.stash[fault_handler_stderr_fd_key]  # the one that is not captured
    faulthandler.dump_traceback_later(seconds + _MORE, exit=True, file=kept)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _limited(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    _look()
    return (yield from _limited(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield from _limited(item))
    finally:
        if commands := _end_left():
            pytest.fail(f"the test left processes behind: {commands}")
