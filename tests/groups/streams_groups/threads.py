"""Members of streams groups over a coordinator without a worker."""

from collections.abc import Callable, Iterable
from typing import Any

import anyio.to_thread

from kproxy.common.errors import KafkaError
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.model.topology import (
    ACTIVE,
    STANDBY,
    InternalTopic,
    Subtopology,
    Topology,
    number_of,
    role_of,
)
from kproxy.groups.requests.streams_heartbeat import (
    StreamsHeartbeatRequest,
    StreamsHeartbeatResult,
    heartbeat,
)
from kproxy.metadata.group_settings import GroupSettings
from tests.fakes import MemoryShard
from tests.groups import rules

Tasks = dict[str, list[int]]
"""Partitions by role and subtopology: "active 0", "standby 0"."""
ROLE_NAMES = {ACTIVE: "active", STANDBY: "standby"}


def internal(name: str, partitions: int = 0) -> InternalTopic:
    return InternalTopic(name, partitions, 0, ())


def part(
    name: str, *sources: str, sinks: Iterable[str] = (), changelogs: Iterable[str] = (),
    repartitions: Iterable[InternalTopic] = (), copartitions: Iterable[tuple[str, ...]] = (),
) -> Subtopology:  # fmt: skip
    return Subtopology(
        name, sources, tuple(sinks), tuple(map(internal, changelogs)), tuple(repartitions),
        tuple(copartitions),
    )  # fmt: skip


def topology(*parts: Subtopology, epoch: int = 0) -> Topology:
    return Topology(epoch, tuple(sorted(parts)))


class Stage(rules.Stage):
    """A coordinator of streams groups, its shard, and queues in it."""

    def __init__(self, *queues: str, partitions: int = 4, **settings: Any) -> None:
        given = {"streams_assignment_interval_ms": 0, "streams_initial_rebalance_delay_ms": 0}
        super().__init__(GroupSettings(**given | settings))
        for name in queues:
            self.create(name, partitions)

    def group(self, name: str = "g") -> StreamsGroup:
        group = self.coordinator.find(name)
        assert isinstance(group, StreamsGroup)
        return group

    def fire_timers(self, now: float) -> None:
        while self.coordinator.timers.run_due(now):
            pass


class Thread:
    """A member. `has`: its tasks as it was told."""

    def __init__(self, stage: Stage, name: str, structure: Topology, process: str = "") -> None:
        self.stage, self.name, self.structure = stage, name, structure
        self.process = process or f"process of {name}"
        self.epoch, self.has = 0, Tasks()
        self.told: Any = None
        self.statuses: list[int] = []

    def request(self, **changes: Any) -> StreamsHeartbeatRequest:
        joins = changes.get("member_epoch", self.epoch) == 0
        values: dict[str, Any] = {
            "group_id": "g", "member_id": self.name, "member_epoch": self.epoch, "instance": None,
            "rack": None, "rebalance_ms": 5000 if joins else -1,
            "topology": self.structure if joins else None,
            "owned": [] if joins else self.owned(), "process": self.process if joins else None,
            "endpoint": None, "tags": None, "shutdown": False, "client_id": "c", "host": "/h",
        }  # fmt: skip
        return StreamsHeartbeatRequest(**values | changes)

    def owned(self) -> list[tuple[int, str, tuple[int, ...]]]:
        roles = {name: role for role, name in ROLE_NAMES.items()}
        split = [(key.split(" ", 1), parts) for key, parts in self.has.items()]
        return [(roles[role], name, tuple(parts)) for (role, name), parts in split]

    async def beat(self, **changes: Any) -> Any:
        """Beat; return what it has by role and subtopology, or the code."""
        request = await self._aside(lambda: self.request(**changes))
        try:
            result = await heartbeat(self.stage.coordinator, request)
        except KafkaError as error:
            return error.code
        await self._aside(lambda: self._take(result))
        return self.has

    async def _aside(self, work: Callable[[], Any]) -> Any:
        return work()

    def _take(self, result: StreamsHeartbeatResult) -> None:
        self.epoch, self.told = result.member_epoch, result
        self.statuses = [one.code for one in result.statuses]
        if result.tasks is not None:
            self.has = Tasks()
            for task in sorted(result.tasks):
                name = self.structure.subtopologies[number_of(task)].id
                self.has.setdefault(f"{ROLE_NAMES[role_of(task)]} {name}", []).append(task[1])


class LargeThread(Thread):
    """A member whose own work does not hold the loop: what holds it is the coordinator's."""

    async def _aside(self, work: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(work)


async def settle(*members: Thread) -> None:
    """Beat until nothing moves any more."""
    for _ in range(20):
        before = [(member.epoch, member.has) for member in members]
        for member in members:
            await member.beat()
        if before == [(member.epoch, member.has) for member in members]:
            return
    raise AssertionError("it goes on for ever")


__all__ = ["MemoryShard", "Stage", "Tasks", "Thread", "internal", "part", "settle", "topology"]
