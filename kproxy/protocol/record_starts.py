"""Readers of little of each record in an unpacked batch: where it begins, or its key."""

import struct
from array import array

from kproxy.protocol.batch import BatchHeader
from kproxy.protocol.records import MORE, OUTSIDE, RECORD_BYTES_MIN, TOO_LONG
from kproxy.protocol.varint import Malformed, read_varlong

_DENSE_MAX = 8192  # records, of which each delta takes two bytes at most
_HEAD, _HEAD_LATER = struct.Struct("<HBBBB"), struct.Struct("<HBBHB")
"""The head of most records: a length of two bytes, attributes, a time, a delta, a key's size."""
_DELTAS = [
    delta * 2 if delta < 64 else delta * 2 & 0x7F | 0x80 | delta >> 6 << 8
    for delta in range(_DENSE_MAX)
]
"""The deltas as they lie in records."""


def record_starts(header: BatchHeader, data: bytes) -> tuple["array[int]", "array[int]"]:
    """Return where each record begins in an unpacked batch, and the offset delta of each.

    Nothing else of them is looked at. Raise Malformed.
    """
    starts, deltas = array("I"), array("I")
    position, last, end, more = 0, -1, len(data), read_varlong
    try:
        for _ in range(header.record_count):
            length, at = data[position], position + 1
            if length < 0x80:
                length >>= 1
            elif (high := data[at]) < 0x80:
                length, at = (length & 0x7F | high << 7) >> 1, at + 1
            else:
                length, at = more(data, position, end)
            after = at + length
            if length < RECORD_BYTES_MIN or after > end:
                raise Malformed(TOO_LONG)
            at += 1
            while data[at] > 0x7F:  # the time
                at += 1
            delta = data[at + 1]
            if delta < 0x80 and not delta & 1:
                delta >>= 1
            elif (high := data[at + 2]) < 0x80 and not delta & 1:
                delta = (delta & 0x7F | high << 7) >> 1
            else:
                delta, _ = more(data, at + 1, after)
            if not last < delta <= header.last_offset_delta:
                raise Malformed(OUTSIDE)
            starts.append(position)
            deltas.append(delta)
            position, last = after, delta
    except IndexError:
        raise Malformed(TOO_LONG) from None
    if position != end:
        raise Malformed(MORE)
    return starts, deltas


def dense_keys(header: BatchHeader, data: bytes) -> list[bytes | None] | None:
    """Return the keys of an unpacked batch that has a record at each offset; None: it may not.

    Nothing behind the keys is looked at. It takes half as long as `record_keys`, which says what is
    wrong with a batch.
    """
    count = header.record_count
    if count != header.last_offset_delta + 1 or not 0 < count <= _DENSE_MAX:
        return None
    keys: list[bytes | None] = []
    add, after = keys.append, 0
    try:
        for head, deltas in ((_HEAD, _DELTAS[: min(count, 64)]), (_HEAD_LATER, _DELTAS[64:count])):
            unpack, begins = head.unpack_from, head.size
            for delta in deltas:
                length, _, time, found, size = unpack(data, after)
                if length & 0x8081 == 0x80 and time < 0x80 and found == delta and not size & 0x81:
                    at = after + begins
                    after += 2 + (length >> 8 << 6 | (length & 0x7F) >> 1)
                    key = at + (size >> 1)
                    if key > after:
                        return None
                    add(data[at:key])
                else:
                    key_bytes, after = _key_of(data, after, delta)
                    add(key_bytes)
    except (Malformed, IndexError, struct.error):
        return None
    return keys if after == len(data) else None


def _key_of(data: bytes, at: int, delta: int) -> tuple[bytes | None, int]:
    """Return the key of the record that begins at a place, and where it ends. Raise Malformed."""
    end = len(data)
    length, at = read_varlong(data, at, end)
    after = at + length
    if length < RECORD_BYTES_MIN or after > end:
        raise Malformed(TOO_LONG)
    _, at = read_varlong(data, at + 1, after)
    found, at = read_varlong(data, at, after)
    if _DELTAS[found] != delta or found < 0:
        raise Malformed(OUTSIDE)
    size, at = read_varlong(data, at, after)
    if at + max(size, 0) > after:
        raise Malformed(TOO_LONG)
    return (data[at : at + size] if size >= 0 else None), after


def record_keys(header: BatchHeader, data: bytes) -> tuple[list[int], list[bytes | None]]:
    """Return the offset delta and the key of each record in an unpacked batch.

    Nothing behind the keys is looked at. Raise Malformed.
    """
    deltas: list[int] = []
    keys: list[bytes | None] = []
    position, last, end, more = 0, -1, len(data), read_varlong
    try:
        for _ in range(header.record_count):
            length, at = data[position], position + 1
            if length < 0x80:
                length >>= 1
            elif (high := data[at]) < 0x80:
                length, at = (length & 0x7F | high << 7) >> 1, at + 1
            else:
                length, at = more(data, position, end)
            after = at + length
            if length < RECORD_BYTES_MIN or after > end:
                raise Malformed(TOO_LONG)
            at += 1
            while data[at] > 0x7F:  # the time
                at += 1
            delta, at = data[at + 1], at + 2
            if delta < 0x80 and not delta & 1:
                delta >>= 1
            elif (high := data[at]) < 0x80 and not delta & 1:
                delta, at = (delta & 0x7F | high << 7) >> 1, at + 1
            else:
                delta, at = more(data, at - 1, after)
            if not last < delta <= header.last_offset_delta:
                raise Malformed(OUTSIDE)
            size, at = data[at], at + 1
            if size < 0x80:
                size = size >> 1 ^ -(size & 1)
            else:
                size, at = more(data, at - 1, after)
            if at + max(size, 0) > after:
                raise Malformed(TOO_LONG)
            keys.append(data[at : at + size] if size >= 0 else None)
            deltas.append(delta)
            position, last = after, delta
    except IndexError:
        raise Malformed(TOO_LONG) from None
    if position != end:
        raise Malformed(MORE)
    return deltas, keys
