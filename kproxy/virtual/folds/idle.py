"""The fold's part for queues that nobody uses: whether one may go is decided here, once more.

The owner has looked at the queue, and says in EXPIRE_QUEUE which end it had. All that came to the
log before that command has been applied by now: an append, a commit, a record that waits, a
transaction. So nothing that was acknowledged goes with the queue.
"""

from collections.abc import Iterator

from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import ExpireQueue
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows.delays import waiting_in
from kproxy.virtual.rows.idle import WITH_RECORDS, idle_ms_of
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Partition, Queue
from kproxy.virtual.rows.routes import ROUTES, landed_of
from kproxy.virtual.rows.shares import DEAD_LETTERS, SHARE_PARTITIONS
from kproxy.virtual.rows.transactions import OPEN_TRANSACTIONS, PENDING_BY_PARTITION
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_LOOKED_AT_MAX = 1000
"""Groups, offsets that wait, dead letters: a queue with more of them is in use."""


def is_idle(state: State, envelope: Envelope, queue: Queue) -> bool:
    """Return whether a queue may still be deleted for the reason that its owner has seen."""
    asked = ExpireQueue.decode(envelope)
    key = (queue.queue_id, 0)
    row, idle_ms = state.partition(key), idle_ms_of(queue.configs)
    if row is None or idle_ms < 0 or queue.wanted != 1 or not state.is_owners(envelope):
        return False
    if row.next_offset != asked.end:
        return False
    if row.log_start != row.next_offset and queue.configs.get(WITH_RECORDS) != "true":
        return False
    if waiting_in(state.get, key).batches or not _is_passed_on(state, key, row):
        return False
    return not (
        state.some(*OPEN_TRANSACTIONS.range(key), 1)
        or _is_committed_since(state, key, asked.time_ms - idle_ms)
        or _is_staged(state, key)
        or _is_owed(state, key)
    )


def _is_passed_on(state: State, key: PartitionKey, row: Partition) -> bool:
    """Return whether no route has records of a partition to pass on still."""
    if not row.any_routes:
        return True
    found = state.scan(*ROUTES.range(key))
    return all(landed >= row.next_offset for landed in landed_of(found))


def _is_committed_since(state: State, key: PartitionKey, since_ms: int) -> bool:
    found = state.some(*offset_rows.offsets_by_queue_range(key[0]), _LOOKED_AT_MAX)
    if len(found) == _LOOKED_AT_MAX:
        return True
    return any(at_ms > since_ms for at_ms in _commits(state, key, [one for one, _ in found]))


def _commits(state: State, key: PartitionKey, found: list[bytes]) -> Iterator[int]:
    for one in found:
        committed = state.committed(offset_rows.group_of_offset_by_queue(one), key)
        if committed is not None:
            yield committed.time_ms


def _is_staged(state: State, key: PartitionKey) -> bool:
    """Return whether a transaction may still commit an offset of a partition."""
    if not state.pending_offsets:
        return False
    found = state.some(*RowKind.PENDING_BY_PARTITION.range(), _LOOKED_AT_MAX)
    staged = (PENDING_BY_PARTITION.parts(one)[1] for one, _ in found)
    return len(found) == _LOOKED_AT_MAX or key in staged


def _is_owed(state: State, key: PartitionKey) -> bool:
    """Return whether a dead-letter queue is to have records of a partition still."""
    if not state.some(*SHARE_PARTITIONS.range(key), 1):
        return False  # most have no share group: RocksDB need not step over what was owed
    found = state.some(*RowKind.DEAD_LETTER.range(), _LOOKED_AT_MAX)
    return len(found) == _LOOKED_AT_MAX or any(
        DEAD_LETTERS.decode(data).key == key for _, data in found
    )
