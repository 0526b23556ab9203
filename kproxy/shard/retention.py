"""The scanner that moves log starts by `retention.ms`, `retention.bytes` and
`kproxy.retention.records`, as logged TRIMs.

An index (`c` rows) finds the partitions that are due. The fold files a partition in it with the
first record, under the earliest time at which that record can expire. After each check the scanner
files the partition again, at least `retention_check_ms` later, as often as Kafka's cleaner looks.

Each partition is checked once a day at least, and at once when its settings change; so a missed
change is late and not lost. Entries that a clock ahead of time filed too late are checked at once.
"""

from collections.abc import Callable
from itertools import islice

import structlog
from anyio.lowlevel import checkpoint

from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.metadata import queue_settings
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.queue_settings import QueueSettings
from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.retention_marks import RetentionMarks
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import DropTombstone
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.levels import SPARES_FROM
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import TOMBSTONE_INDEX, Partition
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_ROWS_AT_ONCE = 200
_PAUSE = 50  # partitions looked at in one turn of the loop: a binary search each


class Retention(DueIndexScanner):
    """The retention of one shard's partitions by their queues' settings; `run` until cancelled."""

    def __init__(
        self, shard: Shard, config: Config, lookup: Lookup, now_ms: Callable[[], int]
    ) -> None:
        super().__init__(
            shard, RowKind.RETENTION_DUE, _ROWS_AT_ONCE, config.keeper_period_ms / 1000
        )
        self._lookup = lookup
        self._now_ms = now_ms
        self._check_ms = config.retention_check_ms
        self._marks = RetentionMarks(shard.kv)

    async def scan_once(self) -> bool:
        """Look at some partitions that are due; whether there may be more."""
        now = self._now_ms()
        late = rows.retention_due_key(now + queue_settings.LOOK_AGAIN_MS, *_LAST)
        due, more = self._next_due(rows.retention_due_key(now, *_LAST), late)
        filed_ms = rows.retention_due_of(due[0])[0] if due else 0
        self._shard.retention_overdue_ms = max(0, now - filed_ms) if filed_ms else 0
        # A setting that changes meanwhile files its partitions under 0 again: that stays.
        changed: dict[bytes, bytes | None] = {
            key: None for key in due if not rows.retention_due_of(key)[0]
        }
        if changed:
            self._shard.commit(changed)
        trims: list[Envelope] = []
        filed: dict[bytes, bytes | None] = {}
        for number, key in enumerate(due, 1):
            self._look_at(key, now, trims, filed)
            if number % _PAUSE == 0:
                await checkpoint()
        if trims:
            try:
                outcomes = await self._shard.append(trims).wait()
            except KafkaError as error:
                _log.warning("not_trimmed", partitions=len(trims), reason=error.message)
                self._shard.commit(dict.fromkeys(changed, b""))
                self._retry()
                return False
            _log.debug("trimmed", partitions=len(trims))
            self._file_those_left(trims, outcomes, now, filed)
        if filed:
            self._shard.commit(filed)
        return more

    def _file_those_left(
        self,
        trims: list[Envelope],
        outcomes: list[Outcome],
        now: int,
        filed: dict[bytes, bytes | None],
    ) -> None:
        """File partitions that were not trimmed, and partitions that were to be empty and are not.

        In the second case a record was in line before the TRIM. The fold files a partition at its
        first record, and this was not the first.
        """
        again_ms = now + self._check_ms
        for trim, outcome in zip(trims, outcomes, strict=True):
            partition = (trim.queue_id, trim.partition)
            if outcome.code and trim.kind == Kind.DROP_TOMBSTONE:
                filed[rows.retention_due_key(again_ms, trim.queue_id, TOMBSTONE_INDEX)] = b""
                continue
            if outcome.code and self._shard.state.partition(partition) is not None:
                self._file(partition, again_ms, filed)
                continue
            row = self._shard.state.partition(partition)
            if row is None or row.log_start == row.next_offset:
                continue
            retention_entry_key = rows.retention_entry_key(*partition)
            if retention_entry_key in filed and filed[retention_entry_key] is None:
                self._file(partition, again_ms, filed)

    def _file(
        self, partition: PartitionKey, again_ms: int, filed: dict[bytes, bytes | None]
    ) -> None:
        filed[rows.retention_entry_key(*partition)] = again_ms.to_bytes(8, "big")
        filed[rows.retention_due_key(again_ms, *partition)] = b""

    def _look_at(
        self, key: bytes, now: int, trims: list[Envelope], filed: dict[bytes, bytes | None]
    ) -> None:
        filed_ms, partition = rows.retention_due_of(key)
        if filed_ms:
            filed[key] = None
        if partition[1] == TOMBSTONE_INDEX and filed_ms > now:
            filed[rows.retention_due_key(now + rows.TOMBSTONE_KEPT_MS, *partition)] = b""
            return
        if partition[1] == TOMBSTONE_INDEX:
            trims.append(DropTombstone(partition[0]).envelope())
            return
        retention_entry_key = rows.retention_entry_key(*partition)
        turn = self._shard.kv.get(retention_entry_key)
        if filed_ms and turn is not None and int.from_bytes(turn, "big") != filed_ms:
            return  # it has been filed elsewhere since
        again_ms = self._evaluate(partition, now, trims, filed)
        if again_ms is None:
            filed[retention_entry_key] = None
            self._marks.drop(partition, filed)
        else:
            self._file(partition, again_ms, filed)

    def _evaluate(
        self, partition: PartitionKey, now: int, trims: list[Envelope],
        filed: dict[bytes, bytes | None],
    ) -> int | None:  # fmt: skip
        """Return when to look at a partition again; None: when it has records again."""
        row = self._shard.state.partition(partition)
        if row is None or row.log_start == row.next_offset:
            return None
        queue = self._lookup.find_id(partition[0])
        if queue is None:
            return now + self._check_ms  # other shards are still told of it
        settings = queue_settings.settings_of(queue.configs)
        arrived_from = row.log_start
        if settings.retained_from_arrival:
            arrived_from = self._marks.kept_from(partition, row, settings.retention_ms, now, filed)
        start, oldest = self._kept_from(partition, row, settings, now, arrived_from)
        if settings.retention_records >= 0:
            start = max(start, row.next_offset - settings.retention_records)
        passed_on = self._shard.state.passed_on(partition)
        held_back = passed_on is not None and passed_on < start
        if passed_on is not None and held_back:  # it waits for what is not passed on
            start = passed_on
        if start > row.log_start:
            spares = self._shard.level.reaches(SPARES_FROM)
            trims.append(Trim(*partition, start, now, spares).envelope())
        if oldest is not None and settings.compacted:
            self._shard.note_uncompacted(partition)
        if oldest is None or held_back:
            return now + self._check_ms if start < row.next_offset else None
        idle_ms = 0
        if settings.retained_by_size:
            idle_ms = now - self._marks.ends_there_since(partition, row, now, filed)
        return settings.look_at_ms(oldest.max_time_through_ms, now, self._check_ms, idle_ms)

    def _kept_from(
        self,
        partition: PartitionKey,
        row: Partition,
        settings: QueueSettings,
        now: int,
        fits_from: int,
    ) -> tuple[int, Batch | None]:
        """Return the first offset to keep, and the batch that has it.

        As Kafka judges whole segments, whole batches are judged here. Records from `fits_from` on
        fit the bytes that are kept.
        """
        retention_ms, retention_bytes = settings.retention_ms, settings.retention_bytes
        if settings.retained_from_arrival:
            retention_ms = -1
        compacted = self._shard.state.compaction(partition).clean_end > 0  # its policy may be new
        if compacted and retention_bytes >= 0:  # sizes through a batch are of all ever
            fits_from = max(fits_from, self._fits_from(partition, row, retention_bytes))
            retention_bytes = -1

        def kept(batch: Batch) -> bool:
            fresh = retention_ms < 0 or not 0 <= batch.max_time_through_ms < now - retention_ms
            return fresh and (
                retention_bytes < 0 or batch.size_through > row.size - retention_bytes
            )

        found = self._shard.state.first_batch(partition, kept)
        if found is None:
            return row.next_offset, None
        last_offset, batch = found
        first = last_offset - batch.last_delta
        if compacted and first > row.log_start:  # earlier records may be gone already
            before = next(self._shard.state.batches(partition, row.log_start, first), None)
            first = row.log_start if before is None else first
        return (max(fits_from, first), batch) if fits_from < row.next_offset else (fits_from, None)

    def _fits_from(self, partition: PartitionKey, row: Partition, most: int) -> int:
        """Return the offset from which a compacted partition has no more bytes than it may, or not
        yet.
        """
        start = row.log_start
        found = self._shard.state.batches(partition, start, row.next_offset)
        batches = list(islice(found, _ROWS_AT_ONCE))
        if len(batches) < _ROWS_AT_ONCE:
            size = sum(batch.length for _, batch in batches)
        else:
            size = self._shard.state.live_size(partition)
        for last_offset, batch in batches:
            size -= batch.length
            if size < most:
                break
            start = last_offset + 1
        return start


_LAST = (b"\xff" * 16, TOMBSTONE_INDEX)
