"""Work that threads do for a request counts for `request_percentage`."""

import random
from typing import Any

import pytest

from kproxy.loop.asking import ASKING, Asking
from kproxy.protocol.api_keys import ApiKey
from kproxy.security.quotas import WORKED
from kproxy.server import metering
from tests.handlers.access.test_quotas import Metered
from tests.wire import batch, produce_values

NOISE = random.Random(1).randbytes(20_000)
GROUPS: dict[str, Any] = {"states_filter": [], "types_filter": []}


async def waits_s(here: Metered, key: int, version: int, values: dict[str, Any]) -> float:
    """Return how long the client waits, if any thread worked for it at all."""
    await here.call(ApiKey.LIST_GROUPS, 5, GROUPS)  # a thread loads what decodes it, once
    ASKING.set(Asking("alice"))
    await here.set(WORKED, 1e-9, user="alice")
    await here.call(key, version, values)
    return here.wait_s


@pytest.fixture(autouse=True)
def _nothing_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "perf_counter", float)


async def test_request_of_which_a_thread_did_nothing() -> None:
    assert await waits_s(Metered(), ApiKey.LIST_GROUPS, 5, GROUPS) == 0


async def test_a_batch_that_is_packed_anew() -> None:
    """FAULT: seconds of packing by zstd's highest level were nobody's."""
    here = Metered()
    here.worker.catalogue.create("q", 1, {"compression.type": "zstd"})
    assert await waits_s(here, ApiKey.PRODUCE, 9, produce_values("q", batch(NOISE))) == 1


async def test_large_request_that_is_decoded() -> None:
    """FAULT: as above."""
    values = GROUPS | {"states_filter": [f"state {number}" for number in range(5000)]}
    assert await waits_s(Metered(), ApiKey.LIST_GROUPS, 5, values) == 1


async def test_record_that_is_looked_for_by_its_time() -> None:
    """FAULT: as above."""
    here = Metered()
    await here.call(ApiKey.PRODUCE, 9, produce_values("q", batch(NOISE)))
    part = {"partition_index": 0, "timestamp": 1}
    topics = [{"name": "q", "partitions": [part]}]
    values = {"replica_id": -1, "isolation_level": 0, "timeout": 1, "topics": topics}
    assert await waits_s(here, ApiKey.LIST_OFFSETS, 10, values) == 1
