"""Members of groups by hand: one connection each, requests with the fields that matter."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, Concatenate
from uuid import UUID

from kproxy.groups.model.consumer_protocol import encode_subscription
from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import as_test, compare, made
from tests.kafka.canonical import unheard
from tests.wire import Wire

ZERO = UUID(int=0)


def ready(wire: Wire) -> None:
    """Wait until groups can be used: a real Kafka makes its offsets topic when first asked."""
    wire.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ("any",)})
    values = {"group_id": "any", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    eventually(lambda: wire.call(ApiKey.HEARTBEAT, 4, values).error_code == 25)


def alike_in_groups(script: Callable[Concatenate[Wire, str, ...], Any]) -> Callable[..., None]:
    """Make a script of members a test, which compares what it returns with Kafka's answers.

    The connections of its members are closed at its end.
    """

    @wraps(script)
    def closing(*given: Any, **more: Any) -> Any:
        with ExitStack() as stack:
            _scripts.append(stack)
            stack.callback(_scripts.pop)
            return script(*given, **more)

    return as_test(closing, partial(compare, prepare=ready))


_scripts: list[ExitStack] = []
"""The script that runs, with the connections it has."""


def _connected(like: Wire) -> Wire:
    """Return a connection to the same server."""
    made = Wire(*like.socket.getpeername()[:2])
    if _scripts:
        _scripts[-1].callback(made.socket.close)
    return made


class Names:
    """Random ids as `m1`, `m2`, … in the order in which they turn up."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, value: str | None) -> str | None:
        if not value:
            return value
        return self._known.setdefault(value, f"m{len(self._known) + 1}")


class Classic:
    """A member of the classic protocol."""

    def __init__(self, like: Wire, group: str, topics: tuple[str, ...] = ()) -> None:
        self.wire = _connected(like)
        self.group = group
        self.topics = topics
        self.id = ""
        self.instance: str | None = None
        self.generation = -1
        self.protocols: dict[str, bytes] = {"range": encode_subscription(topics)}
        self.type = "consumer"
        self.chosen: str | None = None
        self.session_ms = 10_000
        self.rebalance_ms = 20_000

    def join_values(self) -> dict[str, Any]:
        return {
            "group_id": self.group, "session_timeout": self.session_ms,
            "rebalance_timeout": self.rebalance_ms, "member_id": self.id,
            "group_instance_id": self.instance, "protocol_type": self.type, "reason": None,
            "protocols": [{"name": n, "metadata": m} for n, m in self.protocols.items()],
        }  # fmt: skip

    def send_join(self, version: int = 7) -> None:
        self.wire.send(ApiKey.JOIN_GROUP, version, self.join_values())

    def joined(self, version: int = 7) -> Any:
        answer = self.wire.receive(11, version)[1]
        if answer.error_code in (0, 79):
            self.id = answer.member_id
            self.generation = answer.generation_id
            self.chosen = answer.protocol_name
        return answer

    def join(self, version: int = 7) -> Any:
        """Join, with the id that is given first."""
        self.send_join(version)
        answer = self.joined(version)
        if answer.error_code == 79:
            self.send_join(version)
            answer = self.joined(version)
        return answer

    def sync_values(self, assignments: dict[str, bytes]) -> dict[str, Any]:
        return {
            "group_id": self.group, "generation_id": self.generation, "member_id": self.id,
            "group_instance_id": self.instance, "protocol_type": self.type,
            "protocol_name": self.chosen,
            "assignments": [{"member_id": m, "assignment": a} for m, a in assignments.items()],
        }  # fmt: skip

    def send_sync(self, assignments: dict[str, bytes] | None = None) -> None:
        self.wire.send(ApiKey.SYNC_GROUP, 5, self.sync_values(assignments or {}))

    def synced(self) -> Any:
        return self.wire.receive(14, 5)[1]

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        self.send_sync(assignments)
        return self.synced()

    def beat(self) -> int:
        values = {
            "group_id": self.group, "generation_id": self.generation, "member_id": self.id,
            "group_instance_id": self.instance,
        }  # fmt: skip
        return int(self.wire.call(ApiKey.HEARTBEAT, 4, values).error_code)

    def leave(self) -> tuple[int, list[int]]:
        """Leave the group; return the codes of the answer and of its members."""
        member = {"member_id": self.id, "group_instance_id": self.instance, "reason": None}
        answer = self.wire.call(
            ApiKey.LEAVE_GROUP, 5, {"group_id": self.group, "members": [member]}
        )
        return int(answer.error_code), [int(m.error_code) for m in answer.members]

    def commit(self, queue: str, offset: int, **more: Any) -> int:
        values = commit_values(self.group, queue, offset, self.id, self.generation, self.instance)
        answer = self.wire.call(ApiKey.OFFSET_COMMIT, 9, values | more)
        return int(answer.topics[0].partitions[0].error_code)

    def close(self) -> None:
        self.wire.socket.close()


class Modern:
    """A member of the consumer protocol (KIP-848)."""

    def __init__(self, like: Wire, group: str, member_id: str, *topics: str) -> None:
        self.wire = _connected(like)
        self.group = group
        self.id = member_id
        self.topics: tuple[str, ...] | None = topics
        self.instance: str | None = None
        self.epoch = 0
        self.has: dict[UUID, tuple[int, ...]] = {}

    def values(self, **changes: Any) -> dict[str, Any]:
        first = self.epoch == 0
        return {
            "group_id": self.group, "member_id": self.id, "member_epoch": self.epoch,
            "instance_id": self.instance, "rack_id": None,
            "rebalance_timeout": 5000 if first else -1,
            "subscribed_topic_names": self.topics if first else None,
            "subscribed_topic_regex": None, "server_assignor": None,
            "topic_partitions": self.owned() if not first else (),
        } | changes  # fmt: skip

    def owned(self) -> list[dict[str, Any]]:
        return [{"topic_id": t, "partitions": p} for t, p in self.has.items()]

    def beat(self, version: int = 1, **changes: Any) -> Any:
        answer = self.wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, self.values(**changes))
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.has = {
                    t.topic_id: tuple(t.partitions) for t in answer.assignment.topic_partitions
                }
        return answer

    def parts(self) -> list[list[int]]:
        """Return partitions by queue, without the ids, which differ."""
        return sorted(sorted(p) for p in self.has.values())

    def close(self) -> None:
        self.wire.socket.close()


def known(wire: Wire, queue: str, partitions: int = 1) -> None:
    """Create a queue that groups can be given: a real Kafka's coordinator hears of it last."""
    made(wire, queue, partitions)
    with unheard():
        probe = Modern(wire, f"probe-of-{queue}", "probe", queue)
        eventually(lambda: probe.beat().error_code == 0 and bool(probe.has))
        probe.beat(member_epoch=-1)
        probe.close()


def commit_values(
    group: str, queue: str, offset: int, member: str = "", generation: int = -1,
    instance: str | None = None, metadata: str | None = "", partition: int = 0,
) -> dict[str, Any]:  # fmt: skip
    part = {"partition_index": partition, "committed_offset": offset,
            "committed_leader_epoch": -1, "committed_metadata": metadata}  # fmt: skip
    return {
        "group_id": group, "generation_id_or_member_epoch": generation, "member_id": member,
        "group_instance_id": instance, "retention_time": -1,
        "topics": [{"name": queue, "partitions": [part]}],
    }  # fmt: skip


def commit(wire: Wire, group: str, queue: str, offset: int, *member: Any, version: int = 9) -> Any:
    """Commit as `commit_values` says; return the error code."""
    values = commit_values(group, queue, offset, *member)
    answer = wire.call(ApiKey.OFFSET_COMMIT, version, values)
    return answer.topics[0].partitions[0].error_code


def delete_groups(wire: Wire, *groups: str) -> list[tuple[str, int]]:
    results = wire.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": groups}).results
    return sorted((one.group_id, int(one.error_code)) for one in results)


def committed(wire: Wire, group: str, queue: str, partition: int = 0) -> int:
    topic = {"name": queue, "partition_indexes": (partition,)}
    asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": [topic]}
    answer = wire.call(ApiKey.OFFSET_FETCH, 9, {"groups": [asked], "require_stable": True})
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)
