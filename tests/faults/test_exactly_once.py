"""Consume, transform, produce while clients and servers die: one copy of each record.

Two processors in slots copy queues. Every few seconds one of them is killed, or stopped until its
group has given its queues to the other, and so are the servers. Afterwards a reader of committed
records must find each record once, in its queue's order, and nothing of an aborted transaction, and
the history of all (`tests/histories`) must be sound.
"""

import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from tests.clients.transactions.calls import UNCOMMITTED, settle, write
from tests.clients.transactions.exactly_once import Work, compiled, problems
from tests.faults.servers import Servers
from tests.histories.checker import assert_sound

FLAGS = ("--group-initial-rebalance-delay-ms", "200")
QUEUES = 4
SESSION_S = 6
SETTLED_S = 60


class Size(NamedTuple):
    """The number of records copied, and of disturbances."""

    records: int
    at_once: int  # records of a transaction
    pause_ms: int  # behind each
    disturbances: int
    period_s: float  # from new records to the next
    limit_s: float


SHORT = Size(3_000, 20, 50, 5, 0.5, 120)
LONG = Size(100_000, 100, 100, 40, 1.0, 1200)


def disturb(work: Work, servers: Servers, rng: random.Random) -> list[Callable[[], None]]:
    """Return one disturbance of each kind, in a random order."""

    def kill_client() -> None:
        work.kill(rng.choice(work.slots))

    def stop_client() -> None:
        """Make a zombie, which goes on with its transaction after it lost its queues."""
        process = work.process(rng.choice(work.slots))
        process.send_signal(signal.SIGSTOP)
        time.sleep(SESSION_S + 2)
        process.send_signal(signal.SIGCONT)

    def kill_server() -> None:
        servers.kill(rng)

    every = [kill_client, kill_server, stop_client, servers.stop_one, kill_server]
    rng.shuffle(every)
    return every


@pytest.mark.parametrize("client", ["librdkafka", "java"])
@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_one_copy_of_each(servers: Servers, tmp_path: Path, client: str, size: Size) -> None:
    rng = random.Random(17)
    classes = tmp_path / "classes"
    classes.mkdir()
    if client == "java":
        compiled(classes)
    work = Work(servers.address, f"copy-{client}", QUEUES, tmp_path / "history")
    began, busy = time.monotonic(), 0
    left: list[Callable[[], None]] = []
    with ExitStack() as stack:
        stack.callback(work.stop)
        for slot in ("one", "two"):
            work.start(slot, client, classes, size.at_once, size.pause_ms)
        for _ in range(size.disturbances):
            servers.wait_ready()
            work.look_at_ends()
            work.fill(size.records // size.disturbances)
            until = time.monotonic() + size.period_s
            while time.monotonic() < until:
                work.revive()
                time.sleep(0.05)
            busy += not work.done()
            left = left or disturb(work, servers, rng)
            left.pop()()
        servers.wait_ready()
        while not work.done():
            work.revive()
            assert time.monotonic() < began + size.limit_s, work.last_words()
            time.sleep(0.2)
    assert busy > size.disturbances // 2, "most of the time nobody worked"
    settle(servers.address, work.targets, SETTLED_S)
    work.look_at_ends()
    assert work.problems() == [], work.last_words()
    assert work.killed
    assert_sound(work.histories)
    # The check reads the same records: it sees aborted ones and a doubled one.
    assert any("never committed b'aborted" in one for one in work.problems(UNCOMMITTED))
    queue = work.targets[0]
    value = work.wanted[queue][7]
    write(Producer({"bootstrap.servers": servers.address}), [(queue, value)])
    settle(servers.address, [queue])
    assert work.problems() == [f"{queue}: doubled {value!r}, 1 times"]


def test_checker_finds_planted_faults() -> None:
    """Each anomaly, planted into what was read."""
    wanted = {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}
    assert problems(wanted, wanted) == []
    for planted, said in (
        ([b"0", b"2", b"2", b"4"], "a: doubled b'2', 1 times"),
        ([b"0", b"4"], "a: lost b'2', 1 times"),
        ([], "a: lost b'0', 1 times"),
        ([b"0", b"4", b"2"], "a: reordered, b'4' at 1 in the place of b'2'"),
        ([b"0", b"2", b"4", b"aborted 6"], "a: never committed b'aborted 6', 1 times"),
        ([b"0", b"1", b"2", b"4"], "a: never committed b'1', 1 times"),
    ):
        assert problems(wanted, wanted | {"a": planted})[0] == said
