"""Lanes in the simulation of share groups: records have keys, and the groups' rules change.

L1 a record is given only while less records of its lane than may be in flight, and that come before
it, are not done: with one in flight that is the order. L2 no lane is stuck, which is S5. L3 records
that are cut out of their batches are those that are given.
"""

from dataclasses import replace
from typing import Any

import anyio

from kproxy.metadata.lane_settings import LaneRules
from kproxy.protocol.made_batches import Content, header, record
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

    def lane_of(self, group: str, key: PartitionKey, offset: int) -> bytes | None:
        names = self.keys.get((key, offset))
        rules = present(self._settings[group].lanes)
        return None if names is None else names[bool(rules.header)]

    def gives(
        self, claim: int, member: str, at: At, deliveries: int, asked: float, now: float
    ) -> None:
        super().gives(claim, member, at, deliveries, asked, now)
        key, group, epoch, offset = at
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
        ]  # fmt: skip
        assert len(before) < rules.in_flight, f"L1: {at} of {mine!r} before {before}"
        self.counted["given in order"] += 1

    def _is_over(self, at: At, offset: int) -> bool:
        key, group, epoch, _ = at
        aborted = group == GROUPS[1] and (key, offset) in self.aborted
        return (key, group, epoch, offset) in self.ended or (key, offset) in self.holes or aborted

    def _is_gap(self, at: At) -> bool:
        return super()._is_gap(at) or (at[0], at[3]) in self._world.controls

    def _check_window(self, group: str, row: SharePartition) -> None:
        gone = len(self.holes) + len(self.aborted)
        most = self._world.lookahead_max + 200 + BATCH_MAX + gone
        assert row.end - row.start <= most, f"S9: {row}"


class LaneWorld(World):
    lane_bytes = 4000
    lookahead_max = 200

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

    def batch(self, count: int, **more: Any) -> bytes:
        rng = self.rng
        self._names = [(rng.choice(KEYS), rng.choice(KEYS)) for _ in range(count)]
        records = [
            record(at, Content(key, b"v"), [header("h", other.decode()), header("p", f"{level}")])
            for at, (key, other) in enumerate(self._names)
            for level in (rng.randrange(10),)
        ]
        return batch(*[b""] * count, packed=b"".join(records), **more)

    def append(self, key: PartitionKey, **more: Any) -> int:
        first = super().append(key, **more)
        for at, names in enumerate(self._names):
            self.truth.keys[key, first + at] = names
        return first

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._change)
            await super().run()

    async def _change(self) -> None:
        while self.world.trouble:
            await anyio.sleep(self.rng.choice((3.0, 10.0)))
            self.world.change(self.rng.choice(GROUPS))
