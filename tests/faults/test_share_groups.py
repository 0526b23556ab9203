"""A work queue while members and servers die: each record ends once, and what was answered stays.

Ten members of a share group accept, release and reject records at random, and record all that
happens to them. Every few hundred records one of them is killed, or stopped until its records have
gone to others, and so are the servers; once all of them die at the same moment. Afterwards their
histories and the dead letters are held against each other, record by record
(`tests/histories/shares.py`).
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.calls import alter
from tests.clients.shares.members import FLAGS as AT_ONCE
from tests.clients.shares.members import configure, drain, member, produce
from tests.clients.shares.test_dead_letters import ENABLED
from tests.clients.transactions.exactly_once import compiled
from tests.faults.servers import Embedded, Servers
from tests.faults.sharing import JAVA_PROGRAM, Work
from tests.harness import eventually
from tests.histories.checker import assert_sound, check
from tests.histories.shares import DELIVERY_LIMIT, REJECTED, Shares

FLAGS = (
    *AT_ONCE, "--group-share-session-timeout-ms", "3000",
    "--group-share-min-session-timeout-ms", "1000",
    "--group-share-heartbeat-interval-ms", "500",
    "--group-share-min-heartbeat-interval-ms", "100",
)  # fmt: skip
QUEUES, PARTITIONS = 3, 2
LOCK_S = 1.5
LIMIT = 6  # deliveries of a record
MARK = b"the end"
SETTLED_S = 60


class Size(NamedTuple):
    """The number of records, and of disturbances."""

    records: int
    disturbances: int
    limit_s: float


SHORT = Size(3_000, 7, 600)
LONG = Size(100_000, 56, 3600)


def disturbances(work: Work, servers: Servers, rng: random.Random) -> list[Callable[[], None]]:
    """Return one disturbance of each kind, in a random order."""

    def kill_member() -> None:
        work.kill(rng.choice(work.slots))

    @contextmanager
    def disturbing(ends: bool) -> Iterator[None]:
        """Record that records may go to others before their locks' time is over."""
        disturbance = work.recorder.invoke("disturb")
        yield
        if ends:
            disturbance.ok()

    in_one = isinstance(servers, Embedded)  # several workers move shards at any later time

    def stop_member() -> None:
        """Let it go on with records that others have by then."""
        with disturbing(ends=True):  # its session may end
            work.pause(rng.choice(work.slots), 2 * LOCK_S)

    def kill_server() -> None:
        with disturbing(ends=in_one):
            servers.kill(rng)

    def stop_server() -> None:
        with disturbing(ends=in_one):
            servers.stop_one()

    def kill_all() -> None:
        """Check that members that come after it hold none of the records before it."""
        work.kill(*work.slots)
        kill_server()

    every = [
        kill_member, stop_member, kill_server, stop_server, kill_all, stop_member, kill_server,
    ]  # fmt: skip
    rng.shuffle(every)
    return every


def wait(work: Work, done: Callable[[], bool], until: float) -> None:
    while not done():
        work.revive()
        assert time.monotonic() < until, (work.lag(), work.last_words())
        time.sleep(0.1)


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_each_record_ends_once(servers: Servers, tmp_path: Path, size: Size) -> None:
    rng = random.Random(23)
    directory = tmp_path / "members"
    directory.mkdir()
    compiled(directory, JAVA_PROGRAM)
    group = "work"
    work = Work(servers, group, directory, QUEUES, PARTITIONS)
    alter(servers.address, work.dead_letters, **ENABLED)
    configure(
        servers.address, group, share_record_lock_duration_ms=int(LOCK_S * 1000),
        share_delivery_count_limit=LIMIT, errors_deadletterqueue_topic_name=work.dead_letters,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    work.recorder.rules(limit=LIMIT, lock_ns=int(LOCK_S * 1e9))
    until = time.monotonic() + size.limit_s
    with ThreadPoolExecutor(1) as pool, closing(work):
        work.start("librdkafka", 8)
        work.start("java", 2)
        left: list[Callable[[], None]] = []
        each = size.records // size.disturbances
        for _ in range(size.disturbances):
            servers.wait_ready()
            busy = work.events() + each // 20
            filled = pool.submit(work.fill, each)
            wait(work, lambda busy=busy: work.events() >= busy, until)  # type: ignore[misc]
            left = left or disturbances(work, servers, rng)
            left.pop()()
            filled.result()
        servers.wait_ready()
        wait(work, lambda: work.lag() == 0, until)

    def is_sound() -> bool:
        work.look_for_letters()
        return not check(work.history()).counts

    with suppress(AssertionError):  # dead letters are sent after their records are done with
        eventually(is_sound, SETTLED_S, 1)
    assert_sound(work.histories)
    check_it_was_disturbed(Shares(work.history()), work)
    configure(servers.address, group, share_record_lock_duration_ms=60_000)
    assert given_after_all(servers.address, work) == []
    work.look_for_letters()
    assert_sound(work.histories)
    assert work.lag() == 0


def check_it_was_disturbed(shares: Shares, work: Work) -> None:
    """Check that it was disturbed: else nothing was shown."""
    every = [one for some in shares.deliveries.values() for one in some]
    assert any(one.said and not one.is_done for one in every)
    assert any(
        one.count < other.count and other.at < one.answered_at  # others were given it meanwhile
        for some in shares.deliveries.values()
        for one in some
        for other in some
    )
    assert {one.count for one in every} == set(range(1, LIMIT + 1))
    letters = [letter for some in shares.letters.values() for letter in some]
    assert {letter.cause for letter in letters} == {REJECTED, DELIVERY_LIMIT}
    assert work.killed


def given_after_all(address: str, work: Work) -> list[tuple[str, bytes]]:
    """Check that a new member is given only the records written now."""
    for queue in work.queues:
        produce(address, queue, [MARK] * work.partitions, work.partitions)
    marks = len(work.queues) * work.partitions
    with closing(member(address, work.group, *work.queues)) as consumer:
        found = drain(consumer, lambda some: sum(m.value() == MARK for m in some) >= marks)
    return [(m.topic() or "", m.value() or b"") for m in found if m.value() != MARK]
