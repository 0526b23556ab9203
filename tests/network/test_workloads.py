"""All that clients do, over networks that fail: the workloads of `tests/faults` and their checks.

A connection of a worker suffers one kind of harm, chosen by the seed, where those kill a server. A
worker loses Kafka until the other has its shards, where those stop one.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import (
    test_dead_letters,
    test_delays,
    test_exactly_once,
    test_routes,
    test_share_groups,
)
from tests.faults.servers import Servers
from tests.harness import eventually
from tests.network.kinds import KINDS
from tests.network.net import Broker, RelayedWorkers
from tests.network.relay import BOTH
from tests.wire import Wire

pytestmark = pytest.mark.long
SHARDS = 8
HELD_S = 4.0
TAKEN_OVER_S = 20


class Relayed(Servers):
    """Workers whose network fails."""

    def __init__(self, workers: RelayedWorkers) -> None:
        self._workers = workers
        self.address = workers.address

    def kill(self, rng: random.Random) -> None:
        kind, relay = rng.choice(sorted(KINDS)), rng.choice(self._workers.relays)
        KINDS[kind](relay, rng)
        time.sleep(rng.random() * HELD_S)
        relay.heal()

    def stop_one(self) -> None:
        self.wait_ready()
        cut, whole = self._workers.workers
        its_own = cut.served_shards()
        for relay in self._workers.to_brokers(0):
            relay.drop(*BOTH)
        try:
            eventually(lambda: its_own <= whole.served_shards(), TAKEN_OVER_S)
        finally:
            self._workers.heal()

    def wire(self, name: str) -> Wire:
        return self._workers.wire(name)

    def wait_ready(self) -> None:
        self._workers.wait_served(60)


@pytest.fixture
def servers(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[Servers]:
    """Yield workers with the FLAGS of the module whose workload the test runs."""
    flags = getattr(request.param, "FLAGS", ())
    with RelayedWorkers([broker], tmp_path, *flags, shards=SHARDS).running() as workers:
        yield Relayed(workers)


def of(module: object) -> pytest.MarkDecorator:
    """Give a test workers with the flags of a module."""
    return pytest.mark.parametrize("servers", [module], indirect=True, ids=["network"])


@of(test_exactly_once)
@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_transactions(servers: Servers, tmp_path: Path, client: str) -> None:
    test_exactly_once.test_one_copy_of_each(servers, tmp_path, client, test_exactly_once.SHORT)


@of(test_share_groups)
def test_share_group(servers: Servers, tmp_path: Path) -> None:
    test_share_groups.test_each_record_ends_once(servers, tmp_path, test_share_groups.SHORT)


@of(test_dead_letters)
def test_dead_letters_of_a_share_group(servers: Servers) -> None:
    test_dead_letters.test_each_dead_letter_is_there_once(servers)


@of(test_routes)
def test_routes_of_an_entrance(servers: Servers) -> None:
    test_routes.test_each_record_is_once_in_its_queue_and_in_order(servers, test_routes.SHORT)


@of(test_delays)
def test_delayed_records(servers: Servers) -> None:
    test_delays.test_each_is_seen_once_and_never_early(servers)
