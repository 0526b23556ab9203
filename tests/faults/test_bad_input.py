"""Bad input: a clear error, nothing lost, the server stays up, memory stays bounded."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.harness import Served, eventually, served
from tests.wire import Wire, batch, batches, fetch_values, produce_values

OWN_SERVER = True

MIB = 1 << 20
RSS_GROWTH_MAX = 40 * MIB


@pytest.fixture(autouse=True)
def _unharmed(server: Served) -> Iterator[None]:
    """Check after each test that the server is up, faultless, and not larger than a little."""
    with Wire(server.host, server.port) as wire:
        wire.produce("before", batch(b"v"))
    before = server.rss()
    yield
    with Wire(server.host, server.port) as wire:
        assert wire.produce("after", batch(b"v")).error_code == 0
    assert server.rss() - before < RSS_GROWTH_MAX
    assert not server.faults()


def raw(server: Served, data: bytes) -> Wire:
    wire = Wire(server.host, server.port)
    wire.socket.sendall(data)
    return wire


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 4, 2**31 - 1, 100 * MIB + 1])
def test_impossible_frame_lengths(server: Served, length: int) -> None:
    with raw(server, struct.pack(">i", length) + bytes(100)) as wire:
        assert wire.closed()
    eventually(lambda: any("frame of" in e.get("reason", "") for e in server.events))


def test_many_large_announcements_cost_what_was_sent(server: Served) -> None:
    wires = [raw(server, struct.pack(">i", 99 * MIB) + bytes(1000)) for _ in range(200)]
    before = server.rss()
    time.sleep(0.3)
    assert server.rss() - before < RSS_GROWTH_MAX
    for wire in wires:
        wire.socket.close()


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 8, struct.pack(">i", 2**31 - 1)),
        (3, 12, b"\xff\xff\xff\xff\x07"),
        (3, 12, b"\x00\x00\x00" + b"\xff\xff\xff\xff\x07"),
        (1, 12, b"\x00" * 25 + b"\xff\xff\xff\xff\x0f"),
        (0, 9, b"\x00\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x0f"),
    ],
)
def test_impossible_counts(server: Served, key: int, version: int, body: bytes) -> None:
    header = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if version >= 9 else b"")
    with raw(server, framed(header + body)) as wire:
        assert wire.closed()


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (4, 1), (3, 99), (1, 3), (0, 2)])
def test_unknown_keys_and_versions_close_the_connection(
    server: Served, key: int, version: int
) -> None:
    with raw(server, framed(struct.pack(">hhih", key, version, 1, -1) + bytes(50))) as wire:
        assert wire.closed()


def test_a_too_new_api_versions_is_answered_in_version_0(server: Served) -> None:
    with raw(server, framed(struct.pack(">hhih", 18, 57, 9, -1) + bytes(9))) as wire:
        correlation, answer = wire.receive(18, 0)
        assert correlation == 9
        assert answer.error_code == 35
        assert [(k.api_key, k.min_version, k.max_version) for k in answer.api_keys] == [(18, 0, 5)]
        assert wire.call(ApiKey.API_VERSIONS, 0, {}).error_code == 0


def test_unfinished_requests_of_many_connections_are_bounded(data_dir: Path) -> None:
    with served(data_dir, "--request-bytes-buffered-max", "20MiB") as server:
        before = server.rss()
        wires = [Wire(server.host, server.port, seconds=0.5) for _ in range(12)]
        for wire in wires:  # all begin while there is room
            wire.socket.sendall(struct.pack(">i", 30 * MIB) + bytes(MIB))
        time.sleep(0.2)
        for wire in wires:
            with suppress(OSError):
                for _ in range(20):
                    wire.socket.sendall(bytes(MIB))
        assert server.rss() - before < 150 * MIB  # 240 were sent
        eventually(lambda: any("request memory" in e.get("reason", "") for e in server.events))
        for wire in wires:
            wire.socket.close()
        with Wire(server.host, server.port) as wire:
            assert wire.produce("q", batch(b"v")).error_code == 0


def test_a_connection_that_waits_for_room_is_not_read_ahead(data_dir: Path) -> None:
    """anyio would queue what an accepted connection sends without a bound."""
    with served(data_dir, "--request-bytes-buffered-max", "1MiB") as server:
        first = raw(server, struct.pack(">i", 3 * MIB) + bytes(int(1.5 * MIB)))
        time.sleep(0.2)
        before = server.rss()
        with Wire(server.host, server.port, seconds=0.5) as second:
            with suppress(OSError):
                for _ in range(200):
                    second.socket.sendall(bytes(MIB))
            assert server.rss() - before < 50 * MIB
        first.socket.close()


def test_a_truncated_frame_is_waited_for_and_dropped(server: Served) -> None:
    with raw(server, framed(bytes(500))[:200]) as wire:
        wire.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            wire.socket.recv(1)


def test_tls_on_a_plaintext_port(server: Served) -> None:
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(300)
    with raw(server, hello) as wire:
        assert wire.closed()


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, 87),
        (b"", 87),
        (batch(b"a", crc=7), 2),
        (batch(b"a", count=5), 87),
        (batch(b"a", last_delta=3), 87),
        (batch(b"a", magic=1), 87),
        (batch(b"a", magic=0), 87),
        (batch(b"a") + batch(b"b"), 87),
        (batch(b"a", attributes=0x20), 87),
        (batch(b"a", attributes=0x10), 53),
        (batch(b"x" * (MIB + 100)), 10),
    ],
    ids=[
        "null",
        "empty",
        "crc",
        "count",
        "delta",
        "magic1",
        "magic0",
        "two",
        "control",
        "transactional",
        "large",
    ],
)
def test_bad_batches(wire: Wire, queue: str, records: bytes | None, code: int) -> None:
    name = f"bad-{code}"
    refused = wire.produce(name, records)
    assert refused.error_code == code
    assert refused.error_message
    assert wire.produce(name, batch(b"good")).error_code == 0
    assert all(b"good" in data for _, data in batches(wire.fetch(name, 0).records))


def test_two_partitions_one_bad(wire: Wire, queue: str) -> None:
    wire.create(queue, 2)
    values = produce_values(queue, batch(b"good"))
    bad = {"index": 1, "records": batch(b"bad", crc=1)}
    values["topic_data"][0]["partition_data"].append(bad)
    parts = wire.call(ApiKey.PRODUCE, 9, values).responses[0].partition_responses
    assert [(p.index, p.error_code) for p in parts] == [(0, 0), (1, 2)]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\0b"])
def test_names_that_kafka_refuses(wire: Wire, name: str) -> None:
    assert wire.create(name).error_code == 17
    assert wire.produce(name, batch(b"v")).error_code == 17
    assert wire.metadata(name).topics[0].error_code == 17


def test_offsets_out_of_range(wire: Wire, queue: str) -> None:
    wire.produce(queue, batch(b"v"))
    for offset in (-1, 2, 2**62):
        assert wire.fetch(queue, offset).error_code == 1
    assert wire.fetch(queue, 1).error_code == 0
    assert wire.fetch(queue, 0, partition=1).error_code == 3


def test_acks_must_be_0_1_or_all(wire: Wire, queue: str) -> None:
    assert wire.produce(queue, batch(b"v"), acks=2).error_code == 21


def test_a_failed_produce_with_acks_0_closes_the_connection(server: Served, queue: str) -> None:
    with Wire(server.host, server.port) as wire:
        wire.send(ApiKey.PRODUCE, 9, produce_values(queue, batch(b"v", crc=1), acks=0))
        assert wire.closed()


def test_a_slow_writer_is_served_byte_by_byte(server: Served, queue: str) -> None:
    from kproxy.protocol.codec import encode_request

    request = encode_request(ApiKey.PRODUCE, 9, 3, produce_values(queue, batch(b"slow")))
    with Wire(server.host, server.port) as wire:
        for byte in request:
            wire.socket.sendall(bytes([byte]))
        correlation, answer = wire.receive(0, 9)
        assert correlation == 3
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_client_that_stops_inside_a_request_is_disconnected(data_dir: Path) -> None:
    with served(data_dir, "--receive-stalled-ms-max", "500") as server:
        with raw(server, framed(bytes(500))[:200]) as wire:
            assert wire.closed()
        eventually(lambda: server.event("client_stopped_inside_a_request"))


def test_answers_of_many_deaf_clients_are_bounded(data_dir: Path) -> None:
    flags = ("--answer-bytes-buffered-max", "20MiB", "--send-stalled-ms-max", "1000")
    with served(data_dir, *flags) as server:
        with Wire(server.host, server.port) as wire:
            for _ in range(10):
                wire.produce("big", batch(b"x" * 900_000))
        before = server.rss()
        deaf = [Wire(server.host, server.port) for _ in range(8)]
        for client in deaf:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.send(
                ApiKey.FETCH, 12, fetch_values({("big", 0): 0}, partition_max_bytes=20 * MIB)
            )
        time.sleep(1)
        assert server.rss() - before < 100 * MIB
        with Wire(server.host, server.port) as wire:  # served when the deaf ones are gone
            assert wire.fetch("big", 0).error_code == 0
        for client in deaf:
            client.socket.close()


def test_a_client_that_never_reads_is_disconnected(data_dir: Path) -> None:
    with served(data_dir, "--send-stalled-ms-max", "1000") as server:
        with Wire(server.host, server.port) as wire:
            for _ in range(20):
                wire.produce("big", batch(b"x" * 900_000))
        before = server.rss()
        deaf = Wire(server.host, server.port)
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        for _ in range(50):
            deaf.send(ApiKey.FETCH, 12, fetch_values({("big", 0): 0}, partition_max_bytes=20 * MIB))
        eventually(lambda: server.event("client_does_not_read"))
        assert server.rss() - before < 100 * MIB
        deaf.socket.close()
        with Wire(server.host, server.port) as wire:
            assert wire.fetch("big", 0).error_code == 0


def test_a_client_that_reads_slowly_is_let(data_dir: Path) -> None:
    with served(data_dir, "--send-stalled-ms-max", "1500") as server:
        with Wire(server.host, server.port) as wire:
            for _ in range(20):
                wire.produce("big", batch(b"x" * 900_000))
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((server.host, server.port))
            values = fetch_values({("big", 0): 0}, partition_max_bytes=20 * MIB)
            slow.sendall(encode_request(ApiKey.FETCH, 12, 1, values))
            until, got = time.monotonic() + 6, 0
            while time.monotonic() < until:  # at most some 400 KB a second
                data = slow.recv(4000)
                assert data
                got += len(data)
                time.sleep(0.01)
            assert got < 18 * 900_000  # it was still being sent
            assert server.event("client_does_not_read") is None
            eventually(lambda: server.event("client_does_not_read"))


def test_an_idle_connection_is_closed_after_a_setting(data_dir: Path) -> None:
    with served(data_dir, "--connection-idle-ms-max", "700") as server:
        with Wire(server.host, server.port) as wire:
            wire.produce("q", batch(b"v"))
            started = time.monotonic()
            assert wire.closed()
            assert 0.5 < time.monotonic() - started < 5
        with Wire(server.host, server.port) as wire:  # a long poll is not idle
            assert wire.fetch("q", 1, wait_ms=2500).error_code == 0


def test_connections_are_bounded(data_dir: Path) -> None:
    with served(data_dir, "--connections-max", "3") as server:
        wires = [Wire(server.host, server.port) for _ in range(3)]
        for wire in wires:
            wire.produce("q", batch(b"v"))
        with Wire(server.host, server.port) as extra:
            assert extra.closed()
        wires.pop().socket.close()
        time.sleep(0.2)
        with Wire(server.host, server.port) as extra:
            assert extra.produce("q", batch(b"v")).error_code == 0
        for wire in wires:
            wire.socket.close()


def test_in_flight_requests_are_bounded_and_answered_in_order(server: Served, queue: str) -> None:
    with Wire(server.host, server.port) as wire:
        sent = [
            wire.send(ApiKey.PRODUCE, 9, produce_values(queue, batch(b"%d" % i)))
            for i in range(500)
        ]
        for i, correlation in enumerate(sent):
            got, answer = wire.receive(0, 9)
            part = answer.responses[0].partition_responses[0]
            assert (got, part.error_code, part.base_offset) == (correlation, 0, i)


def test_thousands_of_produces_in_one_piece_are_answered_in_order(wire: Wire, queue: str) -> None:
    """A refusal is sent while the rest of the piece is still taken."""
    count = 3000
    frames = [
        encode_request(
            ApiKey.PRODUCE, 9, number, produce_values(queue, None, acks=5 if number % 2 else -1)
        )
        for number in range(count)
    ]
    wire.socket.sendall(b"".join(frames))
    for number in range(count):
        correlation, body = wire.receive(0, 9)
        assert correlation == number
        code = body.responses[0].partition_responses[0].error_code
        assert code == (21 if number % 2 else 87)
