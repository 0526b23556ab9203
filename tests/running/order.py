"""The order of tests side by side (`-n`): the longest begin, the quick ones fill up the end.

`tests/longest.txt` has the seconds that files took; `--note-order` writes it anew. Its numbers are
good enough as long as a file that takes minutes does not come last.
"""

from pathlib import Path

import pytest

LONGEST = Path(__file__).parent.with_name("longest.txt")
_SECONDS_LEAST = 2.0
"""The least seconds of a file in the list: the others come behind them, as they are collected."""
_CUT = ("tests/project/test_readme.py",)
"""Files whose tests need nothing of each other and take long: each may run anywhere."""


def scope_of(nodeid: str) -> str:
    """Return what stays on one process: a file, or all files that need Spark."""
    path = nodeid.partition("::")[0]
    if path in _CUT:
        return nodeid
    return "tests/spark" if path.startswith("tests/spark/") else path


def folder_of(scope: str) -> str:
    """Return the folder of tests that a scope is in."""
    first, *rest = scope.partition("::")[0].removeprefix("tests/").split("/")
    return first if rest or first == "spark" or first.startswith("(") else "(top)"


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the seconds of what they stay on a process with."""
    seconds = read(LONGEST)
    items.sort(key=lambda item: -seconds.get(scope_of(item.nodeid), 0.0))


def read(path: Path) -> dict[str, float]:
    """Return seconds by scope."""
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
    return {scope: float(seconds) for seconds, scope in lines}


def write(path: Path, seconds: dict[str, float]) -> None:
    """Write the list; of scopes that did not run, what it had."""
    known = (read(path) if path.exists() else {}) | seconds
    listed = sorted(known.items(), key=lambda one: (-round(one[1]), one[0]))
    path.write_text(
        "".join(f"{value:.0f} {scope}\n" for scope, value in listed if value >= _SECONDS_LEAST)
    )
