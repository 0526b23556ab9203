"""The publication of a shard's changed rows in the offset topic, and the trim of its log behind
them.

Publication bounds the log: without it a new owner would fold the log from its first record.

1. The owner fences earlier owners: it opens a producer with the shard's transactional id, and
   reads its log to the end.
2. It notes X, the log offset after the last applied envelope, and S, the first log offset that a
   live batch needs.
3. It captures the changed rows as they are at X. The fold goes on meanwhile: before it changes a
   row that is not captured yet, it hands the old value to the capture.
4. It writes the rows and X in one Kafka transaction. After a failure the rows stay marked as
   changed (`d` rows), and the next publication writes them.
5. Once the transaction is visible to readers, it trims the log to S (DeleteRecords).

All published rows together are the shard's state at X. `cluster.rebuild` starts from there.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice

import anyio
import structlog
from anyio import to_thread
from anyio.lowlevel import checkpoint

from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.log.disk_space import ALL, ALWAYS, MODEST
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import Pace, slices
from kproxy.loop.pulse import pulse
from kproxy.loop.threads import stoppable
from kproxy.shard.shard import Shard
from kproxy.upstream.link import DataLink
from kproxy.upstream.rows_writer import NotPublished, RowsWriter
from kproxy.upstream.settings import Upstream
from kproxy.upstream.topics import row_bytes_max
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.snapshot import Anchors, RowCapture
from kproxy.virtual.state import State

_log = structlog.get_logger()

_ROWS_AT_ONCE = 300
_UNMARKED_AT_ONCE = 1000
_PERIOD_S = 1.0
_IDLE_S = 30.0  # a producer has threads of its own that wake up all the time


_WAITING_FACTOR = 20  # so many publications' rows may wait


def admitted(state: State, config: Config) -> frozenset[Kind]:
    """Return the kinds of envelopes that a shard's log takes, by how many rows are unpublished.

    Their keys are in memory, and their values while they are published. Without publication the log
    is not trimmed either. Kinds that free something are always taken, small ones up to twice that.
    """
    waiting, most = len(state.unpublished or ()), waiting_max(config)
    if waiting < most:
        return ALL
    return MODEST if waiting < 2 * most else ALWAYS


def waiting_max(config: Config) -> int:
    """Return how many rows of a shard may be unpublished before produces are refused."""
    return max(1, _WAITING_FACTOR * config.publish_rows_max // config.shards)


def _handed_over(rows_: dict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    """Let go of each row with its turn: the writer has it then, and its line is short."""
    while rows_:
        yield rows_.popitem()


class Publisher:
    """A task that keeps one shard's published rows near its state; `run` until cancelled."""

    def __init__(
        self,
        shard: Shard,
        upstream: Upstream,
        link: DataLink,
        config: Config,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._shard = shard
        self._monotonic = clock.monotonic
        self._upstream = upstream
        self._link = link
        self._period_s = config.publish_ms / 1000
        self._rows_max = config.publish_rows_max // config.shards
        self._row_bytes_max = row_bytes_max(config.data_message_bytes_max)
        self._writer: RowsWriter | None = None
        self._anchors = Anchors(shard.kv)
        self._trimmed_to = 0
        self._published_at = self._fresh_at = self._monotonic()

    @property
    def published_s_ago(self) -> float:
        """Seconds since all rows were published, or none waited for it."""
        return self._monotonic() - self._fresh_at

    async def run(self) -> None:
        try:
            while True:
                await pulse(min(_PERIOD_S, self._period_s))
                if not self._changed():
                    self._fresh_at = self._monotonic()
                if self._due():
                    await self.publish()
                elif self._monotonic() - self._published_at > _IDLE_S + self._period_s:
                    await self._close()
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await to_thread.run_sync(writer.close)

    def _changed(self) -> int:
        """Return the number of rows to be published, without a lone claim and what rows of
        writers say, which the log still has.
        """
        state = self._shard.state
        unpublished = state.unpublished or set()
        lone = (rows.TERM_KEY in unpublished) + state.writers.unpublished(unpublished)
        return len(unpublished) - lone

    def _due(self) -> bool:
        changed = self._changed()
        if changed > self._rows_max:
            return True
        old = self._monotonic() - self._published_at > self._period_s
        return old and (changed > 0 or self._shard.first_live() > self._trimmed_to)

    async def publish(self) -> None:
        """Publish all rows that changed, as of now, in one transaction; then trim the log."""
        try:
            writer = await self._fenced()
        except (NotPublished, KafkaError) as error:
            _log.warning("rows_not_published", shard=self._shard.shard, reason=str(error))
            self._published_at = self._monotonic()
            return
        state = self._shard.state
        await self._look_ahead(list(state.unpublished or ()))
        keys, state.unpublished = state.unpublished or set(), set()
        as_of, trim_to = self._shard.applied_through.next_offset, self._shard.first_live()
        try:
            changed = await self._captured(keys)
            await stoppable(partial(writer.write, _handed_over(changed), as_of))
        except BaseException as error:
            state.unpublished |= keys
            if not isinstance(error, NotPublished):
                raise
            await self._refused(error)
            return
        self._published_at = self._fresh_at = self._monotonic()
        await self._unmark(keys)
        _log.debug("rows_published", shard=self._shard.shard, rows=len(keys), as_of=as_of)
        await self._trim(trim_to)

    async def _unmark(self, keys: set[bytes]) -> None:
        """Forget that these are to be published, but those that have changed again by now."""
        pace, again = Pace(), self._shard.state.unpublished
        assert again is not None
        for some in slices(keys, _UNMARKED_AT_ONCE):
            self._shard.commit({rows.unpublished_key(k): None for k in some if k not in again})
            await pace.step()

    async def _look_ahead(self, keys: list[bytes]) -> None:
        """Leave little to look for while the rows are taken: in one go where they change."""
        pace = Pace()
        for _ in self._anchors.look_ahead(keys):
            await pace.step()

    async def _captured(self, keys: set[bytes]) -> dict[bytes, bytes | None]:
        """Return these rows as they are now, whatever happens while they are taken."""
        capture = self._shard.capture = RowCapture(self._shard.kv, set(keys), self._anchors)
        try:
            while capture.take_some(_ROWS_AT_ONCE):
                await checkpoint()
        finally:
            self._shard.capture = None
        return capture.taken

    async def _fenced(self) -> RowsWriter:
        """Return a writer that fences all others, with all that they published behind us."""
        if self._writer is None:
            writer = await to_thread.run_sync(
                RowsWriter, self._upstream, self._shard.shard, self._row_bytes_max
            )
            try:
                await stoppable(writer.fence)
                await self._shard.log.catch_up()
            except BaseException:  # its end waits for its threads, too
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(writer.close)
                raise
            self._writer = writer
        return self._writer

    async def _refused(self, error: NotPublished) -> None:
        """Keep the rows for the next time: with a new writer, where this one is of no use."""
        _log.warning(
            "rows_not_published", shard=self._shard.shard, reason=str(error), fenced=error.fenced
        )
        self._published_at = self._monotonic()
        if error.spent:
            await self._close()

    async def _trim(self, trim_to: int) -> None:
        """Give back the log below `trim_to`: nothing there is live, and the rows are published."""
        if trim_to <= self._trimmed_to:
            return
        try:
            if not await self._link.rows_settled(self._shard.shard):
                return  # the next publication tries again
            start = await self._link.trim(self._shard.shard, trim_to)
        except KafkaError as error:
            _log.warning("log_not_trimmed", shard=self._shard.shard, reason=error.message)
            return
        self._trimmed_to = trim_to
        _log.info("log_trimmed", shard=self._shard.shard, to=trim_to, log_start=start)
        await self._sweep_voids(trim_to)

    async def _sweep_voids(self, trim_to: int) -> None:
        """Forget what had no effect in a part of the log that no rebuild reads any more."""
        start, end = RowKind.NO_EFFECT.letter, rows.no_effect_key(trim_to)
        while found := list(islice(self._shard.kv.scan(start, end), _ROWS_AT_ONCE)):
            self._shard.commit(dict.fromkeys(key for key, _ in found))
            start = found[-1][0] + b"\0"  # RocksDB would step over what was deleted
            await checkpoint()
