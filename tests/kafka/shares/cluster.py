"""A `Cluster` that is asked about share groups, and scripts of them run against both."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate
from uuid import UUID

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.alike import as_test
from tests.kafka.cluster import Cluster, name
from tests.kafka.transactions.producer import compare_said
from tests.wire import Wire

GROUP = 32  # the type of a group's configs
NEVER = "never"  # a topic that never was
NEVER_ID = UUID("12345678-1234-4234-8234-123456789abc")

Part = tuple[str, int]


class ShareCluster(Cluster):
    """A cluster with the names of topics by their ids, also of deleted ones."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._ids: dict[str, UUID] = {NEVER: NEVER_ID}

    def share_id(self, topic: str) -> UUID:
        if topic not in self._ids:
            self._ids[topic] = self.topic_id(topic)
        return self._ids[topic]

    def forget_id(self, topic: str) -> None:
        """Name the old id of a topic that is made anew `old <topic>` from now on."""
        self._ids[f"old {topic}"] = self._ids.pop(topic)
        self._leaders.clear()

    def topic_name(self, topic_id: Any) -> str:
        return next(topic for topic, known in self._ids.items() if known == topic_id)

    def make(self, topic: str, partitions: int = 1, **configs: str) -> str:
        super().make(topic, partitions, **configs)
        self.share_id(topic)
        return topic

    def write(self, topic: str, *sizes: int, partition: int = 0) -> None:
        """Write batches of so many records."""
        for size in sizes:
            self.plain_write(topic, *[b"v"] * size, partition=partition)

    # -- groups

    def configure(self, group: str, **configs: str | None) -> None:
        """Alter a group's settings, and wait until they are in force."""
        listed = [
            {
                "name": key.replace("_", "."),
                "config_operation": 1 if value is None else 0,
                "value": value,
            }
            for key, value in configs.items()
        ]
        values = {
            "resources": [{"resource_type": GROUP, "resource_name": group, "configs": listed}],
            "validate_only": False,
        }  # fmt: skip
        answer = self.wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values).responses[0]
        self.say(f"configure {configs}", name(answer.error_code))
        if answer.error_code == 0:
            for address in {(b.host, b.port) for b in self.wire.metadata().brokers}:
                self._configured(self.at(*address), group, configs)

    def _configured(self, wire: Wire, group: str, configs: dict[str, str | None]) -> None:
        """Wait until a node has heard of it, a little later."""
        keys = tuple(key.replace("_", ".") for key in configs)
        asked = {"resource_type": GROUP, "resource_name": group, "configuration_keys": keys}
        values = {
            "resources": [asked], "include_synonyms": False, "include_documentation": False,
        }  # fmt: skip
        end = time.monotonic() + 20
        while True:
            found = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values).results[0].configs
            held = {c.name.replace(".", "_"): c.value for c in found if c.config_source == 8}
            if all(held.get(key) == value for key, value in configs.items()):
                return
            assert time.monotonic() < end, (held, configs)
            time.sleep(0.02)

    def share_groups(self, prefix: str, version: int = 5, **filters: Any) -> None:
        """List the groups of all nodes with this prefix."""
        values = {"states_filter": (), "types_filter": ()} | filters
        found, codes = [], set()
        for address in sorted({(b.host, b.port) for b in self.wire.metadata().brokers}):
            answer = self.at(*address).call(ApiKey.LIST_GROUPS, version, values)
            codes.add(name(answer.error_code))
            found += [
                (g.group_id, g.protocol_type, g.group_state, getattr(g, "group_type", None))
                for g in answer.groups
                if g.group_id.startswith(prefix)
            ]
        self.say(f"list groups v{version} {filters}", f"{sorted(codes)} {sorted(found)}")

    def describe_group(self, group: str, *, epochs: bool = True) -> None:
        """Describe a group.

        Epochs are said only as whether all are the same: initialising raises them.
        """
        values = {"group_ids": (group,), "include_authorized_operations": False}
        answer = self.coordinated(
            group, ApiKey.SHARE_GROUP_DESCRIBE, 1, values, key_type=0,
            codes=lambda a: {int(a.groups[0].error_code)},
        )  # fmt: skip
        found = answer.groups[0]
        members, at = [], {found.group_epoch, found.assignment_epoch}
        for member in sorted(found.members, key=lambda m: m.member_id):
            at.add(member.member_epoch)
            parts = sorted(
                f"{t.topic_name}/{p}"
                for t in member.assignment.topic_partitions
                for p in t.partitions
            )
            for topic in member.assignment.topic_partitions:
                assert self.share_id(topic.topic_name) == topic.topic_id
            members.append(
                f"{member.member_id} rack {member.rack_id} {member.client_id} "
                f"{member.client_host} {sorted(member.subscribed_topic_names)} {parts}"
            )
        told = f" epochs {len(at)}" if epochs else ""
        self.say(
            f"describe {group!r}",
            f"{name(found.error_code)} {found.group_state!r}{told} by {found.assignor_name!r} "
            f"{members} ops {found.authorized_operations}",
        )

    # -- their offsets

    def share_offsets(
        self, group: str, *parts: Part, all_topics: bool = False, version: int = 1,
        start: bool = False,
    ) -> None:  # fmt: skip
        """Describe a group's offsets, of these partitions or of all.

        The start only where asked: a real Kafka writes it one acknowledgement late.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in parts:
            topics.setdefault(topic, []).append(partition)
        listed = [{"topic_name": t, "partitions": tuple(at)} for t, at in topics.items()]
        values = {"groups": [{"group_id": group, "topics": None if all_topics else listed}]}
        answer = self.coordinated(
            group, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, values, key_type=0,
            codes=lambda a: {int(a.groups[0].error_code)},
        )  # fmt: skip
        found = answer.groups[0]
        shown = sorted(
            f"{t.topic_name}{'' if t.topic_id else ' no id'}/{p.partition_index} "
            f"{name(p.error_code)}{f' start {p.start_offset}' if start else ''}"
            f"{f' lag {p.lag}' if version else ''}"
            for t in found.topics
            for p in t.partitions
        )
        self.say(
            f"share offsets v{version} {group!r} {'all' if all_topics else parts}",
            f"{name(found.error_code)} {shown}",
        )

    def alter_offsets(self, group: str, offsets: dict[Part, int]) -> None:
        """Send AlterShareGroupOffsets."""
        topics: dict[str, list[Any]] = {}
        for (topic, partition), at in offsets.items():
            part = {"partition_index": partition, "start_offset": at}
            topics.setdefault(topic, []).append(part)
        listed = [{"topic_name": t, "partitions": parts} for t, parts in topics.items()]
        values = {"group_id": group, "topics": listed}
        answer = self.coordinated(group, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, values, key_type=0)
        shown = sorted(
            f"{t.topic_name}{'' if t.topic_id else ' no id'}/{p.partition_index} "
            f"{name(p.error_code)}"
            for t in answer.responses
            for p in t.partitions
        )
        self.say(f"alter offsets {group!r} {offsets}", f"{name(answer.error_code)} {shown}")

    def delete_offsets(self, group: str, *topics: str) -> None:
        """Send DeleteShareGroupOffsets."""
        values = {"group_id": group, "topics": [{"topic_name": t} for t in topics]}
        answer = self.coordinated(group, ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, values, key_type=0)
        shown = sorted(
            f"{t.topic_name}{'' if t.topic_id else ' no id'} {name(t.error_code)}"
            for t in answer.responses
        )
        self.say(f"delete offsets {group!r} {topics}", f"{name(answer.error_code)} {shown}")

    def delete_group(self, group: str) -> None:
        values = {"groups_names": (group,)}
        answer = self.coordinated(
            group, ApiKey.DELETE_GROUPS, 2, values, key_type=0,
            codes=lambda a: {int(a.results[0].error_code)},
        )  # fmt: skip
        self.say(f"delete group {group!r}", name(answer.results[0].error_code))


def alike_in_shares(
    script: Callable[Concatenate[ShareCluster, str, ...], None],
) -> Callable[..., None]:
    """Make a script of members a test, which compares the answers line by line."""
    return as_test(script, partial(compare_said, ShareCluster))
