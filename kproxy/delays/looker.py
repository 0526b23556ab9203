"""A looker for what is due in one shard, which has it appended.

It holds nothing of what waits. An index has each partition under the time of what is due next
there, or earlier; the fold files a partition whose next is earlier than that, and tells it.

A turn takes some partitions that are due, and one DUE for each of them. The next turn begins once
these are durable: so what waits for a partition is appended in its order, and is sent again only
where nobody knows what became of it. One of the two is void then. A DUE is void, too, where a batch
of it was replaced or cancelled meanwhile: the next one of its partition has half as many, so that
who replaces records all the time holds up no others.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import checkpoint

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.delays import delivery
from kproxy.delays.delivery import READ_BYTES, Aside, Plan, make, plan
from kproxy.loop.clock import Clock
from kproxy.loop.pace import Pace
from kproxy.metadata.queue_settings import DEFAULTS, QueueSettings, settings_of
from kproxy.shard.due_index import DueIndexScanner
from kproxy.shard.per_shard import Claim
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.delays import Due
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows.delays import DELAY_ENTRIES, DELAYS_DUE, WAITING_BATCHES
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.schema import decode_count, encode_count
from kproxy.virtual.types import PartitionKey, QueueId

_log = structlog.get_logger()
Note = TypeVar("Note")

_PARTITIONS_AT_ONCE = 200
_PAUSE_S = 0.02
"""The pause between two turns: what is due in between is appended together."""
_LOOK_S = 0.5
"""The clock may be put forward: while anything waits it is looked at this often."""
_AGAIN_S, _AGAIN_MAX_S = 0.1, 2.0
_SET_ASIDE_PAUSE_S = 0.1
"""The pause between turns while a partition is set aside: it is due, and the others go on."""
_FRAME_BYTES = 70_000
_NOTED_MAX = 1000  # partitions
_AT_ONCE_BYTES = 32 << 10
"""The bytes of batches in the page cache that are made on the loop, in a millisecond."""
_NEVER_MS = 1 << 64
_SETTLED = Code.NONE, Code.UNKNOWN_TOPIC_ID
_AFTER = DELAYS_DUE.key((1 << 64) - 1, (QueueId(b"\xff" * 16), (1 << 32) - 1))


class Queues(Protocol):
    """A look-up of queues."""

    def find_id(self, queue_id: QueueId) -> Queue | None: ...


class Means:
    """The services that all lookers of a worker share."""

    def __init__(self, queues: Queues, config: Config, clock: Clock) -> None:
        self._queues = queues
        self.check_ms = config.retention_check_ms
        self.most = int(config.data_message_bytes_max) - _FRAME_BYTES
        self.clock = clock
        self.readers = CapacityLimiter(2)  # threads: a batch may unpack to 32 MiB

    def settings(self, queue_id: QueueId) -> QueueSettings:
        queue = self._queues.find_id(queue_id)
        return DEFAULTS if queue is None else settings_of(queue.configs)


class Looker(DueIndexScanner):
    """A looker of a shard, while it is served by this claim."""

    def __init__(self, shard: Shard, means: Means) -> None:
        super().__init__(shard, RowKind.DELAY_DUE, _PARTITIONS_AT_ONCE, _LOOK_S)
        self._claim = Claim(shard)
        self._means = means
        self._news = anyio.Event()
        self._set_aside: dict[PartitionKey, float] = {}
        """Partitions that cannot be read, or taken, and when they are tried again."""
        self._passed: dict[PartitionKey, tuple[int, int]] = {}
        """A time, and the offset before which nothing is left of what was due just then: RocksDB
        would step over all that was."""
        self._at_once: dict[PartitionKey, int] = {}
        """The most batches in the next DUE, of partitions where one was void lately."""
        self.next_ms: int | None = None
        """The time before which nothing is due; None: nothing waits."""
        shard.on_delayed = self._tell

    def _tell(self) -> None:
        """Wake the looker: a partition was filed, due before all that was known."""
        self._news.set()

    async def run(self) -> None:
        wait_s = _AGAIN_S
        while self._claim.serves:
            self._news = anyio.Event()
            try:
                more = await self.scan_once()
                wait_s = _AGAIN_S
            except (KafkaError, OSError) as error:
                _log.warning("delayed_wait", shard=self._shard.shard, reason=str(error))
                self._retry()
                await anyio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_MAX_S)
                continue
            if more:
                await checkpoint()
                continue
            await anyio.sleep(_SET_ASIDE_PAUSE_S if self._set_aside else _PAUSE_S)
            await self._sleep()

    async def _sleep(self) -> None:
        """Wait until something is due, or is filed."""
        if self.next_ms is None:
            await self._news.wait()
            return
        left_s = max(0.0, (self.next_ms - self._means.clock.now_ms()) / 1000)
        all_look_s = _LOOK_S - anyio.current_time() % _LOOK_S  # in one turn of the loop
        with anyio.move_on_after(min(left_s, all_look_s)):
            await self._news.wait()

    async def scan_once(self) -> bool:
        """Do one turn and return whether there may be more. Raise KafkaError, OSError."""
        now_ms, now_s = self._means.clock.now_ms(), anyio.current_time()
        for partition in [one for one, until_s in self._set_aside.items() if until_s <= now_s]:
            del self._set_aside[partition]
        due, more = self._next_due(DELAYS_DUE.key(now_ms + 1, _FIRST), _AFTER)
        stale: set[bytes] = set()
        found: list[tuple[bytes, int, Plan]] = []
        size, pace = 0, Pace()
        for key in due:
            await pace.step()
            from_ms, partition = DELAYS_DUE.parts(key)
            entry = self._shard.kv.get(DELAY_ENTRIES.key(partition))
            if entry is None or decode_count(entry) != from_ms:
                stale.add(key)
            elif self._shard.state.partition(delay_rows.hidden(partition)) is None:
                stale |= {key, DELAY_ENTRIES.key(partition)}
            elif partition in self._set_aside:
                self._leave(key)
            elif size < READ_BYTES:
                passed = self._passed_by(partition, from_ms)
                most = self._at_once.get(partition)
                planned = plan(self._shard, partition, from_ms, now_ms, passed, most)
                found.append((key, from_ms, planned))
                size += planned.size
            else:
                self._leave(key)
                more = True
        failed = await self._deliver([planned for _, _, planned in found if planned.batches])
        if not self._claim.serves:
            return False
        self._set_aside |= dict.fromkeys(failed, anyio.current_time() + _AGAIN_MAX_S)
        for key in [key for key, _, planned in found if planned.key in failed]:
            self._leave(key)
        found = [one for one in found if one[2].key not in failed]
        soonest_ms = self._file(found, stale)
        self._note_next()
        return more or soonest_ms <= now_ms

    def _note_next(self) -> None:
        self._hear()
        bounds = self._bounds
        if bounds.low >= bounds.high or not RowKind.DELAY_DUE.of(bounds.low):
            self.next_ms = None
        elif len(bounds.low) >= len(_AFTER):
            self.next_ms = DELAYS_DUE.parts(bounds.low[: len(_AFTER)])[0]
        else:
            self.next_ms = 0

    def _file(self, found: Sequence[tuple[bytes, int, Plan]], stale: Iterable[bytes]) -> int:
        """File each partition under the time of its next due record; return the soonest."""
        soonest_ms = _NEVER_MS
        changes: dict[bytes, bytes | None] = dict.fromkeys(stale)
        kv = self._shard.kv
        for key, from_ms, planned in found:
            partition = planned.key
            entry_key = DELAY_ENTRIES.key(partition)
            entry = kv.get(entry_key)
            changes[key] = None
            if entry is None or decode_count(entry) != from_ms:
                continue  # it was filed for something earlier meanwhile
            passed = self._passed_by(partition, from_ms)
            left = next(kv.walk(*delay_rows.waiting_range(partition, from_ms, passed)), None)
            if left is None:
                changes[entry_key] = None
                continue
            next_ms, _ = WAITING_BATCHES.parts(left[0])[1:]
            soonest_ms = min(soonest_ms, next_ms)
            changes[entry_key] = encode_count(next_ms)
            changes[DELAYS_DUE.key(next_ms, partition)] = b""
        if changes:
            self._shard.commit(changes)
        return soonest_ms

    def _passed_by(self, partition: PartitionKey, from_ms: int) -> int:
        known = self._passed.get(partition)
        return known[1] if known is not None and known[0] == from_ms else 0

    def _note_passed(self, planned: Plan, delivered: int) -> None:
        """Note that so many of its batches wait no more. Later records have a larger offset."""
        first_ms = planned.batches[0][1].max_time_ms
        passed = max(
            last_offset + 1
            for last_offset, batch in planned.batches[:delivered]
            if batch.max_time_ms == first_ms
        )
        _note(self._passed, planned.key, (first_ms, passed))

    async def _deliver(self, plans: list[Plan]) -> set[PartitionKey]:
        """Deliver plans; return the partitions of which the due records cannot be read, or taken.
        Raise KafkaError."""
        if not plans:
            return set()
        made = await self._made(plans)
        failed: set[PartitionKey] = set()
        sent: list[tuple[Plan, Envelope]] = []
        for planned, one in zip(plans, made, strict=True):
            if isinstance(one, str):
                failed.add(planned.key)
                _log.error("delayed_unreadable", shard=self._shard.shard, reason=one)
            else:
                sent.append((planned, one))
        if not sent or not self._claim.serves:
            return failed
        outcomes = await self._shard.append([one for _, one in sent]).wait()
        for planned, _ in sent:  # some may be there though the last was not taken
            if self._means.settings(planned.key[0]).compacted:
                self._shard.note_uncompacted(planned.key)
        pace = Pace()
        for (planned, envelope), outcome in zip(sent, outcomes, strict=True):
            await pace.step()
            if outcome.code == Code.MESSAGE_TOO_LARGE:  # the log takes less than what was made
                failed.add(planned.key)
                reason = outcome.message or "too large for the log"
                _log.error("delayed_not_taken", shard=self._shard.shard, reason=reason)
                continue
            if outcome.code not in _SETTLED:
                raise KafkaError(outcome.code)
            usual = delivery.BATCHES_AT_ONCE
            most = self._at_once.pop(planned.key, usual)
            if outcome.code != Code.NONE:
                continue
            removed = len(Due.decode(envelope).removed)
            if outcome.number >= 0:
                self._note_passed(planned, removed)
            most = 2 * most if outcome.number >= 0 else max(1, removed // 2)
            if most < usual:
                _note(self._at_once, planned.key, most)
        return failed

    async def _made(self, plans: list[Plan]) -> list[Envelope | str]:
        shard, means = self._shard, self._means
        now_ms = means.clock.now_ms()
        look_ms = [
            means.settings(planned.key[0]).look_at_ms(now_ms, now_ms, means.check_ms)
            for planned in plans
        ]
        pins = {batch.segment for planned in plans for _, batch in planned.batches}
        with shard.segments.pinned(pins):
            if sum(planned.size for planned in plans) <= _AT_ONCE_BYTES:
                with suppress(Aside):
                    return make(shard.segments, plans, now_ms, look_ms, means.most, wait=False)
            return await to_thread.run_sync(
                make, shard.segments, plans, now_ms, look_ms, means.most, limiter=means.readers
            )


def _note(known: dict[PartitionKey, Note], partition: PartitionKey, value: Note) -> None:
    """Note something of a partition; the one that was noted first makes room."""
    known.pop(partition, None)
    if len(known) >= _NOTED_MAX:
        del known[next(iter(known))]
    known[partition] = value


_FIRST: PartitionKey = (QueueId(bytes(16)), 0)
