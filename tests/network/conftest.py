"""A Kafka behind relays."""

from collections.abc import Iterator

import pytest

from tests.network.net import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield one broker, which each worker reaches through a relay of its own."""
    made = Broker(tmp_path_factory.mktemp("kafka") / "one")
    try:
        made.kafka.wait_ready()
        yield made
    finally:
        made.close()
