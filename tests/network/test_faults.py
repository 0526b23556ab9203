"""Networks that fail under load: nothing is lost, doubled or moved, and it goes on once they heal.

An idempotent producer writes to queues of two workers on a real Kafka, and a consumer follows. A
relay before each worker, and before the broker for each worker, does one kind of harm after the
other.
"""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import eventually, free_port, served
from tests.network.committing import Committing
from tests.network.java_producer import JavaProducer
from tests.network.kinds import KINDS, go_through
from tests.network.net import Broker, RelayedWorkers
from tests.network.relay import Relay
from tests.on_kafka.load import Load

QUEUES = [f"queue-{i}" for i in range(8)]
PER_S = 300
SEED = 41
PATIENCE = {"socket_timeout_ms": 8000}
"""The wait of clients for answers: librdkafka's own is 60 s, whatever a server does."""
SHORT = ("write, not read", "cut in requests", "cut in answers")
WHERE: dict[str, Callable[[RelayedWorkers], list[Relay]]] = {
    "a worker and Kafka": lambda workers: workers.to_brokers(0),
    "workers and Kafka": lambda workers: workers.to_brokers(0) + workers.to_brokers(1),
    "clients and a worker": lambda workers: workers.to_worker[:1],
    "clients and workers": lambda workers: workers.to_worker,
}


def test_a_server_that_clients_lose_for_a_moment(tmp_path: Path) -> None:
    port, rng = free_port(), random.Random(SEED)
    relay = Relay(port)
    with closing(relay), served(tmp_path, "--advertise", relay.address, port=port):
        with Load(relay.address, QUEUES[:2], PER_S, **PATIENCE) as load:
            go_through(load, [relay], SHORT, 0.5, rng, healed_s=120)
        load.check()


@pytest.mark.long
def test_a_worker_that_loses_kafka_for_a_moment(broker: Broker, tmp_path: Path) -> None:
    with RelayedWorkers([broker], tmp_path, shards=4).running() as workers:
        with Load(workers.address, QUEUES, PER_S) as load:
            go_through(load, workers.to_brokers(0), SHORT, 1.0, random.Random(SEED))
        load.check()


@pytest.mark.long
@pytest.mark.parametrize("where", WHERE)
def test_each_kind_of_fault(broker: Broker, tmp_path: Path, where: str) -> None:
    """FAULT: behind a connection that the network had forgotten all stood still for 20 s."""
    rng = random.Random(SEED)
    kinds = rng.sample(sorted(KINDS), len(KINDS))
    with RelayedWorkers([broker], tmp_path, shards=4).running() as workers:
        java = JavaProducer(workers.address, "of-java", tmp_path, PER_S // 6)
        group = Committing(workers.address, QUEUES, **PATIENCE)
        with java, group, Load(workers.address, QUEUES, PER_S, **PATIENCE) as load:
            for hold_s in (3.0, 9.0):  # within a worker's session, and beyond
                go_through(load, WHERE[where](workers), kinds, hold_s, rng)
                workers.wait_served(30)
            eventually(lambda: group.commits > 10)
        load.check()
        java.check()
        assert not group.gone_back


@pytest.mark.long
def test_each_kind_of_fault_before_an_embedded_server(tmp_path: Path) -> None:
    port, rng = free_port(), random.Random(SEED)
    relay = Relay(port)
    kinds = rng.sample(sorted(KINDS), len(KINDS))
    with closing(relay), served(tmp_path, "--advertise", relay.address, port=port):
        with Load(relay.address, QUEUES, PER_S, **PATIENCE) as load:
            go_through(load, [relay], kinds, 3.0, rng)
        load.check()
