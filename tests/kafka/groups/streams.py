"""Members of streams groups by hand: one connection each, requests with the fields that matter."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import _connected, known
from tests.wire import Wire

_GROUP = 32  # a kind of resource


def topic(name: str, partitions: int = 0, **configs: str) -> dict[str, Any]:
    """Return an internal topic as a topology has it."""
    settings = [{"key": k.replace("_", "."), "value": v} for k, v in configs.items()]
    return {"name": name, "partitions": partitions, "replication_factor": 0,
            "topic_configs": settings}  # fmt: skip


def part(name: str, *sources: str, **more: Any) -> dict[str, Any]:
    """Return a subtopology."""
    return {
        "subtopology_id": name, "source_topics": sources, "source_topic_regex": (),
        "state_changelog_topics": (), "repartition_sink_topics": (),
        "repartition_source_topics": (), "copartition_groups": (),
    } | more  # fmt: skip


def together(*sources: int, repartitions: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return a copartition group."""
    return {
        "source_topics": sources, "source_topic_regex": (),
        "repartition_source_topics": repartitions,
    }  # fmt: skip


class Thread:
    """A member of a streams group. `has`: partitions by role and subtopology."""

    def __init__(self, like: Wire, group: str, member_id: str, *parts: dict[str, Any]) -> None:
        self.wire = _connected(like)
        self.group, self.id = group, member_id
        self.epoch, self.parts = 0, parts
        self.topology_epoch, self.endpoint_epoch = 0, 0
        self.process = f"process of {member_id}"
        self.endpoint: tuple[str, int] | None = None
        self.has: dict[str, dict[str, tuple[int, ...]]] = {"active": {}, "standby": {}}

    def values(self, **changes: Any) -> dict[str, Any]:
        first = changes.get("member_epoch", self.epoch) == 0
        owned = (lambda role: ()) if first else self.owned
        endpoint = self.endpoint and dict(zip(("host", "port"), self.endpoint, strict=True))
        return {
            "group_id": self.group, "member_id": self.id, "member_epoch": self.epoch,
            "endpoint_information_epoch": self.endpoint_epoch, "instance_id": None, "rack_id": None,
            "rebalance_timeout": 5000 if first else -1,
            "topology": {"epoch": self.topology_epoch, "subtopologies": self.parts} if first
            else None,
            "active_tasks": owned("active"), "standby_tasks": owned("standby"), "warmup_tasks": (),
            "process_id": self.process if first else None,
            "user_endpoint": endpoint if first else None,
            "client_tags": () if first else None, "task_offsets": None, "task_end_offsets": None,
            "shutdown_application": False,
        } | changes  # fmt: skip

    def owned(self, role: str) -> list[dict[str, Any]]:
        return [{"subtopology_id": n, "partitions": p} for n, p in self.has[role].items()]

    def beat(self, **changes: Any) -> Any:
        answer = self.wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, self.values(**changes))
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            for role in self.has:
                if (tasks := getattr(answer, f"{role}_tasks")) is not None:
                    self.has[role] = {one.subtopology_id: one.partitions for one in tasks}
        return answer

    def shown(self, **changes: Any) -> Any:
        """Beat; return what of the answer is compared."""
        answer = self.beat(**changes)
        if answer.error_code:
            return int(answer.error_code), answer.member_id, answer.status
        told = answer.active_tasks is not None
        assert told == (answer.standby_tasks is not None) == (answer.warmup_tasks is not None)
        statuses = [(one.status_code, _in_order(one.status_detail)) for one in answer.status]
        return answer.member_epoch, answer.heartbeat_interval, statuses, told and self.tasks()

    def tasks(self) -> Any:
        """Return tasks by role and subtopology, in order."""
        return {
            role: {name: sorted(parts) for name, parts in sorted(has.items())}
            for role, has in self.has.items()
        }

    def counts(self) -> list[int]:
        return [sum(map(len, has.values())) for has in self.has.values()]

    def commit(self, queue: str, epoch: int, version: int = 9, partition: int = 0) -> int:
        place = {"partition_index": partition, "committed_offset": 1, "committed_leader_epoch": -1,
                 "committed_metadata": ""}  # fmt: skip
        values = {
            "group_id": self.group, "generation_id_or_member_epoch": epoch, "member_id": self.id,
            "group_instance_id": None, "retention_time": -1,
            "topics": [{"name": queue, "partitions": [place]}],
        }  # fmt: skip
        answer = self.wire.call(ApiKey.OFFSET_COMMIT, version, values)
        return int(answer.topics[0].partitions[0].error_code)

    def fetch_code(self, queue: str, epoch: int) -> int:
        asked = {"group_id": self.group, "member_id": self.id, "member_epoch": epoch,
                 "topics": [{"name": queue, "partition_indexes": (0,)}]}  # fmt: skip
        values = {"groups": [asked], "require_stable": False}
        return int(self.wire.call(ApiKey.OFFSET_FETCH, 9, values).groups[0].error_code)


def _in_order(detail: str) -> str:
    """Return a status with the names in it sorted: Kafka has them in a hash table's order."""
    said, colon, names = detail.partition("Internal topics are missing: ")
    return said + colon + ", ".join(sorted(names.split(", ")))


def settle(*members: Thread) -> None:
    """Send heartbeats until nothing moves any more."""

    def still() -> bool:
        before = [(m.epoch, m.tasks()) for m in members]
        for member in members:
            member.beat()
        return before == [(m.epoch, m.tasks()) for m in members]

    with unheard():
        eventually(lambda: all(still() for _ in range(3)), period=0.2)


def at_once(wire: Wire, group: str, **settings: str) -> None:
    """Have a group assign at once, with other settings of streams groups."""
    wanted = {"initial_rebalance_delay_ms": "0", "assignment_interval_ms": "0"} | settings
    configs = [
        {"name": f"streams.{name.replace('_', '.')}", "config_operation": 0, "value": value}
        for name, value in wanted.items()
    ]
    resource = {"resource_type": _GROUP, "resource_name": group, "configs": configs}
    values = {"resources": [resource], "validate_only": False}
    assert wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values).responses[0].error_code == 0

    def there() -> bool:
        asked = {"resource_type": _GROUP, "resource_name": group, "configuration_keys": None}
        values = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
        found = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values).results[0].configs
        told = {one.name: one.value for one in found}
        return all(told.get(one["name"]) == one["value"] for one in configs)

    with unheard():
        eventually(there)


def ready(wire: Wire, queue: str, partitions: int = 1, **settings: str) -> None:
    """Create a queue that groups can be given, and have the group of its name assign at once."""
    known(wire, queue, partitions)
    at_once(wire, queue, **settings)


def describe(wire: Wire, *groups: str) -> Any:
    values = {"group_ids": groups, "include_authorized_operations": False}
    return wire.call(ApiKey.STREAMS_GROUP_DESCRIBE, 0, values)
