"""Consumer groups (KIP-848): answers as a real Kafka 4.3.1 gives them."""

from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import made
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import (
    Classic,
    Modern,
    alike_in_groups,
    commit,
    committed,
    delete_groups,
    known,
)
from tests.wire import Wire


def shown(member: Modern, answer: Any) -> Any:
    """Return a heartbeat's answer, and the partitions that the member has now."""
    told = answer.assignment is not None
    return int(answer.error_code), answer.member_epoch, told, member.parts() if told else None


def describe_values(*groups: str) -> dict[str, Any]:
    return {"group_ids": groups, "include_authorized_operations": False}


def settled(*members: Modern) -> None:
    """Send heartbeats until nothing moves any more."""

    def still() -> bool:
        before = [(m.epoch, m.has) for m in members]
        for member in members:
            member.beat(topic_partitions=member.owned())
        return before == [(m.epoch, m.has) for m in members]

    with unheard():
        eventually(lambda: all(still() for _ in range(3)), period=0.3)


@alike_in_groups
def test_one_member(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue, 3)
    steps: list[Any] = []
    one = Modern(wire, queue, "one", queue)
    steps.append(shown(one, one.beat()))
    steps.append(shown(one, one.beat()))
    unchanged = {"rebalance_timeout": -1, "subscribed_topic_names": None}
    steps.append(shown(one, one.beat(**unchanged, topic_partitions=None)))
    steps.append(shown(one, one.beat(subscribed_topic_names=(queue,), rebalance_timeout=5000)))
    epoch = one.epoch
    steps.append(commit(wire, queue, queue, 5, "one", epoch))
    for member, at, version in (
        ("one", epoch + 1, 9), ("one", epoch - 1, 9), ("two", epoch, 9), ("", -1, 9),
        ("one", epoch, 8), ("one", -1, 9),
    ):  # fmt: skip
        code = commit(wire, queue, queue, 6, member, at, version=version)
        steps.append((member, at - epoch, int(code)))
    steps.append(committed(wire, queue, queue))
    steps.append(shown(one, one.beat(member_epoch=epoch + 1)))
    anew: dict[str, Any] = {"rebalance_timeout": 5000, "subscribed_topic_names": (queue,)}
    steps.append(shown(one, one.beat(member_epoch=0, topic_partitions=(), **anew)))
    steps.append(shown(one, one.beat(member_epoch=-1)))
    one.epoch = 3
    steps.append(shown(one, one.beat()))
    steps.append(shown(one, one.beat(member_epoch=-1)))
    return steps


@alike_in_groups
def test_refusals(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps: list[Any] = []
    for changes in (
        {"member_id": ""}, {"group_id": ""}, {"group_id": " "}, {"instance_id": ""},
        {"rack_id": ""}, {"member_epoch": -3}, {"member_epoch": -2},
        {"rebalance_timeout": -1}, {"topic_partitions": None},
        {"subscribed_topic_names": None}, {"server_assignor": "best"},
        {"subscribed_topic_regex": "("}, {"member_epoch": 5}, {"member_epoch": -1},
        {"member_epoch": -2, "instance_id": "i"}, {"subscribed_topic_names": ()},
    ):  # fmt: skip
        one = Modern(wire, f"{queue}-refused", "one", queue)
        answer = one.beat(**changes)
        steps.append((sorted(changes), int(answer.error_code), answer.member_id))
    return steps


@alike_in_groups
def test_members_come_and_go(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue, 4)
    steps: list[Any] = []
    one, two = Modern(wire, queue, "one", queue), Modern(wire, queue, "two", queue)
    steps.append(shown(one, one.beat()))
    steps.append(shown(two, two.beat()))  # has to wait for what the first has
    steps.append(shown(two, two.beat()))
    before = one.owned()
    steps.append(shown(one, one.beat()))  # told to give up two
    steps.append(shown(one, one.beat(topic_partitions=before)))  # has not
    steps.append(shown(two, two.beat()))
    steps.append(shown(one, one.beat()))  # has
    steps.append(shown(two, two.beat()))
    steps.append(shown(one, one.beat()))
    assert sorted(p for m in (one, two) for q in m.parts() for p in q) == [0, 1, 2, 3]
    three = Modern(wire, queue, "three", queue)
    three.beat()
    settled(one, two, three)
    steps.append(sorted(len(m.parts()[0]) for m in (one, two, three)))
    steps.append(shown(two, two.beat(member_epoch=-1)))
    settled(one, three)
    steps.append(sorted(len(m.parts()[0]) for m in (one, three)))
    late = one.beat(member_epoch=one.epoch - 1, topic_partitions=one.owned())
    steps.append(int(late.error_code))
    return steps


@alike_in_groups
def test_static_members(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue, 2)
    steps: list[Any] = []
    one = Modern(wire, queue, "one", queue)
    one.instance = "i"
    steps.append(shown(one, one.beat()))
    epoch = one.epoch
    rival = Modern(wire, queue, "rival", queue)
    rival.instance = "i"
    steps.append(shown(rival, rival.beat()))
    steps.append(shown(rival, rival.beat(member_epoch=epoch)))
    steps.append(shown(one, one.beat(member_epoch=-2)))
    steps.append(shown(rival, rival.beat()))
    one.epoch = epoch
    steps.append(shown(one, one.beat()))
    steps.append(shown(rival, rival.beat(member_epoch=-1)))
    return steps


@alike_in_groups
def test_a_static_member_changes_its_protocol(wire: Wire, queue: str) -> list[Any]:
    """An active instance is given up to one of the other protocol, and both begin at epoch 0."""
    known(wire, queue, 2)
    steps: list[Any] = []
    other = Modern(wire, queue, "other", queue)
    other.beat()
    first = Modern(wire, queue, "first", queue)
    first.instance = "i"
    first.beat()
    settled(other, first)
    old = Classic(wire, queue, (queue,))
    old.instance = "i"
    answer = old.join()
    steps.append((int(answer.error_code), answer.generation_id))
    steps.append(shown(first, first.beat(topic_partitions=None)))
    steps.append(int(old.sync().error_code))
    again = Classic(wire, queue, (queue,))
    again.instance = "i"
    answer = again.join()
    steps.append((int(answer.error_code), answer.generation_id))
    steps.append((int(again.sync().error_code), old.beat()))
    new = Modern(wire, queue, "new", queue)
    new.instance = "i"
    steps.append(shown(new, new.beat()))
    steps.append(again.beat())
    return steps


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@alike_in_groups
def test_assignors(wire: Wire, queue: str, assignor: str) -> list[Any]:
    known(wire, queue + "-a", 5)
    known(wire, queue + "-b", 2)
    members = [Modern(wire, queue, f"m{i}", queue + "-a", queue + "-b") for i in range(3)]
    for member in members:
        member.beat(server_assignor=assignor)
    settled(*members)
    described = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe_values(queue)).groups[0]
    steps: list[Any] = [described.group_state, described.assignor_name]
    counts = sorted(sum(len(p) for p in m.parts()) for m in members)
    steps.append(counts)
    if assignor == "range":
        steps.append([m.parts() for m in members])
    for member in members:
        steps.append(int(member.beat(member_epoch=-1).error_code))
    return steps


@alike_in_groups
def test_regex_and_new_queues(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue + "-a", 2)
    one = Modern(wire, queue, "one")
    one.beat(subscribed_topic_regex=f"{queue}-[ab]", subscribed_topic_names=())
    eventually(lambda: one.beat().error_code == 0 and len(one.has) == 1)
    named = Modern(wire, queue + "-named", "one", queue + "-a", queue + "-b")
    named.beat()
    steps = [one.parts(), named.parts()]
    made(wire, queue + "-b", 1)
    made(wire, queue + "-c", 1)
    eventually(lambda: named.beat().error_code == 0 and len(named.has) == 2)
    steps.append(named.parts())
    grown = {"name": queue + "-b", "count": 3, "assignments": None}
    values = {"topics": [grown], "timeout": 5000, "validate_only": False}
    wire.call(ApiKey.CREATE_PARTITIONS, 3, values)
    eventually(lambda: named.beat().error_code == 0 and [0, 1, 2] in named.parts())
    steps.append(named.parts())
    wire.delete(queue + "-b")
    eventually(lambda: named.beat().error_code == 0 and len(named.has) == 1)
    steps.append(named.parts())
    return steps


@alike_in_groups
def test_described(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue, 2)
    steps: list[Any] = []

    def look(*groups: str) -> None:
        for group in wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe_values(*groups)).groups:
            members = [
                (m.member_id, m.instance_id, m.rack_id, m.member_epoch, m.client_id,
                 m.client_host, m.subscribed_topic_names, m.subscribed_topic_regex,
                 [(t.topic_name, t.partitions) for t in m.assignment.topic_partitions],
                 [(t.topic_name, t.partitions) for t in m.target_assignment.topic_partitions],
                 m.member_type)
                for m in group.members
            ]  # fmt: skip
            steps.append(
                (int(group.error_code), group.error_message, group.group_state,
                 group.group_epoch, group.assignment_epoch, group.assignor_name, members)
            )  # fmt: skip
        old = wire.call(
            ApiKey.DESCRIBE_GROUPS, 6, {"groups": groups, "include_authorized_operations": False}
        )
        steps.append([(int(g.error_code), g.group_state, g.error_message) for g in old.groups])
        listed = wire.call(
            ApiKey.LIST_GROUPS, 5, {"states_filter": (), "types_filter": ("consumer",)}
        ).groups
        steps.append([(g.protocol_type, g.group_state, g.group_type)
                      for g in listed if g.group_id in groups])  # fmt: skip

    look(queue)
    one = Modern(wire, queue, "one", queue)
    one.beat(rack_id="r")
    look(queue)
    two = Modern(wire, queue, "two", queue)
    two.beat()
    look(queue)
    steps.append(delete_groups(wire, queue)[0][1])
    one.beat(member_epoch=-1)
    two.beat(member_epoch=-1)
    look(queue)
    steps.append(delete_groups(wire, queue)[0][1])
    return steps


@alike_in_groups
def test_from_one_protocol_to_the_other_and_back(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue, 2)
    steps: list[Any] = []
    old = Classic(wire, queue, (queue,))
    old.session_ms, old.rebalance_ms = 10_000, 5_000
    old.join(9)
    steps.append(old.generation)
    topics = named_assignment(queue, 0, 1)
    old.sync({old.id: topics})
    new = Modern(wire, queue, "new", queue)
    steps.append(shown(new, new.beat()))
    steps += [old.beat(), old.commit(queue, 3)]
    described = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe_values(queue)).groups[0]
    steps.append((described.group_state, sorted(m.member_type for m in described.members)))
    old.protocols = {"range": owning(queue, (queue,), 0, 1)}
    old.send_join(9)
    answer = old.joined(9)
    steps.append((int(answer.error_code), answer.leader, answer.protocol_name,
                  len(answer.members), answer.generation_id))  # fmt: skip
    first = old.sync().assignment
    steps += [len(first), old.beat()]
    old.protocols = {"range": owning(queue, (queue,), *parts_in(first))}
    old.send_join(9)
    steps.append(int(old.joined(9).error_code))
    steps += [old.sync().assignment == first, old.beat()]
    new.beat()
    steps += [new.parts(), old.beat(), old.commit(queue, 4)]
    steps.append(shown(new, new.beat(member_epoch=-1)))
    eventually(lambda: old.beat() == 27)
    old.send_join(9)
    answer = old.joined(9)
    steps.append((int(answer.error_code), answer.leader == old.id, len(answer.members)))
    old.sync({old.id: topics})
    steps += [old.beat(), committed(wire, queue, queue)]
    described = wire.call(
        ApiKey.DESCRIBE_GROUPS, 5, {"groups": (queue,), "include_authorized_operations": False}
    )
    steps.append((described.groups[0].group_state, described.groups[0].protocol_type))
    return steps


@alike_in_groups
def test_an_emptied_group_of_one_kind_becomes_the_other(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue)
    steps: list[Any] = []
    old, new = Classic(wire, queue, (queue,)), Modern(wire, queue, "new", queue)
    for _ in range(2):
        old.join()
        steps += [old.generation, int(old.sync({old.id: b"all"}).error_code), old.leave()]
        steps.append(shown(new, new.beat()))
        steps.append(shown(new, new.beat(member_epoch=-1)))
        new.epoch, new.has, old.id = 0, {}, ""
    steps.append(committed(wire, queue, queue))
    return steps


def named_assignment(queue: str, *indices: int) -> bytes:
    from kproxy.groups.model.consumer_protocol import encode_assignment
    from kproxy.loop.steps import at_once

    return at_once(encode_assignment(0, {queue: indices}))


def owning(queue: str, topics: tuple[str, ...], *indices: int) -> bytes:
    """Return a subscription of version 1, which has the member's partitions."""
    name = queue.encode()
    text = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    owned = len(name).to_bytes(2, "big") + name + len(indices).to_bytes(4, "big")
    owned += b"".join(i.to_bytes(4, "big") for i in indices)
    return (
        b"\0\1" + len(topics).to_bytes(4, "big") + text + b"\xff\xff\xff\xff" + b"\0\0\0\1" + owned
    )


def parts_in(assignment: bytes) -> tuple[int, ...]:
    from kproxy.groups.model.consumer_protocol import assignment as parsed
    from kproxy.loop.steps import at_once

    return tuple(index for _, indices in at_once(parsed(assignment)) for index in indices)


@alike_in_groups
def test_version_0_without_a_member_id_is_given_one(wire: Wire, queue: str) -> list[Any]:
    """From version 1 on a client makes its own."""
    known(wire, queue, 3)
    values = {
        "group_id": queue, "member_id": "", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": (queue,),
        "server_assignor": None, "topic_partitions": (),
    }  # fmt: skip
    answers = [wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, values) for _ in range(2)]
    steps: list[Any] = [(int(a.error_code), a.member_epoch, bool(a.member_id)) for a in answers]
    steps.append(len({answer.member_id for answer in answers}))
    late = values | {"member_epoch": 1}
    steps.append(int(wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, late).error_code))
    return steps


@alike_in_groups
def test_classic_members_that_agree_on_no_protocol(wire: Wire, queue: str) -> list[Any]:
    """Refused at the door: once they are alone they are a classic group, which chooses one."""
    known(wire, queue, 2)
    new = Modern(wire, queue, "new", queue)
    steps: list[Any] = [shown(new, new.beat())]
    one, two = (Classic(wire, queue, (queue,)) for _ in range(2))
    two.protocols = {"roundrobin": two.protocols["range"]}
    one.join(9)
    steps.append(one.generation)
    for version in (3, 9):
        two.send_join(version)
        steps.append(int(two.joined(version).error_code))
    two.protocols |= one.protocols
    two.join(9)
    one.protocols = {"roundrobin": one.protocols["range"]}
    one.send_join(9)
    steps.append(int(one.joined(9).error_code))
    two.id, two.instance = "stranger", "instance"
    two.send_join(9)
    steps.append(int(two.joined(9).error_code))
    return steps


@alike_in_groups
def test_heartbeats_change_the_member(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue, 2)
    new = Modern(wire, queue, "new", queue)
    steps: list[Any] = [shown(new, new.beat())]
    for changes in (
        {"server_assignor": "range"},
        {"rack_id": "r"},
        {"subscribed_topic_names": (queue,), "rebalance_timeout": 7000},
        {"subscribed_topic_names": ()},
    ):
        steps.append(shown(new, new.beat(**changes)))
        group = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe_values(queue)).groups[0]
        steps.append((group.group_state, group.group_epoch, group.assignor_name))
    idle = Modern(wire, queue, "idle")
    steps.append(shown(idle, idle.beat()))
    return steps
