"""Commands of delays: records that wait aside, and are appended when they are due.

- LATER: a client's batch of which all or some waits. One envelope, so that it is judged once.
- DUE: batches that waited are appended, by the shard's owner alone, and no longer wait.

A batch that waits has the time it is due as its largest timestamp (`delay_rows`).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from kproxy.protocol.records import keyed_records
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, of_kind
from kproxy.virtual.levels import DELAYS_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey

BATCHES_MAX = 1000
"""The most batches in one of these commands."""

_FORM = 1
# First what has the place of a batch's base offset and length, for who looks for damaged frames.
_LATER = struct.Struct(">QIBBH")
_DUE = struct.Struct(">QIBHHH")
_SPAN_AT = 12
_FLAGS_AT, _COUNT_AT = 13, 14
_GONE_AT = 16 + HEADER_BYTES
_LENGTH = struct.Struct(">I")
_REMOVED = struct.Struct(">Q")
_NOW, _SPLIT, _BY_TIME, _BY_KEY = 1, 2, 4, 8
"""The flags of a LATER: a batch that does not wait, the header of the batch that was split; whether
its producer is remembered by its time; whether records replace others, from LIFE_FROM on: then each
batch that waits has one record, packed by nothing, and digests of keys follow the header."""
_DIGESTS = struct.Struct(">H")
_DIGEST = struct.Struct(">16sB")
KEYED_EPOCH, SCHEDULED_EPOCH = 0x6B657965, 0x6B657966
"""The leader epoch of a stored batch of one record that replaces others: a copy of it says so. It
lies outside the CRC, and each answer has its own in its place. The second one is of a schedule."""

Made = bytes | bytearray
"""A batch."""
Span = tuple[int, int]
"""A batch's place in a body: position, length."""


def _weight_of_later(envelope: Envelope) -> int:
    body = envelope.body
    count = 1 + int.from_bytes(body[_COUNT_AT : _COUNT_AT + 2], "big")
    if len(body) > _GONE_AT and body[_FLAGS_AT] & _BY_KEY:
        count = 3 * count + 2 * int.from_bytes(body[_GONE_AT : _GONE_AT + 2], "big")
    return count


def _spans(body: bytes | memoryview, at: int, count: int) -> list[Span]:
    """Return the spans of `count` batches, whose lengths are here."""
    position = at + count * _LENGTH.size
    found = []
    for (length,) in _LENGTH.iter_unpack(body[at:position]):
        found.append((position, length))
        position += length
    return found


def _digests(body: bytes | memoryview, at: int) -> tuple[list[tuple[bytes, bool]], int]:
    """Return digests of keys, whether each must be there, and where they end."""
    (count,) = _DIGESTS.unpack_from(body, at)
    at += _DIGESTS.size
    end = at + count * _DIGEST.size
    return [(one, bool(must)) for one, must in _DIGEST.iter_unpack(body[at:end])], end


_EPOCH = slice(12, 16)  # in a batch
_KEYED = tuple(epoch.to_bytes(4, "big") for epoch in (KEYED_EPOCH, SCHEDULED_EPOCH))
_UNKEYED = b"\xff" * 4


def keyed(batch: bytes, *, scheduled: bool = False) -> bytes:
    """Return a batch of one record that replaces others; `scheduled`: it comes again and again."""
    return batch[: _EPOCH.start] + _KEYED[scheduled] + batch[_EPOCH.stop :]


def _unkeyed(batch: Made) -> Made:
    """Return a batch as it is; its client may have sent any leader epoch."""
    if batch[_EPOCH] not in _KEYED:
        return batch
    return batch[: _EPOCH.start] + _UNKEYED + batch[_EPOCH.stop :]


def key_of(batch: bytes | memoryview) -> bytes | None:
    """Return the key of the one record of a batch that replaces others; None: it is no such."""
    header = read_header(batch)
    if header.leader_epoch not in (KEYED_EPOCH, SCHEDULED_EPOCH):
        return None
    if header.record_count != 1 or header.codec:
        return None
    return next(keyed_records(header, bytes(batch[HEADER_BYTES:]))).key


@of_kind(
    Kind.LATER, DiskUse.ORDINARY, _weight_of_later, level=DELAYS_FROM,
    publishes=(RowKind.PARTITION, RowKind.PRODUCER, RowKind.NO_EFFECT, RowKind.DELAY),
)  # fmt: skip
class Later(NamedTuple):
    """`now`: what of it is appended at once. `later`: what waits, each with its time.

    `header`: of the batch that the client sent. `delay_ms`: the fixed delay that it waits for; 0:
    its records say for how long. `look_ms`: as in an APPEND. `by_time`: its producer is remembered
    by its time, as that of an APPEND which has one.
    """

    key: PartitionKey
    header: BatchHeader
    now: Span | None
    later: Sequence[Span]
    delay_ms: int
    time_ms: int
    look_ms: int
    by_time: bool = False
    gone: Sequence[tuple[bytes, bool]] | None = None
    """The digests of keys of which nothing is to wait any more, and whether it is an error where
    nothing does. None: records do not replace others."""

    @property
    def known_ms(self) -> int:
        """The time that its producer is remembered by; 0: none."""
        return self.time_ms if self.by_time else 0

    @staticmethod
    def envelope(
        key: PartitionKey, later: Sequence[Made], *, now: bytes = b"", split: bytes = b"",
        delay_ms: int = 0, time_ms: int, look_ms: int, by_time: bool = False,
        gone: Sequence[tuple[bytes, bool]] | None = None,
    ) -> Envelope:  # fmt: skip
        """Make an envelope; `split`: the client's batch header, if no batch here begins with it."""
        if gone is None:
            later = [_unkeyed(one) for one in later]
        batches = [now, *later] if now else later
        flags = (_NOW if now else 0) | (_SPLIT if split else 0) | (_BY_TIME if by_time else 0)
        if gone is not None:
            flags |= _BY_KEY
            split += _DIGESTS.pack(len(gone)) + b"".join(_DIGEST.pack(*one) for one in gone)
        size = len(split) + sum(_LENGTH.size + len(data) for data in batches)
        head = _LATER.pack(delay_ms, _LATER.size - _SPAN_AT + size, _FORM, flags, len(batches))
        lengths = [_LENGTH.pack(len(data)) for data in batches]
        body = b"".join((head, split, *lengths, *batches))
        return Envelope(Kind.LATER, *key, number=look_ms, time_ms=time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "Later":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = envelope.body
        delay_ms, _, form, flags, count = _LATER.unpack_from(body)
        if form != _FORM:
            raise later_form("a command LATER", form)
        at = _LATER.size
        gone = None
        if flags & _BY_KEY:
            gone, behind = _digests(body, at + HEADER_BYTES)
            spans = _spans(body, behind, count)
        elif flags & _SPLIT:
            spans = _spans(body, at + HEADER_BYTES, count)
        else:
            spans = _spans(body, at, count)
            at = spans[0][0]
        now = spans.pop(0) if flags & _NOW else None
        return Later(
            (envelope.queue_id, envelope.partition), read_header(body, at), now, spans, delay_ms,
            envelope.time_ms, envelope.number, bool(flags & _BY_TIME), gone,
        )  # fmt: skip


def _weight_of_due(envelope: Envelope) -> int:
    return 1 + 2 * envelope.number


@of_kind(
    Kind.DUE, DiskUse.MODEST, _weight_of_due, level=DELAYS_FROM,
    publishes=(RowKind.PARTITION, RowKind.NO_EFFECT, RowKind.DELAY),
)  # fmt: skip
class Due(NamedTuple):
    """Batches of a partition that waited, by their last offsets there, and what comes of them.

    `now`: batches that are appended, in their order. `later`: what of mixed ones waits on. Void,
    all of it, where one of them does not wait any more, or is not due at `time_ms`.
    """

    key: PartitionKey
    removed: Sequence[int]
    now: Sequence[Span]
    later: Sequence[Span]
    time_ms: int
    look_ms: int

    @staticmethod
    def envelope(
        key: PartitionKey, removed: Sequence[int], now: Sequence[Made],
        later: Sequence[Made] = (), *, time_ms: int, look_ms: int,
    ) -> Envelope:  # fmt: skip
        batches = [*now, *later]
        size = len(removed) * _REMOVED.size + sum(_LENGTH.size + len(data) for data in batches)
        head = _DUE.pack(
            look_ms, _DUE.size - _SPAN_AT + size, _FORM, len(removed), len(now), len(later)
        )
        gone = [_REMOVED.pack(last_offset) for last_offset in removed]
        lengths = [_LENGTH.pack(len(data)) for data in batches]
        body = b"".join((head, *gone, *lengths, *batches))
        count = len(removed) + len(batches)
        return Envelope(Kind.DUE, *key, number=count, time_ms=time_ms, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "Due":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = envelope.body
        look_ms, _, form, gone, now, later = _DUE.unpack_from(body)
        if form != _FORM:
            raise later_form("a command DUE", form)
        at = _DUE.size
        removed = [last for (last,) in _REMOVED.iter_unpack(body[at : at + gone * _REMOVED.size])]
        spans = _spans(body, at + gone * _REMOVED.size, now + later)
        return Due(
            (envelope.queue_id, envelope.partition), removed, spans[:now], spans[now:],
            envelope.time_ms, look_ms,
        )  # fmt: skip
