"""Answers and requests in one form, without what differs from one run to the next.

An answer is compared and recorded in this form. A recording has a digest of the requests, so that a
changed script is noticed: what was sent is what Kafka was asked. The source of a script and of
its helpers would change with each renaming, and would not notice a changed constant elsewhere.

A script asks again until a server is ready, how often is no matter: a digest is of the different
requests in the order in which they were sent first. Ids, epochs and times that a server gives are
masked.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from crc32c import crc32c

from kproxy.protocol.api_keys import ApiKey
from tests.wire import LISTENERS, TODAY_MS

MAY_DIFFER = {
    "throttle_time", "topic_id", "cluster_id", "error_message", "message", "node_id", "host",
    "port", "broker_id", "leader_epoch", "leader_id", "replica_nodes", "isr_nodes",
    "controller_id", "session_id", "producer_id", "configs", "node_endpoints", "current_leader",
}  # fmt: skip
"""Fields of an answer that are not compared."""

_GIVEN = {
    "producer_id", "v3_and_below_producer_id", "producer_id_filters", "session_id",
    "share_session_epoch", "member_epoch", "generation_id", "generation_id_or_member_epoch",
    "replicas", "broker_ids", "topic_partitions", "path",
}  # fmt: skip
"""Fields of a request that a server has a say in."""
_FEW = 1 << 16  # ids of tests' own are small
_MEMBER = re.compile(r"(.*-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[\w-]{22}")
_LATELY = 10**12  # milliseconds, some thirty years
_HEAD = 61  # bytes of a batch before its records


def canonical(value: Any) -> Any:
    """Return an answer as JSON has it, without what may differ."""
    if is_dataclass(value):
        listed = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: canonical(one) for name, one in listed if name not in MAY_DIFFER}
    if isinstance(value, dict):
        return {_text(key): canonical(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((canonical(one) for one in value), key=json.dumps)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray):
        return [canonical(one) for one in value]
    return _plain(value)


def _text(key: Any) -> str:
    plain = canonical(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name.upper()
    if isinstance(value, bool | float | None):
        return value
    if isinstance(value, int):
        since = value - TODAY_MS
        return f"today {since:+}" if abs(since) <= _LATELY else int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, timedelta):
        return f"{value / timedelta(milliseconds=1):g} ms"
    if isinstance(value, datetime):
        return _plain(round(value.timestamp() * 1000))
    if isinstance(value, UUID):
        return f"id {value.int}" if value.int < _FEW else "id"
    if isinstance(value, bytes | bytearray):
        return _bytes(bytes(value))
    raise TypeError(f"no form for {value!r}")


def _bytes(data: bytes) -> Any:
    """Return the batches in the bytes, or the bytes themselves."""
    found = []
    while len(data) >= _HEAD and _is_batch(data):
        size = max(_HEAD, 12 + int.from_bytes(data[8:12], "big"))
        found.append(_batch(data[:size]))
        data = data[size:]
    if _is_batch(data):  # times and a sum lie in it
        found.append(f"{len(data)} bytes of a batch")
    elif not found:
        return data.hex() if len(data) <= _HEAD else f"{len(data)} bytes {digest(data)}"
    elif data:
        found.append(data.hex())
    return found


def _is_batch(data: bytes) -> bool:
    return data[:4] == bytes(4) and data[16:17] in (b"\1", b"\2")


def _batch(data: bytes) -> str:
    base, length, epoch = struct.unpack_from(">qii", data)
    (crc,) = struct.unpack_from(">I", data, 17)
    attributes, last, first_ms, last_ms, producer, at, sequence, count = struct.unpack_from(
        ">hiqqqhii", data, 21
    )
    body = data[_HEAD:]
    return (
        f"@{base}+{last} magic {data[16]} length {length} epoch {epoch} attributes {attributes:#x} "
        f"from {_plain(first_ms)} to {_plain(last_ms)} "
        f"{'no producer' if producer < 0 else 'producer'} {at} seq {sequence} count {count} "
        # The output of a codec for the same bytes differs by its release.
        f"{body.hex() if len(body) < 100 else 'packed' if attributes & 7 else digest(body)}"
        f"{'' if crc == crc32c(data[21:]) else ' damaged'}"
    )


def digest(data: bytes | str) -> str:
    data = data.encode() if isinstance(data, str) else data
    return hashlib.sha256(data).hexdigest()[:16]


# -- requests


class Requests:
    """The different requests that were sent."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}

    def hear(self, key: int, version: int, values: dict[str, Any]) -> None:
        form = json.dumps(_masked(values), sort_keys=True, ensure_ascii=False)
        self.seen.setdefault(f"{ApiKey(key).name} {version} {form}")

    def digest(self) -> str:
        return f"{len(self.seen)} requests {digest(chr(10).join(self.seen))}"


def _masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _masked(one, str(key)) for key, one in value.items()}
    if name in _GIVEN:
        return _given(value)
    if isinstance(value, list | tuple):
        return [_masked(one) for one in value]
    if name == "member_id" and _MEMBER.fullmatch(value or ""):
        return "given"
    return canonical(value)


def _given(value: Any) -> Any:
    return value if value is None or (isinstance(value, int) and value <= 0) else "given"


@contextmanager
def listening() -> Iterator[Requests]:
    """Hear of the requests that are sent within a block."""
    requests = Requests()
    LISTENERS.append(requests.hear)
    try:
        yield requests
    finally:
        LISTENERS.remove(requests.hear)


@contextmanager
def unheard() -> Iterator[None]:
    """Send requests that only some servers need, or as many as it takes."""
    before = LISTENERS[:]
    LISTENERS.clear()
    try:
        yield
    finally:
        LISTENERS.extend(before)
