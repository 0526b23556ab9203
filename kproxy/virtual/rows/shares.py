"""Rows of share groups (KIP-932): which records of a queue partition are done, for each group.

A *share partition* is a queue partition for one share group. Its rows lie beside the records, in
the queue partition's shard. The group's own shard has a row for each queue that the group reads.

A record's state and how often it was delivered are one byte. The states of 256 offsets are a row.
An ACQUIRED record is never written: who holds it until when is known to the owner's memory alone.
"""

from enum import IntEnum
from typing import NamedTuple

from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.schema import Get, Keys, Rows, encode_count
from kproxy.virtual.types import PartitionKey

CHUNK = 256
"""Offsets in a row of states."""
EMPTY_CHUNK = bytes(CHUNK)


class RecordState(IntEnum):
    """The states of Kafka's `RecordState`, with its numbers."""

    AVAILABLE = 0
    ACQUIRED = 1  # in memory alone
    ACKNOWLEDGED = 2
    ARCHIVED = 4


STATE_BITS = 0b111
COUNT_SHIFT = 3
COUNT_MAX = 31
"""Deliveries that are counted; a group's limit is below it."""

TERMINAL = bytes(
    byte & STATE_BITS in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED) for byte in range(256)
)
"""A table for `bytes.translate`: 1 where nothing changes any more."""


def state_byte(state: RecordState, count: int) -> int:
    return state | min(count, COUNT_MAX) << COUNT_SHIFT


NOWHERE = -1


class SharePartition(NamedTuple):
    """The row of a share partition.

    The progress of a share group in a partition: what lies before `start` is done; what lies from
    `end` on was never delivered. `done`: how many records between them are terminal. `since_ms`:
    where it is 0 or more, the first record not older than that is still to be looked for, and
    `start` means nothing.
    """

    start: int
    end: int
    done: int
    epoch: int  # as of its initialisation, or its last reset
    made_ms: int
    since_ms: int = NOWHERE


SHARE_PARTITIONS = Rows(RowKind.SHARE_PARTITION, "PT", SharePartition, "QQIQqq")
"""The share partitions by partition and group."""
SHARE_STATES = Keys(RowKind.SHARE_STATES, "PNQ")
"""The states of offsets from 256 * chunk on, by partition, group and chunk. Absent: all are
available, and never were delivered."""


def states(get: Get, key: PartitionKey, group: str, start: int, end: int) -> bytearray:
    """Return the states of start <= offset < end; `get` gets rows."""
    first = start // CHUNK
    last = (end + CHUNK - 1) // CHUNK
    prefix = SHARE_STATES.key(key, group)
    found = bytearray().join(
        get(prefix + encode_count(chunk)) or EMPTY_CHUNK for chunk in range(first, last)
    )
    return found[start - first * CHUNK : end - first * CHUNK]


class HeldLane(NamedTuple):
    """A lane of a share partition that waits until an operator frees it: a record was given up."""

    offset: int  # that record's
    since_ms: int
    epoch: int  # the share partition's, then


HELD_LANES = Rows(RowKind.HELD_LANE, "PNQ", HeldLane, "QqQ")
"""The held lanes by partition, group and the lane's hash."""


def freed_key(key: PartitionKey) -> PartitionKey:
    """Return the name by which those who hold lanes of a partition hear that some were freed."""
    return key[0], key[1] | 1 << 31


class Owed(NamedTuple):
    """A run of archived records that the dead-letter queue is to have."""

    key: PartitionKey
    first: int
    records: int
    deliveries: int  # for each of them
    cause: int  # `share_commands.Cause`
    group: str


DEAD_LETTERS = Rows(RowKind.DEAD_LETTER, "QI", Owed, "PqIBBT")
"""The dead letters by the log offset of the SHARE that archived them, and its run's number."""


# -- records passed on from one queue to another


class Position(NamedTuple):
    """The position of a stream in its source's shard: these only grow."""

    log_offset: int
    number: int
    offset: int  # the last record's, in the source


FORWARDED = Rows(RowKind.FORWARDED, "PBPT", Position, "QIq")
"""The last position that a target has taken of a stream, by target, stream, source and group."""


class Aimed(NamedTuple):
    """The target of a share partition's dead letters, and the log offset that it stands at."""

    target: PartitionKey
    log_offset: int


FORWARD_TARGETS = Rows(RowKind.FORWARD_TARGET, "PT", Aimed, "PQ")
"""The targets by source and group."""


# -- in the group's shard


SHARE_QUEUES = Keys(RowKind.SHARE_QUEUE, "NU")
"""The queues of share groups, with how many of a queue's partitions are share partitions."""


def encode_initialised(partitions: int) -> bytes:
    return partitions.to_bytes(4, "big")


def decode_initialised(data: bytes) -> int:
    """Return how many of a queue's partitions a group has share partitions of."""
    return int.from_bytes(data, "big")
