"""Encoders of what is the same in many answers, and is written once for all of them.

CreateTopicsResponse: a topic's settings, some fifty; kio's writer took 400 µs a topic (measured).
StreamsGroupHeartbeatResponse: what members with an endpoint have. Tests compare each with kio's
writer.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kproxy.protocol.responses import count, nullable_string, string

_I16 = struct.Struct(">h")
_CONFIG = struct.Struct(">?b?B")  # read only, source, sensitive, no tags
_COUNTS = struct.Struct(">ih")
_FLEXIBLE, _IDS = 5, 7  # versions from which there are settings, and ids


class TopicConfigs:
    """The settings that a topic was made with, as they are sent."""

    __slots__ = ("encoded",)

    def __init__(self, settings: Iterable[tuple[str, str | None, int]]) -> None:
        """Encode `settings`: name, value, and `of` what it comes (Kafka's `ConfigSource`)."""
        parts = [
            string(name, True)
            + nullable_string(value, True)
            + _CONFIG.pack(False, source, False, 0)
            for name, value, source in settings
        ]
        self.encoded = count(len(parts), True) + b"".join(parts)


NO_CONFIGS = TopicConfigs(())


def created_topics_body(version: int, values: Mapping[str, Any]) -> bytes:
    """Return a CreateTopicsResponse body, versions 2 to 7. Topics' `configs`: `TopicConfigs`."""
    flexible = version >= _FLEXIBLE
    topics = values["topics"]
    parts = [b"\0\0\0\0", count(len(topics), flexible)]
    for topic in topics:
        parts.append(string(topic["name"], flexible))
        if version >= _IDS:
            parts.append(topic["topic_id"].bytes)
        parts.append(_I16.pack(topic["error_code"]))
        parts.append(nullable_string(topic["error_message"], flexible))
        if flexible:
            counts = topic.get("num_partitions", -1), topic.get("replication_factor", -1)
            parts += (_COUNTS.pack(*counts), topic["configs"].encoded)
            code = topic["topic_config_error_code"]
            parts.append(b"\x01\0\x02" + _I16.pack(code) if code else b"\0")
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)


# -- StreamsGroupHeartbeat


LINES = "partitions_by_user_endpoint"
_PORT = struct.Struct(">H")
_NO_TAGS = b"\0"
_NONE = b"\0" + _NO_TAGS
"""The end of a body without lines: they are its last field."""

Parts = Sequence[tuple[str, Sequence[int]]]
"""Partitions by topic."""


class EndpointLines:
    """The lines of an answer, each encoded."""

    __slots__ = ("encoded",)

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.encoded = b"".join((count(len(lines), True), *lines))


def endpoint_line(endpoint: tuple[str, int], active: Parts, standby: Parts) -> bytes:
    """Return a member's line: where it is, and what partitions its tasks read."""
    host, port = endpoint
    return b"".join(
        (string(host, True), _PORT.pack(port), _NO_TAGS, _parts(active), _parts(standby), _NO_TAGS)
    )


def _parts(parts: Parts) -> bytes:
    found = [count(len(parts), True)]
    for topic, partitions in parts:
        found += (
            string(topic, True), count(len(partitions), True),
            struct.pack(f">{len(partitions)}i", *partitions), _NO_TAGS,
        )  # fmt: skip
    return b"".join(found)


def without_lines(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an answer that kio writes."""
    return {**values, LINES: None}


def with_lines(body: bytes, lines: EndpointLines | None) -> bytes:
    """Return the body of an answer that kio wrote, with its lines."""
    assert body.endswith(_NONE)
    return body if lines is None else body[: -len(_NONE)] + lines.encoded + _NO_TAGS
