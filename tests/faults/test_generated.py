"""Generated requests at a live server: it stays up, others are answered, memory stays bounded.

Meanwhile another connection asks for API versions, again and again. If that takes long, the request
under way is sent again by itself: the machine may have been busy with something else.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psutil
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request, request_schema
from tests.generator import (
    VERSIONS,
    Made,
    array_paths,
    elements_of,
    made,
    repeated,
    request,
    sensible,
)
from tests.harness import Served, served
from tests.wire import Wire, batch

SEED = "20261123"
MIB = 1 << 20
LIMIT = 32 * MIB  # for requests, and for answers
RSS_GROWTH_MAX = 2 * LIMIT + 2 * LIMIT + 160 * MIB  # twice each, rows, caches, allocator
STALL_S = 0.25
STALL_CPU_S = 0.2  # CPU of the server; with less a stall is not its own
TIMES = 3
JOIN_GROUP, SYNC_GROUP = 11, 14
HUNDREDS = 500
PRODUCERS = 50
ELEMENTS = 249_000  # request_elements_max is 250,000
KNOWN = {
    "name": "gen", "topic": "gen", "topic_name": "gen", "topics_names": "gen",
    "resource_name": "gen", "resource_type": 2, "partition_index": 0, "partition_indexes": 0,
    "group_id": "gen-group", "groups_names": "gen-group", "groups": "gen-group",
    "coordinator_keys": "gen-group", "timestamp": -1, "num_partitions": 1,
    "replication_factor": 1, "current_leader_epoch": -1, "leader_epoch": 0,
    "generation_id_or_member_epoch": -1, "committed_offset": 1, "committed_leader_epoch": -1,
    "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "session_epoch": -1, "acks": -1,
    "replica_id": -1, "count": 1, "records": batch(b"v"), "value": "604800000",
    "configuration_keys": "retention.ms", "session_timeout": 10_000,
    "rebalance_timeout": 10_000, "protocol_type": "consumer", "response_partition_limit": 2000,
}  # fmt: skip
# These undo what the others need: they name something else.
UNDOING = {19: "gen-made", 20: "gen-gone", 42: "gen-other", 47: "gen-other"}


class Stall(NamedTuple):
    """A round trip: how long it took, and how long the server worked meanwhile."""

    seconds: float
    cpu_s: float

    @property
    def is_one(self) -> bool:
        return self.seconds > STALL_S and self.cpu_s > STALL_CPU_S


NONE = Stall(0.0, 0.0)


class Probe(threading.Thread):
    """Another client, which notes its slowest round trip."""

    def __init__(self, server: Served) -> None:
        super().__init__(daemon=True)
        self._wire = Wire(server.host, server.port, seconds=120)
        self._process = psutil.Process(server.process.pid)
        self._lock = threading.Lock()
        self._begun: tuple[float, float] | None = None
        self._worst = NONE
        self._ended = False

    def run(self) -> None:
        with suppress(OSError, psutil.Error):
            while not self._ended:
                with self._lock:
                    self._begun = (time.monotonic(), self._cpu_s())
                self._wire.call(ApiKey.API_VERSIONS, 0, {})
                with self._lock:
                    self._note()
                    self._begun = None
                time.sleep(0.002)

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _note(self) -> None:
        if self._begun is not None:
            seconds = time.monotonic() - self._begun[0]
            if seconds > STALL_S:
                self._worst = max(self._worst, Stall(seconds, self._cpu_s() - self._begun[1]))

    def worst(self) -> Stall:
        """Return the worst stall since the last call, the round trip under way included."""
        with self._lock:
            self._note()
            worst, self._worst = self._worst, NONE
        return worst

    def end(self) -> None:
        self._ended = True
        self.join(10)
        self._wire.socket.close()


class Sender:
    """A sender of requests, one after another, that judges the server by other clients' waits."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._behind = encode_request(ApiKey.API_VERSIONS, 0, 1, {})
        self._socket: socket.socket | None = None
        self.answered = 0
        self.probe = Probe(server)
        self.probe.start()

    def judge(self, one: Made) -> None:
        """Send it; and again where others waited for long, as that may have had other causes."""
        for _ in range(TIMES):
            self.probe.worst()
            self._send(one)
            worst = self.probe.worst()
            assert self._server.process.poll() is None, f"{one} ended the server"
            if not worst.is_one:
                return
        pytest.fail(f"others waited {worst} for {one}")

    def _send(self, one: Made) -> None:
        """Send a request until it is answered, refused, or waits for another client."""
        waits = one.key in (JOIN_GROUP, SYNC_GROUP)
        try:
            if self._socket is None:
                address = (self._server.host, self._server.port)
                self._socket = socket.create_connection(address)
            self._socket.settimeout(0.05 if waits else 60)
            self._socket.sendall(struct.pack(">i", len(one.frame)) + one.frame + self._behind)
            self._until_answered(self._socket)
            self.answered += 1
        except TimeoutError:
            assert waits, f"no answer to {one}"
            self._drop()
        except ConnectionError:
            self._drop()

    def _until_answered(self, connection: socket.socket) -> None:
        """Wait for the answer to the request behind it, as it may have none itself."""
        got = bytearray()
        buffer = bytearray(1 << 18)
        while got[-len(VERSIONS_TAIL) :] != VERSIONS_TAIL:
            count = connection.recv_into(buffer)
            if not count:
                raise ConnectionError
            got = got[-len(VERSIONS_TAIL) :] + buffer[:count]

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def end(self) -> None:
        self._drop()
        self.probe.end()


VERSIONS_TAIL = b""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Sender, list[UUID]]]:
    """Yield a server with a queue of some partitions, producers, and a group with offsets on it."""
    global VERSIONS_TAIL
    flags = ("--request-bytes-buffered-max", str(LIMIT), "--answer-bytes-buffered-max", str(LIMIT))
    with served(tmp_path_factory.mktemp("data"), *flags) as server:
        with Wire(server.host, server.port) as wire:
            wire.create("gen", HUNDREDS)
            for number in range(PRODUCERS):
                producer = wire.producer_id()
                wire.produce("gen", batch(b"v", producer_id=producer, epoch=0, sequence=0))
                if not number:
                    wire.produce("gen", batch(b"w"))
            parts = [
                {"partition_index": index, "committed_offset": 1, "committed_metadata": ""}
                for index in range(HUNDREDS)
            ]
            wire.call(ApiKey.OFFSET_COMMIT, 8, {
                "group_id": "gen-group", "generation_id_or_member_epoch": -1, "member_id": "",
                "topics": [{"name": "gen", "partitions": parts}],
            })  # fmt: skip
            ids = [topic.topic_id for topic in wire.metadata("gen", "fuzz-a", "fuzz-b").topics]
            wire.send(ApiKey.API_VERSIONS, 0, {})
            VERSIONS_TAIL = wire.receive_frame()[-60:]
        sender = Sender(server)
        yield server, sender, ids
        sender.end()


def known_for(key: int, ids: list[UUID]) -> dict[str, Any]:
    known = {**KNOWN, "topic_id": ids[0]}
    other = UNDOING.get(key)
    if other is None:
        return known
    return {name: other if value in ("gen", "gen-group") else value
            for name, value in known.items()} | {"topic_id": None}  # fmt: skip


@pytest.fixture
def bounded(target: tuple[Served, Sender, list[UUID]]) -> Iterator[None]:
    server = target[0]
    before, faults = server.rss(), len(server.faults())
    yield
    assert server.rss() - before < RSS_GROWTH_MAX
    assert {fault["exception"][-400:] for fault in server.faults()[faults:]} == set()
    with Wire(server.host, server.port) as wire:
        assert wire.produce("gen-after", batch(b"v")).error_code == 0


def one_thing_many_times(key: int, ids: list[UUID], most: int) -> Iterator[Made]:
    """Yield a request for each array of the API's oldest and newest version."""
    versions = [version for k, version in VERSIONS if k == key]
    for version in sorted({versions[0], versions[-1]}):
        schema = request_schema(key, version)
        values = sensible(schema, known_for(key, ids))
        for path in array_paths(schema):
            count = most // max(1, elements_of(repeated(values, path, 1)))
            frame = request(key, version, repeated(values, path, count))
            yield Made(f"{'.'.join(path)} {count} times,", frame)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("key", sorted({key for key, _ in VERSIONS}))
def test_one_thing_many_times(target: tuple[Served, Sender, list[UUID]], key: int) -> None:
    _, sender, ids = target
    for one in one_thing_many_times(key, ids, 20_000):
        sender.judge(one)


@pytest.mark.usefixtures("bounded")
def test_thousands_of_requests(target: tuple[Served, Sender, list[UUID]]) -> None:
    many(target, "short", 4000, 0.002)


@pytest.mark.long
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("key", sorted({key for key, _ in VERSIONS}))
def test_one_thing_as_often_as_may_be(target: tuple[Served, Sender, list[UUID]], key: int) -> None:
    _, sender, ids = target
    for one in one_thing_many_times(key, ids, ELEMENTS):
        sender.judge(one)


@pytest.mark.long
@pytest.mark.usefixtures("bounded")
def test_two_hundred_thousand_requests(target: tuple[Served, Sender, list[UUID]]) -> None:
    many(target, "long", 200_000, 0.002)


def many(target: tuple[Served, Sender, list[UUID]], part: str, count: int, odds: float) -> None:
    server, sender, ids = target
    before, answered = server.rss(), sender.answered
    known = {**KNOWN, "name": "fuzz-a", "topic": "fuzz-a", "topic_name": "fuzz-a"}
    for number in range(count):
        seed = f"{SEED}-{part}-{number}"
        one = made(seed, known, ids[1:], ELEMENTS, odds)
        sender.judge(one._replace(kind=f"seed {seed}, {one.kind}"))
        if number % 100 == 99:
            assert server.rss() - before < RSS_GROWTH_MAX, f"at seed {seed}"
    assert sender.answered - answered > count / 3  # the others are refused


def test_generated_data_can_be_recovered(
    target: tuple[Served, Sender, list[UUID]], tmp_path: Path
) -> None:
    """Nothing that was appended stops the fold, now or at the next start."""
    server, sender, _ = target
    sender.end()
    server.kill()
    with served(server.data_dir) as again, Wire(again.host, again.port) as wire:
        assert wire.produce("gen-after", batch(b"v")).error_code == 0
