"""Every comparison runs against an embedded kproxy and against a worker on that same Kafka."""

from collections.abc import Iterator

import pytest

from tests.harness import Served, served
from tests.real_kafka import Kafka
from tests.workers import Workers

FLAGS = (
    "--group-initial-rebalance-delay-ms", "0", "--group-consumer-assignment-interval-ms", "0",
    "--transaction-abort-timed-out-transaction-cleanup-interval-ms", "500",
    "--group-share-assignment-interval-ms", "0",
    "--group-share-min-record-lock-duration-ms", "1000",
)  # fmt: skip


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def server(
    request: pytest.FixtureRequest, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("data")
    if request.param == "embedded":
        with served(directory, *FLAGS) as running:
            yield running
    else:
        with Workers(kafka, directory, *FLAGS, count=1, shards=4).running() as workers:
            yield workers.workers[0]
