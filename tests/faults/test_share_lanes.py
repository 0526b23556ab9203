"""Lanes while members and servers die: the order of each key, and one end for each record.

As in `test_share_groups.py`, of a group with one record of a key in flight. By the members'
histories the first deliveries of a key come in the order of its offsets, and none before the record
in front of it was accepted, rejected or given up.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from kproxy.metadata.lane_settings import IN_FLIGHT, LANE, RATE, WEIGHTS
from tests.clients.calls import alter
from tests.clients.shares.members import configure
from tests.clients.shares.test_dead_letters import ENABLED
from tests.clients.transactions.exactly_once import compiled
from tests.faults.servers import Servers
from tests.faults.sharing import JAVA_PROGRAM, Work
from tests.faults.test_share_groups import FLAGS as FLAGS
from tests.faults.test_share_groups import (
    LIMIT,
    LOCK_S,
    PARTITIONS,
    QUEUES,
    SETTLED_S,
    Size,
    disturbances,
    wait,
)
from tests.harness import eventually
from tests.histories.checker import assert_sound, check
from tests.histories.shares import DELIVERY_LIMIT, Record, Shares

SHORT, SHORT_KEYS = Size(3_000, 7, 900), 199
LONG, LONG_KEYS = Size(200_000, 56, 7200), 9973  # a prime: poison is of all keys

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("size", "keys"), [(SHORT, SHORT_KEYS), (LONG, LONG_KEYS)])
def test_keys_keep_their_order(servers: Servers, tmp_path: Path, size: Size, keys: int) -> None:
    rng = random.Random(29)
    directory = tmp_path / "members"
    directory.mkdir()
    compiled(directory, JAVA_PROGRAM)
    work = Work(servers, "lanes", directory, QUEUES, PARTITIONS, keys)
    alter(servers.address, work.dead_letters, **ENABLED)
    rules = {LANE: "key", IN_FLIGHT: "1"}

    def configured(**more: str) -> None:
        configure(
            servers.address, work.group, share_record_lock_duration_ms=int(LOCK_S * 1000),
            share_delivery_count_limit=LIMIT, errors_deadletterqueue_topic_name=work.dead_letters,
            errors_deadletterqueue_copy_record_enable="true", **rules, **more,
        )  # fmt: skip

    configured()
    work.recorder.rules(limit=LIMIT, lock_ns=int(LOCK_S * 1e9))
    until = time.monotonic() + size.limit_s
    with ThreadPoolExecutor(1) as pool, closing(work):
        work.start("librdkafka", 8)
        work.start("java", 2)
        left: list[Callable[[], None]] = []
        each = size.records // size.disturbances
        for number in range(size.disturbances):
            servers.wait_ready()
            busy = work.events() + each // 20
            filled = pool.submit(work.fill, each)
            wait(work, lambda busy=busy: work.events() >= busy, until)  # type: ignore[misc]
            left = left or disturbances(work, servers, rng)
            left.pop()()
            filled.result()
            servers.wait_ready()
            configured(**({WEIGHTS: "1=3", RATE: "1000/s"} if number % 2 else {}))
        servers.wait_ready()
        wait(work, lambda: work.lag() == 0, until)

    def is_sound() -> bool:
        work.look_for_letters()
        return not check(work.history()).counts

    with suppress(AssertionError):  # dead letters are sent after their records are done with
        eventually(is_sound, SETTLED_S, 1)
    assert_sound(work.histories)
    assert out_of_order(Shares(work.history()), keys) == []
    assert work.killed


def out_of_order(shares: Shares, keys: int) -> list[str]:
    """Return the records that were given before the one in front of them was done with."""
    values = {record: some[0].value for record, some in shares.deliveries.items()}
    values |= {record: some[0].value for record, some in shares.letters.items()}
    lanes: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record, value in values.items():
        lanes[record[0], record[1], int(value) % keys].append(record)
    wrong = []
    for lane, records in lanes.items():
        for before, after in pairwise(sorted(records)):
            mine = shares.deliveries.get(before, [])
            first = min((one.at for one in shares.deliveries.get(after, [])), default=inf)
            if not mine or first == inf:
                continue
            if min(one.at for one in mine) > first:
                wrong.append(f"{lane}: {after} was first given before {before}")
            given_up = any(one.cause == DELIVERY_LIMIT for one in shares.letters.get(before, []))
            ended = [one.said_at for one in mine if one.said in ("accept", "reject")]
            if not given_up and not any(at < first for at in ended):
                wrong.append(f"{lane}: {after} was given while {before} was not done")
    return wrong
