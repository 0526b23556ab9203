"""`--cpu-table`: what each folder of tests costs, in CPU seconds of the whole tree of processes.

Counted are pytest itself, its living descendants and those that were waited for, at each change of
the file under test. A process that has left the tree (a daemon) is counted up to then.
`--note-order` writes how long each file took to `tests/longest.txt`.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.running.order import LONGEST, folder_of, scope_of, write

_TICKS = os.sysconf("SC_CLK_TCK")
_OUTPUT = "kproxy_cpu"
COLLECTION = "(collection)"
_COLUMNS = ("tests", "wall", "cpu", "own")
_MOST = 40
"""Files that are shown, those that take longest and those that cost most."""

Costs = dict[str, dict[str, float]]

starts: Costs = {}
"""Processes that were started until they were ready, by kind."""


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process; 0 once it has gone."""
    fields = _stat(Path(f"/proc/{pid}"))
    return sum(map(int, fields[11:13])) / _TICKS


def _stat(process: Path) -> list[str]:
    """Return what the kernel says of a process, from its state on; nothing once it has gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def note_start(kind: str, pid: int, more: float = 0.0) -> None:
    """Count a process that has just got ready, and `more` CPU seconds before it."""
    cost = starts.setdefault(kind, {"count": 0, "cpu": 0.0})
    cost["count"] += 1
    cost["cpu"] += cpu_of(pid) + more


def tree_cpu() -> float:
    """Return the CPU seconds of this process and of all that it has started."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        if fields := _stat(process):
            pid = int(process.name)
            children[int(fields[1])].append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))  # with those it has waited for
    total, pids = 0, [os.getpid()]
    while pids:
        pid = pids.pop()
        total += ticks.get(pid, 0)
        pids += children[pid]
    return total / _TICKS


class CpuTable:
    """A sum of costs by file in each process of pytest; the first process prints them by folder."""

    def __init__(self) -> None:
        self._costs: Costs = defaultdict(lambda: dict.fromkeys(_COLUMNS, 0.0))
        self._starts: Costs = defaultdict(lambda: {"count": 0, "cpu": 0.0})
        self._scope = ""
        self._tests = 0
        self._mark()
        self._tree = self._own = 0.0  # imports of pytest and of conftest belong to the collection

    def _mark(self) -> None:
        self._wall, self._tree, self._own = time.monotonic(), tree_cpu(), time.process_time()

    def _add(self, where: str) -> None:
        wall, tree, own, tests = self._wall, self._tree, self._own, self._tests
        self._mark()
        cost = self._costs[where]
        cost["tests"] += tests
        cost["wall"] += self._wall - wall
        cost["cpu"] += self._tree - tree
        cost["own"] += self._own - own
        self._tests = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._add(COLLECTION)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        scope = scope_of(item.nodeid)
        if self._scope != scope:
            self._scope, self._wall = scope, time.monotonic()  # it may have waited for work
        result = yield
        self._tests += 1
        if nextitem is None or scope_of(nextitem.nodeid) != scope:
            self._add(scope)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is None and session.config.getoption("dist", "no") != "no":
            own = time.process_time()  # its descendants tell for themselves
            self._costs["(xdist)"] |= {"cpu": own, "own": own}
        else:
            self._add("(end)")
        if output is not None:
            output[_OUTPUT] = {"costs": dict(self._costs), "starts": starts}
        else:
            _merge(self._starts, starts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if output:  # none where the process crashed
            _merge(self._costs, output["costs"])
            _merge(self._starts, output["starts"])

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        folders: Costs = defaultdict(lambda: dict.fromkeys(_COLUMNS, 0.0))
        for scope, cost in self._costs.items():
            _merge(folders, {folder_of(scope): cost})
        terminalreporter.section("CPU seconds")
        for line in table(folders, self._starts):
            terminalreporter.write_line(line)
        files = {scope: cost for scope, cost in self._costs.items() if scope.startswith("tests/")}
        for name in ("wall", "cpu"):
            most = sorted(files, key=lambda scope: -files[scope][name])[:_MOST]
            for scope in most:
                terminalreporter.write_line(f"{name} {files[scope][name]:.0f} s {scope}")
        if config.getoption("--note-order"):
            write(LONGEST, {scope: cost["wall"] for scope, cost in files.items()})


def _merge(into: Costs, more: Costs) -> None:
    for where, cost in more.items():
        for name, value in cost.items():
            into[where][name] += value


def table(costs: Costs, started: Costs) -> list[str]:
    """Return lines of Markdown. `waits`: neither pytest nor what it started computes."""
    lines = [
        "| folder | tests | wall s | CPU s | of it pytest | waits s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    total = dict.fromkeys((*_COLUMNS, "waits"), 0.0)
    for where, cost in sorted(costs.items(), key=lambda item: -item[1]["cpu"]):
        row = cost | {"waits": max(0.0, cost["wall"] - cost["cpu"])}
        lines.append(_line(where, row))
        for name, value in row.items():
            total[name] += value
    lines.append(_line("**all**", total))
    for kind, cost in sorted(started.items()):
        each = cost["cpu"] / cost["count"]
        lines.append(
            f"| of it {kind} starts | {cost['count']:.0f} | | {cost['cpu']:.0f}"
            f" | {each:.2f} each | |"
        )
    return lines


def _line(where: str, row: dict[str, float]) -> str:
    names = ("tests", "wall", "cpu", "own", "waits")
    return f"| {where} | " + " | ".join(f"{row[name]:.0f}" for name in names) + " |"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-table", action="store_true", help="show what each folder costs")
    parser.addoption("--note-order", action="store_true", help="note how long each file took")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu-table") or config.getoption("--note-order"):
        config.pluginmanager.register(CpuTable())
