"""Unsigned varints as Kafka's flexible versions use them (KIP-482)."""


class Malformed(ValueError):
    """A peer's bytes do not follow the protocol; the connection cannot go on."""


class Superseded(Malformed):
    """A sound request of a connection that a later one of its client has made void."""


def _read_base_128(
    data: bytes | bytearray | memoryview, position: int, end: int, bytes_max: int
) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, min(end, position + bytes_max)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    if end - position >= bytes_max:
        raise Malformed(f"a varint is longer than {bytes_max} bytes")
    raise Malformed("the bytes end inside a varint")


def read_uvarint(data: bytes | bytearray | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return (value, next position). Raise Malformed past `end` or above 32 bits."""
    if end - position >= 3:  # most lengths
        first, second, third = data[position : position + 3]
        if first < 0x80:
            return first, position + 1
        if second < 0x80:
            return first & 0x7F | second << 7, position + 2
        if third < 0x80:
            return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 3
    value, position = _read_base_128(data, position, end, 5)
    if value > 0xFFFFFFFF:
        raise Malformed("a varint is larger than 32 bits")
    return value, position


def read_varlong(data: bytes | bytearray | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return (zigzag-decoded value, next position), as record fields use it. Raise Malformed."""
    if position < end and (first := data[position]) < 0x80:  # most lengths
        return (first >> 1) ^ -(first & 1), position + 1
    value, position = _read_base_128(data, position, end, 10)
    return (value >> 1) ^ -(value & 1), position


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varlong(value: int) -> bytes:
    """Return a number as record fields have it: zigzag, then base 128."""
    return uvarint((value << 1) ^ (value >> 63))
