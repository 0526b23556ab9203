"""Groups of all kinds: coordinators, members, offsets, and what tools ask of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import made
from tests.kafka.at_versions.asked import Asked, Values
from tests.kafka.at_versions.records import NOBODY, with_id
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import Classic, Modern, commit_values, known
from tests.kafka.groups.streams import Thread, part
from tests.wire import Wire

Cases = tuple[tuple[str, Values], ...]


@contextmanager
def member(wire: Wire, group: str, queue: str) -> Iterator[Classic]:
    """Give the only member of a stable group, with an instance id."""
    one = Classic(wire, group, (queue,))
    one.instance = "instance"
    with unheard():
        one.join()
        one.sync({one.id: b"mine"})
    yield one
    one.close()


@contextmanager
def modern(wire: Wire, group: str, queue: str) -> Iterator[Modern]:
    """Give the only member of a consumer group."""
    one = Modern(wire, group, "modern", queue)
    with unheard():
        eventually(lambda: one.beat().error_code == 0 and bool(one.has))
    yield one
    one.close()


def find_coordinator(asked: Asked) -> None:
    for what, key_type, names in (
        ("a group", 0, ("any",)), ("a transactional id", 1, ("any",)), ("no kind", 7, ("any",)),
        ("an empty group", 0, ("",)), ("many", 0, ("a", "b")), ("none", 0, ()),
        ("a share partition", 2, ("any",)),
    ):  # fmt: skip
        values = {"key": (*names, "")[0], "key_type": key_type, "coordinator_keys": names}
        asked.each(what, ApiKey.FIND_COORDINATOR, values)


def join(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    known(wire, queue)

    def ask(what: str, group: str | None = None, **changes: Any) -> None:
        def values(version: int) -> Values:
            one = Classic(wire, group or f"{queue}-v{version}", (queue,))
            one.close()
            return one.join_values() | changes

        asked.each(what, ApiKey.JOIN_GROUP, values)

    for what, changes in (
        ("a session too short", {"session_timeout": 1}), ("no protocols", {"protocols": ()}),
        ("no kind of protocol", {"protocol_type": ""}), ("a stranger", {"member_id": "stranger"}),
    ):  # fmt: skip
        ask(what, **changes)
    with member(wire, f"{queue}-full", queue) as one:
        ask("another kind", one.group, protocol_type="connect")
        ask("an unknown member", one.group, member_id="stranger")
        ask("a fenced instance", one.group, member_id="stranger", group_instance_id="instance")
        ask("an unknown instance", one.group, member_id="stranger", group_instance_id="none")
    with modern(wire, f"{queue}-modern", queue) as other:
        ask("another protocol", other.group, protocol_type="connect")
    asked.each("an empty group id", ApiKey.JOIN_GROUP, one.join_values() | {"group_id": ""})
    ask("a new member")


def beats(asked: Asked, key: ApiKey) -> None:
    """Ask what Heartbeat, SyncGroup and LeaveGroup have in common."""
    queue = asked.name
    made(asked.wire, queue)
    with member(asked.wire, f"{queue}-full", queue) as one:
        cases: Cases = (
            ("known", {}),
            ("an unknown member", {"member_id": "stranger", "group_instance_id": None}),
            ("an unknown group", {"group_id": f"{queue}-none"}),
            ("an empty group id", {"group_id": ""}),
            ("an old generation", {"generation_id": 99}),
            ("a fenced instance", {"member_id": "stranger", "group_instance_id": "instance"}),
            ("an unknown instance", {"member_id": "", "group_instance_id": "none"}),
            ("another kind", {"protocol_type": "connect"}),
            ("another protocol", {"protocol_name": "other"}),
        )
        if key == ApiKey.LEAVE_GROUP:
            cases = cases[1:]
        for what, changes in cases:
            values = one.sync_values({one.id: b"mine"}) | {"reason": "why"} | changes
            asked.each(what, key, values | {"members": [values]})
        if key == ApiKey.LEAVE_GROUP:
            asked.each("nobody", key, one.sync_values({}) | {"member_id": "", "members": ()})
    if key == ApiKey.LEAVE_GROUP:
        asked.each("known", key, lambda version: leaver(asked, version))


def leaver(asked: Asked, version: int) -> Values:
    """Return a member's LeaveGroup, in a group of its own."""
    with member(asked.wire, f"{asked.name}-v{version}", asked.name) as one:
        values = one.sync_values({}) | {"group_instance_id": None}
        return values | {"members": [values]}


def heartbeat(asked: Asked) -> None:
    beats(asked, ApiKey.HEARTBEAT)


def sync(asked: Asked) -> None:
    beats(asked, ApiKey.SYNC_GROUP)


def leave(asked: Asked) -> None:
    beats(asked, ApiKey.LEAVE_GROUP)


def commit(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    known(wire, queue)
    topic_id = with_id(wire, queue)

    def ask(
        what: str, group: str, name: str = queue, found: UUID = topic_id, **changes: Any
    ) -> None:
        part = {k: changes.pop(k) for k in ("partition", "metadata") if k in changes}
        values = commit_values(group, name, 5, **part) | changes
        values["topics"][0]["topic_id"] = found
        asked.each(what, ApiKey.OFFSET_COMMIT, values)

    ask("without a member", f"{queue}-simple")
    ask("an unknown queue", f"{queue}-simple", f"{queue}-none", NOBODY)
    ask("an unknown partition", f"{queue}-simple", partition=7)
    ask("a long text", f"{queue}-simple", metadata="x" * 5000)
    ask("an empty group id", "")
    ask("a generation of an unknown group", f"{queue}-none", generation_id_or_member_epoch=3)
    ask("a member of an unknown group", f"{queue}-none", member_id="stranger")
    both = {"generation_id_or_member_epoch": 3, "member_id": "stranger"}
    ask("a member and a generation of an unknown group", f"{queue}-none", **both)
    with member(wire, f"{queue}-full", queue) as one:
        mine = {"member_id": one.id, "generation_id_or_member_epoch": one.generation}
        ask("a member", one.group, **mine)
        ask("an old generation", one.group, **mine | {"generation_id_or_member_epoch": 99})
        ask("an unknown member", one.group, **mine | {"member_id": "stranger"})
        ask("without a member of a group with members", one.group)
        ask("a fenced instance", one.group, **both, group_instance_id="instance")
    with modern(wire, f"{queue}-modern", queue) as other:
        now: Values = {"member_id": other.id, "generation_id_or_member_epoch": other.epoch}
        ask("a consumer", other.group, **now)
        ask("a consumer at an old epoch", other.group, **now | {"generation_id_or_member_epoch": 0})
        ask("a consumer ahead", other.group, **now | {"generation_id_or_member_epoch": 99})
        ask("an unknown consumer", other.group, **now | {"member_id": "stranger"})
        ask("without a member of a consumer group", other.group)


def offset_fetch(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    known(wire, queue)
    topic_id = with_id(wire, queue)
    wire.call(ApiKey.OFFSET_COMMIT, 9, commit_values(f"{queue}-simple", queue, 5, metadata="m"))

    def ask(what: str, group: str, topics: Any = ((queue, topic_id, 0),), **changes: Any) -> None:
        listed = topics if topics is None else [
            {"name": name, "topic_id": found, "partition_indexes": (index,)}
            for name, found, index in topics
        ]  # fmt: skip

        def values(version: int) -> Values:
            given = () if version < 2 and listed is None else listed
            one = {"group_id": group, "topics": given, "member_id": None, "member_epoch": -1}
            return one | {"groups": [one | changes], "require_stable": True}

        asked.each(what, ApiKey.OFFSET_FETCH, values)

    ask("known", f"{queue}-simple")
    ask("all", f"{queue}-simple", None)
    ask("none", f"{queue}-simple", ())
    ask("an unknown partition", f"{queue}-simple", ((queue, topic_id, 7),))
    ask("an unknown queue", f"{queue}-simple", ((f"{queue}-none", NOBODY, 0),))
    ask("an unknown group", f"{queue}-none")
    ask("all of an unknown group", f"{queue}-none", None)
    ask("an empty group id", "")
    ask("a member of an unknown group", f"{queue}-none", member_id="stranger", member_epoch=3)
    with member(wire, f"{queue}-full", queue) as one:
        ask("a member", one.group, member_id=one.id, member_epoch=one.generation)
        ask("an unknown member", one.group, member_id="stranger", member_epoch=1)
    with modern(wire, f"{queue}-modern", queue) as other:
        ask("a consumer", other.group, member_id=other.id, member_epoch=other.epoch)
        ask("a consumer at an old epoch", other.group, member_id=other.id, member_epoch=0)
        ask("an unknown consumer", other.group, member_id="stranger", member_epoch=1)


def all_kinds(asked: Asked) -> Iterator[str]:
    """Give the groups that are described while there are members."""
    wire, queue = asked.wire, asked.name
    known(wire, queue)
    wire.call(ApiKey.OFFSET_COMMIT, 9, commit_values(f"{queue}-simple", queue, 5))
    with member(wire, f"{queue}-full", queue), modern(wire, f"{queue}-modern", queue):
        yield from ("simple", "full", "modern", "none")


def describe(asked: Asked) -> None:
    for kind in all_kinds(asked):
        for operations in (False, True):
            values = {"groups": (f"{asked.name}-{kind}",)}
            asked.each(
                f"{kind}{' with operations' if operations else ''}", ApiKey.DESCRIBE_GROUPS,
                values | {"include_authorized_operations": operations},
            )  # fmt: skip
    asked.wire.call(ApiKey.OFFSET_COMMIT, 9, commit_values("", asked.name, 5))
    values = {"groups": ("",), "include_authorized_operations": False}
    asked.each("an empty group id", ApiKey.DESCRIBE_GROUPS, values)


def others(asked: Asked, key: ApiKey) -> None:
    """Describe as groups of another kind."""
    for kind in all_kinds(asked):
        values = {"group_ids": (f"{asked.name}-{kind}",), "include_authorized_operations": False}
        asked.each(kind, key, values)


def consumer_describe(asked: Asked) -> None:
    others(asked, ApiKey.CONSUMER_GROUP_DESCRIBE)


def streams_describe(asked: Asked) -> None:
    others(asked, ApiKey.STREAMS_GROUP_DESCRIBE)


def share_describe(asked: Asked) -> None:
    others(asked, ApiKey.SHARE_GROUP_DESCRIBE)


def list_groups(asked: Asked) -> None:
    def own(answer: Any) -> Any:
        return replace(answer, groups=tuple(g for g in answer.groups if asked.name in g.group_id))

    for kind in all_kinds(asked):
        if kind != "none":
            continue
        for states, types in (
            ((), ()), (("stable",), ()), (("Empty",), ()), (("nonsense",), ()), ((), ("consumer",)),
            ((), ("Classic",)), ((), ("nonsense",)),
        ):  # fmt: skip
            values = {"states_filter": states, "types_filter": types}
            asked.each(f"{states} {types}", ApiKey.LIST_GROUPS, values, own)


def delete_groups(asked: Asked) -> None:
    for kind in all_kinds(asked):
        if kind == "simple":
            continue
        values = {"groups_names": (f"{asked.name}-{kind}",)}
        asked.each(kind, ApiKey.DELETE_GROUPS, values)

    def simple(version: int) -> Values:
        group = f"{asked.name}-v{version}"
        asked.call(ApiKey.OFFSET_COMMIT, 9, commit_values(group, asked.name, 5))
        return {"groups_names": (group,)}

    asked.each("simple", ApiKey.DELETE_GROUPS, simple)


def offset_delete(asked: Asked) -> None:
    for kind in all_kinds(asked):
        for index in (0, 7):
            topic = {"name": asked.name, "partitions": [{"partition_index": index}]}
            values = {"group_id": f"{asked.name}-{kind}", "topics": [topic]}
            asked.each(f"{kind} {index}", ApiKey.OFFSET_DELETE, values)


def consumer_heartbeat(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    known(wire, queue)

    def ask(what: str, group: str | None, **changes: Any) -> None:
        def values(version: int) -> Values:
            one = Modern(wire, group or f"{queue}-v{version}", "member", queue)
            one.close()
            return one.values(**changes)

        asked.each(what, ApiKey.CONSUMER_GROUP_HEARTBEAT, values)

    ask("a new member without an id", f"{queue}-none", member_id="")
    ask("a new member", None)
    ask("an unknown group", f"{queue}-none", member_epoch=3, topic_partitions=())
    ask("an empty group id", "")
    ask("a bad pattern", f"{queue}-none", subscribed_topic_regex="[", subscribed_topic_names=())
    ask("a strange assignor", f"{queue}-none", server_assignor="strange")
    with member(wire, f"{queue}-full", queue) as one:
        ask("a classic group", one.group)
    with modern(wire, f"{queue}-modern", queue) as other:
        ask("an unknown member", other.group, member_epoch=3)
        ask("an epoch ahead", other.group, member_id=other.id, member_epoch=99)


def streams_heartbeat(asked: Asked) -> None:
    wire, queue = asked.wire, asked.name
    known(wire, queue)

    def ask(what: str, group: str, **changes: Any) -> None:
        def values(version: int) -> Values:
            one = Thread(wire, group, "member", part("0", queue))
            one.wire.socket.close()
            return one.values(**changes)

        asked.each(what, ApiKey.STREAMS_GROUP_HEARTBEAT, values)

    ask("a new member", f"{queue}-streams")
    ask("an unknown group", f"{queue}-none", member_epoch=3)
    ask("an empty group id", "")
    with member(wire, f"{queue}-full", queue) as one:
        ask("a classic group", one.group)


DESCRIPTION: Values = {"subtopologies": (), "global_stores": ()}


def topology_description(asked: Asked) -> None:
    """Tell a coordinator how a topology looks, without a plugin that keeps it."""
    for group in ("", f"{asked.name}-none"):
        for member_id, epoch in (("", 0), ("one", 0), ("one", -1)):
            values = {"group_id": group, "member_id": member_id, "topology_epoch": epoch,
                      "topology_description": DESCRIPTION}  # fmt: skip
            what = f"group {group != ''} member {member_id} epoch {epoch}"
            asked.each(what, ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, values)


SITUATIONS = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: streams_heartbeat,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.SYNC_GROUP: sync,
    ApiKey.LEAVE_GROUP: leave,
    ApiKey.OFFSET_COMMIT: commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.DESCRIBE_GROUPS: describe,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_describe,
    ApiKey.STREAMS_GROUP_DESCRIBE: streams_describe,
    ApiKey.SHARE_GROUP_DESCRIBE: share_describe,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_heartbeat,
}
