"""Processes that a test begins and leaves behind: that test fails.

A process that nobody refers to any more is otherwise found by the garbage collection, in the midst
of some later test, which fails by its warning.
"""

import subprocess
from typing import Any

_LASTING = "tests.zygote"
"""The module of the process that forks served ones, which ends with the run."""

_begin = subprocess.Popen.__init__
_begun: "list[subprocess.Popen[Any]] | None" = None


def _noted(self: "subprocess.Popen[Any]", *values: Any, **named: Any) -> None:
    _begin(self, *values, **named)
    if _begun is not None and _LASTING not in self.args:  # type: ignore[operator]
        _begun.append(self)


subprocess.Popen.__init__ = _noted  # type: ignore[method-assign]


def look() -> None:
    """Note processes that begin from now on."""
    global _begun
    _begun = []


def end_left() -> list[str]:
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
