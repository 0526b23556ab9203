"""The search of records by their times, in the records of the one batch that the index names."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from threading import Event

from anyio import to_thread

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import Searches
from kproxy.loop.asking import counted
from kproxy.loop.pace import Pace
from kproxy.protocol.codecs import memory_of
from kproxy.protocol.records import record_times
from kproxy.protocol.varint import Malformed
from kproxy.shard.shard import Shard
from kproxy.store.damage import DamagedBatch
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.types import PartitionKey

_TIMES = range(-(1 << 63), 1 << 63)
_ROWS_AT_ONCE = 1000
_RECORDS_MAX, _RECORDS_S = 1_000_000, 5.0  # looked at in one batch, and for how long
_BREATH, _BREATH_S = 500, 0.0005  # after so many records others may have the interpreter
UNKNOWN = (-1, -1)


async def offset_by_time(
    worker: Searches, pace: Pace, shard: Shard, key: PartitionKey, wanted_ms: int
) -> int:
    """Return the offset of the first record at or after a time; the end where there is none."""
    row = shard.state.partition(key)
    if row is None:
        return 0
    end = row.next_offset  # as of now: what comes while it is looked for lies behind it
    _, offset = await Search(worker, pace, shard, key, row, end).by_time(wanted_ms)
    return end if offset < 0 else offset


class Search:
    """A look at one partition's records by their times; nothing at `end` or later is found.

    Control batches are found as others are, as in Kafka. The partition is searched as it is now.
    """

    def __init__(
        self,
        worker: Searches,
        pace: Pace,
        shard: Shard,
        key: PartitionKey,
        row: Partition,
        end: int,
    ) -> None:
        self._worker, self._pace = worker, pace
        self._shard, self._key, self._end = shard, key, end
        self._log_start, self._next_offset = row.log_start, row.next_offset
        self._latest = row.max_time_offset, row.max_time_ms

    async def by_time(self, wanted: int) -> tuple[int, int]:
        """Return (timestamp, offset) of the first record at or after a time."""
        start = self._shard.state.first_batch(
            self._key, lambda batch: batch.max_time_through_ms >= wanted
        )
        if start is None:
            return UNKNOWN
        offset = start[0]
        # Once, but where older maxima were trimmed away.
        while part := self._slice(offset, self._end):
            for last_offset, batch in part:
                offset = last_offset + 1
                if batch.max_time_ms >= wanted:
                    found = await self._in_batch(
                        last_offset, batch, lambda time_ms: time_ms >= wanted
                    )
                    if found is not None:
                        return found
            await self._pace.rest()
        return UNKNOWN

    def _slice(self, offset: int, end: int) -> list[tuple[int, Batch]]:
        """Return some of the batches from an offset on; of a deleted queue none are left."""
        found = self._shard.state.batches(self._key, offset, end)
        return list(islice(found, _ROWS_AT_ONCE))

    async def latest_time(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the first record with the largest timestamp (KIP-734).

        If it is at `end` or later, no other is found: so Kafka answers.
        """
        best: tuple[int, Batch] | None = None
        latest_offset, latest = self._latest
        if latest_offset >= self._log_start:
            batch = self._shard.state.batch_at(self._key, latest_offset)
            if batch is not None and batch.max_time_ms == latest:
                best = latest_offset, batch
        if best is None:  # that record was trimmed, or compacted away: look at what is left
            offset = self._log_start
            while part := self._slice(offset, self._next_offset):
                for last_offset, batch in part:
                    offset = last_offset + 1
                    if best is None or batch.max_time_ms > best[1].max_time_ms:
                        best = (last_offset, batch)
                await self._pace.rest()
        if best is None or self._next_offset == self._log_start or best[0] >= self._end:
            return UNKNOWN
        last_offset, batch = best
        latest = batch.max_time_ms
        found = await self._in_batch(last_offset, batch, lambda time_ms: time_ms == latest)
        return found or UNKNOWN

    async def _in_batch(
        self, last_offset: int, batch: Batch, wanted: Callable[[int], bool]
    ) -> tuple[int, int] | None:
        """Read on a thread, of which there are few, and no longer than the client stays."""
        segments = self._shard.segments
        with segments.pinned({batch.segment}):
            memory, size = self._worker.answer_memory.mine(), memory_of(batch.length)
            await memory.wait_for_room()
            async with self._worker.searchers:
                memory.take(size)
                try:
                    return await self._read(last_offset, batch, wanted)
                finally:
                    memory.give_back(size)

    async def _read(
        self, last_offset: int, batch: Batch, wanted: Callable[[int], bool]
    ) -> tuple[int, int] | None:
        worker, segments = self._worker, self._shard.segments
        base_offset, log_start = last_offset - batch.last_delta, self._log_start
        left = Event()

        def gone() -> bool:
            return left.is_set() or worker.stopping

        def search() -> tuple[int, int] | None:
            try:
                for delta, time_ms in _times(data, gone, worker.clock.monotonic):
                    if not 0 <= delta <= batch.last_delta or time_ms not in _TIMES:
                        raise Malformed("a record lies outside its batch")
                    if base_offset + delta >= log_start and wanted(time_ms):
                        return time_ms, base_offset + delta
            except Malformed:
                # A batch of a broken client, kept as it came, or one of too many records: its
                # first offset is the best answer.
                return batch.max_time_ms, max(base_offset, log_start)
            return None

        place = batch.segment, batch.position, batch.length
        try:
            data = await to_thread.run_sync(segments.batch, *place) or bytearray()
        except DamagedBatch as error:
            raise KafkaError(Code.CORRUPT_MESSAGE, str(error)) from error
        try:
            return await to_thread.run_sync(counted(search), abandon_on_cancel=True)
        finally:
            left.set()


def _times(
    batch: bytearray, gone: Callable[[], bool], monotonic: Callable[[], float]
) -> Iterator[tuple[int, int]]:
    """Yield `record_times`, with pauses.

    Raise Malformed after `_RECORDS_MAX` records or `_RECORDS_S`, or once the client is gone.
    """
    until = monotonic() + _RECORDS_S
    for number, found in enumerate(record_times(bytes(batch))):
        yield found
        if not number % _BREATH:
            time.sleep(_BREATH_S)
            if number >= _RECORDS_MAX or gone() or monotonic() > until:
                raise Malformed("the batch holds more records than are looked at")
