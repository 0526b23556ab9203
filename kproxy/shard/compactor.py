"""Compaction: of each key the last record stays (`cleanup.policy=compact`).

A pass over a partition has two parts, as Kafka's cleaner has. The first reads what is new since
the last pass, and notes the last offset of each key, of as many keys as memory is given for. The
second reads the partition from its start, and drops each record whose key has a later one noted.
What is dropped is decided here and logged: REPLACE writes a batch again without some records,
COMPACT names batches of which nothing is left, and at the end how far the pass came. So all
workers and every rebuild agree. A crash between two of them leaves records that the next pass
drops.

A key's last record is never dropped, so an older one cannot be seen to come back. A record without
a value (a tombstone) goes `delete.retention.ms` after a pass that left nothing older of its key.

The partition's last record stays, whatever it is: a reader that waits for the end gets there. What
cannot be read is left as it is, with all of its partition.

What a transaction has written is looked at once all before it is decided. Records of an aborted one
go, and stand for no key. The marker of a committed one goes, for it says nothing to a reader. That
of an aborted one stays until the next pass, as its ABORTED row does: a reader drops all of the
producer's records from the row's offset to the marker's, and then there are none.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog
from anyio import CapacityLimiter, Semaphore, create_task_group, to_thread
from anyio.lowlevel import checkpoint

from kproxy.config import Config
from kproxy.counters import Counters
from kproxy.errors import KafkaError
from kproxy.loop.pulse import pulse
from kproxy.metadata.catalogue import Lookup
from kproxy.metadata.queue_settings import settings_of
from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from kproxy.protocol.records import KeyedRecord, keyed_records, unpacked, with_records
from kproxy.protocol.varint import Malformed
from kproxy.shard.compaction_plan import Plan, plan
from kproxy.shard.copier import copy_of
from kproxy.shard.shard import Shard
from kproxy.virtual import rows, transaction_rows
from kproxy.virtual.commands import Compact
from kproxy.virtual.envelope import Envelope
from kproxy.virtual.rows import GENERATION_MAX, Batch, Compaction
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

KEYS_MAX = 100_000
"""Keys noted in one pass: about 15 MB."""
_READ_BYTES, _READ_BATCHES = 1 << 20, 200  # at a time
_APPEND_BYTES, _APPENDS = 1 << 20, 500  # at a time
_UNREADABLE_MAX = 10_000
_SHORT_KEY = 16
_ABORTED_AT_ONCE = 500  # rows
_COMMIT_KEY = bytes((0, 0, 0, 1))  # of a marker's record
_LOOKS_AT_ONCE = 50
_PASSES = 16
"""At a time in a shard, so that those over small partitions share the log's fsync."""
_SMALL_BYTES = 64 << 10
"""A pass over no more takes little memory, whatever is in it."""

Made = TypeVar("Made")


class _What(Enum):
    """What a batch is to compaction."""

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
    """How much of compaction a worker does at a time, over all of its shards."""

    def __init__(self) -> None:
        self.large = CapacityLimiter(1)  # passes over large partitions: each notes many keys
        self.unpacking = CapacityLimiter(1)  # threads: a batch may unpack to 32 MiB


class Unreadable(Exception):
    """A batch whose records cannot be told."""


class _Stopped(Exception):
    """The log takes no more here, or something else changed the partition."""


class Keys:
    """The last offset of each key that was met; of long keys a digest stands for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        return len(self._last) >= self._most

    def note(self, records: Iterable[KeyedRecord], base_offset: int) -> None:
        last = self._last
        for record in records:
            if record.key is not None:
                last[_id(record.key)] = base_offset + record.offset_delta

    def kept(self, record: KeyedRecord, base_offset: int, plan: Plan) -> bool:
        """Whether a record stays."""
        offset = base_offset + record.offset_delta
        if offset == plan.last_offset:
            return True
        if record.key is None:  # from before the queue was compacted: Kafka drops it as well
            return False
        if self._last.get(_id(record.key), -1) > offset:
            return False
        return record.has_value or offset >= plan.settled_end


def _id(key: bytes) -> bytes:
    if len(key) <= _SHORT_KEY:
        return b"\0" + key
    return b"\1" + blake2b(key, digest_size=_SHORT_KEY).digest()


def _records(header: BatchHeader, data: bytes) -> Iterator[KeyedRecord]:
    """One at a time: very many at once set off garbage collections. Raises Unreadable."""
    try:
        yield from keyed_records(header, unpacked(data))
    except Malformed as error:
        raise Unreadable(str(error)) from error


class Aborted:
    """Which batches are of aborted transactions; asked in the order of their offsets."""

    def __init__(self, state: State, key: PartitionKey, start: int) -> None:
        self._state = state
        self._start, self._end = transaction_rows.aborted_range(key, start)
        self._through = start  # of all that began before it the rows are read
        self._by_producer: dict[int, deque[tuple[int, int]]] = {}  # (first offset, marker's)
        self._held, self._held_max = 0, _ABORTED_AT_ONCE

    async def read(self, start: int, end: int) -> None:
        """Read the rows that matter to the records from `start` to before `end`, in slices."""
        self._forget(start)
        while self._through < end:
            found = list(islice(self._state.kv.scan(self._start, self._end), _ABORTED_AT_ONCE))
            for key, value in found:
                self._note(transaction_rows.marker_offset_of(key), value, start)
                self._start = key + b"\0"
                if self._through >= end:
                    return
            if len(found) < _ABORTED_AT_ONCE:
                self._through = end  # those that are still to end begin later
            await checkpoint()

    def _note(self, marker_offset: int, value: bytes, start: int) -> None:
        aborted = transaction_rows.decode_aborted(value)
        self._through = max(self._through, aborted.last_stable)
        if marker_offset >= start:
            where = aborted.first_offset, marker_offset
            self._by_producer.setdefault(aborted.producer_id, deque()).append(where)
            self._held += 1

    def _forget(self, start: int) -> None:
        """Those whose markers lie before, where they may be many."""
        if self._held < self._held_max:
            return
        for producer_id, transactions in list(self._by_producer.items()):
            while transactions and transactions[0][1] < start:
                transactions.popleft()
            if not transactions:
                del self._by_producer[producer_id]
        self._held = sum(map(len, self._by_producer.values()))
        self._held_max = max(_ABORTED_AT_ONCE, 2 * self._held)

    def has(self, producer_id: int, offset: int) -> bool:
        """Whether a transactional record of this producer was aborted."""
        transactions = self._by_producer.get(producer_id, _NO_TRANSACTIONS)
        while transactions and transactions[0][1] < offset:
            transactions.popleft()
        return bool(transactions) and transactions[0][0] <= offset


_NO_TRANSACTIONS: deque[tuple[int, int]] = deque()


class Compactor:
    """Compacts one shard's partitions, of queues that ask for it; `run` until cancelled."""

    def __init__(
        self,
        shard: Shard,
        config: Config,
        lookup: Lookup,
        now_ms: Callable[[], int],
        limits: CompactionLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`limits`, `counters`: of the worker, for all of its shards."""
        self._shard = shard
        self._lookup = lookup
        self._now_ms = now_ms
        self._period_s = config.compaction_check_ms / 1000
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
        taken, self._shard.uncompacted = self._shard.uncompacted, set()
        async with create_task_group() as tasks:
            for number, key in enumerate(taken, 1):
                if not self._shard.serving:
                    return
                if isinstance(self._look(key), Plan):
                    await self._passes.acquire()
                    tasks.start_soon(self._pass_over, key)
                if number % _LOOKS_AT_ONCE == 0:
                    await checkpoint()

    def _look(self, key: PartitionKey) -> Plan | None:
        """What is due, if anything is; what will be is filed."""
        queue = self._lookup.find_id(key[0])
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
        """One pass, and a look at what is left: there may be more keys than one pass notes."""
        try:
            due = self._look(key)
            if due is not None and due.size <= _SMALL_BYTES:
                await _Pass(self._shard, key, due, self._limits.unpacking).run()
            elif due is not None:
                async with self._limits.large:
                    await _Pass(self._shard, key, due, self._limits.unpacking).run()
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
        self, shard: Shard, key: PartitionKey, plan: Plan, unpacking: CapacityLimiter
    ) -> None:
        self._shard = shard
        self._key = key
        self._plan = plan
        self._unpacking = unpacking
        self._keys = Keys(KEYS_MAX)
        self._appends: list[Envelope] = []
        self._removed: list[tuple[int, int]] = []
        self._pending_bytes = 0
        self._left_bytes = 0
        self._tombstones = False

    async def run(self) -> None:
        """Raises Unreadable, _Stopped, KafkaError, OSError, EOFError: the next one goes on."""
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
            pending_ms=plan.pending_ms if self._tombstones else -1,
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
        """How many of these batches were noted. Raises Unreadable."""
        for number, (last_offset, batch, data, what) in enumerate(found, 1):
            if what == _What.RECORDS:
                self._keys.note(_records(read_header(data), data), last_offset - batch.last_delta)
            if self._keys.full:
                return number
        return len(found)

    def _rewritten(self, found: list[_Found]) -> list[Envelope]:
        """What writes batches again that lose records. Raises Unreadable."""
        made = []
        for last_offset, batch, data, what in found:
            # Where an earlier pass came by, nothing is left of what an abort marker ends.
            needed = what == _What.ABORT_MARKER and last_offset >= self._plan.done.clean_end
            if what != _What.RECORDS and (needed or last_offset == self._plan.last_offset):
                self._left_bytes += len(data)
                continue
            if what != _What.RECORDS:
                self._removed.append((last_offset, batch.generation))
                continue
            base_offset, header = last_offset - batch.last_delta, read_header(data)
            kept: list[bytes] = []
            latest_ms = -1
            for record in _records(header, data):
                if not self._keys.kept(record, base_offset, self._plan):
                    continue
                kept.append(record.data)
                latest_ms = max(latest_ms, record.time_ms)
                if not record.has_value:
                    offset = base_offset + record.offset_delta
                    self._tombstones |= offset < self._plan.last_offset
            if not kept:
                self._removed.append((last_offset, batch.generation))
                continue
            if len(kept) < header.record_count:
                data = with_records(header, kept, latest_ms)
                generation = batch.generation % GENERATION_MAX + 1
                made.append(copy_of(self._key, last_offset, batch, data, generation))
            self._left_bytes += len(data)
        return made

    async def _aside(self, work: Callable[[list[_Found]], Made], found: list[_Found]) -> Made:
        """On a thread: batches are unpacked there, one at a time of the whole worker."""
        return await to_thread.run_sync(work, found, limiter=self._unpacking)

    async def _append_removed(self) -> None:
        if self._removed:
            self._appends.append(Compact(*self._key, self._removed).envelope())
            self._removed = []
        if self._appends:
            await self._append()

    async def _append(self) -> None:
        """Raises KafkaError: the log takes no more; _Stopped: another one compacts as well."""
        appends, self._appends, self._pending_bytes = self._appends, [], 0
        for outcome in await self._shard.append(appends).wait():
            if outcome.code:
                raise _Stopped(f"{outcome.code_by_name} for a batch")

    async def _read(self, offset: int, end: int, aborted: Aborted) -> list[_Found]:
        """The next batches from `offset` on that begin before `end`, with their bytes."""
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
