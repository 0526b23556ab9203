"""The shard of a queue's partition, a group or a transactional id; N shards are fixed."""

import re

import mmh3

from kproxy.virtual.types import ShardId

_SEED = 0x9747B28C
NAME_LENGTH_MAX = 249
INTERNAL_TOPICS = frozenset(
    ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
)
"""Topics in which Kafka keeps its own state. kproxy has none of them."""
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def shard_of(name: str, shards: int, partition: int = 0) -> ShardId:
    """Return the shard of a queue's partition; for a group or transactional id, of 0."""
    return ShardId((mmh3.hash(name, _SEED, signed=False) + partition) % shards)


def hash_of(name: str) -> int:
    """Return 32 bits that decide where a name belongs: modulo the shards they are its shard."""
    return mmh3.hash(name, _SEED, signed=False)


def name_fault(name: str) -> str | None:
    """Return why no queue may have this name (`Topic.validate`, or Kafka's own), or None."""
    if not name:
        return "the queue name is empty"
    if name in (".", ".."):
        return "the queue name cannot be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"the queue name is longer than {NAME_LENGTH_MAX} characters"
    if not _LEGAL.fullmatch(name):
        return "the queue name may hold only ASCII letters, digits, '.', '_' and '-'"
    if name in INTERNAL_TOPICS:
        return f"{name} is a topic of Kafka's own, and kproxy keeps nothing in it"
    return None
