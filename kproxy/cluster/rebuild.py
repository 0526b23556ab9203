"""Makes a shard's local copy from nothing: the published rows, then the log.

The published rows are the shard's state at log offset X. They lack the index of batches, because
the log still holds every live batch. A rebuild has three steps:

1. It reads the log's start, and after that all published rows. The order matters: the log is
   trimmed only after the rows are published, so nothing before that start is live at X.
2. It reads the log from its start to X. It does not judge these envelopes again, because the state
   that judged them is gone. It stores each batch, and counts its queue offset on from the
   partition's anchor (`virtual.snapshot`).
3. It compares what it counted with the rows. A difference means that the log or the rows lost
   something: the worker refuses to serve the shard (`NotRebuilt`).

From X on the fold goes on as always. A copy without a checkpoint row is unfinished, and discarded.

If the cluster has lost the end of the log from M on, and rows were published as of a later X, the
rows do not know the envelopes that lie between M and X now. The rebuild passes over them, and puts
the end of each partition to where the log's batches end (`cluster.lost_end`).
"""

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from anyio.lowlevel import checkpoint

from kproxy.cluster import lost_end
from kproxy.cluster.log_prefix import marked
from kproxy.cluster.lost_end import LostEnd, NotRebuilt
from kproxy.cluster.services import ShardServices
from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.log.weight import weight
from kproxy.loop.allocator import give_back
from kproxy.loop.callbacks import nothing
from kproxy.loop.pace import Pace
from kproxy.loop.threads import Stop, on_disk, stoppable
from kproxy.shard.shard import Shard
from kproxy.store import files
from kproxy.upstream.link import LogListenerBase
from kproxy.upstream.log_reader import Records
from kproxy.upstream.read_topic import read_to_end
from kproxy.virtual import snapshot
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.counts import counted
from kproxy.virtual.folds.carried import SEVERAL
from kproxy.virtual.reindex import Reindex, RowsDisagree
from kproxy.virtual.rows.queues import COMPARE_KEY
from kproxy.virtual.snapshot import AS_OF_KEY, decode_as_of
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

_NAMES = 5000  # written at a time
_RECORDS = 200  # records of the log in one piece; or partitions that markers name
_REBUILDING = 4  # a worker that begins with nothing rebuilds several shards at a time


class LogTooShort(Exception):
    """The log ends before what the rows were published as of: the cluster has lost records."""

    def __init__(self, end: int, as_of: int) -> None:
        super().__init__(f"rows were published as of log offset {as_of}, but the log ends at {end}")
        self.end, self.as_of = end, as_of


class LogFilled(LogTooShort):
    """The log is long enough again, with marks in the place of the lost records."""


def wipe(directory: Path) -> None:
    """Remove a local copy, for good: a power cut brings back no part of it beside another."""
    if directory.exists():
        shutil.rmtree(directory)
        files.sync_directory(directory.parent)


def pieces(records: Records) -> Iterator[Records]:
    """Yield the log's records in pieces, each for one turn of the loop."""
    some: Records = []
    left = _RECORDS
    for record in records:
        some.append(record)
        envelope = record[1]
        left -= weight(envelope) if envelope.kind in SEVERAL else 1
        if left <= 0:
            yield some
            some, left = [], _RECORDS
    if some:
        yield some


def _flush_due(shard: Shard, config: Config) -> bool:
    return shard.kv.unflushed_bytes() > config.rows_flush_bytes // _REBUILDING


class _Below(LogListenerBase):
    """A reader of the log from its start to before X, where the published rows stand."""

    def __init__(
        self, shard: Shard, start: int, as_of: int, config: Config, now_ms: int,
        lost: LostEnd | None,
    ) -> None:  # fmt: skip
        self._shard = shard
        self._lost = range(0) if lost is None else range(lost.start, lost.end)
        self._note_told = nothing if lost is None else lost.note_told
        self.marked = as_of  # from where on a mark says that the log was lost
        self.rolled_back: dict[PartitionKey, tuple[int, int]] | None = None if lost is None else {}
        self.next_offset = start
        self._as_of = as_of
        self._config = config
        self._reindex = Reindex(shard.state, now_ms, config.retention_check_ms)
        self._last: Envelope | None = None
        self.error: Exception | None = None
        self.done = anyio.Event()

    async def was_read(self, records: Records) -> None:
        if not self.done.is_set():
            try:
                await self._take([r for r in records if self.next_offset <= r[0] < self._as_of])
                await self._flush_if_due()
                if self.next_offset == self._as_of:
                    await self.finish()
            except Exception as error:  # the rebuild waits to hear of any error
                self._finish(error)

    async def _take(self, records: Records) -> None:
        if records and records[0][0] != self.next_offset:
            raise KafkaError(
                Code.NOT_LEADER_OR_FOLLOWER, f"{self.next_offset} is missing in the log"
            )
        pace = Pace()
        for some in pieces(records):
            if self.done.is_set():
                return
            await self._take_some(some)
            await pace.step()

    async def _take_some(self, records: Records) -> None:
        batch = [envelope for _, envelope in records]
        segments, segment_bytes = self._shard.segments, self._config.segment_bytes
        append = partial(segments.append, self.next_offset, batch, segment_bytes)
        places = await on_disk(append) if segments.may_hang(segment_bytes) else append()
        if self.done.is_set():
            return
        for (log_offset, envelope), place in zip(records, places, strict=True):
            if log_offset in self._lost:
                self._reindex.void(log_offset, envelope)
                self._note_told(envelope)
            else:
                self._reindex.apply(log_offset, envelope, place)
            if envelope.kind == Kind.FOREIGN:
                self.marked = min(self.marked, marked(envelope))
        self._shard.kv.write(self._shard.state.drain())
        self.next_offset, self._last = self.next_offset + len(batch), batch[-1]

    async def _flush_if_due(self) -> None:
        if _flush_due(self._shard, self._config):
            self._shard.kv.begin_flush()
            await on_disk(self._shard.kv.finish_flush)

    async def finish(self) -> None:
        """Finish after the last record: from here on the fold goes on."""
        shard = self._shard
        try:
            for _ in self._reindex.finish(self.rolled_back):
                shard.kv.write(shard.state.drain())
                await self._flush_if_due()
                await checkpoint()
        except RowsDisagree as error:
            self._finish(NotRebuilt(str(error)))
            return
        shard.log.next_offset = self._as_of
        shard.state.put(COMPARE_KEY, b"")
        shard.begin_at(self._as_of, self._last)
        self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        self.error = error
        self.done.set()

    def lost(self, reason: str) -> None:
        self._finish(KafkaError(Code.NOT_LEADER_OR_FOLLOWER, reason))


async def rebuild(shard: Shard, services: ShardServices, lost: LostEnd | None = None) -> None:
    """Fill an empty shard up to the log offset that the published rows stand for.

    Rows go to disk as they come, for memory to be bounded; those without a checkpoint are no copy.
    `lost`: what the cluster has lost of the log; what the rows know of it is added.

    Raises NotRebuilt, LogTooShort; KafkaError where the log was trimmed meanwhile, or the cluster
    is away: wipe and try again.
    """
    index, link = shard.shard, services.link
    start = await link.start(index)  # asked first: when rows are read, nothing is live before it
    as_of = await _read_rows(shard, services)
    end = await link.end(index)
    if as_of > end:
        raise LogTooShort(end, as_of)
    if as_of < start:
        raise KafkaError(
            Code.NOT_LEADER_OR_FOLLOWER,
            f"the log begins at {start}, but its rows were published as of {as_of} only",
        )
    shard.segments.start(start)
    below = _Below(shard, start, as_of, services.config, services.clock.now_ms(), lost)
    if start == as_of:
        await below.finish()
    else:
        link.follow(index, below)
        link.read(index, start, as_of)
    async with services.progress.of(
        "shard_rebuilding", as_of - start, lambda: below.next_offset - start, shard=index
    ):
        await below.done.wait()
    if isinstance(below.error, NotRebuilt) and lost is None and below.marked < as_of:
        raise LogFilled(below.marked, as_of)
    if below.error is not None:
        raise below.error
    if lost is not None and below.rolled_back:
        lost_end.add(shard, lost, below.rolled_back, services)
    # The memory that the client library and RocksDB needed for it
    await to_thread.run_sync(give_back)
    _log.info("shard_rebuilt", shard=index, log_start=start, rows_as_of=as_of, log_end=end)


async def _read_rows(shard: Shard, services: ShardServices) -> int:
    """Put the published rows in place; the log offset they stand for."""
    as_of = 0

    def read(stop: Stop) -> None:
        nonlocal as_of
        topic = services.upstream.offset
        for chunk in read_to_end(services.upstream, topic, shard.shard, check=stop.check):
            changes: dict[bytes, bytes | None] = {}
            for key, value in chunk:
                if key == AS_OF_KEY and value is not None:
                    as_of = decode_as_of(value)
                else:
                    changes |= snapshot.decode(key, value)
            shard.kv.write(changes)
            if _flush_due(shard, services.config):
                shard.kv.flush()
        names = snapshot.names(shard.kv)
        while part := list(islice(names, _NAMES)):
            stop.check()
            shard.kv.write(dict(part))
        shard.state.counts = counted(shard.kv, stop.check)  # its bytes come with the log

    await stoppable(read)
    return as_of
