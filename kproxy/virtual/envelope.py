"""An envelope: one record of a log, a client's batch or a command, and its fixed binary form.

Form: kind (1 byte), form version (1), queue id (16), partition (int32), number (int64; its meaning
depends on the kind), time (int64, milliseconds since the epoch), then the body. Kinds are written
to disk: a number is never given a second meaning.
"""

import json
import struct
from enum import IntEnum
from typing import Any

from kproxy.virtual.types import QueueId

NO_QUEUE = QueueId(bytes(16))
HEAD = struct.Struct(">BB16siqq")
HEAD_BYTES = HEAD.size
FORM = 1


class Kind(IntEnum):
    """What an envelope asks for; 20 and up are kept for claims, groups, transactions, shares."""

    APPEND = 1  # body: a record batch
    CREATE = 2  # body: {name, partitions, configs}
    GROW = 3  # number: the new partition count
    DELETE = 4
    TRIM = 5  # number: the new log start offset
    COMMIT = 6  # body: {group, offsets}
    FORGET = 7  # body: {group, partitions}
    PRODUCER_ID = 8
    COPY = 9  # number: the base offset; body: the record batch


class Envelope:
    """One record of a log. A plain class: one is made per batch on the hot path."""

    __slots__ = ("body", "kind", "number", "partition", "queue_id", "time_ms")

    def __init__(
        self,
        kind: int,
        queue_id: QueueId = NO_QUEUE,
        partition: int = 0,
        *,
        number: int = 0,
        time_ms: int = 0,
        body: bytes = b"",
    ) -> None:
        self.kind = kind
        self.queue_id = queue_id
        self.partition = partition
        self.number = number
        self.time_ms = time_ms
        self.body = body

    def __repr__(self) -> str:
        return f"Envelope({Kind(self.kind).name}, {self.queue_id.hex()}-{self.partition})"

    def values(self) -> dict[str, Any]:
        """A command's body as a dict."""
        decoded = json.loads(self.body)
        assert isinstance(decoded, dict)
        return decoded


def command(
    kind: Kind,
    queue_id: QueueId = NO_QUEUE,
    partition: int = 0,
    *,
    number: int = 0,
    time_ms: int = 0,
    values: dict[str, Any] | None = None,
) -> Envelope:
    """An envelope that is not a client's batch."""
    body = b"" if values is None else json.dumps(values, separators=(",", ":")).encode()
    return Envelope(kind, queue_id, partition, number=number, time_ms=time_ms, body=body)


def decode(data: bytes | memoryview, position: int = 0) -> Envelope:
    """Read an envelope that fills `data` from `position` on. Raises ValueError."""
    if len(data) - position < HEAD_BYTES:
        raise ValueError("an envelope is shorter than its head")
    kind, form, queue_id, partition, number, time_ms = HEAD.unpack_from(data, position)
    if form != FORM:
        raise ValueError(f"an envelope has form {form}; this kproxy reads form {FORM}")
    body = bytes(data[position + HEAD_BYTES :])
    return Envelope(kind, QueueId(queue_id), partition, number=number, time_ms=time_ms, body=body)
