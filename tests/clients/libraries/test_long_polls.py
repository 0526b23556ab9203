"""The events that end a Fetch that waits."""

import time

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served
from tests.wire import Wire, batch, fetch_values

LONG_MS = 15_000


def ask_offset(wire: Wire, queue: str) -> int:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": queue, "partitions": [partition]}]
    return wire.send(
        ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics}
    )


def test_a_request_behind_it(server: Served, wire: Wire, queue: str) -> None:
    wire.create(queue)
    wire.produce(queue, batch(b"one"))
    for _ in range(3):
        started = time.monotonic()
        fetch = wire.send(ApiKey.FETCH, 12, fetch_values({(queue, 0): 1}, wait_ms=LONG_MS))
        time.sleep(0.05)  # it waits by now
        offset = ask_offset(wire, queue)
        correlation, fetched = wire.receive(1, 12)
        assert correlation == fetch
        assert not fetched.responses[0].partitions[0].records
        correlation, listed = wire.receive(2, 7)
        assert correlation == offset
        assert listed.topics[0].partitions[0].offset == 1
        assert time.monotonic() - started < LONG_MS / 3000


def test_nothing_but_its_time_or_a_record(server: Served, wire: Wire, queue: str) -> None:
    """Requests behind an earlier Fetch do not end a later one."""
    wire.create(queue)
    wire.send(ApiKey.FETCH, 12, fetch_values({(queue, 0): 0}, wait_ms=LONG_MS))
    ask_offset(wire, queue)
    wire.receive(1, 12)
    wire.receive(2, 7)
    started = time.monotonic()
    wire.fetch(queue, 0, wait_ms=600)
    assert time.monotonic() - started >= 0.6
    wire.send(ApiKey.FETCH, 12, fetch_values({(queue, 0): 0}, wait_ms=LONG_MS))
    with Wire(server.host, server.port) as other:
        other.produce(queue, batch(b"one"))
    assert wire.receive(1, 12)[1].responses[0].partitions[0].records
    assert time.monotonic() - started < LONG_MS / 3000
