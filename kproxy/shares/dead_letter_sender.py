"""The sender of one shard's dead letters, as long as it is served by one claim.

Rows of what is owed are read in their order, each share partition's into a queue of its own. New
ones come behind all that are there, so a row is read once; those of a group whose dead-letter queue
takes nothing are passed over, and read again from there once it does. So are those of a share
partition that could not be sent, where as many rows are in memory as may be.
"""

from itertools import islice

import anyio
from anyio import to_thread

from kproxy.loop.pace import Pace, slices
from kproxy.loop.pulse import pulse
from kproxy.metadata.queue_settings import settings_of
from kproxy.shard.appends import outcome_of
from kproxy.shard.per_shard import Claim
from kproxy.shard.shard import Shard
from kproxy.shares.dead_letter_batches import (
    BATCH_BYTES,
    BatchPlan,
    Made,
    Place,
    Run,
    Words,
    make,
    name_of_lost,
    plan,
)
from kproxy.shares.dead_letter_stream import AGAIN_S, Stream, StreamKey
from kproxy.shares.dead_letter_targets import DeadLetterServices, Obstacle, Target
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.shares import DEAD_LETTERS, AimForward, Forward, SettleForward
from kproxy.virtual.levels import LETTERS_FROM
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import FORWARD_TARGETS, Owed, Position

_LOT = 200  # rows
_HELD_MAX = 20_000  # rows in memory
_AT_ONCE = 16  # share partitions that are sent
_LOOK_S = 0.25
_BLOCKED_S = 1.0
_SETTLED_MAX = 500  # rows in one SETTLE_FORWARD
_FRAME_BYTES = 70_000  # around a batch: a group's name is 32,767 bytes at most


class Sender:
    """The sender of one shard."""

    def __init__(self, shard: Shard, shared: DeadLetterServices) -> None:
        self._shard = shard
        self._claim = Claim(shard)
        self._shared = shared
        # An earlier owner may have sent these, or this one before it was started again.
        self._doubt: Place = (shard.applied_through.next_offset, 0)
        self._start, self._end = RowKind.DEAD_LETTER.range()
        self._count_from = self._read_from = self._start
        self._passed: bytes | None = None  # the first row that was passed over
        self._owed: dict[str, int] = {}  # records by group
        self._heard = True  # there are new rows
        self._held = 0
        self._streams: dict[StreamKey, Stream] = {}
        self._aims: set[StreamKey] = set()
        """The streams of which an AIM_FORWARD may be under way that nobody waits for any more."""
        self._blocked: dict[str, Obstacle] = {}
        self._sent = anyio.Event()

    def owed(self, group: str) -> int:
        """Return how many records of a group are owed, as far as they are counted."""
        if self._hear():
            self._count_some()
        return self._owed.get(group, 0)

    def _hear(self) -> bool:
        if self._shard.state.filed.pop(RowKind.DEAD_LETTER.byte, None) is not None:
            self._heard = True
        return self._heard

    # -- reading what is owed

    def _count_some(self) -> bool:
        """Count rows that were not counted yet; whether there may be more."""
        rows = list(islice(self._shard.kv.scan(self._count_from, self._end), _LOT))
        for key, data in rows:
            owed = share_rows.DEAD_LETTERS.decode(data)
            self._owed[owed.group] = self._owed.get(owed.group, 0) + owed.records
            self._count_from = key + b"\0"
        return len(rows) == _LOT

    async def _read(self) -> None:
        pace = Pace()
        while self._count_some():
            await pace.step()
        while self._held < _HELD_MAX and self._read_some():
            await pace.step()

    def _read_some(self) -> bool:
        """Read rows that were not read yet; whether there may be more."""
        found = list(islice(self._shard.kv.scan(self._read_from, self._count_from), _LOT))
        for key, data in found:
            self._take(key, share_rows.DEAD_LETTERS.decode(data))
            self._read_from = key + b"\0"
        return len(found) == _LOT

    def _take(self, key: bytes, owed: Owed) -> None:
        if owed.group in self._blocked:
            self._pass_over(key)
            return
        stream_key, place = (owed.key, owed.group), share_rows.DEAD_LETTERS.parts(key)
        stream = self._streams.get(stream_key)
        if stream is not None and stream.is_passed_over:
            self._pass_over(key)
            return
        if stream is None:
            stream = self._streams[stream_key] = Stream(stream_key, self._doubt)
        if place > stream.read_to:  # else it was read before others were passed over
            stream.read_to = place
            stream.runs.append(Run(place, owed, owed.first))
            self._held += 1

    def _pass_over(self, key: bytes) -> None:
        if self._passed is None or key < self._passed:
            self._passed = key

    def _put_back(self, stream: Stream) -> None:
        """Let go of the rows of a share partition: they are passed over."""
        self._pass_over(share_rows.DEAD_LETTERS.key(*stream.runs[0].place))
        self._held -= len(stream.runs)
        stream.runs.clear()
        stream.read_to = (-1, -1)

    # -- groups whose dead-letter queue takes nothing

    def _block(self, stream: Stream, why: Obstacle) -> None:
        self._blocked[stream.group] = why
        self._put_back(stream)
        self._doubt = max(self._doubt, stream.in_doubt)
        del self._streams[stream.source, stream.group]
        self._shared.counters.dead_letters_blocked += 1
        self._shared.warn(
            "dead_letters_wait", group=stream.group, shard=self._shard.shard, reason=why.value,
            queue=self._shared.targets.settings(stream.group).dead_letter_queue,
        )  # fmt: skip

    def _look_at_passed(self) -> None:
        """Read again from the first row that was passed over, if any of them may be sent now."""
        now_s = anyio.current_time()
        freed = [group for group in self._blocked if self._is_free(group)]
        for group in freed:
            del self._blocked[group]
        rested = [one for one in self._streams.values() if one.is_passed_over]
        rested = [one for one in rested if one.rests_until_s <= now_s]
        for stream in rested:
            stream.is_passed_over = False
        if (freed or rested) and self._passed is not None:
            self._read_from, self._passed = self._passed, None

    def _is_free(self, group: str) -> bool:
        targets = self._shared.targets
        return not isinstance(targets.find(group), Obstacle) or targets.is_given_up(group)

    # -- sending

    async def run(self) -> None:
        """Run as long as the shard is served by this claim."""
        looked_s = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            while self._claim.serves:
                self._sent = anyio.Event()
                self._heard = False
                await self._read()
                now_s = anyio.current_time()
                idle = (
                    one for one in self._streams.values()
                    if not one.busy and one.runs and one.rests_until_s <= now_s
                )  # fmt: skip
                busy = sum(one.busy for one in self._streams.values())
                for stream in list(islice(idle, max(0, _AT_ONCE - busy))):
                    stream.busy = True
                    tasks.start_soon(self._send_all, stream)
                await self._pause()
                if self._passed is not None and anyio.current_time() - looked_s >= _BLOCKED_S:
                    looked_s = anyio.current_time()
                    self._look_at_passed()
            tasks.cancel_scope.cancel()

    async def _pause(self) -> None:
        """Wait until there is something to do: a share partition is done, or a row was filed."""
        while self._claim.serves and not self._hear():
            if not self._streams:
                await pulse(_LOOK_S)
                if self._blocked:
                    return
                continue
            with anyio.move_on_after(_LOOK_S):
                await self._sent.wait()
            return

    async def _send_all(self, stream: Stream) -> None:
        """Send what a share partition owes, as far as it is read, or until it has to rest."""
        while self._claim.serves and stream.runs:
            found = self._target(stream)
            if isinstance(found, Obstacle):
                self._block(stream, found)
                break
            if found is None:
                done = await self._drop(stream)
            else:
                done = await self._send(stream, found)
            if not done:
                self._rest(stream)
                break
            stream.wait_s = AGAIN_S
        stream.busy = False
        if not stream.runs and not stream.is_passed_over:
            self._streams.pop((stream.source, stream.group), None)
        self._sent.set()

    def _rest(self, stream: Stream) -> None:
        """Let others be sent before one that could not be."""
        stream.rest(anyio.current_time())
        if self._held >= _HELD_MAX:
            self._put_back(stream)
            stream.is_passed_over = True
        self._streams[stream.source, stream.group] = self._streams.pop(
            (stream.source, stream.group)
        )

    def _target(self, stream: Stream) -> Target | Obstacle | None:
        """Return where the next are to go; None: nowhere, they are dropped.

        Records that may have been sent go to where they were sent, whatever is set by now.
        """
        targets = self._shared.targets
        if self._shard.state.partition(stream.source) is None:
            return None
        found = targets.find(stream.group)
        if found is Obstacle.UNSET:
            return None if targets.is_given_up(stream.group) else found
        pinned = self._pinned(stream)
        if pinned is not None and stream.runs[0].place <= stream.in_doubt:
            return pinned
        if isinstance(found, Obstacle):
            return found
        if found.queue_id == stream.source[0]:
            return None
        return Target(found, stream.source[1] % found.partitions)

    def _pinned(self, stream: Stream) -> Target | None:
        aimed = FORWARD_TARGETS.get(self._shard.state.get, stream.source, stream.group)
        return None if aimed is None else self._shared.targets.pinned(aimed.target)

    async def _drop(self, stream: Stream) -> bool:
        """Forget what can go nowhere; whether the log took that."""
        runs = list(islice(stream.runs, _SETTLED_MAX))
        records = sum(run.last - run.first + 1 for run in runs)
        if not await self._settle(stream, len(runs)):
            return False
        self._shared.counters.dead_letters_dropped += records
        self._shared.warn("dead_letters_dropped", group=stream.group, records=records)
        return True

    async def _send(self, stream: Stream, target: Target) -> bool:
        """Send some; whether it is known that the target has them."""
        if not (await self._aim(stream, target) and self._claim.serves):
            return False
        runs = (run for run in stream.runs)
        if stream.runs[0].place <= stream.in_doubt:  # later ones may go elsewhere
            runs = (run for run in runs if run.place <= stream.in_doubt)
        planned = plan(self._shard, runs)
        if planned is None:
            return True  # its queue is gone: looked at again at once
        try:
            made = await self._made(planned, stream, target)
        except OSError as error:
            self._shared.warn("dead_letters_not_read", group=stream.group, reason=str(error))
            return False
        last = made.last
        if not self._claim.serves:
            return False
        if made.batch:
            stream.in_doubt = max(stream.in_doubt, last[:2])
            outcome = await self._forward(stream, target, made)
            if outcome.code:
                return False
            if outcome.number >= 0:
                self._shared.counters.dead_letters += made.records
            else:
                last = Position(*outcome.numbers)
        return await self._settle(stream, stream.advance(last))

    async def _aim(self, stream: Stream, target: Target) -> bool:
        """Say where they go, where that is not known; again where another may still come."""
        key = stream.source, stream.group
        aimed = FORWARD_TARGETS.get(self._shard.state.get, *key)
        if aimed is not None and aimed.target == target.key and key not in self._aims:
            return True
        aim = AimForward(*key, target.key, -1 if aimed is None else aimed.log_offset)
        self._aims.add(key)
        if (await outcome_of(self._shard.append([aim.envelope()]))).code:
            return False
        self._aims.discard(key)
        return True

    async def _made(self, planned: BatchPlan, stream: Stream, target: Target) -> Made:
        shared, shard = self._shared, self._shard
        demands = settings_of(target.queue.configs).demands
        most = demands.bytes_max
        if most is None:
            most = int(shared.config.batch_bytes_max)
        most = min(most, int(shared.config.data_message_bytes_max) - _FRAME_BYTES)
        source = shared.targets.catalogue.find_id(stream.source[0])
        words = Words(
            topic=name_of_lost(stream.source[0]) if source is None else source.name,
            copies=source is not None and shared.copies(stream.group, source.name),
            demands=demands, bytes_max=min(BATCH_BYTES, most), record_bytes_max=most,
            time_ms=shared.clock.now_ms(),
            lanes=None if source is None else shared.lanes(stream.group, source.name),
        )  # fmt: skip
        with shard.segments.pinned({stored.segment for _, stored in planned.stored}):
            return await to_thread.run_sync(
                make, shard.segments, planned, words, limiter=shared.readers
            )

    async def _forward(self, stream: Stream, target: Target, made: Made) -> Outcome:
        """Put a batch into the target's log, and wait for what comes of it."""
        shared = self._shared
        now = shared.clock.now_ms()
        look_ms = settings_of(target.queue.configs).look_at_ms(
            now, now, shared.config.retention_check_ms
        )
        asked = Forward(
            target.key, DEAD_LETTERS, stream.source, stream.group, made.first, made.last,
            made.batch, look_ms, shared.level.reaches(LETTERS_FROM),
        )  # fmt: skip
        shards = shared.routes.shards
        index = shard_of(target.queue.name, shards, target.partition) if shards > 1 else 0
        return await outcome_of(shared.routes.ask(index, asked.envelope()))

    def _paid(self, owed: Owed) -> None:
        left = self._owed.get(owed.group, 0) - owed.records
        if left > 0:
            self._owed[owed.group] = left
        else:
            self._owed.pop(owed.group, None)

    async def _settle(self, stream: Stream, count: int) -> bool:
        """Forget the first rows; whether the log took that."""
        runs = list(islice(stream.runs, count))
        for some in slices(runs, _SETTLED_MAX):
            settle: Envelope = SettleForward([run.place for run in some]).envelope()
            if (await outcome_of(self._shard.append([settle]))).code:
                return False
            for run in some:
                stream.runs.popleft()
                self._paid(run.owed)
            self._held -= len(some)
        return True
