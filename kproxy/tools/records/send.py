"""One record written by Produce, without a producer and its threads."""

import random
import time
from collections.abc import Sequence

from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.tools.changes import reason
from kproxy.tools.client import Client, Refused

_TIMEOUT_MS = 8000
_ALL = -1


class NotTaken(Refused):
    """A record that was refused, with Kafka's error code."""

    def __init__(self, queue: str, code: int, message: str | None) -> None:
        super().__init__(f"{queue}: {reason(code, message)}")
        self.code = code


def body_with(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
) -> bytes:
    """Return a record from its key on."""
    return body_of(Content(key, value), [header(name, value) for name, value in headers])


def leaders_of(client: Client, queue: str) -> dict[int, int]:
    """Return the node of each partition. Raises Refused."""
    return {one.partition_index: one.leader_id for one in client.queue(queue).partitions}


def send(
    client: Client, queue: str, body: bytes, key: bytes | None, partition: int | None = None,
    parts: dict[int, int] | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Write a record from its key on; return its partition and offset. Raises Refused.

    Without a partition its key says which, as with Java's producers. It is tried once: a lost
    answer leaves open whether it was written.
    """
    parts = parts or leaders_of(client, queue)
    index = partition_of(key, len(parts)) if partition is None else partition
    if parts.get(index, -1) < 0:
        raise Refused(f"there is no partition {index} of {queue}, or nobody serves it now")
    batch = batch_of_bodies([(body, time.time_ns() // 1_000_000)])
    values = {
        "transactional_id": None, "acks": _ALL, "timeout": _TIMEOUT_MS,
        "topic_data": [
            {"name": queue, "partition_data": [{"index": index, "records": batch}]}
        ],
    }  # fmt: skip
    for topic in client.call(0, 9, values, parts[index]).responses:
        for one in topic.partition_responses:
            if one.error_code:
                said = [error.batch_index_error_message for error in one.record_errors]
                message = next((text for text in said if text), one.error_message)
                raise NotTaken(queue, int(one.error_code), message)
            return index, int(one.base_offset)
    raise Refused(f"{queue}-{index}: no answer")


def partition_of(key: bytes | None, count: int) -> int:
    """Return the partition that Java's producers choose for a key; any without one."""
    return random.randrange(count) if key is None else (_murmur2(key) & 0x7FFF_FFFF) % count


def _murmur2(data: bytes) -> int:
    m, mask = 0x5BD1_E995, 0xFFFF_FFFF
    h = 0x9747_B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
