"""A worker that reaches the leaders of its data, and not the broker that has something else.

Two brokers: one has the data; the other the group coordinator, kproxy's rows, or its catalogue. One
worker loses the other.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.upstream.topics import wanted
from tests.harness import eventually
from tests.network.kinds import HEALED_S
from tests.network.net import Broker, RelayedWorkers
from tests.network.relay import BOTH
from tests.on_kafka.load import Load
from tests.wire import batch

SHARDS = 4
QUEUES = [f"queue-{i}" for i in range(8)]
PER_S = 300
SESSION_S = 6
MESSAGE_BYTES_MAX = 10 << 20
FIRST, SECOND = 1, 2
GIVEN_UP_S = 30
"""The seconds by which a worker has given up records that no broker takes."""


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, broker: Broker
) -> Iterator[tuple[Broker, Broker]]:
    """Yield two brokers; the second has the coordinators of groups and of transactions."""
    second = Broker(tmp_path_factory.mktemp("kafka") / "two", beside=broker)
    try:
        second.kafka.wait_ready()
        place(broker, {"__consumer_offsets": (1, SECOND), "__transaction_state": (1, SECOND)})
        yield broker, second
    finally:
        second.close()


def place(broker: Broker, topics: dict[str, tuple[int, int]]) -> None:
    """Make topics of so many partitions on one broker."""
    admin = AdminClient({"bootstrap.servers": broker.kafka.address, "log_level": 0})

    def both() -> bool:
        return len(admin.list_topics(timeout=10).brokers) == 2

    eventually(both, 60)
    new = [
        NewTopic(name, count, replica_assignment=[[where]] * count, config=CONFIGS.get(name, {}))
        for name, (count, where) in topics.items()
    ]
    for future in admin.create_topics(new).values():
        future.result()


CONFIGS = {
    name: {"cleanup.policy": "compact"} for name in ("__consumer_offsets", "__transaction_state")
}
"""The settings of topics, by name."""


def place_ours(broker: Broker, prefix: str, first: tuple[str, ...]) -> None:
    """Make kproxy's topics; those with these ends of names on the first broker."""
    upstream = Upstream(servers="", prefix=prefix, client={}, connectivity=Connectivity(""))
    specs = wanted(upstream, SHARDS, MESSAGE_BYTES_MAX)
    CONFIGS.update({one.name: {**one.configs, "min.insync.replicas": "1"} for one in specs})
    where = {one.name: FIRST if one.name.endswith(first) else SECOND for one in specs}
    place(broker, {one.name: (one.partitions, where[one.name]) for one in specs})


def go_on(workers: RelayedWorkers, load: Load) -> float:
    """Check that all goes on once it has healed; the longest stall until then."""
    workers.heal()
    before = {queue: len(load.acknowledged[queue]) for queue in QUEUES}
    eventually(
        lambda: all(len(load.acknowledged[q]) > count + 5 for q, count in before.items()), HEALED_S
    )
    eventually(lambda: all(one.served_shards() for one in workers.workers), HEALED_S)
    workers.wait_served(HEALED_S)
    return load.longest_pause_s()


@pytest.mark.long
def test_a_worker_that_loses_the_group_coordinator_alone(
    brokers: tuple[Broker, Broker], tmp_path: Path
) -> None:
    """It folds the other's claim, which it can read, and serves nothing more."""
    place_ours(brokers[0], "member", ("",))
    workers = RelayedWorkers(list(brokers), tmp_path, shards=SHARDS, prefix="member")
    with workers.running():
        with Load(workers.address, QUEUES, PER_S) as load:
            load.wait_for(1000)
            load.longest_pause_s()
            cut, whole = workers.workers
            its_own = cut.served_shards()
            brokers[1].relays[0].drop(*BOTH)
            eventually(lambda: its_own <= whole.served_shards(), SESSION_S + 10)
            eventually(lambda: not cut.served_shards())
            load.wait_for(500)
            taken_s = load.longest_pause_s()
            print(f"taken over: {taken_s:.1f} s, healed: {go_on(workers, load):.1f} s")  # noqa: T201
        load.check()


@pytest.mark.long
@pytest.mark.parametrize("lost", [("-offset",), ("-queues", "-partitions")], ids=["rows", "names"])
def test_a_member_that_loses_all_but_its_data(
    brokers: tuple[Broker, Broker], tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """It serves on, also once records for the other broker have been given up."""
    prefix = f"serves{lost[0]}"
    place_ours(brokers[0], prefix, lost)
    workers = RelayedWorkers(
        list(brokers), tmp_path, "--publish-ms", "1000", shards=SHARDS, prefix=prefix
    )
    with workers.running():
        with Load(workers.address, QUEUES, PER_S) as load:
            load.wait_for(1000)
            load.longest_pause_s()
            its_own = workers.workers[0].served_shards()
            brokers[0].relays[0].drop(*BOTH)
            until = time.monotonic() + GIVEN_UP_S
            while time.monotonic() < until:
                load.wait_for(200)
                with workers.workers[0].wire("") as wire:  # makes some of them
                    for number in range(20):
                        wire.produce(f"new-{number}-{int(until - time.monotonic())}", batch(b"x"))
            load.wait_for(500)
            assert workers.workers[0].served_shards() == its_own
            held_s = load.longest_pause_s()
            print(f"lost: {held_s:.1f} s, healed: {go_on(workers, load):.1f} s")  # noqa: T201
        load.check()
