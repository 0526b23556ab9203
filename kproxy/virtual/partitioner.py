"""The shard of a queue's partition, a group or a transactional id; N shards are fixed."""

import re

import mmh3

from kproxy.virtual.types import ShardId

_SEED = 0x9747B28C
NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def shard_of(name: str, shards: int, partition: int = 0) -> ShardId:
    """The shard of partition `partition` of queue `name`; for a group or transactional id, of 0."""
    return ShardId((mmh3.hash(name, _SEED, signed=False) + partition) % shards)


def hash_of(name: str) -> int:
    """32 bits that decide where a name belongs: modulo the number of shards they are its shard."""
    return mmh3.hash(name, _SEED, signed=False)


def name_fault(name: str) -> str | None:
    """Why Kafka would refuse this queue name (`Topic.validate`), or None."""
    if not name:
        return "the queue name is empty"
    if name in (".", ".."):
        return "the queue name cannot be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"the queue name is longer than {NAME_LENGTH_MAX} characters"
    if not _LEGAL.fullmatch(name):
        return "the queue name may hold only ASCII letters, digits, '.', '_' and '-'"
    return None
