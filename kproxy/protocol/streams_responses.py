"""An encoder of what members with an endpoint have, in StreamsGroupHeartbeatResponse.

A line is the same for all members that are told it, so it is written once for many. A test compares
it with kio's writer.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kproxy.protocol.responses import count, string

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
