"""Rows by key, with changes that are gathered for one write."""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from typing import Any, Protocol, TypeVar

from kproxy.virtual.rows.kinds import INDEX_BYTES, RowKind
from kproxy.virtual.schema import Rows

T = TypeVar("T")


class Kv(Protocol):
    """An ordered map of bytes: RocksDB in a worker, a dict in a test."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < end, in key order, as they stood when the scan began."""
        ...

    def walk(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield as `scan`, if few are wanted; one at a time."""
        ...

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Put all, or with None delete, at once."""
        ...


class Changes:
    """Rows as bytes: what is stored, and above it what has changed since the last write."""

    def __init__(self, kv: Kv) -> None:
        self.kv = kv
        self._changes: dict[bytes, bytes | None] = {}
        self.filed: dict[int, tuple[bytes, bytes]] = {}
        """The lowest and the highest key of each index filed since its looker took it from here."""

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return self.kv.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._changes[key] = value

    def row(self, rows_of: Rows[T], *parts: Any) -> T | None:
        """Return the row of a schema with this key. Raise ValueError as its decoding does."""
        return rows_of.get(self.get, *parts)

    def put_row(self, rows_of: Rows[T], row: T, *parts: Any) -> None:
        self.put(rows_of.key(*parts), rows_of.encode(row))

    def file(self, key: bytes, value: bytes = b"") -> None:
        """Put a row into an index of what is to be done: who looks there is told where."""
        self._changes[key] = value
        low, high = self.filed.get(key[0], (key, key))
        self.filed[key[0]] = (min(low, key), max(high, key))

    def put_all(self, changes: dict[bytes, bytes | None]) -> None:
        """Put each as `put` does, or `file`."""
        for key, value in changes.items():
            if value is not None and key[0] in INDEX_BYTES:
                self.file(key, value)
            else:
                self._changes[key] = value

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < end, with unwritten changes; for few: it gathers them."""
        changes = self._changes
        changed = {key: value for key, value in changes.items() if start <= key < end}
        found = {key: value for key, value in self.kv.scan(start, end) if key not in changed}
        found |= {key: value for key, value in changed.items() if value is not None}
        yield from sorted(found.items())

    def some(self, start: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first pairs with start <= key < end, with changes not written yet."""
        changes = self._changes
        changed = sorted(key for key in changes if start <= key < end)
        found: list[tuple[bytes, bytes]] = []
        stored = ((k, v) for k, v in self.kv.scan(start, end) if k not in changes)
        pending = ((key, value) for key in changed if (value := changes[key]) is not None)
        for pair in merge(stored, pending):
            found.append(pair)
            if len(found) == count:
                break
        return found

    def keys_of(self, kind: RowKind) -> "Keys":
        return Keys(self, self.kv, sorted(key for key in self._changes if key[0] == kind.byte))


class Keys:
    """The keys of one kind of row, with changes not written yet, for many looks of one command.

    Changes are gathered once, for there may be thousands. A row that is put later is not seen.
    """

    def __init__(self, state: Changes, kv: Kv, changed: list[bytes]) -> None:
        """Note the changes; `changed`: those put or deleted and not written yet, in their order."""
        self._state, self._kv, self._changed = state, kv, changed

    def between(self, start: bytes, end: bytes, *, bounded: bool = False) -> Iterator[bytes]:
        """Yield keys with start <= key < end. No other rows are walked before it is done.

        `bounded`: RocksDB steps over no deleted rows behind `end`, but takes longer to begin.
        """
        low, high = bisect_left(self._changed, start), bisect_left(self._changed, end)
        read = self._kv.scan if bounded else self._kv.walk
        stored = (key for key, _ in read(start, end))
        last = b""
        for key in merge(stored, self._changed[low:high]):
            if key != last and self._state.get(key) is not None:
                yield key
            last = key
