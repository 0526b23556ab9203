"""Costs of the console beside very many queues; CPU, for a machine may be busy with other things.

`CONSOLE_QUEUES=1000000 pytest -m long -s tests/scale/test_console.py` prints the table of so many.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("starlette")

from confluent_kafka.admin import AdminClient

from kproxy.console import app, shown
from kproxy.tools.administration import create
from kproxy.tools.client import Client
from tests.console.serving import Browser
from tests.console.test_dead import ENABLE, bury
from tests.console.test_pages import make
from tests.harness import ROOT, Served, free_port, served

QUEUES = int(os.environ.get("CONSOLE_QUEUES", "100000"))
LETTERS = 10_000
ROUNDS = 20
PATHS = {
    "the first page": "/", "queues": "/queues", "queues from a name on": "/queues?prefix=meter-5",
    "queues with a text": "/queues?contains=99999", "a queue": "/queues/meter-5",
    "records": "/queues/dlq.jobs/records", "groups": "/groups", "dead letters": "/dead",
    "letters": "/dead/dlq.jobs", "jobs": "/jobs", "waiting": "/waiting",
    "routes": "/routes", "transactions": "/transactions", "workers": "/workers",
}  # fmt: skip
WALKS = ("queues with a text", "waiting", "routes")
"""The pages that look at 20,000 names: they are no lists by name."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("many") / "data", by_exec=True) as server:
        with Client((server.host, server.port)) as client:
            names = [f"meter-{number}" for number in range(QUEUES)]
            assert not [one for one in create(client, names, 1, {}, dry=False) if one.code]
        make(_admin(server), "dlq.jobs", **ENABLE)
        bury(server, "dlq.jobs", "meter-1", LETTERS)
        yield server


def _admin(server: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.address, "log_level": 0})


@pytest.fixture
def measured(filled: Served) -> Iterator[tuple[Browser, psutil.Process]]:
    port = free_port()
    command = [sys.executable, "-m", "kproxy", "console", "--listen", f"127.0.0.1:{port}",
               "--bootstrap-server", filled.address]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "console at" in process.stdout.readline()
            yield Browser(port), psutil.Process(process.pid)
        finally:
            process.terminate()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rounds(ask: Callable[[], object], *processes: psutil.Process) -> tuple[float, ...]:
    """Return the median of milliseconds, and each process's CPU milliseconds a round."""
    took, before = [], [_cpu(one) for one in processes]
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        ask()
        took.append(time.perf_counter() - begin)
    spent = [_cpu(one) - then for one, then in zip(processes, before, strict=True)]
    return (1000 * statistics.median(took), *(1000 * one / ROUNDS for one in spent))


def test_pages_keep_their_budgets(filled: Served, measured: tuple[Browser, psutil.Process]) -> None:
    browser, process = measured
    worker = psutil.Process(filled.process.pid)
    lines, costs = [], {}
    for name, path in PATHS.items():
        first = browser.get(path)  # connections and templates are there from now on
        assert first.status == 200, (name, first.text[:300])
        costs[name] = _rounds(lambda path=path: browser.get(path), process, worker)  # type: ignore[misc]
        wall, mine, its = costs[name]
        lines.append(f"{name:24} {wall:8.1f} {mine:8.1f} {its:8.1f} {len(first.body):9,}")
    rss, render = process.memory_info().rss / 1e6, _render()
    static = sum(path.stat().st_size for path in (Path(app.__file__).parent / "static").iterdir())
    idle = 100 * 5 * costs["queues"][2] / 1000 / 5
    print(f"\n{QUEUES:,} queues, {LETTERS:,} letters: median ms, CPU ms of console and of kproxy")  # noqa: T201
    print("\n".join(lines))  # noqa: T201
    print(f"RSS {rss:.1f} MB, render {render:.2f} ms, static {static:,} bytes, five tabs every"  # noqa: T201
          f" 5 s {idle:.2f} % of a core at kproxy")  # fmt: skip
    assert rss < 80
    assert static < 130_000
    assert idle < 1
    assert sum(costs["the first page"][1:]) < 300
    for name in costs.keys() - set(WALKS):
        assert sum(costs[name][1:]) < 150, name
    assert render < 5


def _render() -> float:
    """Return the CPU milliseconds of a list page's template."""
    queue = {"partitions": 1, "records": 12, "bytes": 830}
    values = app.Options(("", 0), None, frozenset()).around(None) | {  # type: ignore[arg-type]
        "queues": [{"name": f"meter-{n}", **queue} for n in range(50)],
        "prefix": "", "contains": "",
        "first": "", "after": None, "following": None,
    }  # fmt: skip
    shown.rendered("queues.html", values)
    begin = time.thread_time()
    for _ in range(ROUNDS):
        shown.rendered("queues.html", values)
    return 1000 * (time.thread_time() - begin) / ROUNDS
