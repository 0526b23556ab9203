"""A transactional id's producer id, epoch and state: answers as a real Kafka 4.3.1 gives them.

Not compared: requests while a commit's markers are being written. A real Kafka answers EndTxn
before that, and CONCURRENT_TRANSACTIONS to what comes then, for as long as it takes.
"""

import pytest

from tests.kafka.cluster import Cluster
from tests.kafka.transactions.producer import Producer, alike_in_transactions


@pytest.mark.parametrize("version", range(6))
@alike_in_transactions
def test_init(cluster: Cluster, queue: str, version: int) -> None:
    one = Producer(cluster, queue).init(version)
    cluster.describe(queue)
    one.init(version)
    one.init(version, timeout_ms=1000)
    cluster.describe(queue)
    for timeout_ms in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
        one.init(version, timeout_ms=timeout_ms)
    cluster.describe(queue)
    Producer(cluster, "").init(version)
    Producer(cluster, " " + queue).init(version)
    Producer(cluster, "é" * 200 + queue).init(version)


@pytest.mark.parametrize("version", [3, 4, 5])
@alike_in_transactions
def test_init_with_what_is_expected(cluster: Cluster, queue: str, version: int) -> None:
    one = Producer(cluster, queue).init(version)
    first = one.but()
    one.init(version, like=first)
    one.init(version, like=first)  # said again: the same answer
    one.init(version, like=first)
    second = one.but()
    one.init(version, like=one)
    one.init(version, like=first)  # no longer the last one
    one.init(version, like=second)
    one.init(version, like=one.but(by=1))
    one.init(version, like=one.but(pid=one.pid + 1_000_000))
    one.init(version, like=one.but(pid=5, epoch=5))
    one.init(version, like=one.but(pid=-1))  # half of it
    one.init(version, like=one.but(epoch=-1))
    one.init(version, like=one.but(epoch=-5))
    one.init(version)  # nothing expected: nothing is remembered
    one.init(version, like=second)
    one.init(version, like=one.but(by=-1))
    Producer(cluster, queue + "-new").init(version, like=one)  # nobody had that id: a new one
    Producer(cluster, queue + "-new").init(version)


@pytest.mark.parametrize("tv", [1, 2])
@pytest.mark.parametrize("expected", [False, True])
@alike_in_transactions
def test_init_fences_what_is_open(cluster: Cluster, queue: str, tv: int, expected: bool) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue, tv).init()
    one.add((queue, 0)).write(queue)
    two = one.but()
    # A real Kafka first answers CONCURRENT_TRANSACTIONS; kproxy may wait for the abort.
    two.init(like=one if expected else None)
    cluster.describe(queue)
    cluster.fetch(queue, isolation=0)
    one.write(queue, sequence=1)
    one.abort()
    one.commit()
    one.add((queue, 0))
    one.init(like=one)
    two.add((queue, 0)).write(queue).commit()
    cluster.fetch(queue)
    cluster.describe(queue)


@pytest.mark.parametrize("tv", [1, 2])
@alike_in_transactions
def test_init_of_a_zombie_fences_what_is_open(cluster: Cluster, queue: str, tv: int) -> None:
    """While a transaction is open its producer id alone is looked at: even a zombie aborts it."""
    cluster.make(queue)
    for number, (by, pid_by) in enumerate(
        ((-2, 0), (-1, 0), (0, 0), (1, 0), (2, 0), (0, 1_000_000))
    ):
        one = Producer(cluster, f"{queue}-{number}", tv).init()
        one.init()
        one.init()
        one.add((queue, 0)).write(queue)
        one.but().init(like=one.but(by=by, pid=one.pid + pid_by))
        cluster.describe(one.id)
        one.but().write(queue)
        one.end(True)
    cluster.fetch(queue)


@alike_in_transactions
def test_init_after_a_transaction(cluster: Cluster, queue: str) -> None:
    cluster.make(queue)
    for tv in (1, 2):
        one = Producer(cluster, f"{queue}-{tv}", tv).init()
        for commit in (True, False):
            before = one.but()
            one.add((queue, 0)).write(queue).end(commit)
            after = one.but()
            two = one.but()
            two.init(like=after)
            two.init(like=after)
            two.init(like=before)
            two.init()
            two.init(like=after)
            cluster.describe(one.id)
            one = two


@pytest.mark.parametrize("version", range(4))
@alike_in_transactions
def test_add_partitions(cluster: Cluster, queue: str, version: int) -> None:
    cluster.make(queue, 3)
    one = Producer(cluster, queue, tv=1)
    one.but(pid=3, epoch=0).add((queue, 0), version=version)  # an id that nobody has
    one.init()
    first = one.but()
    one.init()
    one.add(version=version)  # nothing: and yet a transaction is open then
    cluster.describe(queue)
    one.add((queue, 0), version=version).add((queue, 0), version=version)
    one.add((queue, 0), (queue, 1), (queue, 1), version=version)
    cluster.describe(queue)
    one.add((queue, 2), (queue, 3), (queue + "-absent", 0), version=version)
    one.add((queue, -1), version=version)
    one.add(("", 0), version=version)
    one.add(("bad/name", 0), version=version)
    cluster.describe(queue)
    first.add((queue, 2), version=version)
    one.but(by=1).add((queue, 2), version=version)
    one.but(epoch=-1).add((queue, 2), version=version)
    one.but(pid=one.pid + 1_000_000).add((queue, 2), version=version)
    one.but(pid=-1).add((queue, 2), version=version)
    one.but(id="").add((queue, 2), version=version)
    one.but(id=queue + "-absent").add((queue, 2), version=version)
    one.but(id=queue + "-absent").add((queue, 2), (queue, 9), version=version)
    first.add((queue, 9), version=version)  # two faults
    one.but(by=1).add((queue, 0), version=version)  # already there
    cluster.describe(queue)


@pytest.mark.parametrize("version", range(5))
@alike_in_transactions
def test_add_offsets(cluster: Cluster, queue: str, version: int) -> None:
    one = Producer(cluster, queue, tv=1)
    one.but(pid=3, epoch=0).add_offsets(queue, version)  # an id that nobody has
    one.init()
    first = one.but()
    one.init()
    one.add_offsets(queue, version).add_offsets(queue, version)
    one.add_offsets("", version)
    first.add_offsets(queue, version)
    one.but(by=1).add_offsets(queue, version)
    one.but(epoch=-1).add_offsets(queue, version)
    one.but(pid=one.pid + 1_000_000).add_offsets(queue, version)
    one.but(pid=-1).add_offsets(queue, version)
    one.but(id="").add_offsets(queue, version)
    one.but(id=queue + "-absent").add_offsets(queue, version)
    one.commit()
    one.commit()


ENDS = ("abort", "commit")


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("state", ["empty", "open", "aborted", "committed", "fenced"])
@alike_in_transactions
def test_end(cluster: Cluster, queue: str, version: int, state: str) -> None:
    """EndTxn in every state that stays, with every epoch: each on an id of its own."""

    def prepared(cluster: Cluster, queue: str, number: int) -> Producer:
        one = Producer(cluster, f"{queue}-{number}", 2 if version == 5 else 1).init()
        one.init()
        if state == "empty":
            return one
        one.add((queue, 0)).write(queue)
        if state in ("aborted", "committed"):
            one.end(state == "committed", version)
        elif state == "fenced":
            one.but().init()
        return one

    cluster.make(queue)
    for by in (-2, -1, 0, 1):
        for number, commit in enumerate((True, False)):
            one = prepared(cluster, queue, 10 * (by + 2) + number)
            one.but(by=by).end(commit, version)
            cluster.describe(one.id)
    one = prepared(cluster, queue, 50)
    one.but(pid=one.pid + 1_000_000).end(True, version)
    one.but(pid=-1).end(True, version)
    one.but(epoch=-1).end(True, version)
    one.but(id="").end(True, version)
    one.but(id=queue + "-absent").end(True, version)
    cluster.fetch(queue)


@pytest.mark.parametrize("tv", [1, 2])
@alike_in_transactions
def test_end_again(cluster: Cluster, queue: str, tv: int) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue, tv).init()
    for commit in (True, False, True):
        before = one.but()
        one.add((queue, 0)).write(queue).end(commit)
        for other in (commit, not commit):
            before.but().end(other)  # said again
        one.but().end(commit)
        cluster.describe(queue)
        one.init()
    for commit in (False, True, False, False):  # nothing in it
        one.end(commit)
        cluster.describe(queue)
    one.add((queue, 0)).commit()
    cluster.describe(queue)


@alike_in_transactions
def test_versions_change_between_transactions(cluster: Cluster, queue: str) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue).init()
    for tv in (1, 2, 2, 1, 1, 2):
        one.tv = tv
        if tv == 1:
            one.add((queue, 0))
        one.write(queue).write(queue).commit()
    one.tv = 1
    one.add((queue, 0)).write(queue).end(True, version=5)  # begun as 1, ended as 2
    one.write(queue, version=12).end(False, version=3)  # and the other way round
    one.add((queue, 0)).write(queue).abort()
    cluster.fetch(queue)
    cluster.describe(queue)


@pytest.mark.long
@pytest.mark.parametrize("version", [4, 5])
@alike_in_transactions
def test_epochs_run_out(cluster: Cluster, queue: str, version: int) -> None:
    cluster.make(queue)
    one = Producer(cluster, queue).init()
    bump(cluster, one, 32_760)
    before = one.but()
    for _ in range(8):
        before = one.but()
        one.init(version, like=before)
        if one.epoch != 32_766:  # a real Kafka fails: UNKNOWN_SERVER_ERROR
            one.but().init(version, like=before)
    before.init(version, like=before)
    one.write(queue).commit()
    bump(cluster, one, 32_763)
    for _ in range(5):  # over the end by transactions
        before = one.but()
        one.write(queue).commit()
        before.but().commit()
    cluster.fetch(queue)
    bump(cluster, one, 32_764)
    for _ in range(4):  # over the end by fencing
        one.write(queue)
        one.init()
    cluster.fetch(queue)
    cluster.describe(queue)


def bump(cluster: Cluster, one: Producer, epoch: int) -> None:
    """Send InitProducerId until that epoch is reached, many on the way."""
    wire = cluster.coordinator(one.id)
    values = {"transactional_id": one.id, "transaction_timeout": 60_000}
    left = epoch - one.epoch
    while left:
        some = min(left, 200)
        for _ in range(some):
            wire.send(22, 4, values)
        answers = [wire.receive(22, 4)[1] for _ in range(some)]
        assert all(a.error_code == 0 for a in answers)
        one.epoch = answers[-1].producer_epoch
        left -= some
    assert one.epoch == epoch
    one.sequences.clear()
