"""The contents that consumers put into the classic protocol's opaque fields.

`ConsumerProtocolSubscription` and `ConsumerProtocolAssignment` of Kafka's message definitions;
versions only ever add fields at the end.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kproxy.loop.steps import EVERY, Steps, at_once, spent

CONSUMER_PROTOCOL = "consumer"
_OWNED_SINCE = 1

Named = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions by queue name."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: Named


class NotAConsumers(Exception):
    """A client of another kind has made these bytes."""


class _Bytes:
    """A reader of big-endian fields, never beyond the end."""

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
        """Return the count of elements that take so many bytes each at least."""
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

    def numbers(self) -> tuple[int, ...]:
        count = self.count(4)
        self._at += 4 * count
        return struct.unpack_from(f">{count}i", self._data, self._at - 4 * count)

    def texts(self) -> Steps[tuple[str, ...]]:
        found = []
        for number in range(1, self.count(2) + 1):
            found.append(self.text())
            if number % EVERY == 0:
                yield
        return tuple(found)

    def partitions(self) -> Steps[Named]:
        found = []
        for number in range(1, self.count(6) + 1):
            found.append((self.text(), self.numbers()))
            yield from spent(len(found[-1][1]))
            if number % EVERY == 0:
                yield
        return tuple(found)


def version_of(metadata: bytes) -> int:
    """Return the version of a subscription; 0 for what is none."""
    return int.from_bytes(metadata[:2], "big", signed=True) if len(metadata) >= 2 else 0


def topics_of(metadata: bytes) -> tuple[str, ...]:
    """Return the topics that a subscription names. Raise NotAConsumers."""
    reader = _Bytes(metadata)
    reader.number(">h")
    return at_once(reader.texts())


def subscription(metadata: bytes) -> Steps[Subscription]:
    """Read a subscription. Raise NotAConsumers."""
    reader = _Bytes(metadata)
    version = reader.number(">h")
    topics = yield from reader.texts()
    reader.skip_bytes()
    owned: Named = ()
    if version >= _OWNED_SINCE:
        owned = yield from reader.partitions()
    return Subscription(version, topics, owned)


def assignment(data: bytes) -> Steps[Named]:
    """Read an assignment. Raise NotAConsumers."""
    if not data:
        return ()
    reader = _Bytes(data)
    reader.number(">h")
    return (yield from reader.partitions())


def encode_assignment(version: int, partitions: Mapping[str, Sequence[int]]) -> Steps[bytes]:
    parts = [struct.pack(">hi", version, len(partitions))]
    for count, (name, indices) in enumerate(partitions.items(), 1):
        text = name.encode()
        parts.append(struct.pack(f">h{len(text)}si", len(text), text, len(indices)))
        parts.append(struct.pack(f">{len(indices)}i", *indices))
        yield from spent(len(indices))
        if count % EVERY == 0:
            yield
    parts.append(struct.pack(">i", -1))  # no user data
    return b"".join(parts)


def encode_subscription(topics: Iterable[str]) -> bytes:
    names = [name.encode() for name in topics]
    parts = [struct.pack(">hi", 0, len(names))]
    parts += [struct.pack(f">h{len(name)}s", len(name), name) for name in names]
    return b"".join(parts) + struct.pack(">i", -1)
