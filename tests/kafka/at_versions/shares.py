"""Share groups: what members and tools ask."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.kafka.at_versions.asked import Asked, Values
from tests.kafka.at_versions.groups import Cases, member
from tests.kafka.at_versions.records import with_id
from tests.kafka.groups.members import known

MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"


def heartbeat(asked: Asked) -> None:
    known(asked.wire, asked.name)
    with member(asked.wire, f"{asked.name}-classic", asked.name) as one:
        cases: Cases = (
            ("a new member", {}), ("no id", {"member_id": ""}), ("no group", {"group_id": ""}),
            ("an unknown group", {"group_id": f"{asked.name}-none", "member_epoch": 3}),
            ("an unknown member", {"member_id": "other", "member_epoch": 3}),
            ("a classic group", {"group_id": one.group}),
            ("no queues", {"member_id": "third", "subscribed_topic_names": None}),
        )  # fmt: skip
        for what, changes in cases:
            values = {
                "group_id": f"{asked.name}-shared", "member_id": MEMBER, "member_epoch": 0,
                "rack_id": None, "subscribed_topic_names": (f"{asked.name}-none",),
            } | changes  # fmt: skip
            asked.each(what, ApiKey.SHARE_GROUP_HEARTBEAT, values)


def session(asked: Asked, key: ApiKey, *more: tuple[str, Values]) -> None:
    topic_id = with_id(asked.wire, asked.name)
    cases: Cases = (
        ("an unknown session", {"share_session_epoch": 3}), ("no group", {"group_id": None}),
        ("no member", {"member_id": None}), ("the end of none", {"share_session_epoch": -1}),
        ("a bad member id", {"member_id": "x" * 50}), *more,
    )  # fmt: skip
    for what, changes in cases:
        batches = changes.get("batches", ())
        part = {"partition_index": 0, "acknowledgement_batches": batches}
        values = {
            "group_id": f"{asked.name}-group", "member_id": MEMBER, "share_session_epoch": 0,
            "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 10,
            "batch_size": 10, "share_acquire_mode": 0, "is_renew_ack": False,
            "topics": [{"topic_id": changes.get("topic_id", topic_id), "partitions": [part]}],
            "forgotten_topics_data": (),
        } | changes  # fmt: skip
        asked.each(what, key, values)


def fetch(asked: Asked) -> None:
    one = {"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)}
    renew = one | {"acknowledge_types": (4,)}
    session(
        asked, ApiKey.SHARE_FETCH, ("acknowledgements at first", {"batches": [one]}),
        ("a renewal at first", {"batches": [renew], "is_renew_ack": True}),
    )  # fmt: skip


def acknowledge(asked: Asked) -> None:
    one = {"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)}
    session(asked, ApiKey.SHARE_ACKNOWLEDGE, ("at first", {"batches": [one]}))


def groups(asked: Asked) -> list[str]:
    with_id(asked.wire, asked.name)
    return [f"{asked.name}-none", ""]


def describe_offsets(asked: Asked) -> None:
    for group in groups(asked):
        for topics in (None, [{"topic_name": asked.name, "partitions": (0,)}]):
            values = {"groups": [{"group_id": group, "topics": topics}]}
            asked.each(f"{group} {topics}", ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, values)


def alter_offsets(asked: Asked) -> None:
    for group in groups(asked):
        parts = [{"partition_index": 0, "start_offset": 0}]
        values: Any = {
            "group_id": group, "topics": [{"topic_name": f"{asked.name}-no", "partitions": parts}]
        }  # fmt: skip
        asked.each(group, ApiKey.ALTER_SHARE_GROUP_OFFSETS, values)


def delete_offsets(asked: Asked) -> None:
    for group in groups(asked):
        values = {"group_id": group, "topics": [{"topic_name": asked.name}]}
        asked.each(group, ApiKey.DELETE_SHARE_GROUP_OFFSETS, values)


SITUATIONS = {
    ApiKey.SHARE_GROUP_HEARTBEAT: heartbeat,
    ApiKey.SHARE_FETCH: fetch,
    ApiKey.SHARE_ACKNOWLEDGE: acknowledge,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_offsets,
}
