"""Passes on the records of one source partition by one route, as long as there are any.

1. It gathers what is decided (before the last stable offset) of one epoch, as much as a cut holds.
2. CUT in the source's shard says how far that is. It holds only where the last cut ends.
3. SHIP, to each shard that has targets, has their batches, in parts. Parts taken before are void.
4. Once all shards have answered, the next CUT may come, and says that this one has landed.

A new owner of the source begins with 3, for the last cut. Two cuts are never on their way at once:
a shard that took a part of the later one would refuse the earlier one's.
"""

import random
from collections.abc import Callable
from enum import Enum

import anyio
from anyio import to_thread

from kproxy.common.errors import Code
from kproxy.loop.pace import Pace
from kproxy.metadata.queue_settings import QueueSettings, settings_of
from kproxy.metadata.setting import SET_BY
from kproxy.routes import stretches
from kproxy.routes.cutting import Cutter, Gathered
from kproxy.routes.reading import Kept, Plan, gather, pass_over_keyless, plan
from kproxy.routes.redrive_pace import RedrivePace, Unpaced
from kproxy.routes.rights import why_forbidden
from kproxy.routes.services import RouteServices
from kproxy.routes.shipping import shipped
from kproxy.routes.stretches import Stretch
from kproxy.security.quotas import Mutations
from kproxy.shard.appends import Verdict, outcome_of, verdict
from kproxy.shard.per_shard import Claim
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.routes import Batches, Cut, Ship
from kproxy.virtual.levels import SHIPS_FROM, SPARES_FROM
from kproxy.virtual.rows.queues import Partition, Queue
from kproxy.virtual.rows.routes import Epoch, Route, is_redrive, route_in
from kproxy.virtual.types import PartitionKey, QueueId

_IDLE_S, _SHIP_S = 1.0, 30.0
_PAUSE_S, _FEW = 0.01, 200
"""The pause between cuts of fewer records than that."""
_AGAIN_S, _AGAIN_MAX_S = 0.1, 2.0
_salts = random.Random()


class Step(Enum):
    """The outcome of one step."""

    DONE = 1
    NOTHING = 2  # there is nothing to pass on
    WAIT = 3  # it could not be done now
    OVER = 4  # the route is no more


class Passage:
    """The passage of one route out of one partition, while its shard is served by this claim."""

    def __init__(
        self, shard: Shard, source: PartitionKey, definer: QueueId, shared: RouteServices,
        others_wait: Callable[[], bool] = lambda: False, pace: RedrivePace | None = None,
    ) -> None:  # fmt: skip
        """Begin a passage; `others_wait`: whether other routes of the shard wait for their turn.
        `pace`: a redrive's, which outlives its passages."""
        self.source = source
        self.definer = definer
        self._owner = source[0] if is_redrive(definer) else definer
        """The queue whose settings say how it is."""
        self._pace = pace or Unpaced()
        self._shard = shard
        self._claim = Claim(shard)
        self._shared = shared
        self._kept = Kept()
        shared.kept.add(self._kept)
        self._landed = -1
        """The offset up to which this owner knows that all has landed."""
        self._made = 0  # queues, since the last CUT
        self._news = anyio.Event()
        self._others_wait = others_wait
        self.idle = False
        """Whether it only waits for news."""
        self._taken_through = -1
        """The offset up to which its one target said that it has an earlier route's records."""
        self._trimmed_s = 0.0
        self.waits: str | None = None
        """The reason why it cannot go on, for people."""

    def poke(self) -> None:
        """Wake it: the source has changed, or others wait and it is to look whether it has."""
        self._news.set()
        self.idle = False

    async def run(self) -> bool:
        """Run until there is nothing to pass on for a while, or others wait and this had its turn.

        Return whether it is to be run again.
        """
        wait_s, until_s = _AGAIN_S, anyio.current_time() + _IDLE_S
        while self._claim.serves:
            self._news = anyio.Event()
            began_s = anyio.current_time()
            step, records = await self._step()
            if step is Step.NOTHING:
                self.waits = None
                if await self._anything_new():
                    continue
                if await self._note_landed():
                    if not self._news.is_set():
                        return False
                    continue
                step = Step.WAIT
            if step is Step.WAIT:
                await self._note_landed()  # for people: it may be long
                left_s = self._pace.left_s(self._queue())
                await anyio.sleep(min(left_s, _AGAIN_MAX_S) if left_s > 0 else wait_s)
                if self._others_wait():
                    return True
                wait_s = min(2 * wait_s, _AGAIN_MAX_S)
                continue
            wait_s, self.waits = _AGAIN_S, None
            if step is Step.OVER:
                return False
            if began_s > until_s and self._others_wait():
                await self._note_landed()  # else all of the last cut would be shipped again
                return True
            if records < _FEW:
                await anyio.sleep(max(0.0, began_s + _PAUSE_S - anyio.current_time()))
        return False

    async def _anything_new(self) -> bool:
        """Return whether the source changes soon; do not wait for that if others want a turn."""
        if self._others_wait():
            return False
        self.idle = True
        with anyio.move_on_after(_IDLE_S):
            await self._news.wait()
        self.idle = False
        return self._news.is_set()

    # -- one step

    async def _step(self) -> tuple[Step, int]:
        """Ship what is cut, or cut and ship the next; how many records that was."""
        route, row = self._found()
        if route is None or row is None:
            return Step.OVER, 0
        if route.cut > route.landed and self._landed < route.cut:
            return await self._ship_again(route, row)
        self._landed = route.cut
        if route.ends is not None and route.cut >= route.ends:
            over = is_redrive(self.definer) and route.is_over
            return Step.OVER if over or await self._cut(route.cut, 1) is None else Step.WAIT, 0
        stretch = stretches.next_of(route, row)
        if stretch is None:
            return Step.NOTHING, 0
        held = self._held_back(route)
        if held is not None:
            self.waits = held
            self._shared.counters.routes_held_back += 1
            self._shared.warn("route_held_back", self._owner, reason=held)
            return Step.WAIT, 0
        if self._pace.left_s(self._queue()) > 0:
            return Step.WAIT, 0
        return await self._pass_on(route, stretch)

    def _found(self) -> tuple[Route | None, Partition | None]:
        state = self._shard.state
        return route_in(state.get, self.source, self.definer), state.partition(self.source)

    def _queue(self) -> Queue | None:
        return self._shared.catalogue.find_id(self._owner)

    def _settings(self) -> QueueSettings | None:
        queue = self._queue()
        return None if queue is None else settings_of(queue.configs)

    def _held_back(self, route: Route) -> str | None:
        queue = self._queue()
        if self._pace.paused(queue):
            return "kproxy.redrive.paused is set"
        forbidden = queue and why_forbidden(self._shared.behalf, queue.configs, queue.name)
        if forbidden:
            return forbidden
        settings, made_ = self._settings(), route.made + self._made
        if settings is not None and made_ >= settings.route_queues_max:
            most = settings.route_queues_max
            return f"it has made {made_} queues, and kproxy.route.queues.max is {most}"
        return None

    async def _ship_again(self, route: Route, row: Partition) -> tuple[Step, int]:
        """Ship the last cut again, made from the same records: it may have landed, or not."""
        start, end = max(route.landed, row.log_start), route.cut
        epoch = stretches.epoch_at(route, route.landed)
        cutter = self._cutter(epoch, start, end, limited=False)
        if start < end and not await self._gather(cutter, start, end, whole=True):
            return Step.WAIT, 0
        if not await self._ship(cutter, route.cut, route.parts):
            return Step.WAIT, 0
        self._landed = route.cut
        self._count_passed_over(cutter.gathered)
        return Step.DONE, cutter.gathered.records

    def _cutter(self, epoch: Epoch, start: int, end: int, *, limited: bool) -> Cutter:
        shared = self._shared
        cutter = Cutter(
            epoch, shared.asks.shards, start, end, self.source[1],
            limited=limited, log_bytes_max=shared.log_bytes_max, held_max=shared.held_max,
            is_compacted=self._is_compacted,
        )  # fmt: skip
        shared.gathers(cutter.gathered)
        return cutter

    def _is_compacted(self, name: str) -> bool:
        queue = self._shared.catalogue.find(name)
        return queue is not None and settings_of(queue.configs).demands.keyed

    async def _pass_on(self, route: Route, stretch: Stretch) -> tuple[Step, int]:
        start, end, epoch = stretch
        cutter = self._cutter(epoch, start, end, limited=True)
        room = self._mutations().room
        if room is not None:  # all of them may have to be made
            most = max(1, room // self._shared.asks.shards)
            cutter.gathered.targets_max = min(cutter.gathered.targets_max, most)
        cutter.gathered.records_max = self._pace.at_once(self._queue())
        if epoch.spec and not await self._gather(cutter, start, end, whole=False):
            return Step.WAIT, 0
        gathered = cutter.gathered
        through = gathered.through if epoch.spec else end
        if through <= route.cut:
            return Step.NOTHING, 0
        parts = gathered.parts
        refused = await self._cut(route.cut, parts, through)
        if refused is not None:
            return (Step.OVER if refused == Code.UNKNOWN_TOPIC_ID else Step.WAIT), 0
        if gathered.records and not await self._ship(cutter, through, parts):
            return Step.WAIT, 0
        self._landed = through
        if anyio.current_time() - self._trimmed_s > _IDLE_S:
            self._trimmed_s = anyio.current_time()
            await self._trim()
        self._pace.take(self._queue(), gathered.records)
        self._count(gathered)
        return Step.DONE, gathered.records

    def _count(self, gathered: Gathered) -> None:
        counters = self._shared.counters
        counters.routed += gathered.records
        counters.routed_natively += gathered.records if gathered.native is not None else 0
        counters.redriven += gathered.records if is_redrive(self.definer) else 0
        counters.unroutable += gathered.unroutable
        self._count_passed_over(gathered)

    def _count_passed_over(self, gathered: Gathered) -> None:
        if gathered.passed_over:
            self._shared.counters.route_passed_over += gathered.passed_over
            lost, why = gathered.passed_over, gathered.why
            self._shared.warn("route_passed_over", self._owner, records=lost, reason=why)

    async def _gather(self, cutter: Cutter, start: int, end: int, *, whole: bool) -> bool:
        """Gather a stretch and return whether it could be read."""
        shard = self._shard
        again = is_redrive(self.definer)
        planned: Plan = await plan(shard, self.source, start, end, whole=whole, again=again)
        headers = cutter.gathered.spec.headers
        self._kept.room = self._shared.room_for(self._kept)
        try:
            with shard.segments.pinned({batch.segment for _, batch in planned.stored}):
                await to_thread.run_sync(
                    gather, shard.segments, planned, cutter, self._kept, headers,
                    limiter=self._shared.readers,
                )  # fmt: skip
        except OSError as error:
            self._shared.warn("route_not_read", self._owner, reason=str(error))
            self.waits = f"its records cannot be read: {error}"
            return False
        await pass_over_keyless(cutter, self._is_compacted)
        return self._claim.serves

    # -- commands

    async def _cut(self, after: int, parts: int, through: int | None = None) -> Code | None:
        """Say what is passed on next; why it is not, or None."""
        through = after if through is None else through
        queues = self._made
        cut = Cut(self.source, self.definer, after, through, parts, queues)
        outcome = await outcome_of(self._shard.append([cut.envelope()]))
        if outcome.code:
            return Code(outcome.code)
        self._made -= queues
        return None

    async def _ship(self, cutter: Cutter, through: int, parts: int) -> bool:
        """Have all shards take their parts; whether all have, within some seconds."""
        left = await self._ships(cutter, through, parts)
        wait_s, began_s = _AGAIN_S, anyio.current_time()
        while self._claim.serves and anyio.current_time() < began_s + _SHIP_S:
            left = await self._send(left, cutter.gathered)
            if cutter.start < self._taken_through < through:
                cutter = self._cutter(cutter.epoch, self._taken_through, through, limited=False)
                if not await self._gather(cutter, cutter.start, through, whole=True):
                    return False
                left = await self._ships(cutter, through, parts)
            if not left:
                return True
            if self._others_wait() and anyio.current_time() > began_s + _IDLE_S:
                break
            await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, _AGAIN_MAX_S)
        return False

    async def _ships(self, cutter: Cutter, through: int, parts: int) -> list[tuple[int, Envelope]]:
        """Return (shard, what is sent to it). A thread makes it: it may be of 200,000 queues, at
        many shards."""
        now = self._shared.clock.now_ms()

        def all_of() -> list[tuple[int, Envelope]]:
            return [
                (index, self._envelope(cutter, through, part, batches, now))
                for index, part, batches in shipped(cutter.gathered, parts)
            ]

        return await to_thread.run_sync(all_of, limiter=self._shared.readers)

    def _envelope(
        self, cutter: Cutter, through: int, part: int, batches: Batches, now: int
    ) -> Envelope:
        spec = cutter.gathered.spec
        says = spec.only and self._shared.level.reaches(SHIPS_FROM)
        return Ship.envelope(
            self.source, self.definer, through, part, batches,
            only=spec.only, salt=_salts.getrandbits(62), time_ms=now,
            look_ms=settings_of(spec.configs).look_at_ms(now, now, self._shared.check_ms),
            configs=spec.configs, after=cutter.start if says else -1,
        )  # fmt: skip

    async def _send(
        self, ships: list[tuple[int, Envelope]], gathered: Gathered
    ) -> list[tuple[int, Envelope]]:
        """Send parts and return those that are not known to have landed. Pass over a record that no
        log takes."""
        ask, pace, tickets = self._shared.asks.ask, Pace(), []
        for index, one in ships:
            tickets.append((index, one, ask(index, _again(one))))
            await pace.step()
        left = []
        for index, one, ticket in tickets:
            outcome = await outcome_of(ticket)
            if verdict(outcome) is Verdict.NEVER and gathered.records == 1:
                gathered.pass_over(1, f"shard {index} does not take it: {outcome.message}")
            elif outcome.code == Code.OFFSET_OUT_OF_RANGE:
                self._taken_through = outcome.numbers[0]
            elif outcome.code:
                left.append((index, one))
                reason = Code(outcome.code).name
                self._shared.warn("route_waits", self._owner, shard=index, reason=reason)
                self.waits = f"shard {index} takes no records: {reason}"
            elif outcome.numbers and outcome.numbers[0]:
                self._made += outcome.numbers[0]
                self._mutations().take(outcome.numbers[0])
        return left

    def _mutations(self) -> Mutations:
        """Return what the setter of the route may make."""
        queue = self._queue()
        return self._shared.behalf.mutations(queue.configs.get(SET_BY) if queue else None)

    async def _note_landed(self) -> bool:
        """Put down that all has landed, where that is not known to the log; whether it is.

        While this one waited another owner may have cut, and left it to be shipped.
        """
        route, _ = self._found()
        if route is not None and route.landed < route.cut:
            known = self._claim.serves and self._landed >= route.cut
            if not known or await self._cut(route.cut, 1):
                return False
        return await self._trim()

    async def _trim(self) -> bool:
        """Take what all routes have passed on from an entrance that keeps nothing."""
        settings, own = self._settings(), self.definer == self.source[0]
        row = self._shard.state.partition(self.source)
        if not own or settings is None or row is None or settings.route_keeps:
            return True
        start = self._shard.state.passed_on(self.source)
        if start is None or start <= row.log_start:
            return True
        spares = self._shared.level.reaches(SPARES_FROM)
        trim = Trim(*self.source, start, self._shared.clock.now_ms(), spares)
        return not (await outcome_of(self._shard.append([trim.envelope()]))).code


def _again(one: Envelope) -> Envelope:
    """Return the same envelope, to be sent again: its sender is in it."""
    return Envelope(
        one.kind, one.queue_id, one.partition, number=one.number, time_ms=one.time_ms, body=one.body
    )
