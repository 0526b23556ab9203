"""Members of share groups that stall, crash and lie, and what else happens to their queues."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code, first_of
from kproxy.loop.pace import Pace
from kproxy.protocol.batch import control_batch, read_header
from kproxy.protocol.records import keyed_records, unpacked
from kproxy.shares import share_partition
from kproxy.shares.acknowledging import Acknowledging, Said
from kproxy.shares.lanes import scattered, share_lanes
from kproxy.shares.poll import Found, ShareLimits, SharePoll
from kproxy.shares.sessions import Ident, ShareSession
from kproxy.shares.window import ACCEPT, GAP, REJECT, RELEASE, RENEW
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.commands.records import Compact, Trim
from kproxy.virtual.commands.shares import EARLIEST, LATEST, SetShares, ShareAction, ShareChange
from kproxy.virtual.commands.transactions import Begin, Marker
from kproxy.virtual.rows.transactions import tag_of
from kproxy.virtual.types import PartitionKey, QueueId
from tests.present import present
from tests.simulation import virtual_time
from tests.simulation.shares.truth import BATCH_MAX, GROUPS, At, Hold, Truth
from tests.simulation.shares.world import Gone, Worker, World
from tests.simulation.twice import fold_twice
from tests.wire import batch

MEMBERS = 5
RUN_S = 40.0
QUIET_S = 400.0
_REFUSED = (Code.INVALID_RECORD_STATE, Code.INVALID_REQUEST)


class _Next:
    """Nothing more comes on the connection."""

    arrived = False

    def wake(self, event: anyio.Event) -> None:
        pass


class _Unpinned:
    def hold(self, stored: Any) -> None:
        list(stored)


class Member:
    def __init__(self, world: World, number: int) -> None:
        self.world, self.rng, self.truth = world, world.rng, world.truth
        self.name = f"m{number}"
        self.group = GROUPS[number % 2]
        self.connections = number * 1_000_000
        self.worker: Worker | None = None
        self.session: ShareSession | None = None
        self.ended: list[int] = []  # connections, whose ends are still to be noticed

    async def run(self) -> None:
        while True:
            await anyio.sleep(self.rng.choice((0.01, 0.05, 0.3)))
            owners = self.world.owners()
            if not owners:
                continue
            if self.worker not in owners or self.session is None or self.session.ended:
                self.session, self.worker = None, self.rng.choice(owners)
            worker = present(self.worker)
            try:
                await worker.call(partial(self.poll, worker))
            except Gone:
                self.session = self.worker = None

    async def poll(self, worker: Worker) -> None:
        session = self.session or self.open(worker)
        claim, asked = worker.shard.claim_offset, anyio.current_time()
        epochs = self.epochs(worker)
        limits = ShareLimits(
            min_bytes=1, max_bytes=self.rng.choice((1, 300, 1 << 20)),
            max_records=self.rng.choice((1, 3, 10, 500)), batch_size=self.rng.choice((1, 4, 100)),
            exact=self.rng.random() < 0.3, max_wait_s=self.rng.choice((0.0, 0.3, 2.0)),
        )  # fmt: skip
        await anyio.sleep(self.rng.choice((0.0, 0.0, 0.01)))
        pins: Any = _Unpinned()
        poll = SharePoll(worker, worker.shares, worker.sessions, session, limits, Pace(), pins)
        found = await poll.run(_Next())
        got: list[tuple[Ident, int, int]] = []
        for one in found:
            if one.code:
                worker.sessions.forget(session, one.ident)
                continue
            key = QueueId(one.ident[0]), one.ident[1]
            steady = epochs.get(key) == self.epochs(worker).get(key)
            if one.cut:
                self.check_cut(one)
            for first, last, deliveries in one.ranges:
                got.append((one.ident, first, last))
                for offset in range(first, last + 1):
                    if steady and claim == worker.shard.claim_offset:
                        at = key, self.group, epochs.get(key, -1), offset
                        now = anyio.current_time()
                        self.truth.gives(claim, self.name, at, deliveries, asked, now)
        for key in self.world.keys:
            worker.sessions.follow(session, (key[0], key[1]))
        await self.work(worker, session, got)

    def check_cut(self, found: Found) -> None:
        """Check that the records that were cut out are those that are given."""
        given = [at for first, last, _ in found.ranges for at in range(first, last + 1)]
        sent, before = set[int](), -1
        for piece in found.cut:
            if not isinstance(piece, bytes):
                for base, segment, position, length in piece.batches:
                    stored = piece.segments.batch(segment, position, length)
                    last = base + read_header(memoryview(stored or b"")).last_offset_delta
                    assert before < base, "L3: batches are not in order"
                    sent |= {at for at in given if base <= at <= last}
                    before = last
                continue
            header = read_header(piece)
            cut = {header.base_offset + one.offset_delta
                   for one in keyed_records(header, unpacked(piece))}  # fmt: skip
            assert before < min(cut), "L3: batches are not in order"
            before = max(cut)
            sent |= cut
            self.truth.counted["cut out"] += len(cut)
        assert sent == set(given), f"L3: {given} given, {sent} sent"

    def open(self, worker: Worker) -> ShareSession:
        self.connections += 1
        session = worker.sessions.open(self.group, self.name, self.connections, 2)
        for key in self.world.keys:
            worker.sessions.follow(session, (key[0], key[1]))
        self.session = session
        return session

    def epochs(self, worker: Worker) -> dict[PartitionKey, int]:
        """Return the epochs of the share partitions, as the worker has them."""
        found = {}
        for key in list(self.world.keys):
            row = worker.shares.row(worker.shard, key, self.group)  # type: ignore[arg-type]
            if row is not None:
                found[key] = row.epoch
        return found

    # -- what it does with what it got

    async def work(
        self, worker: Worker, session: ShareSession, got: list[tuple[Ident, int, int]]
    ) -> None:
        rng, calm = self.rng, not self.world.trouble
        dice = 1.0 if calm else rng.random()
        while self.ended:
            worker.sessions.disconnected(self.ended.pop())
        if dice < 0.06:  # it dies: nobody hears of it but by its connection, or not even so
            if rng.random() < 0.5:
                self.leave(worker, session)
                worker.sessions.disconnected(session.connection)
            self.session = None
            return
        if dice < 0.10:
            await anyio.sleep(rng.choice((1.0, 4.0)))
        if dice < 0.14:  # again, on another connection, while the end of the first is not seen yet
            self.ended.append(session.connection)
            session = self.open(worker)
        for ident, first, last in got:
            await anyio.sleep(rng.choice((0.0, 0.0, 0.02, 0.2)))
            for said in self.says(ident, first, last):
                await self.acknowledge(worker, session, ident, said)
        if dice < 0.18:
            self.leave(worker, session)
            worker.sessions.end(session)
            self.session = None

    def leave(self, worker: Worker, session: ShareSession) -> None:
        """Give back the records that a member holds."""
        claim = worker.shard.claim_offset
        for held_claim, at in list(self.truth.holds):
            if held_claim == claim and at[1] == self.group:
                self.truth.lets_go(claim, at, self.name)

    def says(self, ident: Ident, first: int, last: int) -> list[list[Said]]:
        """Return the acknowledgements of a run, in one request or several."""
        rng = self.rng
        if not self.world.trouble:
            return [[(first, last, [self.kind_of(ident, at) for at in range(first, last + 1)])]]
        kinds = [self.kind_of(ident, at) for at in range(first, last + 1)]
        dice = rng.random()
        if dice < 0.3:
            return [[(first, last, kinds)]]
        if dice < 0.7:
            singles = [(at, at, [kinds[at - first]]) for at in range(first, last + 1)]
            return [[one] for one in singles if rng.random() < 0.9]
        if dice < 0.85:  # and what it does not hold
            return [[(first, last, kinds), (last + 1, last + 2, [ACCEPT])]]
        return [[(first, last, [rng.choice((RELEASE, RENEW, REJECT))])], [(first, last, kinds)]]

    def kind_of(self, ident: Ident, offset: int) -> int:
        key = QueueId(ident[0]), ident[1]
        if (key, offset) in self.truth.holes or (key, offset) in self.world.controls:
            return GAP
        if not self.world.trouble:
            return ACCEPT
        return self.rng.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, RENEW))

    async def acknowledge(
        self, worker: Worker, session: ShareSession, ident: Ident, said: Sequence[Said]
    ) -> None:
        truth, rng = self.truth, self.rng
        key, claim = (QueueId(ident[0]), ident[1]), worker.shard.claim_offset
        asked, epoch = anyio.current_time(), self.epochs(worker).get(key, -1)
        kinds: dict[At, int] = {}
        for first, last, types in said:
            for offset in range(first, last + 1):
                kind = types[0] if len(types) == 1 else types[offset - first]
                kinds[key, self.group, epoch, offset] = kind
        known = self.told_before(kinds)
        held: dict[At, Hold] = {}
        for at, kind in kinds.items():
            one = truth.lets_go(claim, at, self.name) if kind != RENEW else None
            if one is not None:
                held[at] = one
        settings = worker.shares.settings(self.group)
        acknowledging = Acknowledging(worker.shares, worker.partition, session, settings,
                                      renews=True)  # fmt: skip
        await acknowledging.take([(ident, said)], Pace())
        code = (await acknowledging.done())[ident].code
        truth.counted[f"acknowledged: {code.name}"] += 1
        if code:
            now = anyio.current_time()
            for at, one in held.items():
                if one.until > now and claim == worker.shard.claim_offset:
                    truth.holds_again(claim, at, one)
            if code in _REFUSED:
                self.forget(kinds, known)
            else:
                truth.unsure |= {at for at, kind in kinds.items() if kind in (REJECT, RELEASE, GAP)}
            return
        if truth.epoch((key, self.group)) != epoch:
            return
        lock_s = self.world.settings[self.group].lock_duration_ms / 1000
        for at, kind in kinds.items():
            surely = at in held and held[at].until > asked
            if kind == ACCEPT and surely and rng.random() < 0.95:  # the answer may be lost
                truth.is_answered(claim, at)
            elif kind == RENEW and (claim, at) in truth.holds:
                if truth.holds[claim, at].until > asked:
                    truth.holds[claim, at] = Hold(self.name, asked + lock_s)

    def told_before(self, kinds: dict[At, int]) -> set[tuple[At, int]]:
        """Note the outcomes that may come true by this; return those that might before."""
        said, known = self.truth.said, set()
        for at, kind in kinds.items():
            some = {ACCEPT: said.accepted, REJECT: said.rejected, GAP: said.gaps}.get(kind)
            if some is not None:
                if at in some:
                    known.add((at, kind))
                some.add(at)
        return known

    def forget(self, kinds: dict[At, int], known: set[tuple[At, int]]) -> None:
        """Forget a request that was refused as a whole."""
        said = self.truth.said
        for at, kind in kinds.items():
            some = {ACCEPT: said.accepted, REJECT: said.rejected, GAP: said.gaps}.get(kind)
            if some is not None and (at, kind) not in known:
                some.discard(at)


class Happenings:
    """Records, trims, resets, deletions, transactions, compaction."""

    def __init__(self, world: World) -> None:
        self.world, self.rng, self.truth = world, world.rng, world.truth
        self.epoch = 0
        self.producer_id = 0

    def make_queue(self) -> None:
        queue_id = QueueId(len(self.world.log).to_bytes(16, "big"))
        self.world.land(CreateQueue(queue_id, f"q{len(self.world.log)}", 1, {}).envelope())
        self.world.keys.append((queue_id, 0))
        self.append((queue_id, 0))
        for group in GROUPS:
            self.set((queue_id, 0), group, ShareAction.INITIALISE, EARLIEST)

    def set(self, key: PartitionKey, group: str, action: ShareAction, start: int) -> None:
        self.epoch += 1
        change = ShareChange(key, action, self.epoch, start)
        self.world.land(SetShares(group, [change], 1).envelope())
        if action == ShareAction.RESET:
            for place in [p for p in self.truth.holds if p[1][:2] == (key, group)]:
                del self.truth.holds[place]

    def append(self, key: PartitionKey, **more: Any) -> int:
        """Append a batch, and return its first offset."""
        count = self.rng.randrange(1, BATCH_MAX + 1)
        body = self.batch(count, **more)
        outcome = self.world.land(Envelope(Kind.APPEND, *key, body=body))
        assert not outcome.code
        return outcome.number

    def batch(self, count: int, **more: Any) -> bytes:
        return batch(*[b"v"] * count, **more)

    def transaction(self, key: PartitionKey, commit: bool) -> None:
        self.producer_id += 1
        mine, number = self.producer_id, len(self.world.log)
        self.world.land(Begin(mine, 0, 1, number, tag_of("t"), [key], [], 1).envelope())
        row = present(self.truth.shard.state.partition(key))
        first = self.append(key, producer_id=mine, epoch=0, sequence=0, attributes=0x10)
        if self.rng.random() < 0.5:
            self.append(key)
        marker = row.next_offset
        header = control_batch(mine, 0, commit=commit, time_ms=1)
        self.world.land(Marker(header, mine, 0, number, commit, [key], [], 1).envelope())
        self.world.controls.add((key, marker))
        if not commit:
            batch_row = self.truth.shard.state.batches(key, first, first + 1)
            end = next(last for last, _ in self.truth.shard.state.batches(key, first, marker))
            assert batch_row is not None
            self.truth.aborted |= {(key, offset) for offset in range(first, end + 1)}

    async def run(self) -> None:
        while self.world.trouble:
            await anyio.sleep(self.rng.choice((0.02, 0.1, 0.5)))
            key, group = self.rng.choice(self.world.keys), self.rng.choice(GROUPS)
            dice = self.rng.random()
            row = present(self.truth.shard.state.partition(key))
            if dice < 0.70:
                self.append(key)
            elif dice < 0.80:
                self.transaction(key, commit=self.rng.random() < 0.5)
            elif dice < 0.86:
                self.compact(key)
            elif dice < 0.91:
                to = min(row.next_offset, row.log_start + self.rng.choice((1, 5, 30)))
                self.world.land(Trim(*key, to).envelope())
            elif dice < 0.94:
                start = self.rng.choice((EARLIEST, LATEST, self.rng.randrange(row.next_offset)))
                self.set(key, group, ShareAction.RESET, start)
            elif dice < 0.96:
                self.world.keys.remove(key)
                self.world.land(DeleteQueue(key[0]).envelope())
                self.make_queue()

    def compact(self, key: PartitionKey) -> None:
        state = self.truth.shard.state
        row = present(state.partition(key))
        every = list(state.batches(key, row.log_start, row.first_open if row.first_open >= 0
                                   else row.next_offset))  # fmt: skip
        some = [(last, found.generation) for last, found in every if self.rng.random() < 0.1]
        self.world.land(Compact(*key, some[:4]).envelope())


async def _simulate(world: World, happenings: Happenings) -> None:
    async with anyio.create_task_group() as tasks:
        world.tasks = tasks
        for _ in range(2):
            happenings.make_queue()
        for _ in range(2):
            world.start_worker()
        world.workers[0].claim()
        for number in range(MEMBERS):
            tasks.start_soon(Member(world, number).run)
        tasks.start_soon(happenings.run)
        tasks.start_soon(world.claims)
        await anyio.sleep(RUN_S)
        await world.settle()
        with anyio.move_on_after(QUIET_S):
            while world.truth.unfinished():
                await anyio.sleep(1)
        left = world.truth.unfinished()
        assert not left, f"S5: stuck: {left}"
        tasks.cancel_scope.cancel()
    world.truth.all_ended()


def simulated(
    seed: int, *, shuffled: bool = False, world: Callable[[int], World] = World,
    happenings: Callable[[Any], Happenings] = Happenings,
) -> Truth:  # fmt: skip
    worlds: list[World] = []

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(share_partition, "to_thread", virtual_time.Inline)
            for module in (share_lanes, scattered):
                patch.setattr(module, "to_thread", virtual_time.Inline)
            worlds.append(world(seed))
            await _simulate(worlds[0], happenings(worlds[0]))

    try:
        virtual_time.run(main, seed, shuffled=shuffled)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    worlds[0].truth.counted += fold_twice(worlds[0].log, seed=seed) + worlds[0].happened
    return worlds[0].truth
