"""A raw protocol client and hand-made record batches, for what stock clients would not send."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from crc32c import crc32c

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.protocol.codecs import pack
from kproxy.protocol.varint import uvarint
from tests.bodies import creation, metadata

TODAY_MS = int(time.time()) * 1000  # the same for all: some tests compare batches
LISTENERS: list[Callable[[int, int, dict[str, Any]], None]] = []
"""The callbacks for each request before it is sent."""


def varlong(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def record(delta: int, value: bytes | None, key: bytes | None = None, time_delta: int = 0) -> bytes:
    body = b"\0" + varlong(time_delta) + varlong(delta)
    for field in (key, value):
        body += varlong(-1) if field is None else varlong(len(field)) + field
    body += varlong(0)
    return varlong(len(body)) + body


def keyed(
    *records: tuple[bytes | None, bytes | None], time_ms: int = 0, codec: int = 0, **more: Any
) -> bytes:
    """Return a batch of records with these keys and values, packed by a codec of CODECS."""
    data = b"".join(record(i, value, key) for i, (key, value) in enumerate(records))
    return batch(
        *[b""] * len(records), times=(time_ms or TODAY_MS,) * len(records), attributes=codec,
        packed=pack(data, codec), **more,
    )  # fmt: skip


def batch(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    times: tuple[int, ...] = (),
    attributes: int = 0,
    count: int | None = None,
    last_delta: int | None = None,
    magic: int = 2,
    crc: int | None = None,
    packed: bytes | None = None,
) -> bytes:
    """Return a record batch, sound unless told otherwise."""
    times = times or (TODAY_MS,) * len(values)
    records = packed
    if records is None:
        records = b"".join(
            record(i, value, time_delta=times[i] - times[0]) for i, value in enumerate(values)
        )
    after_crc = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            len(values) - 1 if last_delta is None else last_delta,
            times[0] if times else 0,
            max(times) if times else 0,
            producer_id,
            epoch,
            sequence,
            len(values) if count is None else count,
        )
        + records
    )
    sum_ = crc32c(after_crc) if crc is None else crc
    head = struct.pack(">ibI", -1, magic, sum_)
    return struct.pack(">qi", 0, len(head) + len(after_crc)) + head + after_crc


class Wire:
    """One connection. `call` sends a request in a version and waits for its answer."""

    def __init__(self, host: str, port: int, seconds: float = 20) -> None:
        self.socket = socket.create_connection((host, port), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, key: int, version: int, values: dict[str, Any]) -> int:
        for hear in LISTENERS:
            hear(key, version, values)
        self._correlation += 1
        self.socket.sendall(self.frame(key, version, values))
        return self._correlation

    def frame(self, key: int, version: int, values: dict[str, Any]) -> bytes:
        return encode_request(key, version, self._correlation, values)

    def receive(self, key: int, version: int) -> tuple[int, Any]:
        return decode_response(key, version, self.receive_frame())

    def receive_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def call(self, key: int, version: int, values: dict[str, Any]) -> Any:
        sent = self.send(key, version, values)
        correlation, answer = self.receive(key, version)
        assert correlation == sent
        return answer

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the server closed the connection")
            data += more
        return data

    def closed(self) -> bool:
        """Whether the server closes the connection, as it should."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    # -- the usual requests

    def produce(
        self, queue: str | UUID, records: bytes | None, partition: int = 0, version: int = 9,
        acks: int = -1,
    ) -> Any:  # fmt: skip
        """Produce; return the partition's part of the answer."""
        answer = self.call(ApiKey.PRODUCE, version, produce_values(queue, records, partition, acks))
        return answer.responses[0].partition_responses[0]

    def fetch(
        self, queue: str | UUID, offset: int, partition: int = 0, version: int = 12,
        wait_ms: int = 0, **more: Any,
    ) -> Any:  # fmt: skip
        answer = self.call(
            1, version, fetch_values({(queue, partition): offset}, wait_ms=wait_ms, **more)
        )
        return answer.responses[0].partitions[0]

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        values = creation(name, partitions=partitions, configs=configs)
        return self.call(ApiKey.CREATE_TOPICS, 7, values).topics[0]

    def delete(self, name: str) -> Any:
        topic = {"name": name, "topic_id": UUID(int=0)}
        return self.call(ApiKey.DELETE_TOPICS, 6, {"topics": [topic], "timeout": 5000}).responses[0]

    def list_offset(self, queue: str, timestamp: int, partition: int = 0, version: int = 10) -> Any:
        values = {
            "replica_id": -1, "isolation_level": 0, "timeout": 1000,
            "topics": [{
                "name": queue,
                "partitions": [{"partition_index": partition, "timestamp": timestamp}],
            }],
        }  # fmt: skip
        return self.call(ApiKey.LIST_OFFSETS, version, values).topics[0].partitions[0]

    def metadata(self, *names: str, create: bool = True, version: int = 12) -> Any:
        return self.call(ApiKey.METADATA, version, metadata(names, create=create))

    def producer_id(self) -> int:
        values = {"transactional_id": None, "transaction_timeout": 60000}
        answer = self.call(ApiKey.INIT_PRODUCER_ID, 4, values)
        while answer.error_code == 14:  # a real Kafka is still fetching its first block of ids
            time.sleep(0.05)
            answer = self.call(ApiKey.INIT_PRODUCER_ID, 4, values)
        assert answer.error_code == 0
        return int(answer.producer_id)


def produce_values(
    queue: str | UUID, records: bytes | None, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    label = {"topic_id": queue} if isinstance(queue, UUID) else {"name": queue}
    part = {"index": partition, "records": records}
    topic = {**label, "partition_data": [part]}
    return {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": [topic]}


def fetch_values(
    offsets: dict[tuple[str | UUID, int], int],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    session_id: int = 0,
    epoch: int = -1,
    leader_epoch: int = -1,
    forget: dict[str | UUID, tuple[int, ...]] | None = None,
    isolation: int = 0,
) -> dict[str, Any]:
    topics: dict[str | UUID, list[dict[str, Any]]] = {}
    for (queue, partition), offset in offsets.items():
        topics.setdefault(queue, []).append(
            {
                "partition": partition,
                "fetch_offset": offset,
                "current_leader_epoch": leader_epoch,
                "partition_max_bytes": partition_max_bytes,
                "log_start_offset": -1,
            }
        )
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [
            {"topic": queue, "topic_id": queue if isinstance(queue, UUID) else None,
             "partitions": parts}
            for queue, parts in topics.items()
        ],
        "forgotten_topics_data": [
            {"topic": queue, "topic_id": queue if isinstance(queue, UUID) else None,
             "partitions": parts}
            for queue, parts in (forget or {}).items()
        ],
        "rack_id": "",
    }  # fmt: skip


def batches(records: bytes | None) -> list[tuple[int, bytes]]:
    """Return (base offset, batch) of each batch in a fetch answer's records."""
    found = []
    position = 0
    data = records or b""
    while position < len(data):
        base, length = struct.unpack_from(">qi", data, position)
        found.append((base, data[position : position + 12 + length]))
        position += 12 + length
    return found
