"""Readers of little of each record in an unpacked batch: where it begins, or its key."""

from array import array

from kproxy.protocol.batch import BatchHeader
from kproxy.protocol.records import MORE, OUTSIDE, RECORD_BYTES_MIN, TOO_LONG
from kproxy.protocol.varint import Malformed, read_varlong


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
