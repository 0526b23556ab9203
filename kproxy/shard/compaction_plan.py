"""The rule by which a partition is due for compaction, as Kafka's `LogCleanerManager` judges it."""

from dataclasses import dataclass

from kproxy.metadata.queue_settings import QueueSettings
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.queues import Compaction, Partition
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pass over a partition: what is new lies from `done.clean_end` to `end`."""

    done: Compaction  # the work of earlier passes
    log_start: int
    last_offset: int  # the partition's last offset: this record stays, whatever it is
    end: int
    size_through: int  # the partition's size at `end`, of all that was ever appended
    settled_end: int  # tombstones before it may go
    pending_end: int  # tombstones before it may go, `delete.retention.ms` after `pending_ms`
    pending_ms: int

    @property
    def size(self) -> int:
        """Bytes of the batches that it looks at: what was left, and what is new."""
        return self.done.clean_bytes + self.size_through - self.done.size_through


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDue:
    """Nothing is to be done before `again_ms`, if nothing new comes, and nothing is decided."""

    again_ms: int = _NEVER
    undecided: bool = False  # a transaction is open, or a route has to pass records on

    @property
    def never(self) -> bool:
        return self.again_ms == _NEVER


def plan(state: State, key: PartitionKey, settings: QueueSettings, now_ms: int) -> Plan | NotDue:
    """Return the plan of a pass over a partition now, or when one is due."""
    row = state.partition(key)
    if row is None or row.next_offset - row.log_start < 2:  # a single record stays
        return NotDue(undecided=row is not None and row.first_open >= 0)
    done = state.compaction(key)
    end, size_through, old_ms = _old_enough(state, key, row, settings, now_ms)
    decided = _decided(state, key, row)
    undecided = decided[0] < row.next_offset or row.first_open >= 0
    end, size_through = min((end, size_through), decided)
    end = max(end, done.clean_end)
    settles_ms = _NEVER if done.pending_ms < 0 else done.pending_ms + settings.delete_retention_ms
    settled = settles_ms <= now_ms
    due_ms = old_ms
    if end > done.clean_end:
        due_ms = _new_due_ms(state, key, done, settings, end, size_through)
    if not settled and due_ms > now_ms:
        return NotDue(again_ms=min(due_ms, settles_ms), undecided=undecided)
    pending = (
        (end, now_ms) if settled or done.pending_ms < 0 else (done.pending_end, done.pending_ms)
    )
    return Plan(
        done=done, log_start=row.log_start, last_offset=row.next_offset - 1, end=end,
        size_through=size_through if end > done.clean_end else done.size_through,
        settled_end=done.pending_end if settled else done.settled_end,
        pending_end=pending[0], pending_ms=pending[1],
    )  # fmt: skip


def _old_enough(
    state: State, key: PartitionKey, row: Partition, settings: QueueSettings, now_ms: int
) -> tuple[int, int, int]:
    """Return where records begin that are too young, the size there, and when the first is old
    enough.
    """
    lag_ms = settings.min_compaction_lag_ms
    young = None
    if lag_ms:
        young = state.first_batch(key, lambda batch: batch.max_time_through_ms > now_ms - lag_ms)
    if young is None:
        return row.next_offset, row.size, _NEVER
    last_offset, batch = young
    size = batch.size_through - batch.length
    return last_offset - batch.last_delta, size, batch.max_time_through_ms + lag_ms


def _decided(state: State, key: PartitionKey, row: Partition) -> tuple[int, int]:
    """Return where records begin that are not decided, or not passed on; and the size there."""
    end, passed_on = row.last_stable, state.passed_on(key)
    if passed_on is not None and passed_on < end:
        end = passed_on
    undecided = (
        next(state.batches(key, end, row.next_offset), None) if end < row.next_offset else None
    )
    if undecided is None:
        return row.next_offset, row.size
    last_offset, batch = undecided
    return last_offset - batch.last_delta, batch.size_through - batch.length


def _new_due_ms(
    state: State,
    key: PartitionKey,
    done: Compaction,
    settings: QueueSettings,
    end: int,
    size_through: int,
) -> int:
    """Return when new records are due: by their share of the bytes, or by their age."""
    new = size_through - done.size_through
    row = state.partition(key)
    clean = 0 if row is None else state.clean_bytes(key, row)
    if new > settings.dirty_ratio * (new + clean):
        return 0
    first: tuple[int, Batch] | None = next(state.batches(key, done.clean_end, end), None)
    if first is None or settings.max_compaction_lag_ms >= _NEVER:
        return _NEVER
    return first[1].max_time_ms + settings.max_compaction_lag_ms
