"""A decoder of ShareFetch and ShareAcknowledge requests, versions 1 and 2, in one pass.

Members acknowledge records that lie scattered one by one: by the guard's walk and kio's decoding
each of them costs five times as much. Tests compare each version with kio's reader. Source: Kafka's
ShareFetchRequest.json and ShareAcknowledgeRequest.json.
"""

import struct
from datetime import timedelta
from typing import NamedTuple

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.guard import TEXT_BYTES_MAX, TooMany, skip_tags
from kproxy.protocol.varint import Malformed, read_uvarint

_I32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiiiii")
_MODES = struct.Struct(">b?")
_RANGE = struct.Struct(">qq")
_ONE = struct.Struct(">qqBsB")  # an acknowledgement of one type: its count, it, no tags
_TYPES_AT, _TAGS_AT = 16, 18
_MODES_FROM = 2  # the version that has acquire modes and renewals

Said = tuple[int, int, bytes]
"""First and last offset, and one type for all of them or one for each."""


class Part(NamedTuple):
    """A partition, and what is said of its records."""

    partition_index: int
    said: list[Said]


class Topic(NamedTuple):
    topic_id: bytes
    partitions: list[Part]


class Forgotten(NamedTuple):
    topic_id: bytes
    partitions: tuple[int, ...]


class ShareFetch(NamedTuple):
    """The body of a ShareFetch request."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    share_acquire_mode: int
    is_renew_ack: bool
    topics: list[Topic]
    forgotten_topics_data: list[Forgotten]


class ShareAcknowledge(NamedTuple):
    """The body of a ShareAcknowledge request."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    is_renew_ack: bool
    topics: list[Topic]


class Decoded(NamedTuple):
    """A body, and how many elements it has."""

    body: ShareFetch | ShareAcknowledge
    elements: int


def decode_share(data: bytes, position: int, key: int, version: int, elements_max: int) -> Decoded:
    """Read the body that begins at `position`. Raise Malformed, of which TooMany."""
    reader = _Reader(data, position, elements_max)
    try:
        body = reader.fetch(version) if key == ApiKey.SHARE_FETCH else reader.acknowledge(version)
        reader.tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"the request body does not decode: {error}") from error
    return Decoded(body, elements_max - reader.left)


class _Reader:
    """A place in a body. `left`: how many elements may follow."""

    def __init__(self, data: bytes, at: int, elements_max: int) -> None:
        self._data, self._at, self._end = data, at, len(data)
        self.left = elements_max

    def fetch(self, version: int) -> ShareFetch:
        group_id, member_id = self._text(), self._text()
        epoch, wait_ms, min_bytes, max_bytes, records, batch_size = self._fixed(_LIMITS)
        mode, renews = self._fixed(_MODES) if version >= _MODES_FROM else (0, False)
        topics, forgotten = self._topics(), []
        for _ in range(self._count()):
            topic_id = self._id()
            count = self._count(4)
            indices = struct.unpack_from(f">{count}i", self._data, self._at)
            self._at += 4 * count
            self.tags()
            forgotten.append(Forgotten(topic_id, indices))
        return ShareFetch(
            group_id, member_id, epoch, timedelta(milliseconds=wait_ms), min_bytes, max_bytes,
            records, batch_size, mode, bool(renews), topics, forgotten,
        )  # fmt: skip

    def acknowledge(self, version: int) -> ShareAcknowledge:
        group_id, member_id = self._text(), self._text()
        (epoch,) = self._fixed(_I32)
        renews = False
        if version >= _MODES_FROM:
            renews = self._data[self._at] != 0
            self._at += 1
        return ShareAcknowledge(group_id, member_id, epoch, renews, self._topics())

    def tags(self) -> None:
        self._at, self.left = skip_tags(self._data, self._at, self._end, self.left)

    def _topics(self) -> list[Topic]:
        topics: list[Topic] = []
        for _ in range(self._count()):
            topic_id = self._id()
            parts: list[Part] = []
            for _ in range(self._count()):
                (index,) = self._fixed(_I32)
                parts.append(Part(index, self._said()))
                self.tags()
            self.tags()
            topics.append(Topic(topic_id, parts))
        return topics

    def _said(self) -> list[Said]:
        count = self._count()
        if not count:
            return []
        data, at, size = self._data, self._at, _ONE.size
        end = at + count * size
        alike = end <= self._end
        alike = alike and bytes(data[at + _TYPES_AT : end : size]).count(2) == count
        if alike and bytes(data[at + _TAGS_AT : end : size]).count(0) == count:
            self._take(count)
            self._at = end
            ones = _ONE.iter_unpack(data[at:end])
            return [(first, last, kind) for first, last, _, kind, _ in ones]
        said: list[Said] = []
        for _ in range(count):
            first, last = self._fixed(_RANGE)
            types = self._count()
            said.append((first, last, bytes(data[self._at : self._at + types])))
            self._at += types
            self.tags()
        return said

    def _fixed(self, kind: struct.Struct) -> tuple[int, ...]:
        found = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return found

    def _id(self) -> bytes:
        if self._at + 16 > self._end:
            raise Malformed("the request ends inside a field")
        self._at += 16
        return bytes(self._data[self._at - 16 : self._at])

    def _text(self) -> str | None:
        length, self._at = read_uvarint(self._data, self._at, self._end)
        length -= 1
        if length < 0:
            return None
        if length > self._end - self._at or length > TEXT_BYTES_MAX:
            raise Malformed(f"a string of {length} bytes is longer than the request")
        self._at += length
        return bytes(self._data[self._at - length : self._at]).decode()

    def _count(self, least: int = 1) -> int:
        """Return how many elements there are, of so many bytes at least each."""
        count, self._at = read_uvarint(self._data, self._at, self._end)
        count -= 1
        if count < 0:
            raise Malformed("an array has -1 elements")
        if count * least > self._end - self._at:
            raise Malformed(f"an array of {count} elements is longer than the request")
        self._take(count)
        return count

    def _take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooMany
