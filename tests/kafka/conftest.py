"""Every comparison runs against an embedded kproxy and against a worker on a real Kafka.

Kafka's answers are those recorded. Only what runs on a Kafka, or runs Java, needs Java.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.harness import NEWEST_KAFKA_LIBS, Served, served
from tests.kafka.recorded import GOLDEN, VERSION, Mode, Recorded, book, mode_of
from tests.real_kafka import Kafka
from tests.running.run import Sites
from tests.workers import Workers

FLAGS = (
    "--group-initial-rebalance-delay-ms", "0", "--group-consumer-assignment-interval-ms", "0",
    "--transaction-abort-timed-out-transaction-cleanup-interval-ms", "500",
    "--group-share-assignment-interval-ms", "0",
    "--group-share-min-record-lock-duration-ms", "1000",
)  # fmt: skip
SITES = ("embedded", "kafka")


def _site(item: pytest.Item) -> str | None:
    found: str | None = item.callspec.params.get("server") if hasattr(item, "callspec") else None
    return found


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out one kind of server where a Kafka is asked anew: one is enough."""
    if mode_of(config) != Mode.RECORDED:
        items[:] = [item for item in items if _site(item) != "kafka"]
        for item in items:
            item.add_marker(pytest.mark.outside)  # the Kafka is Java


@pytest.fixture(scope="module", params=SITES)
def server(
    request: pytest.FixtureRequest, sites: Sites, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Yield a server of each kind, which modules share but those that say OWN_SERVER = True."""

    @contextmanager
    def start() -> Iterator[Served]:
        directory = tmp_path_factory.mktemp("data")
        if request.param == "embedded":
            with served(directory, *FLAGS) as running:
                yield running
        else:
            kafka = request.getfixturevalue("kafka")
            with Workers(kafka, directory, *FLAGS, count=1, shards=4).running() as workers:
                yield workers.workers[0]

    if getattr(request.module, "OWN_SERVER", False):
        with start() as running:
            yield running
    else:
        with sites.lent(("like Kafka", request.param), start) as running:
            yield running


@pytest.fixture(scope="module")
def two_workers(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield the first of two workers: coordinators and leaders may be either."""
    with Workers(kafka, tmp_path_factory.mktemp("two"), *FLAGS, count=2).running() as workers:
        yield workers.workers[0]


@pytest.fixture(scope="session")
def newest_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Yield a real Kafka of the newest release, where one is asked."""
    kafka = Kafka(tmp_path_factory.mktemp("newest-kafka"), libs=NEWEST_KAFKA_LIBS)
    try:
        yield kafka.wait_ready()
    finally:
        kafka.stop()


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """Return Kafka's answers to the test's requests, the same for each kind of server."""
    node = request.node
    key = node.name
    for site in SITES:
        key = key.replace(f"[{site}]", "").replace(f"[{site}-", "[").replace(f"-{site}]", "]")
    version = getattr(request.module, "KAFKA", VERSION)
    kafka, mode = "kafka" if version == VERSION else "newest_kafka", mode_of(request.config)
    if mode != Mode.RECORDED:
        request.getfixturevalue(kafka)  # now: a test leaves no process behind
    return Recorded(
        book(GOLDEN / version / f"{node.path.stem}.json", version), key,
        partial(request.getfixturevalue, kafka), mode,
        is_long=node.get_closest_marker("long") is not None,
    )  # fmt: skip
