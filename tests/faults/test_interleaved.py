"""Transactions that interleave while clients and servers die: their history is sound.

Several producers send to the same queues and poll from them within their transactions. Each second
one of them is killed or stopped, and so are the servers. The checker (`tests/histories`) then looks
for records lost, doubled or reordered, for reads of what was aborted or not yet committed, for
transactions that are there in part or read from each other in a circle, and for ends and committed
offsets that went back.
"""

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.transactions.interleaved import SLOTS, Work
from tests.faults.servers import Servers
from tests.histories.checker import assert_sound, check

FLAGS = ("--group-initial-rebalance-delay-ms", "200")
WORKERS = 2
QUEUES = 3
SETTLED_S = 60


class Size(NamedTuple):
    """The number of disturbances, and of transactions committed between two of them."""

    disturbances: int
    committed: int
    limit_s: float


SHORT = Size(4, 25, 300)
LONG = Size(60, 150, 3_000)


def disturb(number: int, work: Work, servers: Servers, rng: random.Random) -> None:
    slot = rng.choice(SLOTS)
    if number % 4 == 0:
        servers.kill(rng)
    elif number % 4 == 1:
        work.kill(slot)
    elif number % 4 == 2:
        servers.stop_one()
    else:
        process = work.process(slot)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_transactions_that_interleave_are_sound(
    servers: Servers, tmp_path: Path, size: Size
) -> None:
    rng = random.Random(29)
    servers.wait_ready()
    work = Work(servers.address, "shared", QUEUES, tmp_path / "history")
    until = time.monotonic() + size.limit_s
    with ExitStack() as stack:
        stack.callback(work.stop)
        for number in range(size.disturbances):
            enough = work.committed() + size.committed
            while work.committed() < enough:
                assert time.monotonic() < until, work.last_words()
                work.revive()
                time.sleep(0.1)
            disturb(number, work, servers, rng)
            servers.wait_ready()
        work.finish(SETTLED_S)
    operations = assert_sound(work.histories)
    assert {one.outcome for one in operations if one.f == "txn"} == {"ok", "fail", "info"}
    assert work.killed
    assert check(operations, allowed=()).counts.keys() == {"G0"}, "nothing interleaved"
