"""A coordinator without a worker, and groups whose time a test moves."""

from itertools import count
from typing import Any

from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.groups.coordinator import Coordinator, GroupServices
from kproxy.groups.upkeep.timers import Timers
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.group_settings import GroupRules, GroupSettings
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.types import QueueId
from tests.commands import command
from tests.fakes import MemoryShard


def coordinator_without_worker(**settings: Any) -> Coordinator:
    """Return a coordinator. Member ids are numbered: "NAME-0", "NAME-1" and so on."""
    shard: Any = MemoryShard()
    config = Config(**{"group_session_ms_min": 1, "group_initial_rebalance_delay_ms": 0} | settings)
    numbers, settings_of_all = count(), GroupRules(config.broker_values()).defaults
    services = GroupServices(
        config, StateLookup(shard.state), lambda: 0, lambda: next(numbers),
        settings_of=lambda group_id: settings_of_all,
    )  # fmt: skip
    return Coordinator(shard, services)


class Stage:
    """A coordinator, its shard, and queues in it."""

    def __init__(self, group_settings: GroupSettings, **settings: Any) -> None:
        self.settings = group_settings
        self.coordinator = coordinator_without_worker(**settings)
        self.shard: Any = self.coordinator.shard
        self.take_over(end=False)

    def take_over(self, *, end: bool = True) -> None:
        """Have another coordinator serve the shard; nothing is left of the former one."""
        former = self.coordinator
        if end:
            former.end(Code.NOT_COORDINATOR)
        services = GroupServices(
            former.config, former.lookup, lambda: 1_000_000, object,
            settings_of=lambda group_id: self.settings,
        )  # fmt: skip
        self.coordinator = Coordinator(self.shard, services)

    def create(self, name: str, partitions: int = 1) -> QueueId:
        queue_id = QueueId(name.encode().ljust(16, b".")[:16])
        values = {"name": name, "partitions": partitions, "configs": {}}
        assert not self.shard.apply(command(Kind.CREATE, queue_id, values=values)).code
        return queue_id


class StandingCoordinator:
    """The part of a coordinator that a group needs, with a clock that stands until `pass_time`."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers = Timers()
        self.logged: list[Any] = []
        self.forgotten: list[Any] = []
        self.fenced: list[str] = []
        self.initial_delay_s = 3.0
        self.settings = GroupSettings(consumer_assignment_interval_ms=0)

    def settings_of(self, group_id: str) -> GroupSettings:
        return self.settings

    def now(self) -> float:
        return self.time

    def soon(self, group: Any) -> None:
        self.logged.append(group)

    def forget(self, group: Any) -> None:
        self.forgotten.append(group)

    def fence_soon(self, group: Any, member: Any, still: Any) -> None:
        if still():
            self.fenced.append(member.id)
            group.remove(member.id)

    def pass_time(self, seconds: float) -> None:
        """Let time pass: everything that falls due meanwhile happens at its time."""
        until = self.time + seconds
        while self.timers.next <= until:
            self.time = max(self.time, self.timers.next)
            self.timers.run_due(self.time)
        self.time = until
