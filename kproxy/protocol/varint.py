"""Unsigned varints as Kafka's flexible versions use them (KIP-482)."""


class Malformed(ValueError):
    """A peer's bytes do not follow the protocol; the connection cannot go on."""


def read_uvarint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return (value, next position). Raises Malformed past `end` or above 32 bits."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise Malformed("a varint is larger than 32 bits")
            return value, position
        shift += 7
        if shift > 28:
            if position < end and data[position] > 0x0F:
                raise Malformed("a varint is longer than 5 bytes")
    raise Malformed("the bytes end inside a varint")


def read_varlong(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return (zigzag-decoded value, next position), as record fields use it. Raises Malformed."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise Malformed("a varlong is longer than 10 bytes")
    raise Malformed("the bytes end inside a varlong")


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
