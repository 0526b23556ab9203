"""Rows of records that wait until they are due.

They lie in a *hidden partition* beside the one that they are for: batches with offsets of their
own, of which no reader knows. The largest timestamp of such a batch is when it is due, so that the
log alone says so. A batch of type CreateTime is *mixed*: each of its records is due at its own
time, the first of them when the batch is.

- A WAITING row for each such batch, by partition and time: who delivers them reads them in order.
- A DELAY row beside the partition: how many wait.
- A DELAY_DUE row in the index, and the DELAY_ENTRY that says which one is a partition's.
"""

from hashlib import blake2b
from typing import NamedTuple

from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import HIDDEN
from kproxy.virtual.schema import Get, Keys, Rows
from kproxy.virtual.types import PartitionKey


class Waiting(NamedTuple):
    """The records that wait for a partition. `due_ms`: of the last with the fixed `delay_ms`."""

    records: int
    batches: int
    delay_ms: int
    due_ms: int


NOTHING = Waiting(0, 0, 0, 0)
WAITING_BATCHES = Keys(RowKind.WAITING, "PQQ")
"""The waiting batches by shown partition, time in ms and the hidden partition's last offset."""
WAITING_KEYS = Keys(RowKind.WAITING_KEY, "P16s")
"""The digests of the keys that wait, where records replace others; the value: the hidden
partition's last offset. The WAITING row of such a batch has the digest."""
DELAYS = Rows(RowKind.DELAY, "P", Waiting, "QQqq")
DELAYS_DUE = Keys(RowKind.DELAY_DUE, "QP")
"""The times in ms and partitions, without a value, at which to look for what is due."""
DELAY_ENTRIES = Keys(RowKind.DELAY_ENTRY, "P")
"""The time under which a partition is filed: others of its rows in the index are stale."""


def digest_of(key: bytes) -> bytes:
    """Return what stands for a record's key in rows: a key may be long."""
    return blake2b(key, digest_size=16).digest()


def hidden(key: PartitionKey) -> PartitionKey:
    """Return the hidden partition where the records for this one wait."""
    return key[0], key[1] | HIDDEN


def shown(key: PartitionKey) -> PartitionKey:
    """Return the partition that waiting records of this one are for."""
    return key[0], key[1] & ~HIDDEN


def waiting_range(key: PartitionKey, due_ms: int = 0, offset: int = 0) -> tuple[bytes, bytes]:
    """Return the range of all that waits for a partition and is not due before.

    `offset`: of what is due just then, what lies before that is left out.
    """
    return WAITING_BATCHES.key(key, due_ms, offset), WAITING_BATCHES.range(key)[1]


def waiting_in(get: Get, key: PartitionKey) -> Waiting:
    """Return what waits for a partition. Raise ValueError for a form of a later kproxy."""
    return DELAYS.get(get, key) or NOTHING
