"""Fields of rows and commands, one after another, big-endian.

A field is a code of `struct`, or one of

    P  a partition: (queue id, index)     N  text behind its length, 16 bits
    U  a queue's id                       T  text to the end
    t  a time in ms, 64 bits,             R  bytes to the end
       0 where it is negative             Y  bytes behind their length, 16 bits
                                          Z  bytes behind their length, 32 bits
"""

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from kproxy.virtual.types import PartitionKey, QueueId

_CODE = re.compile(r"\d*[A-Za-z?]")
_PARTITION = struct.Struct(">16sI")
_LENGTH = struct.Struct(">H")
_TIME = struct.Struct(">Q")
_QUEUE_BYTES = 16

_Pack = Callable[[Any], bytes]
_Read = Callable[[bytes, int], tuple[Any, int]]


def _pack_partition(key: PartitionKey) -> bytes:
    return _PARTITION.pack(*key)


def _read_partition(data: bytes, at: int) -> tuple[PartitionKey, int]:
    queue_id, index = _PARTITION.unpack_from(data, at)
    return (QueueId(queue_id), index), at + _PARTITION.size


def _read_queue(data: bytes, at: int) -> tuple[QueueId, int]:
    return QueueId(data[at : at + _QUEUE_BYTES]), at + _QUEUE_BYTES


def pack_name(text: str) -> bytes:
    name = text.encode()
    return _LENGTH.pack(len(name)) + name


def read_name(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + _LENGTH.unpack_from(data, at)[0]
    return data[at + 2 : end].decode(), end


def _measured(width: int) -> tuple[_Pack, _Read]:
    """Return the codec of bytes behind their length, which takes so many bytes."""

    def pack(value: bytes) -> bytes:
        return len(value).to_bytes(width, "big") + value

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "big")
        return data[start:end], end

    return pack, read


def _pack_time(time_ms: int) -> bytes:
    return _TIME.pack(max(0, time_ms))


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    return data[at:].decode(), len(data)


def _read_rest(data: bytes, at: int) -> tuple[bytes, int]:
    return data[at:], len(data)


def _number(code: str) -> tuple[_Pack, _Read]:
    form = struct.Struct(">" + code)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return form.unpack_from(data, at)[0], at + form.size

    return form.pack, read


_CODECS: dict[str, tuple[_Pack, _Read]] = {
    "P": (_pack_partition, _read_partition),
    "U": (bytes, _read_queue),
    "N": (pack_name, read_name),
    "T": (str.encode, _read_text),
    "R": (bytes, _read_rest),
    "Y": _measured(2),
    "Z": _measured(4),
    "t": (_pack_time, _number("Q")[1]),
}


class Fields:
    """Fields one after another."""

    def __init__(self, codes: str) -> None:
        self.codes = _CODE.findall(codes)
        codecs = [_CODECS.get(code) or _number(code) for code in self.codes]
        self._packs = [pack for pack, _ in codecs]
        self._reads = [read for _, read in codecs]

    def pack(self, *values: Any) -> bytes:
        """Return the bytes of the first fields, as many as there are values."""
        return b"".join([pack(value) for pack, value in zip(self._packs, values, strict=False)])

    def read(self, data: bytes, at: int) -> tuple[Any, ...]:
        return self._take(data, at)[0]

    def items(self, data: bytes, at: int) -> Iterator[tuple[Any, ...]]:
        """Yield the values of such fields again and again, up to the end."""
        while at < len(data):
            values, at = self._take(data, at)
            yield values

    def _take(self, data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        found = []
        for read in self._reads:
            value, at = read(data, at)
            found.append(value)
        return tuple(found), at

    def are_numbers(self, first: int = 0) -> bool:
        """Return whether the fields from this one on are what `struct` packs."""
        return not _CODECS.keys() & set(self.codes[first:])
