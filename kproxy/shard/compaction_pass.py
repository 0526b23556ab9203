"""One pass of compaction over a partition: `kproxy.shard.compactor` says how it decides."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from kproxy.protocol.codecs import TooLarge, Unfit
from kproxy.protocol.records import KeyedRecord, keyed_records, unpacked, with_records
from kproxy.protocol.varint import Malformed
from kproxy.shard.appends import Verdict, verdict
from kproxy.shard.compaction_keys import Aborted, Keys
from kproxy.shard.compaction_plan import Plan
from kproxy.shard.copier import copy_of
from kproxy.shard.shard import Shard
from kproxy.store.damage import DamagedBatch
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.records import Compact
from kproxy.virtual.rows.batches import GENERATION_MAX, Batch
from kproxy.virtual.rows.queues import Compaction
from kproxy.virtual.types import PartitionKey

KEYS_MAX = 100_000
"""Keys noted in one pass: about 15 MB."""
_READ_BYTES, _READ_BATCHES = 1 << 20, 200  # at a time
_APPEND_BYTES, _APPENDS = 1 << 20, 500  # at a time
_COMMIT_KEY = bytes((0, 0, 0, 1))  # the key of a marker's record

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


class Unreadable(Exception):
    """A batch that is damaged, or whose records cannot be told."""


class _TooMany(Exception):
    """A batch that holds more than is looked at."""


class Stopped(Exception):
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


class Pass:
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

        Raises Unreadable, Stopped, KafkaError, OSError: the next one goes on.
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

        Raises KafkaError: the log takes no more; Stopped: another one compacts as well.
        """
        appends, self._appends, self._pending_bytes = self._appends, [], 0
        for outcome in await self._shard.append(appends).wait():
            if verdict(outcome) is Verdict.NEVER:
                self._leave(outcome.message or "the log does not take it")
            elif outcome.code:
                raise Stopped(f"{outcome.code_by_name} for a batch")

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
            place = batch.segment, batch.position, batch.length
            try:
                yield bytes(self._shard.segments.batch(*place) or b"")
            except DamagedBatch as error:
                raise Unreadable(str(error)) from error


def _what(data: bytes, last_offset: int, aborted: Aborted) -> _What:
    header = read_header(data)
    if not header.is_transactional:
        return _What.RECORDS
    if header.is_control:
        commit = next(keyed_records(header, data[HEADER_BYTES:])).key == _COMMIT_KEY
        return _What.COMMIT_MARKER if commit else _What.ABORT_MARKER
    return _What.ABORTED if aborted.has(header.producer_id, last_offset) else _What.RECORDS
