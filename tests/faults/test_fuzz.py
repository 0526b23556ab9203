"""Requests that decode but make no sense: random values of every type in every API and version."""

import random
from contextlib import suppress

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request, request_schema
from kproxy.server.dispatch import RANGES
from tests.generator import values_of
from tests.harness import Served
from tests.wire import Wire, batch

OWN_SERVER = True

ROUNDS = 25
WAITING = (11, 14)  # JoinGroup and SyncGroup: for other members, as long as these may take


@pytest.mark.parametrize("key", [key for key, _, _ in RANGES])
def test_nonsense_is_answered_or_ends_its_own_connection(server: Served, key: int) -> None:
    rng = random.Random(key)
    low, high = next((low, high) for k, low, high in RANGES if k == key)
    with Wire(server.host, server.port) as wire:
        ids = [t.topic_id for t in wire.metadata("fuzz-a", "fuzz-b").topics]
    answered, before = 0, len(server.faults())
    for version in range(3 if key == 0 else low, high + 1):
        for _ in range(ROUNDS):
            values = values_of(rng, request_schema(key, version), ids)
            if "max_wait" in values:
                values["max_wait"] = rng.choice((0, 5))
            request = encode_request(key, version, 1, values)
            seconds, quiet = (0.2, TimeoutError) if key in WAITING else (10, ConnectionError)
            with (
                Wire(server.host, server.port, seconds=seconds) as wire,
                suppress(ConnectionError, quiet),
            ):
                wire.socket.sendall(request)
                if values.get("acks") == 0:
                    wire.call(ApiKey.API_VERSIONS, 0, {})
                elif key == ApiKey.DESCRIBE_TRANSACTIONS:
                    wire.receive_frame()  # kio reads no time of -1: one that never began
                else:
                    wire.receive(key, version)
                answered += 1
    assert answered > 0
    faults = {fault["exception"][-400:] for fault in server.faults()[before:]}
    assert not faults
    assert server.process.poll() is None
    with Wire(server.host, server.port) as wire:
        assert wire.produce("fuzz-after", batch(b"v")).error_code == 0


def test_leftovers_of_nonsense_can_be_recovered(server: Served) -> None:
    """Nothing that was appended stops the fold, now or at the next start."""
    from tests.harness import served

    server.kill()
    with served(server.data_dir) as again, Wire(again.host, again.port) as wire:
        assert wire.produce("fuzz-after", batch(b"v")).error_code == 0
