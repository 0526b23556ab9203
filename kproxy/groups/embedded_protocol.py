"""What consumers put into the classic protocol's opaque fields.

`ConsumerProtocolSubscription` and `ConsumerProtocolAssignment` of Kafka's message definitions;
versions only ever add fields at the end.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CONSUMER_PROTOCOL = "consumer"
_OWNED_SINCE = 1

Named = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions by queue name."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: Named


class NotAConsumers(Exception):
    """These bytes are of another kind of client."""


class _Bytes:
    """Reads big-endian fields, never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._at)
        except struct.error:
            raise NotAConsumers from None
        self._at += struct.calcsize(form)
        return int(value)

    def count(self, least_bytes: int) -> int:
        """Of elements that take so many bytes each at least."""
        value = self.number(">i")
        if not 0 <= value <= (len(self._data) - self._at) // least_bytes:
            raise NotAConsumers
        return value

    def text(self) -> str:
        length = self.number(">h")
        if not 0 <= length <= len(self._data) - self._at:
            raise NotAConsumers
        self._at += length
        try:
            return self._data[self._at - length : self._at].decode()
        except UnicodeDecodeError:
            raise NotAConsumers from None

    def skip_bytes(self) -> None:
        length = self.number(">i")
        if length > len(self._data) - self._at:
            raise NotAConsumers
        self._at += max(0, length)

    def partitions(self) -> Named:
        found = []
        for _ in range(self.count(6)):
            name = self.text()
            found.append((name, tuple(self.number(">i") for _ in range(self.count(4)))))
        return tuple(found)


def subscription(metadata: bytes) -> Subscription:
    """Raises NotAConsumers."""
    reader = _Bytes(metadata)
    version = reader.number(">h")
    topics = tuple(reader.text() for _ in range(reader.count(2)))
    reader.skip_bytes()
    owned = reader.partitions() if version >= _OWNED_SINCE else ()
    return Subscription(version, topics, owned)


def assignment(data: bytes) -> Named:
    """Raises NotAConsumers."""
    if not data:
        return ()
    reader = _Bytes(data)
    reader.number(">h")
    return reader.partitions()


def encode_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    parts = [struct.pack(">hi", version, len(partitions))]
    for name, indices in partitions.items():
        numbers = tuple(indices)
        text = name.encode()
        parts.append(struct.pack(f">h{len(text)}si", len(text), text, len(numbers)))
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
    parts.append(struct.pack(">i", -1))  # no user data
    return b"".join(parts)


def encode_subscription(topics: Iterable[str]) -> bytes:
    names = [name.encode() for name in topics]
    parts = [struct.pack(">hi", 0, len(names))]
    parts += [struct.pack(f">h{len(name)}s", len(name), name) for name in names]
    return b"".join(parts) + struct.pack(">i", -1)
