"""The kinds of rows: one schema of the keys in a shard's store.

The first byte of a key is the kind of row, so each kind is one range of the store. Letters are
written to disk and to the offset topic: a letter is never given a second meaning. The
modules of `virtual.rows` make the keys and values of each kind.
"""

from collections.abc import Iterator
from enum import Enum


class _Kind(bytes, Enum):
    """A kind of row: its letter, and its traits."""

    letter: bytes
    level: int
    is_published: bool
    is_index: bool
    is_swept: bool
    byte: int

    def __new__(cls, letter: bytes, level: int, *traits: str) -> "_Kind":
        """Make a kind from its letter, the level from which it is written, and its traits.

        `published`: the owner publishes such rows. `index`: a scan starts at its lowest key.
        `swept`: keys begin with a queue's id, and go once it is deleted.
        """
        kind = bytes.__new__(cls, letter)
        kind._value_ = letter
        kind.letter = letter
        kind.level = level
        kind.byte = letter[0]
        kind.is_published = "published" in traits
        kind.is_index = "index" in traits
        kind.is_swept = "swept" in traits
        return kind

    def range(self) -> tuple[bytes, bytes]:
        """Start and end of the keys of this kind, for a scan."""
        return self.letter, bytes([self.byte + 1])

    def of(self, key: bytes) -> bool:
        """Return whether this is the key of such a row."""
        return key[:1] == self.letter


class RowKind(_Kind):
    """Rows of a shard."""

    QUEUE = b"q", 1, "published"  # a queue by name, in its home shard
    NAME = b"i", 1  # a queue's name by its id
    PARTITION = b"p", 1, "published"  # a queue partition: its ends, size, and last producers
    PRODUCER = b"k", 1, "published"  # an idempotent producer that is not in its partition's row
    BATCH = b"b", 1  # a record batch's place, by its last offset
    COMPACTION = b"z", 3, "published"  # a partition's progress of compaction
    OFFSET = b"o", 1, "published"  # a committed offset, by group
    OFFSET_BY_QUEUE = b"r", 1  # that a group has committed on a partition
    GROUP = b"g", 1, "published"  # a group: its kind, version, and what its coordinator keeps
    MEMBER = b"u", 1, "published"  # a member of a group
    GROUP_DUE = b"e", 1, "index"  # when to look for expired offsets of a group
    RETENTION_DUE = b"c", 1, "index"  # when to look at a partition's retention
    RETENTION_ENTRY = b"n", 1  # a partition's time in that index
    RETENTION_MARKS = b"5", 8  # a partition's ends at times, for retention
    SWEEP_QUEUE = b"x", 1, "published", "index"  # a deleted queue, to be swept
    SWEEP_PARTITION = b"y", 1, "index"  # a trimmed partition, to be swept
    LIVE_BYTES = b"s", 1  # live bytes of a segment
    COUNTS = b"F", 1  # numbers of queues, partitions, groups and bytes, for a log offset
    CHECKPOINT = b"m", 1  # the log offset that the rows stand for
    TERM = b"K", 1, "published"  # the claim that holds, and whose it is
    PENDING_ASSIGNMENT = b"w", 1, "published"  # a queue's news from its home shard for other shards
    ASSIGNMENT = b"h", 1, "published"  # a queue's news from another home shard
    NO_EFFECT = b"v", 1, "published"  # an append or a copy that changed nothing, by log offset
    ANNOUNCE = b"a", 1  # a queue to announce
    UNPUBLISHED = b"d", 1  # a row that changed since the last publication
    REBUILD_COUNTER = b"t", 1  # a rebuild's progress in a partition
    COMPARE = b"j", 1  # that a rebuilt copy's queues are to be compared with the queues topic
    TRANSACTION = b"T", 4, "published"  # a transactional id, in its coordinator's shard
    TRANSACTIONAL_ID = b"B", 4, "published"  # a transaction's transactional id, by its number
    PARTICIPANT = b"U", 4, "published"  # a partition or group that a transaction has touched
    TRANSACTION_DUE = b"D", 4, "index"  # when to look at a transaction that is open or ending
    TRANSACTION_IDLE = b"I", 4, "index"  # when a transactional id was used last
    TRANSACTIONAL_PRODUCER = b"J", 4, "published"  # which transactions of a producer ended here
    PRODUCER_DUE = b"H", 4, "index"  # when to look whether such a producer is still used
    OPEN_TRANSACTION = b"f", 4, "published", "swept"  # an open transaction of a partition
    OPEN_FIRST = b"l", 4, "published", "swept"  # the same by the offset of its first record
    ABORTED = b"A", 4, "published", "swept"  # an aborted transaction of a partition, by its marker
    OPEN_GROUP = b"G", 4, "published"  # that a group takes part in a producer's transaction
    PENDING_OFFSET = b"O", 4, "published"  # an offset that is committed once its transaction is
    PENDING_BY_PARTITION = b"Q", 4  # the same by partition
    PENDING_COUNT = b"N", 4, "published"  # number of pending offsets
    SHARE_PARTITION = b"S", 5, "published", "swept"  # a share group's progress in a partition
    SHARE_STATES = b"C", 5, "published", "swept"  # states of 256 records of it, a byte each
    SHARE_QUEUE = b"R", 5, "published"  # a queue of a share group, in the group's shard
    GROUP_CONFIG = b"E", 5, "published"  # settings of a group, in its shard
    DEAD_LETTER = b"L", 5, "published", "index"  # archived records that a dead-letter queue gets
    FORWARDED = b"M", 5, "published", "swept"  # progress in what another queue passes on
    FORWARD_TARGET = b"W", 5, "published", "swept"  # the target of a source's dead letters
    ROUTE = b"P", 6, "published", "index", "swept"  # a route's progress in a partition, by definer
    ROUTE_DEFINITION = b"X", 6, "published"  # a route from a queue, by name, in its home shard
    RESTORED = b"9", 6, "published"  # the log offset at which the log goes on after a restore
    ROUTE_LANDED = b"V", 6, "published"  # parts that a shard has taken of a partition's cut
    WAITING = b"Y", 6, "swept"  # a batch that waits until it is due, by time
    DELAY = b"Z", 6, "published"  # number of records that wait for a partition
    DELAY_DUE = b"0", 6, "index"  # when to look at a partition for what is due
    DELAY_ENTRY = b"1", 6, "swept"  # a partition's time in that index
    SECURED = b"2", 7, "published"  # an access rule, a user or a quota, in shard 0
    HELD_LANE = b"3", 9, "published", "swept"  # a lane of a share group that waits for an operator
    PRODUCERS_DUE = b"4", 8, "index"  # when to look at a partition's idempotent producers
    WRITER = b"#", 9, "published"  # the last counter of a worker's life that appends to the log
    IDLE_DUE = b"6", 9, "index"  # when to look whether anybody uses a queue
    IDLE = b"7", 9, "swept"  # a queue's time in that index, and since when nobody has used it
    WAITING_KEY = b"8", 9, "swept"  # the waiting batch of a key, where records replace others


class CatalogueRow(_Kind):
    """Rows of a worker's catalogue, a store of its own."""

    QUEUE = b"q", 1  # an announced queue by name; a record of the queues topic begins alike
    NAME = b"i", 1  # a queue's name by its id
    GROUP = b"g", 1  # a group's settings; a record of the queues topic begins alike
    SECURED = b"2", 7  # a row of security; a record of the queues topic begins alike
    DOUBT = b"d", 1  # the topic's last word on a name may differ from what is cached
    SEEN = b"s", 1  # while the topic is read again: that it speaks of a name
    NEXT_OFFSET = b"m", 1  # the offset up to which the topic was read
    CURRENT = b"c", 1  # when all of it was


PUBLISHED_BYTES = frozenset(kind.byte for kind in RowKind if kind.is_published)
INDEX_BYTES = frozenset(kind.byte for kind in RowKind if kind.is_index)
"""First bytes of keys; rows of an index are put by `State.file` alone."""


def swept_ranges(queue_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ranges of a deleted queue's rows, for a sweep."""
    for kind in RowKind:
        if kind.is_swept:
            start = kind.letter + queue_id
            yield start, (int.from_bytes(start, "big") + 1).to_bytes(len(start), "big")
