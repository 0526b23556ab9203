"""What consumers put into the classic protocol's opaque fields (`ConsumerProtocolSubscription`)."""

import struct

CONSUMER_PROTOCOL = "consumer"


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """The topics of a subscription, None where it is not one. Every version begins the same."""
    try:
        _, count = struct.unpack_from(">hi", metadata)
        position = 6
        if not 0 <= count <= (len(metadata) - position) // 2:
            return None
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics)
