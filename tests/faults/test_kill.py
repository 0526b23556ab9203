"""kill -9 in the middle of writing: every acknowledged record is there once, in order."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.clients.calls import producer
from tests.clients.transactions.calls import read
from tests.harness import Served, free_port, served
from tests.wire import Wire, batch

ROUNDS, ROUNDS_LONG = 20, 200


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_LONG, marks=pytest.mark.long)])
def test_kills_under_an_idempotent_producer(data_dir: Path, rounds: int) -> None:
    port = free_port()
    rng = random.Random(4)
    delivered: dict[str, list[tuple[int, int]]] = {"a": [], "b": [], "c": []}
    failures: list[Any] = []

    def on_delivery(queue: str, number: int) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                delivered[queue].append((number, message.offset()))

        return note

    client = producer(
        f"127.0.0.1:{port}", enable_idempotence=True, linger_ms=1, reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=50, retry_backoff_ms=10, message_timeout_ms=600_000,
        batch_num_messages=20, topic_metadata_refresh_interval_ms=1000,
    )  # fmt: skip
    number = 0
    for _ in range(rounds):
        flags = ("--segment-bytes", "65536", "--rows-flush-ms-max", "100", "--keeper-period-ms",
                 "30")  # fmt: skip
        server = Served(data_dir, *flags, port=port).wait_ready()
        for _ in range(rng.randrange(200, 1500)):
            queue = rng.choice("abc")
            client.produce(queue, b"%d" % number, on_delivery=on_delivery(queue, number))
            number += 1
            client.poll(0)
        while len(client) > 20_000:  # librdkafka's queue has a bound
            client.poll(0.05)
        client.poll(rng.random() * 0.2)
        server.kill()
    with served(data_dir, port=port) as again:
        assert client.flush(60) == 0
        assert not failures
        assert sum(map(len, delivered.values())) == number
        found = read(again.address, delivered)
        for queue, pairs in delivered.items():
            assert found[queue] == [(at, b"%d" % n) for at, (n, _) in enumerate(sorted(pairs))]
            assert sorted(o for _, o in pairs) == list(range(len(pairs)))


def test_producer_state_survives_a_kill(data_dir: Path) -> None:
    server = Served(data_dir).wait_ready()
    with Wire(server.host, server.port) as wire:
        pid = wire.producer_id()
        assert wire.produce("q", batch(b"a", producer_id=pid, epoch=0, sequence=0)).base_offset == 0
        assert wire.produce("q", batch(b"b", producer_id=pid, epoch=0, sequence=1)).base_offset == 1
    server.kill()
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        answer = wire.produce("q", batch(b"a", producer_id=pid, epoch=0, sequence=0))
        assert (answer.error_code, answer.base_offset) == (0, 0)
        gap = wire.produce("q", batch(b"d", producer_id=pid, epoch=0, sequence=3))
        assert gap.error_code == 45
        assert wire.produce("q", batch(b"c", producer_id=pid, epoch=0, sequence=2)).base_offset == 2
        assert wire.producer_id() != pid


def test_a_torn_tail_is_cut_off(data_dir: Path) -> None:
    server = Served(data_dir).wait_ready()
    with Wire(server.host, server.port) as wire:
        for i in range(5):
            wire.produce("q", batch(b"%d" % i))
    server.kill()
    segment = next((data_dir / "shard-0" / "log").glob("*.log"))
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:40] + bytes(150))
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        assert again.event("log_tail_cut")
        assert wire.fetch("q", 0).high_watermark == 5
        assert wire.produce("q", batch(b"5")).base_offset == 5


@pytest.mark.parametrize("segment_bytes", ["2000", "64MiB"], ids=["sealed", "active"])
def test_damage_in_a_segment_is_refused_with_one_line(data_dir: Path, segment_bytes: str) -> None:
    with served(data_dir, "--segment-bytes", segment_bytes) as server:
        with Wire(server.host, server.port) as wire:
            for i in range(50):
                wire.produce("q", batch(b"%d" % i))
        server.kill()
    segments = sorted((data_dir / "shard-0" / "log").glob("*.log"))
    assert (len(segments) > 1) == (segment_bytes == "2000")
    data = bytearray(segments[0].read_bytes())
    data[len(data) // 2] ^= 0x01
    segments[0].write_bytes(data)
    refused = Served(data_dir, "--http-listen", "off")
    assert refused.process.wait(20) == 1
    refused.kill()
    assert len(refused.raw) == 1
    assert "is damaged at position" in refused.raw[0]
    assert segments[0].read_bytes() == data


def test_queues_of_very_many_partitions_are_folded_again_soon(data_dir: Path) -> None:
    """They hung the server, and each start after a kill as well."""
    server = Served(data_dir).wait_ready()
    with Wire(server.host, server.port) as wire:
        for number in range(20):
            assert wire.create(f"wide-{number}", 10_000).error_code == 0
    server.kill()
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        assert wire.produce("wide-19", batch(b"v"), partition=9_999).base_offset == 0
