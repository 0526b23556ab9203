"""A schema of rows: keys made of parts, values made of a form byte and the fields of a tuple.

    OPEN = Rows(RowKind.OPEN_TRANSACTION, "Pq", OpenTransaction, "Bqhq8s")
    OPEN.key(partition, producer_id), OPEN.range(partition), OPEN.get(get, partition, producer_id)

`virtual.fields` has the codes of parts and fields. Keys sort by their parts. Rows of the hot path
(partitions, batches, producers, committed offsets) are made by hand in `virtual.rows`: a key of
these takes some 0.3 us more.
"""

import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kproxy.virtual.fields import Fields
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId

T = TypeVar("T")
Get = Callable[[bytes], bytes | None]
"""A getter of the value of a row by its key; None if there is no such row."""
FORM = 1
_COUNT = struct.Struct(">Q")


def _keys(letter: bytes, codes: str) -> Callable[..., bytes]:
    """Return what makes keys: by one call of `struct` where the parts allow that."""
    fields = Fields(codes)
    count, begins = len(fields.codes), codes[:1] == "P"
    if codes == "T":
        return lambda text="": letter + text.encode()
    if not count or not fields.are_numbers(begins):
        return lambda *parts: letter + fields.pack(*parts)
    pack = struct.Struct(">c" + codes.replace("P", "16sI")).pack

    def key(*parts: Any) -> bytes:
        if len(parts) < count:
            return letter + fields.pack(*parts)
        return pack(letter, *parts[0], *parts[1:]) if begins else pack(letter, *parts)

    return key


def encode_count(count: int) -> bytes:
    """Return the value of a row that is one number of 64 bits."""
    return _COUNT.pack(count)


def decode_count(data: bytes) -> int:
    return int.from_bytes(data, "big")


def after(prefix: bytes) -> bytes:
    """Return the least key that is greater than all keys with this prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


class Keys:
    """Keys of a kind of rows. Their values, where they have any, are made elsewhere."""

    def __init__(self, kind: RowKind, parts: str) -> None:
        self._letter = kind.letter
        self._parts = Fields(parts)
        self.key = _keys(kind.letter, parts)
        """A maker of keys; of the first parts alone, it makes what such keys begin with."""

    def __call__(self, *parts: Any) -> bytes:
        """Return a key."""
        return self.key(*parts)

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
        self._fields = Fields(fields)
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
