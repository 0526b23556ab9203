"""Record batches, magic 2: reads and patches the header, and leaves the records as they came.

Source: Kafka's message format (KIP-98) and `DefaultRecordBatch`. The CRC covers neither the base
offset nor the leader epoch, so giving a batch its offset changes twelve bytes and nothing else.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from kproxy.common.errors import Code

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12  # base offset and length, which the length does not count
CRC_FROM = 21  # the CRC covers the attributes and all that follows
RECORDS_PER_BYTE_MAX = 16
"""The most compressed records for each byte. Offsets that count up cost each some bits: the most
that any codec got out of empty records was 1.7 (measured: zstd, levels 1 to 22). More is a batch
that lies."""
CONTROL_BATCH_BYTES = 78
RECORD_BYTES_MIN = 7  # length, attributes, time and offset deltas, key, value, header count
MAGIC = 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_ZSTD = 4

CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
"""The bit of the attributes: `is_transactional`, for what is done for each batch."""
_CONTROL = 0x20
_BASE_OFFSET = struct.Struct(">q")
_PLACED = struct.Struct(">qii")  # base offset, length, leader epoch
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP_AT = 35
_CRC_AT = 17
MAGIC_AT = 16
ATTRIBUTES_AT = 22
"""The low half of the attributes."""


Records = bytes | memoryview
"""A record batch. One that a client sent is a part of the frame that it came in."""


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records; timestamps in milliseconds since the epoch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        """Index into CODECS; 5 to 7 are not defined."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


_new_tuple = tuple.__new__  # `BatchHeader._make` without a call of Python's


def read_header(batch: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Read the header of a batch already known to be long enough."""
    return _new_tuple(BatchHeader, HEADER.unpack_from(batch, position))


class BadBatch(ValueError):
    """A batch that Kafka refuses, with its error code."""

    def __init__(
        self, code: Code, message: str, blamed: list[tuple[int, str]] | None = None
    ) -> None:
        """Note the code; `blamed`: records, by number in the batch, and what is wrong with them."""
        super().__init__(message)
        self.code = code
        self.blamed = blamed or ()


ZSTD_FROM = 7
"""The version of Produce from which a client may pack with zstd."""


def check(records: Records | None, batch_bytes_max: int, api_version: int) -> BatchHeader:
    """Return the header of the one sound batch that a Produce request carries. Raise BadBatch.

    The rules and their order are Kafka's (`ProduceRequest.validateRecords`, `LogValidator`).
    """
    if not records:
        raise BadBatch(Code.INVALID_RECORD, "there is no record batch for this partition")
    size = len(records)
    if size < HEADER_BYTES:
        raise BadBatch(_short_batch_code(records), "the record batch is shorter than its header")
    header = read_header(records)
    if header.magic != MAGIC:
        raise BadBatch(Code.INVALID_RECORD, "only record batches with magic 2 are accepted")
    whole = header.length + LOG_OVERHEAD_BYTES
    if whole < HEADER_BYTES:
        raise BadBatch(Code.CORRUPT_MESSAGE, "the record batch's length is below its header's")
    if whole > size:
        raise BadBatch(Code.INVALID_RECORD, "the record batch is cut short")
    if whole < size:
        raise BadBatch(Code.INVALID_RECORD, "there must be exactly one record batch")
    codec = header.codec
    if codec == CODEC_ZSTD and api_version < ZSTD_FROM:
        raise BadBatch(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce 7 or later")
    if codec >= len(CODECS):
        raise BadBatch(Code.UNSUPPORTED_COMPRESSION_TYPE, "the compression codec is not known")
    if size > batch_bytes_max:
        raise BadBatch(
            Code.MESSAGE_TOO_LARGE,
            f"the record batch has {size} bytes, max.message.bytes is {batch_bytes_max}",
        )
    if crc32c(records[CRC_FROM:]) != header.crc:
        raise BadBatch(Code.CORRUPT_MESSAGE, "the record batch's CRC does not match")
    _check_counts(header, codec)
    return header


def _short_batch_code(records: Records) -> Code:
    if len(records) > MAGIC_AT and records[MAGIC_AT] != MAGIC:
        return Code.INVALID_RECORD
    if len(records) >= 12 and int.from_bytes(records[8:12], "big", signed=True) < 14:
        return Code.CORRUPT_MESSAGE
    return Code.INVALID_RECORD


def _check_counts(header: BatchHeader, codec: int) -> None:
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise BadBatch(
            Code.INVALID_RECORD,
            f"{count} records do not fit a last offset delta of {header.last_offset_delta}",
        )
    size = header.length + LOG_OVERHEAD_BYTES - HEADER_BYTES
    if count > (size * RECORDS_PER_BYTE_MAX if codec else size // RECORD_BYTES_MIN):
        raise BadBatch(Code.INVALID_RECORD, f"there is no room for {count} records in the batch")
    if header.is_control:
        raise BadBatch(Code.INVALID_RECORD, "clients may not write control batches")
    if header.producer_id >= 0 and header.producer_epoch < -1:
        raise BadBatch(Code.INVALID_PRODUCER_EPOCH, "a producer's epoch is -1 at least")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise BadBatch(Code.INVALID_RECORD, "an idempotent batch needs a sequence of 0 or more")


def place(answer: bytearray, at: int, length: int, base_offset: int, leader_epoch: int) -> None:
    """Give a stored batch of `length` bytes its offset, in the response's own buffer."""
    _PLACED.pack_into(answer, at, base_offset, length - LOG_OVERHEAD_BYTES, leader_epoch)


def stamped(batch: Records, log_append_time_ms: int | None) -> bytes:
    """Return the batch with the timestamp type that the queue has, and its CRC again.

    With a time, that of the server: LogAppendTime. With None, the producer's own: CreateTime.
    """
    made = bytearray(batch)
    stamp(made, log_append_time_ms)
    return bytes(made)


def stamp(batch: bytearray, log_append_time_ms: int | None) -> None:
    """Set the timestamp type as `stamped` does, in place."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_FROM)
    if log_append_time_ms is None:
        _ATTRIBUTES.pack_into(batch, CRC_FROM, attributes & ~_LOG_APPEND_TIME)
    else:
        _ATTRIBUTES.pack_into(batch, CRC_FROM, attributes | _LOG_APPEND_TIME)
        _BASE_OFFSET.pack_into(batch, _MAX_TIMESTAMP_AT, log_append_time_ms)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_AT, crc32c(view[CRC_FROM:]))


def empty_batch(offsets: int) -> bytes:
    """Return a batch that takes so many offsets and has no record, as compaction may leave one."""
    batch = bytearray(
        HEADER.pack(
            0, HEADER_BYTES - LOG_OVERHEAD_BYTES, 0, MAGIC, 0, 0, offsets - 1, -1, -1, -1, -1, -1, 0
        )
    )
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


_CONTROL_RECORD = struct.Struct(">bbbbbhhbhib")


def control_batch(producer_id: int, epoch: int, *, commit: bool, time_ms: int) -> bytes:
    """Return the marker that ends a transaction in a partition (Kafka's `EndTransactionMarker`).

    `epoch`: the lowest that the producer may go on with.
    """
    # Lengths, deltas and counts are varints of one byte: zigzag doubles them.
    record = _CONTROL_RECORD.pack(32, 0, 0, 0, 8, 0, int(commit), 12, 0, 0, 0)
    tail = HEADER.pack(
        0, CONTROL_BATCH_BYTES - LOG_OVERHEAD_BYTES, 0, MAGIC, 0, TRANSACTIONAL | _CONTROL, 0,
        time_ms, time_ms, producer_id, epoch, -1, 1,
    )  # fmt: skip
    batch = bytearray(tail + record)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)
