"""Many queues: what they cost in memory, and that a start does not depend on their number."""

import time
from pathlib import Path

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.harness import Served, eventually, served
from tests.wire import Wire, batch, keyed

MIB = 1 << 20
PER_REQUEST = 1000


def write_to_each(server: Served, count: int, data: bytes, name: str = "user") -> None:
    with Wire(server.host, server.port, seconds=60) as wire:
        for start in range(0, count, PER_REQUEST):
            topics = [
                {"name": f"{name}-{i}", "partition_data": [{"index": 0, "records": data}]}
                for i in range(start, start + PER_REQUEST)
            ]
            values = {"transactional_id": None, "acks": -1, "timeout": 30_000}
            wire.socket.sendall(
                encode_request(ApiKey.PRODUCE, 9, 1, values | {"topic_data": topics})
            )
            answer = wire.receive(0, 9)[1]
            assert all(t.partition_responses[0].error_code == 0 for t in answer.responses)


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_memory_and_start_do_not_grow_with_the_queues(data_dir: Path, count: int) -> None:
    with served(data_dir) as server:
        write_to_each(server, count, batch(b"x" * 100))
        write_to_each(server, count, batch(b"y" * 100))
        print(f"{count} queues: {server.rss() / MIB:.0f} MB resident")  # noqa: T201
        assert server.rss() < 280 * MIB
        with Wire(server.host, server.port) as wire:
            assert wire.list_offset(f"user-{count - 1}", -1).offset == 2
        server.kill()
    started = time.monotonic()
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        print(f"after a kill ready in {time.monotonic() - started:.2f} s")  # noqa: T201
        assert wire.list_offset("user-7", -1).offset == 2
        assert wire.fetch("user-7", 1).records
    started = time.monotonic()
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        print(f"after a stop ready in {time.monotonic() - started:.2f} s")  # noqa: T201
        assert again.rss() < 120 * MIB
        assert wire.list_offset("user-7", -1).offset == 2


@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.long)])
def test_the_latest_state_of_each_of_many_devices(data_dir: Path, count: int) -> None:
    """A compacted queue for each: all are compacted, little by little, in bounded memory."""
    names = [f"device-{number}" for number in range(count)]
    compacted = [
        {"name": "cleanup.policy", "value": "compact"},
        {"name": "min.cleanable.dirty.ratio", "value": "0.1"},  # by default two states may stay
    ]
    with (
        served(data_dir, "--compaction-check-ms", "500") as server,
        Wire(server.host, server.port, seconds=60) as wire,
    ):
        for some in (names[at : at + 500] for at in range(0, count, 500)):
            topics = [
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (),
                 "configs": compacted}
                for name in some
            ]  # fmt: skip
            made = wire.call(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 30_000})
            assert {topic.error_code for topic in made.topics} == {0}
        for state in range(3):
            write_to_each(server, count, keyed((b"state", b"%d" % state * 50)), "device")
        sample = names[:: count // 50]

        def states(name: str) -> int:
            return bytes(wire.fetch(name, 0).records or b"").count(b"state")

        eventually(lambda: all(states(name) == 1 for name in sample), 60 + count / 100, 1)
        assert all(b"222" in (wire.fetch(name, 0).records or b"") for name in sample)
        print(f"{count} compacted queues: {server.rss() / MIB:.0f} MB resident")  # noqa: T201
        assert server.rss() < 280 * MIB
