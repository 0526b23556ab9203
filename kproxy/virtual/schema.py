"""A schema of rows: keys made of parts, values made of a form byte and the fields of a tuple.

    OPEN = Rows(RowKind.OPEN_TRANSACTION, "Pq", OpenTransaction, "Bqhq8s")
    OPEN.key(partition, producer_id), OPEN.range(partition), OPEN.get(get, partition, producer_id)

A part or field is a code of `struct` (big-endian), or one of

    P  a partition: (queue id, index)     N  text behind its length, 16 bits
    U  a queue's id                       T  text to the end
    t  a time in ms, 64 bits,             R  bytes to the end
       0 where it is negative

Keys sort by their parts. Rows of the hot path (partitions, batches, producers, committed offsets)
are made by hand in `virtual.rows.queues`: a key of these takes some 0.3 us more.
"""

import re
import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId

T = TypeVar("T")
Get = Callable[[bytes], bytes | None]
"""A getter of the value of a row by its key; None if there is no such row."""
FORM = 1
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


def _pack_name(text: str) -> bytes:
    name = text.encode()
    return _LENGTH.pack(len(name)) + name


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return data[at : at + length].decode(), at + length


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
    "N": (_pack_name, _read_name),
    "T": (str.encode, _read_text),
    "R": (bytes, _read_rest),
    "t": (_pack_time, _number("Q")[1]),
}


class _Fields:
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
        found = []
        for read in self._reads:
            value, at = read(data, at)
            found.append(value)
        return tuple(found)

    def are_numbers(self, first: int = 0) -> bool:
        """Return whether the fields from this one on are what `struct` packs."""
        return not _CODECS.keys() & set(self.codes[first:])


def _keys(letter: bytes, codes: str) -> Callable[..., bytes]:
    """Return what makes keys: by one call of `struct` where the parts allow that."""
    fields = _Fields(codes)
    count = len(fields.codes)
    if count and fields.codes[0] == "P" and fields.are_numbers(1):
        pack = struct.Struct(">c16sI" + codes[1:]).pack

        def of_partition(*parts: Any) -> bytes:
            if len(parts) == count:
                return pack(letter, *parts[0], *parts[1:])
            return letter + fields.pack(*parts)

        return of_partition
    return lambda *parts: letter + fields.pack(*parts)


def encode_count(count: int) -> bytes:
    """Return the value of a row that is one number of 64 bits."""
    return _TIME.pack(count)


def decode_count(data: bytes) -> int:
    return int.from_bytes(data, "big")


def after(prefix: bytes) -> bytes:
    """Return the least key that is greater than all keys with this prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


class Keys:
    """Keys of a kind of rows. Their values, where they have any, are made elsewhere."""

    def __init__(self, kind: RowKind, parts: str) -> None:
        self._letter = kind.letter
        self._parts = _Fields(parts)
        self.key = _keys(kind.letter, parts)
        """A maker of keys; of the first parts alone, it makes what such keys begin with."""

    @property
    def codes(self) -> list[str]:
        """The codes of all parts and fields."""
        return self._parts.codes

    def parts(self, key: bytes) -> tuple[Any, ...]:
        """Return the parts of a key."""
        return self._parts.read(key, 1)

    def range(self, *parts: Any) -> tuple[bytes, bytes]:
        """Return start and end of the keys that begin with these parts, for a scan."""
        prefix = self.key(*parts)
        return prefix, after(prefix)

    def since(self, *parts: Any) -> tuple[bytes, bytes]:
        """Return start and end of the keys whose last part is this or more, the others these."""
        return self.key(*parts), after(self.key(*parts[:-1]))

    def of_queue(self, queue_id: QueueId) -> tuple[bytes, bytes]:
        """Return start and end of the keys that begin with a partition of this queue."""
        prefix = self._letter + queue_id
        return prefix, after(prefix)


class Rows(Keys, Generic[T]):
    """Rows of a kind: keys, and values that are a form byte and the fields of a named tuple.

    `made`: a function for each field whose value is not what `struct` gives.
    """

    def __init__(
        self, kind: RowKind, parts: str, value: type[T], fields: str,
        **made: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        super().__init__(kind, parts)
        self._fields = _Fields(fields)
        self._whole = struct.Struct(">B" + fields) if self._fields.are_numbers() else None
        self._make: Any = value._make  # type: ignore[attr-defined]
        names = value._fields  # type: ignore[attr-defined]
        self._made = [(names.index(name), make) for name, make in made.items()]

    @property
    def codes(self) -> list[str]:
        return self._parts.codes + self._fields.codes

    def encode(self, row: Any) -> bytes:
        """Return the bytes of a value."""
        if self._whole is not None:
            return self._whole.pack(FORM, *row)
        return bytes([FORM]) + self._fields.pack(*row)

    def decode(self, data: bytes) -> T:
        """Return the value of a row. Raise ValueError for a form of a later kproxy."""
        if data[0] != FORM:
            raise later_form(f"a row of kind {self._letter.decode()}", data[0])
        values: Any = (
            self._fields.read(data, 1) if self._whole is None else self._whole.unpack_from(data)[1:]
        )
        if self._made:
            values = list(values)
            for index, make in self._made:
                values[index] = make(values[index])
        made: T = self._make(values)
        return made

    def get(self, get: Get, *parts: Any) -> T | None:
        """Return the value of the row with this key. Raise ValueError as `decode` does."""
        data = get(self.key(*parts))
        return None if data is None else self.decode(data)
