"""Lanes in the simulation of share groups: records have keys, and the groups' rules change.

L1 a record is given only while less records of its lane than may be in flight, and that come before
it, are not done: with one in flight that is the order. L2 no lane is stuck, which is S5. L3 records
that are cut out of their batches are those that are given. L4 a record that has expired is not
given, and no other is archived as if it had; it holds up nobody in its lane.
"""

from dataclasses import replace
from typing import Any

import anyio

from kproxy.metadata.lane_settings import LaneRules
from kproxy.protocol.made_batches import Content, header, record
from kproxy.virtual.commands.shares import Cause
from kproxy.virtual.rows.shares import SharePartition
from kproxy.virtual.types import PartitionKey
from tests.present import present
from tests.simulation.shares.members import Happenings
from tests.simulation.shares.truth import BATCH_MAX, GROUPS, At, Truth
from tests.simulation.shares.world import World
from tests.wire import batch

KEYS = (b"a", b"b", b"c", b"d", b"e")


class LaneTruth(Truth):
    def __init__(self, world: "LaneWorld") -> None:
        super().__init__(world.settings)
        self._world = world
        self.keys: dict[tuple[PartitionKey, int], tuple[bytes, bytes]] = {}  # key, header
        self.expires: dict[tuple[PartitionKey, int], int] = {}

    def lane_of(self, group: str, key: PartitionKey, offset: int) -> bytes | None:
        names = self.keys.get((key, offset))
        rules = present(self._settings[group].lanes)
        return None if names is None else names[bool(rules.header)]

    def gives(
        self, claim: int, member: str, at: At, deliveries: int, asked: float, now: float
    ) -> None:
        super().gives(claim, member, at, deliveries, asked, now)
        key, group, epoch, offset = at
        assert not self._has_expired(at, int(asked * 1000)), f"L4: {at} has expired"
        rules = self._settings[group].lanes
        if rules is None or not rules.in_flight or self._world.changed_at[group] >= asked:
            return
        if (key, group, epoch) not in self.begun:
            return  # the queue is deleted
        mine = self.lane_of(group, key, offset)
        first = max(self.begun[key, group, epoch], self._log_start(key))
        before = [
            one for one in range(first, offset)
            if self.lane_of(group, key, one) == mine and not self._is_over(at, one)
            and not self._has_left(claim, (key, group, epoch, one), now)
        ]  # fmt: skip
        assert len(before) < rules.in_flight, f"L1: {at} of {mine!r} before {before}"
        self.counted["given in order"] += 1

    def _is_over(self, at: At, offset: int) -> bool:
        key, group, epoch, _ = at
        aborted = group == GROUPS[1] and (key, offset) in self.aborted
        return (key, group, epoch, offset) in self.ended or (key, offset) in self.holes or aborted

    def _has_expired(self, at: At, now_ms: int) -> bool:
        return self.expires.get((at[0], at[3]), now_ms + 1) <= now_ms

    def _has_left(self, claim: int, at: At, now: float) -> bool:
        """Return whether a record has left its lane though the log may not have it yet."""
        held = self.holds.get((claim, at))
        return self._has_expired(at, int(now * 1000)) and (held is None or held.until <= now)

    def _end(self, at: At, byte: int, cause: int) -> None:
        if cause & 0x7F == Cause.EXPIRED:
            assert self._has_expired(at, self._world.now_ms()), f"L4: {at} has not expired"
        super()._end(at, byte, cause)

    def _is_gap(self, at: At) -> bool:
        if self.ended[at].cause & 0x7F == Cause.EXPIRED:
            self.counted["expired"] += 1
            return True
        return super()._is_gap(at) or (at[0], at[3]) in self._world.controls

    def _check_window(self, group: str, row: SharePartition) -> None:
        gone = len(self.holes) + len(self.aborted)
        most = self._world.lookahead_max + 200 + BATCH_MAX + gone
        assert row.end - row.start <= most, f"S9: {row}"


class LaneWorld(World):
    lane_bytes = 4000
    lookahead_max = 200
    configs = {"kproxy.ttl": "header"}  # noqa: RUF012

    def now_ms(self) -> int:
        return int(anyio.current_time() * 1000)

    def __init__(self, seed: int) -> None:
        self.changed_at = dict.fromkeys(GROUPS, 0.0)
        super().__init__(seed)
        for group in GROUPS:
            self.settings[group] = replace(self.settings[group], lanes=self.rules())

    def new_truth(self) -> Truth:
        return LaneTruth(self)

    def rules(self) -> LaneRules:
        rng = self.rng
        return LaneRules(
            header=rng.choice(("", "h")), in_flight=rng.choice((0, 1, 1, 1, 2)),
            lookahead=rng.choice((20, self.lookahead_max)),
            weights=rng.choice(((), (("a", 3),))), every_s=rng.choice((0.0, 0.0, 0.2)),
            priority=rng.choice(("", "p")), share=rng.choice((0.0, 0.1)),
        )  # fmt: skip

    def change(self, group: str) -> None:
        """Change a group's rules, or take its lanes away."""
        rules = self.rules() if self.rng.random() < 0.8 else None
        self.settings[group] = replace(self.settings[group], lanes=rules)
        self.changed_at[group] = anyio.current_time()


class LaneHappenings(Happenings):
    world: LaneWorld
    truth: LaneTruth

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._names: list[tuple[bytes, bytes]] = []
        self._expires: list[int] = []

    def batch(self, count: int, **more: Any) -> bytes:
        rng = self.rng
        self._names = [(rng.choice(KEYS), rng.choice(KEYS)) for _ in range(count)]
        self._expires = [
            self.world.now_ms() + rng.randrange(8000) if rng.random() < 0.2 else 0
            for _ in range(count)
        ]
        records = []
        for at, (key, other) in enumerate(self._names):
            headers = [header("h", other.decode()), header("p", f"{rng.randrange(10)}")]
            if self._expires[at]:
                headers.append(header("kproxy.expires-at", f"{self._expires[at]}"))
            records.append(record(at, Content(key, b"v"), headers))
        return batch(*[b""] * count, packed=b"".join(records), **more)

    def append(self, key: PartitionKey, **more: Any) -> int:
        first = super().append(key, **more)
        for at, names in enumerate(self._names):
            self.truth.keys[key, first + at] = names
            if self._expires[at]:
                self.truth.expires[key, first + at] = self._expires[at]
        return first

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._change)
            await super().run()

    async def _change(self) -> None:
        while self.world.trouble:
            await anyio.sleep(self.rng.choice((3.0, 10.0)))
            self.world.change(self.rng.choice(GROUPS))
