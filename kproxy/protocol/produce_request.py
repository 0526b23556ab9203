"""A decoder of Produce requests, versions 3 to 13, in one pass: nearly all of them is payload.

The guard's walk and kio's decoding together take three times as long (measured). Tests compare
each version with kio's reader. Source: Kafka's ProduceRequest.json.
"""

import struct
from typing import Any, NamedTuple

from kproxy.protocol.frames import Frame
from kproxy.protocol.guard import TEXT_BYTES_MAX, TooMany, skip_tags
from kproxy.protocol.responses import PRODUCE_FLEXIBLE, PRODUCE_TOPIC_IDS
from kproxy.protocol.varint import Malformed, read_uvarint

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")


class Topic(NamedTuple):
    """A topic by its name, or from version 13 by its id; (partition, record batch) pairs.

    A record batch is a part of the request's frame, not a copy.
    """

    topic: str | bytes
    partitions: list[tuple[int, memoryview | None]]


class ProduceRequest(NamedTuple):
    """The body of a Produce request."""

    transactional_id: str | None
    acks: int
    topics: list[Topic]


def decode_produce(data: Frame, position: int, version: int, elements_max: int) -> ProduceRequest:
    """Read the body that begins at `position`. Raise Malformed, of which TooMany."""
    try:
        return _decode(data, position, version, elements_max)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"the Produce request does not decode: {error}") from error


def each_once(request: ProduceRequest) -> ProduceRequest:
    """Keep the last records of a partition that is named more than once, as a real Kafka does."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) <= 1:
        return request
    repeated = len(topics) > 1 and len({topic for topic, _ in topics}) < len(topics)
    for _, partitions in topics:
        if len(partitions) > 1 and len(dict(partitions)) < len(partitions):
            repeated = True
    if not repeated:
        return request
    last: dict[str | bytes, dict[int, memoryview | None]] = {}
    for topic, partitions in topics:
        last.setdefault(topic, {}).update(partitions)
    taken = [Topic(topic, list(partitions.items())) for topic, partitions in last.items()]
    return request._replace(topics=taken)


def _decode(data: Frame, at: int, version: int, elements_max: int) -> ProduceRequest:
    flexible, by_id = version >= PRODUCE_FLEXIBLE, version >= PRODUCE_TOPIC_IDS
    short, long = (_compact, _compact) if flexible else (_fixed_short, _fixed_long)
    end, view = len(data), memoryview(data)
    length, at = short(data, at, end)
    if length > TEXT_BYTES_MAX:
        raise Malformed(f"a transactional id of {length} bytes")
    transactional_id = None if length < 0 else data[at : at + length].decode()
    at += max(length, 0)
    acks, _ = _ACKS_TIMEOUT.unpack_from(data, at)
    topics: list[Topic] = []
    count, at = long(data, at + _ACKS_TIMEOUT.size, end)
    elements_max = _counted(count, end - at, elements_max)
    for _ in range(count):
        length, at = (16, at) if by_id else short(data, at, end)
        if not 0 <= length <= end - at or length > TEXT_BYTES_MAX:
            raise Malformed(f"a topic's name of {length} bytes")
        topic = bytes(data[at : at + length])
        partitions: list[tuple[int, memoryview | None]] = []
        parts, at = long(data, at + length, end)
        elements_max = _counted(parts, end - at, elements_max)
        for _ in range(parts):
            (index,) = _I32.unpack_from(data, at)
            length, at = long(data, at + 4, end)
            if length > end - at:
                raise Malformed(f"records of {length} bytes are longer than the request")
            partitions.append((index, None if length < 0 else view[at : at + length]))
            at += max(length, 0)
            if flexible:
                at, elements_max = skip_tags(data, at, end, elements_max)
        topics.append(Topic(topic if by_id else topic.decode(), partitions))
        if flexible:
            at, elements_max = skip_tags(data, at, end, elements_max)
    if flexible:
        skip_tags(data, at, end, elements_max)
    return ProduceRequest(transactional_id, acks, topics)


def _compact(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return a length or count, -1: null; and where it goes on."""
    first = data[at]
    if first < 0x80:
        return first - 1, at + 1
    value, at = read_uvarint(data, at, end)
    return value - 1, at


def _fixed_short(data: Frame, at: int, end: int) -> tuple[int, int]:
    (length,) = _I16.unpack_from(data, at)
    return _nullable(length), at + 2


def _fixed_long(data: Frame, at: int, end: int) -> tuple[int, int]:
    (length,) = _I32.unpack_from(data, at)
    return _nullable(length), at + 4


def _nullable(length: int) -> int:
    if length < -1:
        raise Malformed(f"a length of {length}")
    return length


def _counted(count: int, room: int, elements_max: int) -> int:
    """Return how many elements may follow an array of `count`, of which each takes a byte."""
    if not 0 <= count <= room:
        raise Malformed(f"an array of {count} elements is longer than the request")
    if count > elements_max:
        raise TooMany
    return elements_max - count
