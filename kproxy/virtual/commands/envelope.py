"""An envelope: one record of a log, a client's batch or a command, and its fixed binary form.

Form: kind (1 byte), form version (1), queue id (16), partition (int32), number (int64; its meaning
depends on the kind), time (int64, milliseconds since the epoch), writer and counter (uint64 each:
who appended it, in which life, as its how-manieth), then the body. Kinds are written to disk: a
number is never given a second meaning.
"""

import struct
from enum import IntEnum

from crc32c import crc32c

from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.types import QueueId

NO_QUEUE = QueueId(bytes(16))
HEAD = struct.Struct(">BB16siqqQQ")
HEAD_BYTES = HEAD.size
FORM = 2
NUMBERED = 1 << 62
"""The bit of a counter that has the fold compare it with its writer's last (`virtual.writers`).

It is set from level 9 on, in logs that Kafka orders.
"""
_CRC = struct.Struct(">I")


Body = bytes | memoryview
"""A client's batch is a part of the frame that it came in, until it is read from the log again."""


class Kind(IntEnum):
    """The kind of an envelope; `virtual.commands` has a class for each."""

    FOREIGN = 0
    APPEND = 1
    CREATE = 2
    GROW = 3
    DELETE = 4
    TRIM = 5
    COMMIT = 6
    DELETE_OFFSETS = 7
    PRODUCER_ID = 8
    COPY = 9
    REPLACE = 10
    COMPACT = 11
    CLAIM = 20
    ASSIGN_PARTITIONS = 21
    QUEUE_READY = 22
    GROUP = 24
    EXPIRE = 25
    DELETE_GROUP = 26
    CONFIGURE = 27
    DROP_TOMBSTONE = 28
    INIT_PRODUCER = 29
    ENLIST = 30
    BEGIN = 31
    END = 32
    MARKER = 33
    COMPLETE = 34
    TRANSACTION_COMMIT = 35
    EXPIRE_TRANSACTION = 36
    SHARE_SET = 37
    SHARE = 38
    SHARE_QUEUES = 39
    SHARE_LOOK = 40
    CONFIGURE_GROUP = 41
    FORWARD = 42
    SETTLE_FORWARD = 43
    AIM_FORWARD = 44
    ROUTE = 45
    CUT = 46
    SHIP = 47
    FORGET_LANDED = 48
    LATER = 49
    DUE = 50
    SECURE = 51
    FORGET_PRODUCERS = 55
    RESTORED = 60
    APPEND_IF = 61
    EXPIRE_QUEUE = 62
    FREE_LANES = 63
    CHANGE_JOB = 64


COPIED = struct.Struct(">QQq")  # APPEND's log offset, size and largest timestamp through it
COPY_BYTES = 16 + HEAD.size + COPIED.size
"""The bytes that a segment needs for a copied batch, beside its records: 16 are its frame."""


class Envelope:
    """One record of a log. A plain class: one is made per batch on the hot path."""

    __slots__ = (
        "body", "counter", "header", "kind", "number", "partition", "queue_id", "time_ms",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        kind: int,
        queue_id: QueueId = NO_QUEUE,
        partition: int = 0,
        *,
        number: int = 0,
        time_ms: int = 0,
        body: Body = b"",
        writer: int = 0,
        counter: int = 0,
    ) -> None:
        self.kind = kind
        self.queue_id = queue_id
        self.partition = partition
        self.number = number
        self.time_ms = time_ms
        self.body = body
        self.writer = writer
        self.counter = counter
        self.header: BatchHeader | None = None  # the batch that an APPEND carries, once read

    def head(self) -> bytes:
        return HEAD.pack(
            self.kind, FORM, self.queue_id, self.partition, self.number, self.time_ms, self.writer,
            self.counter,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Envelope({Kind(self.kind).name}, {self.queue_id.hex()}-{self.partition})"


def decode(data: bytes | memoryview, position: int = 0) -> Envelope:
    """Read an envelope that fills `data` from `position` on. Raise ValueError."""
    if len(data) - position < HEAD_BYTES:
        raise ValueError("an envelope is shorter than its head")
    kind, form, queue_id, partition, number, time_ms, writer, counter = HEAD.unpack_from(
        data, position
    )
    if form != FORM:
        raise ValueError(f"an envelope has form {form}; this kproxy reads form {FORM}")
    return Envelope(
        kind, QueueId(queue_id), partition, number=number, time_ms=time_ms,
        body=bytes(data[position + HEAD_BYTES :]), writer=writer, counter=counter,
    )  # fmt: skip


def record_key(envelope: Envelope) -> bytes:
    """Return the key of the Kafka record that carries an envelope; the value is its body."""
    head = envelope.head()
    return head + _CRC.pack(crc32c(envelope.body, crc32c(head)))


def from_record(key: bytes | None, value: bytes | None) -> Envelope:
    """Return the envelope of a Kafka record; FOREIGN if someone else wrote it."""
    body = value or b""
    if key is not None and len(key) == HEAD_BYTES + _CRC.size:
        head = key[:HEAD_BYTES]
        (crc,) = _CRC.unpack_from(key, HEAD_BYTES)
        if crc32c(body, crc32c(head)) == crc:
            envelope = decode(head)
            envelope.body = body
            return envelope
    return Envelope(Kind.FOREIGN)
