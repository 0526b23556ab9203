"""Compaction: of each key the last record stays (`cleanup.policy=compact`).

A pass over a partition has two parts, as Kafka's cleaner has. The first reads what is new since the
last pass, and notes the last offset of each key, of as many keys as memory is given for. The second
reads the partition from its start, and drops each record whose key has a later one noted. The
decision on dropped records is made here and logged: REPLACE writes a batch again without some
records, COMPACT names batches of which nothing is left, and at the end how far the pass came. So
all workers and every rebuild agree. A crash between two of them leaves records that the next pass
drops.

A batch stays as it is where the log would not take it with fewer records, for it grows when it is
packed again, or where it holds more than is looked at. Then no tombstone goes: there may be older
records of its key in that batch.

A key's last record is never dropped, so an older one cannot be seen to come back. A record without
a value (a tombstone) goes `delete.retention.ms` after a pass that left nothing older of its key.

The partition's last record stays, whatever it is: a reader that waits for the end gets there. A
batch that cannot be read is left as it is, with all of its partition.

A transaction's records are looked at once all before them is decided. Records of an aborted one go,
and stand for no key. The marker of a committed one goes, for it says nothing to a reader. That of
an aborted one stays until the next pass, as its ABORTED row does: a reader drops all of the
producer's records from the row's offset to the marker's, and then there are none.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog
from anyio import CapacityLimiter, Semaphore, create_task_group, to_thread
from anyio.lowlevel import checkpoint

from kproxy.common.counters import Counters
from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.loop.pulse import pulse
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.queue_settings import settings_of
from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from kproxy.protocol.codecs import TooLarge, Unfit
from kproxy.protocol.records import KeyedRecord, keyed_records, unpacked, with_records
from kproxy.protocol.varint import Malformed
from kproxy.shard.appends import Verdict, verdict
from kproxy.shard.compaction_keys import Aborted, Keys
from kproxy.shard.compaction_plan import Plan, plan
from kproxy.shard.copier import copy_of
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.records import Compact
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import GENERATION_MAX, Batch
from kproxy.virtual.rows.queues import Compaction
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

KEYS_MAX = 100_000
"""Keys noted in one pass: about 15 MB."""
_READ_BYTES, _READ_BATCHES = 1 << 20, 200  # at a time
_APPEND_BYTES, _APPENDS = 1 << 20, 500  # at a time
_UNREADABLE_MAX = 10_000
_FRAME_BYTES = 1024  # around a batch that is written again
_COMMIT_KEY = bytes((0, 0, 0, 1))  # the key of a marker's record
_LOOKS_AT_ONCE = 50
_PASSES = 16
"""The number of passes at a time in a shard, so that small partitions share the log's fsync."""
_SMALL_BYTES = 64 << 10
"""A pass over no more takes little memory, whatever is in it."""

Made = TypeVar("Made")


class _What(Enum):
    """The kind of a batch to compaction."""

    RECORDS = auto()
    ABORTED = auto()
    COMMIT_MARKER = auto()
    ABORT_MARKER = auto()


class _Found(NamedTuple):
    """A batch, as a pass reads it."""

    last_offset: int
    batch: Batch
    data: bytes
    what: _What


class CompactionLimits:
    """The bounds on a worker's compaction at a time, over all of its shards."""

    def __init__(self) -> None:
        self.large = CapacityLimiter(1)  # passes over large partitions: each notes many keys
        self.unpacking = CapacityLimiter(1)  # threads: a batch may unpack to 32 MiB


class Unreadable(Exception):
    """A batch whose records cannot be told."""


class _TooMany(Exception):
    """A batch that holds more than is looked at."""


class _Stopped(Exception):
    """The log takes no more here, or something else changed the partition."""


def _records(header: BatchHeader, data: bytes) -> Iterator[KeyedRecord]:
    """Yield a batch's records one at a time: very many at once set off garbage collections.

    Raises Unreadable, _TooMany.
    """
    try:
        yield from keyed_records(header, unpacked(data))
    except TooLarge as error:
        raise _TooMany(str(error)) from error
    except Malformed as error:
        raise Unreadable(str(error)) from error


class Compactor:
    """The compaction of one shard's partitions, of queues that ask for it; `run` until
    cancelled.
    """

    def __init__(
        self,
        shard: Shard,
        config: Config,
        lookup: Lookup,
        now_ms: Callable[[], int],
        limits: CompactionLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        """Take the worker's `limits` and `counters`, which all of its shards share."""
        self._shard = shard
        self._lookup = lookup
        self._now_ms = now_ms
        self._period_s = config.compaction_check_ms / 1000
        self._batch_bytes_max = config.log_bytes_max - _FRAME_BYTES
        self._limits = limits or CompactionLimits()
        self._counters = counters or Counters()
        self._passes = Semaphore(_PASSES)
        self._unreadable: set[PartitionKey] = set()

    async def run(self) -> None:
        while True:
            await pulse(self._period_s)
            await self.round()

    async def round(self) -> None:
        """Look at each partition that may have something to compact."""
        taken, self._shard.uncompacted = list(self._shard.uncompacted), set()
        async with create_task_group() as tasks:
            for number, key in enumerate(taken, 1):
                if not self._shard.serving:  # it may come back, with all that is in memory
                    for left in taken[number - 1 :]:
                        self._shard.note_uncompacted(left)
                    return
                if isinstance(self._look(key), Plan):
                    await self._passes.acquire()
                    tasks.start_soon(self._pass_over, key)
                if number % _LOOKS_AT_ONCE == 0:
                    await checkpoint()

    def _look(self, key: PartitionKey) -> Plan | None:
        """Return the plan that is due, if any; file the partition under the time of a later one."""
        queue = self._lookup.find_id(key[0])
        if queue is None and self._shard.state.partition(key) is not None:
            self._shard.note_uncompacted(key)  # it is not announced here yet, or going
        settings = None if queue is None else settings_of(queue.configs)
        if settings is None or not settings.compacted or key in self._unreadable:
            return None
        due = plan(self._shard.state, key, settings, self._now_ms())
        if isinstance(due, Plan):
            return due
        if due.undecided:
            self._shard.note_uncompacted(key)
        if not due.never:
            self._file(key, due.again_ms)
        return None

    async def _pass_over(self, key: PartitionKey) -> None:
        """Run one pass, and look at the rest: there may be more keys than one pass notes."""
        try:
            due = self._look(key)
            if due is not None and due.size <= _SMALL_BYTES:
                await self._run(key, due)
            elif due is not None:
                async with self._limits.large:
                    await self._run(key, due)
            self._counters.compaction_passes += due is not None
            if self._look(key) is not None:
                self._shard.note_uncompacted(key)
        except Unreadable as error:
            _log.error("not_compacted", queue=self._name(key), partition=key[1],
                       reason=str(error))  # fmt: skip
            self._counters.not_compacted += 1
            if len(self._unreadable) < _UNREADABLE_MAX:
                self._unreadable.add(key)
        except (_Stopped, KafkaError, EOFError, OSError) as error:
            _log.warning("compaction_stopped", queue=self._name(key), reason=str(error))
            self._shard.note_uncompacted(key)
        finally:
            self._passes.release()

    async def _run(self, key: PartitionKey, due: Plan) -> None:
        one = _Pass(self._shard, key, due, self._limits.unpacking, self._batch_bytes_max)
        try:
            await one.run()
        finally:
            self._counters.batches_not_compacted += one.left_as_is
            if one.left_as_is:
                _log.warning(
                    "batches_not_compacted", queue=self._name(key), partition=key[1],
                    batches=one.left_as_is, reason=one.why,
                )  # fmt: skip

    def _name(self, key: PartitionKey) -> str | None:
        queue = self._lookup.find_id(key[0])
        return None if queue is None else queue.name

    def _file(self, key: PartitionKey, again_ms: int) -> None:
        """Let retention's look at a partition bring it here then."""
        filed = self._shard.kv.get(entry_key := rows.retention_entry_key(*key))
        if filed is not None and int.from_bytes(filed, "big") <= again_ms:
            return
        self._shard.commit(
            {
                entry_key: again_ms.to_bytes(8, "big"),
                rows.retention_due_key(again_ms, *key): b"",
            }
        )


class _Pass:
    """One pass over a partition."""

    def __init__(
        self, shard: Shard, key: PartitionKey, plan: Plan, unpacking: CapacityLimiter,
        batch_bytes_max: int,
    ) -> None:  # fmt: skip
        """Take `batch_bytes_max`, the largest batch that the log takes."""
        self._shard = shard
        self._key = key
        self._plan = plan
        self._unpacking = unpacking
        self._batch_bytes_max = batch_bytes_max
        self.left_as_is = 0
        """Batches that stay though records of them might go."""
        self.why = ""
        self._keys = Keys(KEYS_MAX)
        self._appends: list[Envelope] = []
        self._removed: list[tuple[int, int]] = []
        self._pending_bytes = 0
        self._left_bytes = 0
        self._tombstones = False

    async def run(self) -> None:
        """Run the pass.

        Raises Unreadable, _Stopped, KafkaError, OSError, EOFError: the next one goes on.
        """
        plan = self._plan
        end, size_through = await self._note_keys()
        offset = plan.log_start
        aborted = Aborted(self._shard.state, self._key, offset)
        while found := await self._read(offset, end, aborted):
            offset = found[-1].last_offset + 1
            for envelope in await self._aside(self._rewritten, found):
                self._appends.append(envelope)
                self._pending_bytes += len(envelope.body)
                if self._pending_bytes >= _APPEND_BYTES or len(self._appends) >= _APPENDS:
                    await self._append()
            await self._append_removed()
        progress = Compaction(
            clean_end=end, size_through=size_through, clean_bytes=self._left_bytes,
            pending_end=min(plan.pending_end, end),
            pending_ms=plan.pending_ms if self._tombstones and not self.left_as_is else -1,
            settled_end=plan.settled_end, log_start=plan.log_start,
        )  # fmt: skip
        self._appends.append(Compact(*self._key, [], progress).envelope())
        await self._append()

    async def _note_keys(self) -> tuple[int, int]:
        """Note the keys of what is new; up to where, and the partition's size there."""
        plan = self._plan
        offset = max(plan.done.clean_end, plan.log_start)
        size_through = plan.done.size_through
        aborted = Aborted(self._shard.state, self._key, offset)
        while found := await self._read(offset, plan.end, aborted):
            last = found[await self._aside(self._note, found) - 1]
            offset, size_through = last.last_offset + 1, last.batch.size_through
            if self._keys.full:
                return offset, size_through
        return plan.end, plan.size_through

    def _note(self, found: list[_Found]) -> int:
        """Note the keys of these batches; return how many batches were noted. Raises Unreadable."""
        for number, (last_offset, batch, data, what) in enumerate(found, 1):
            if what == _What.RECORDS:
                with suppress(_TooMany):  # the rest of it is handled below
                    records = _records(read_header(data), data)
                    self._keys.note(records, last_offset - batch.last_delta)
            if self._keys.full:
                return number
        return len(found)

    def _rewritten(self, found: list[_Found]) -> list[Envelope]:
        """Return envelopes that write batches again that lose records. Raises Unreadable."""
        made = []
        for last_offset, batch, data, what in found:
            # An earlier pass here left nothing of the records that an abort marker ends.
            needed = what == _What.ABORT_MARKER and last_offset >= self._plan.done.clean_end
            if what != _What.RECORDS and (needed or last_offset == self._plan.last_offset):
                self._left_bytes += len(data)
                continue
            if what != _What.RECORDS:
                self._removed.append((last_offset, batch.generation))
                continue
            try:
                left = self._left_of(last_offset - batch.last_delta, data)
            except (_TooMany, Unfit) as error:
                self._leave(str(error))
                left = data
            if not left:
                self._removed.append((last_offset, batch.generation))
            elif left is not data:
                generation = batch.generation % GENERATION_MAX + 1
                made.append(copy_of(self._key, last_offset, batch, left, generation))
            self._left_bytes += len(left)
        return made

    def _left_of(self, base_offset: int, data: bytes) -> bytes:
        """Return a batch with the records that stay; empty where none does.

        Raises Unreadable, _TooMany, Unfit.
        """
        header, kept = read_header(data), list[bytes]()
        latest_ms, tombstones = -1, False
        for record in _records(header, data):
            if not self._keys.kept(record, base_offset, self._plan):
                continue
            kept.append(record.data)
            latest_ms = max(latest_ms, record.time_ms)
            if not record.has_value:
                tombstones |= base_offset + record.offset_delta < self._plan.last_offset
        self._tombstones |= tombstones
        if len(kept) == header.record_count or not kept:
            return data if kept else b""
        return with_records(header, kept, latest_ms, max(self._batch_bytes_max, len(data)))

    def _leave(self, why: str) -> None:
        self.left_as_is += 1
        self.why = why

    async def _aside(self, work: Callable[[list[_Found]], Made], found: list[_Found]) -> Made:
        """Run work on a thread: batches are unpacked there, one at a time of the whole worker."""
        return await to_thread.run_sync(work, found, limiter=self._unpacking)

    async def _append_removed(self) -> None:
        if self._removed:
            self._appends.append(Compact(*self._key, self._removed).envelope())
            self._removed = []
        if self._appends:
            await self._append()

    async def _append(self) -> None:
        """Append the envelopes.

        Raises KafkaError: the log takes no more; _Stopped: another one compacts as well.
        """
        appends, self._appends, self._pending_bytes = self._appends, [], 0
        for outcome in await self._shard.append(appends).wait():
            if verdict(outcome) is Verdict.NEVER:
                self._leave(outcome.message or "the log does not take it")
            elif outcome.code:
                raise _Stopped(f"{outcome.code_by_name} for a batch")

    async def _read(self, offset: int, end: int, aborted: Aborted) -> list[_Found]:
        """Return the next batches from `offset` on that begin before `end`, with their bytes."""
        found, size = [], 0
        for last_offset, batch in islice(
            self._shard.state.batches(self._key, offset, end), _READ_BATCHES
        ):
            found.append((last_offset, batch))
            size += batch.length
            if size >= _READ_BYTES:
                break
        segments = self._shard.segments
        with segments.pinned({batch.segment for _, batch in found}):
            read = await to_thread.run_sync(list, self._bytes(found))
        if found and (row := self._shard.state.partition(self._key)) and row.any_aborted:
            await aborted.read(found[0][0], found[-1][0] + 1)
        return [
            _Found(last_offset, batch, data, _what(data, last_offset, aborted))
            for (last_offset, batch), data in zip(found, read, strict=True)
        ]

    def _bytes(self, found: list[tuple[int, Batch]]) -> Iterator[bytes]:
        for _, batch in found:
            data = bytearray(batch.length)
            self._shard.segments.read_into(memoryview(data), batch.segment, batch.position, True)
            yield bytes(data)


def _what(data: bytes, last_offset: int, aborted: Aborted) -> _What:
    header = read_header(data)
    if not header.is_transactional:
        return _What.RECORDS
    if header.is_control:
        commit = next(keyed_records(header, data[HEADER_BYTES:])).key == _COMMIT_KEY
        return _What.COMMIT_MARKER if commit else _What.ABORT_MARKER
    return _What.ABORTED if aborted.has(header.producer_id, last_offset) else _What.RECORDS
