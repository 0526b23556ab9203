"""Threads of an application over real coordinators, in virtual time.

Heartbeats and answers are lost, threads come and go, are silent, give up slowly, and come back;
coordinators lose the shard and get it again with nothing but its rows; topics grow.
"""

import random
from collections import Counter
from typing import Any

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.groups.coordinator import Coordinator, GroupServices
from kproxy.groups.coordinators import Coordinators
from kproxy.groups.model.streams_group import StreamsGroup, StreamsState
from kproxy.groups.model.topology import ACTIVE, STANDBY, number_of, role_of
from kproxy.groups.requests.streams_heartbeat import StreamsHeartbeatRequest, heartbeat
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.group_settings import GroupSettings
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.types import PartitionKey, QueueId
from tests.commands import command
from tests.fakes import MemoryShard
from tests.groups.streams_groups.threads import internal, part, topology
from tests.simulation import virtual_time

GROUP = "g"
TOPOLOGY = topology(
    part("0", "q", sinks=("r",)),
    part("1", repartitions=(internal("r"),), changelogs=("c",)),
)
_SESSION_S = 6.0
_END_S, _QUIET_S = 60.0, 30.0
_SETTINGS = GroupSettings(
    streams_session_timeout_ms=int(_SESSION_S * 1000), streams_initial_rebalance_delay_ms=1000,
    streams_assignment_interval_ms=500, streams_num_standby_replicas=1,
)  # fmt: skip


class World:
    """A shard, whoever coordinates its groups, and the threads."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shard: Any = MemoryShard()
        self.coordinators = self._coordinators()
        self.threads: list[Thread] = []
        self.counted: Counter[str] = Counter()
        self.quiet = self.over = False
        self.head_epoch = 0
        self._numbers = iter(range(1_000_000))
        for number, name in enumerate("qrc"):
            values = {"name": name, "partitions": 4, "configs": {}}
            self.shard.apply(command(Kind.CREATE, QueueId(bytes((number,)) * 16), values=values))

    def _coordinators(self) -> Coordinators:
        config = Config(group_streams_max_size=20)
        services = GroupServices(
            config, StateLookup(self.shard.state), lambda: 1_000_000,
            settings_of=lambda group_id: _SETTINGS,
        )  # fmt: skip
        return Coordinators(lambda: [self.shard], services)

    @property
    def coordinator(self) -> Coordinator:
        return self.coordinators.of(self.shard)

    @property
    def group(self) -> StreamsGroup | None:
        group = self.coordinator.find(GROUP)
        assert group is None or isinstance(group, StreamsGroup)
        return group

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.coordinators.run)
            for _ in range(3):
                self._start_thread(tasks)
            began = anyio.current_time()
            while anyio.current_time() < began + _END_S:
                await anyio.sleep(self.rng.uniform(0.5, 4))
                self._disturb(tasks)
                self.check()
            self.quiet = True
            await anyio.sleep(_QUIET_S)
            self.check()
            self._check_quiet()
            self.over = True
            tasks.cancel_scope.cancel()

    def _start_thread(self, tasks: Any, name: str = "", process: str = "") -> None:
        name = name or f"t{next(self._numbers)}"
        thread = Thread(self, name, process or self.rng.choice("ABC"))
        self.threads.append(thread)
        tasks.start_soon(thread.run)

    def _disturb(self, tasks: Any) -> None:
        step = self.rng.random()
        living = [thread for thread in self.threads if thread.alive]
        if step < 0.25:  # another worker takes over, or the same one again
            self.shard.claim_offset += 1
            self.counted["takeovers"] += 1
        elif step < 0.35:  # a new worker, with nothing but the rows
            self._rebuild()
            self.counted["rebuilds"] += 1
        elif step < 0.55 and len(living) < 6:
            self._start_thread(tasks)
            self.counted["starts"] += 1
        elif step < 0.75 and len(living) > 1:
            thread = self.rng.choice(living)
            thread.alive = False  # killed: it says nothing any more
            self.counted["kills"] += 1
            if self.rng.random() < 0.5:  # and is started again, under its name
                self._start_thread(tasks, thread.name, thread.process)
        elif step < 0.85 and len(living) > 1:
            self.rng.choice(living).leaves = True
        elif living:
            self.rng.choice(living).silent_until = anyio.current_time() + self.rng.uniform(1, 12)

    def _rebuild(self) -> None:
        """Give the shard to a worker that has read its rows, and never saw its log."""
        before = self.shard
        self.coordinator.end(Code.NOT_COORDINATOR)
        self.shard = MemoryShard()
        self.shard.claim_offset = before.claim_offset + 1
        self.shard.log = list(before.log)
        self.shard.kv.write(dict(before.kv.rows))
        self.shard.state.counts.groups |= before.state.counts.groups
        services = self.coordinators.services._replace(lookup=StateLookup(self.shard.state))
        self.coordinators.services = services

    # -- what must hold

    def check(self) -> None:
        """Check that no active task has two owners, and no process a task twice."""
        group = self.group
        if group is None:
            return
        self.head_epoch = self._grown(self.head_epoch, group.epoch)
        held: Counter[PartitionKey] = Counter()
        for member in group.members.values():
            held.update(
                task for task in member.assigned | member.revoking if role_of(task) == ACTIVE
            )
        assert max(held.values(), default=0) <= 1, "an active task has two owners"
        running: Counter[tuple[int, int]] = Counter()
        in_process: Counter[tuple[str, int, int]] = Counter()
        for thread in self.threads:
            member = group.members.get(thread.name)
            if not thread.alive or member is None or thread.epoch == 0:
                continue
            if thread.epoch not in (member.epoch, member.previous_epoch):
                continue  # it is fenced when it beats next
            tasks = thread.has | thread.slow
            assert tasks <= member.assigned | member.revoking, "it runs what is not its own"
            running.update((number_of(task), task[1]) for task in tasks if role_of(task) == ACTIVE)
            in_process.update((thread.process, number_of(task), task[1]) for task in tasks)
        assert max(running.values(), default=0) <= 1, "an active task runs twice"
        assert max(in_process.values(), default=0) <= 1, "a process has a task twice"

    def _grown(self, before: int, now: int) -> int:
        head = self.coordinator.head(GROUP)
        assert head is not None
        logged: int = head.values["epoch"]
        assert logged >= self.logged_epoch if before else True, "the group's epoch fell"
        self.logged_epoch = logged
        return now

    logged_epoch = 0

    def _check_quiet(self) -> None:
        """Check that every task has its owner, and each that has state its standby."""
        living = [thread for thread in self.threads if thread.alive]
        group = self.group
        assert group is not None
        assert group.state == StreamsState.STABLE, group.state
        assert {thread.name for thread in living} == set(group.members)
        tasks = Counter(task for thread in living for task in thread.has)
        active = {(number_of(task), task[1]) for task in tasks if role_of(task) == ACTIVE}
        assert active == {(part, index) for part in (0, 1) for index in range(4)}
        assert all(count == 1 for task, count in tasks.items() if role_of(task) == ACTIVE)
        standby = {task[1] for task in tasks if role_of(task) == STANDBY}
        several = len({thread.process for thread in living}) > 1
        assert standby == (set(range(4)) if several else set()), standby
        assert all(thread.has == group.members[thread.name].assigned for thread in living)


class Thread:
    """A thread of the application, as Kafka Streams behaves."""

    def __init__(self, world: World, name: str, process: str) -> None:
        self.world, self.name, self.process = world, name, process
        self.alive, self.leaves = True, False
        self.silent_until = 0.0
        self.epoch = 0
        self.has: frozenset[PartitionKey] = frozenset()
        self.slow: frozenset[PartitionKey] = frozenset()
        """The tasks that it has yet to close."""

    async def run(self) -> None:
        rng = self.world.rng
        while self.alive and not self.world.over:
            await anyio.sleep(rng.uniform(0.1, 1.5))
            if anyio.current_time() < self.silent_until and not self.world.quiet:
                continue
            if not self.alive:
                return
            lossy = not self.world.quiet
            if lossy and rng.random() < 0.1:
                continue  # the request is lost
            await self._beat(lost=lossy and rng.random() < 0.1)
            if self.slow and rng.random() < 0.6:
                self.slow = frozenset()

    def _owned(self) -> list[tuple[int, str, tuple[int, ...]]]:
        found: dict[tuple[int, str], list[int]] = {}
        for task in self.has | self.slow:
            name = TOPOLOGY.subtopologies[number_of(task)].id
            found.setdefault((role_of(task), name), []).append(task[1])
        return [(role, name, tuple(parts)) for (role, name), parts in found.items()]

    async def _beat(self, *, lost: bool) -> None:
        joins, counted = self.epoch == 0, self.world.counted
        asked = StreamsHeartbeatRequest(
            group_id=GROUP, member_id=self.name, member_epoch=-1 if self.leaves else self.epoch,
            instance=None, rack=None, rebalance_ms=4000 if joins else -1,
            topology=TOPOLOGY if joins and not self.leaves else None,
            owned=[] if joins else self._owned(), process=self.process if joins else None,
            endpoint=None, tags=None, shutdown=False, client_id="c", host="/h",
        )  # fmt: skip
        try:
            result = await heartbeat(self.world.coordinator, asked)
        except KafkaError as error:
            counted[error.code.name] += 1
            gone = (Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND)
            if error.code in gone:
                self._drop_all()
            if self.leaves and error.code in gone:
                self.alive = False
            return
        if self.leaves:
            self.alive = False
            counted["leaves"] += 1
            return
        if lost or not self.alive:
            counted["lost"] += 1
            return
        assert result.member_epoch >= self.epoch, "a member's epoch fell"
        self.epoch = result.member_epoch
        if result.tasks is not None:
            counted["told"] += 1
            closing = (self.has | self.slow) - result.tasks
            if not self.world.quiet:
                self.slow = closing
            self.has = result.tasks

    def _drop_all(self) -> None:
        self.epoch, self.has, self.slow = 0, frozenset(), frozenset()


def simulated(seed: int, *, shuffled: bool = False) -> World:
    world = World(seed)
    virtual_time.run(world.run, seed, shuffled=shuffled)
    return world
