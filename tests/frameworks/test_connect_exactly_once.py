"""Kafka Connect's exactly-once source: records and offsets in one transaction, zombies fenced."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.clients.calls import create
from tests.clients.transactions import calls as transactions
from tests.frameworks.connect import ConnectWorker
from tests.harness import eventually
from tests.workers import Site

FLAGS = ("--group-initial-rebalance-delay-ms", "200", "--compaction-check-ms", "500")
CONNECTOR = "org.apache.kafka.connect.file.FileStreamSourceConnector"
AT_ONCE, TIMES = 50, 30
"""Lines, and how often: its source takes 2,000 at a time, and lets lie what is behind them."""


@contextmanager
def worker(site: Site, group: str, directory: Path) -> Iterator[ConnectWorker]:
    running = ConnectWorker(site.address, group, directory, exactly_once_source_support="enabled")
    try:
        yield running.wait_ready()
    except AssertionError as error:
        status = running.ask("/connectors?expand=status")
        error.add_note(f"{status}\n{running.last_words()}")
        raise
    finally:
        running.kill()


def at_work(running: ConnectWorker) -> bool:
    """Whether this worker has the task, and not as one that died had it."""
    return running.runner("source") == running.name and running.state("source") == "RUNNING"


def stands_at(running: ConnectWorker, position: int) -> bool:
    return running.offsets("source") == [{"position": position}]


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_each_line_once(site: Site, tmp_path: Path, kills: int) -> None:
    """Its worker is killed while it reads a file: each line is in the queue once, in order."""
    group = f"once-{kills}-{'embedded' if hasattr(site, 'process') else 'workers'}"
    queue, source = f"{group}-lines", tmp_path / "in.txt"
    create(site.address, queue)
    source.write_text("")
    written: list[bytes] = []

    def write(times: int) -> None:
        for _ in range(times):
            lines = [f"line {len(written) + number}" for number in range(AT_ONCE)]
            written.extend(line.encode() for line in lines)
            with source.open("a") as file:
                file.write("".join(line + "\n" for line in lines))
            time.sleep(0.02)

    def arrived() -> bool:
        return len(transactions.values(site.address, queue)) >= len(written)

    for number in range(kills + 1):
        with worker(site, group, tmp_path / str(number)) as running:
            if number == 0:
                running.configure(
                    "source",
                    {"connector.class": CONNECTOR, "tasks.max": 1, "file": str(source),
                     "topic": queue, "exactly.once.support": "required",
                     "transaction.boundary": "poll"},
                )  # fmt: skip
            eventually(partial(at_work, running), 60)
            write(1)
            eventually(arrived, 60)
            write(TIMES // 2)
            if number < kills:
                running.kill()
                write(TIMES // 2)
                seen = transactions.values(site.address, queue)
                assert seen == written[: len(seen)]
                continue
            eventually(arrived, 30)
            eventually(partial(stands_at, running, source.stat().st_size), 30)
    assert transactions.values(site.address, queue) == written
