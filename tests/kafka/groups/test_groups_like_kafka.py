"""Classic groups: answers as a real Kafka 4.3.1 gives them."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import made
from tests.kafka.groups.members import (
    Classic,
    Modern,
    Names,
    alike_in_groups,
    commit,
    committed,
    delete_groups,
    known,
)
from tests.wire import Wire


def shown(names: Names, answer: Any) -> Any:
    """Return a JoinGroup answer with members by order."""
    first = names.of(answer.member_id)
    members = sorted(
        (names.of(m.member_id) or "", getattr(m, "group_instance_id", None), m.metadata)
        for m in answer.members
    )
    return (
        int(answer.error_code), answer.generation_id, getattr(answer, "protocol_type", None),
        answer.protocol_name, names.of(answer.leader), first, members,
        getattr(answer, "skip_assignment", None),
    )  # fmt: skip


def pair(wire: Wire, group: str, queue: str) -> tuple[Classic, Classic]:
    """Return two members in a stable group, the first one its leader."""
    one, two = Classic(wire, group, (queue,)), Classic(wire, group, (queue,))
    one.join()
    one.sync({one.id: b"all"})
    two.wire.send(ApiKey.JOIN_GROUP, 7, two.join_values())
    two.joined()
    two.send_join()
    eventually(lambda: one.beat() == 27)
    one.send_join()
    one.joined()
    two.joined()
    two.send_sync()
    one.sync({one.id: b"first", two.id: b"second"})
    two.synced()
    return one, two


@alike_in_groups
def test_a_member_joins_in_every_version(wire: Wire, queue: str) -> list[Any]:
    steps, names = [], Names()
    for version in range(10):
        one = Classic(wire, f"{queue}-{version}", (queue,))
        one.send_join(version)
        steps.append(shown(names, one.joined(version)))
        if version >= 4:
            one.send_join(version)
            steps.append(shown(names, one.joined(version)))
        steps.append(one.sync({one.id: b"mine"}))
        steps.append(one.beat())
        steps.append(one.commit(queue, 5))
    return steps


@alike_in_groups
def test_refusals(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps, names = [], Names()

    def attempt(**changes: Any) -> None:
        one = Classic(wire, queue, (queue,))
        one.wire.send(ApiKey.JOIN_GROUP, 7, one.join_values() | changes)
        steps.append(shown(names, one.joined()))

    attempt(group_id="")
    attempt(session_timeout=100)
    attempt(session_timeout=10_000_000)
    attempt(protocols=())
    attempt(protocol_type="")
    attempt(member_id="stranger")
    one, _ = pair(wire, queue, queue)
    attempt(protocol_type="connect")
    attempt(protocols=({"name": "other", "metadata": b""},))
    attempt(member_id="stranger")
    attempt(member_id=one.id, group_instance_id="nobody")
    steps.append(one.beat())
    one.generation += 1
    steps += [one.beat(), one.commit(queue, 1), int(one.sync().error_code)]
    one.generation -= 1
    steps.append(one.commit(queue, 1, member_id="stranger"))
    steps.append(one.commit(queue, 1, generation_id_or_member_epoch=-1))
    steps.append(commit(wire, queue, queue, 1))
    steps.append(delete_groups(wire, queue, "no-such-group", ""))
    wrong = one.sync_values({}) | {"protocol_name": "other"}
    steps.append(int(one.wire.call(ApiKey.SYNC_GROUP, 5, wrong).error_code))
    stranger = Classic(wire, queue)
    stranger.id = "stranger"
    steps += [stranger.leave(), stranger.beat()]
    return steps


@alike_in_groups
def test_a_rebalance_and_what_is_said_during_it(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps, names = [], Names()
    one, two = pair(wire, queue, queue)
    names.of(one.id), names.of(two.id)
    steps += [one.beat(), two.beat(), one.sync({}), two.sync({})]
    two.send_join()  # nothing has changed for it: answered at once
    steps.append(shown(names, two.joined()))
    one.send_join()  # the leader asks for a rebalance
    eventually(lambda: two.beat() == 27)
    steps += [two.commit(queue, 3), int(two.sync().error_code)]
    two.protocols["range"] += b"\0"
    two.send_join()
    steps += [shown(names, one.joined()), shown(names, two.joined())]
    steps += [one.beat(), two.beat(), two.commit(queue, 4)]
    two.send_sync()
    steps += [one.sync({one.id: b"1"}), two.synced(), two.commit(queue, 4)]
    steps.append(committed(wire, queue, queue))
    steps.append(two.leave())
    eventually(lambda: one.beat() == 27)
    one.send_join()
    steps += [shown(names, one.joined()), one.sync({one.id: b"all"}), one.leave()]
    steps.append(one.beat())
    one.id = ""
    steps += [shown(names, one.join()), one.leave()]
    return steps


@alike_in_groups
def test_static_members(wire: Wire, queue: str) -> list[Any]:
    def script(wire: Wire, queue: str) -> list[Any]:
        made(wire, queue)
        steps, names = [], Names()
        one = Classic(wire, queue, (queue,))
        one.instance = "a"
        steps += [shown(names, one.join(9)), one.sync({one.id: b"all"})]
        again = Classic(wire, queue, (queue,))
        again.instance = "a"
        steps.append(shown(names, again.join(9)))  # leads still, without having to assign
        steps += [one.beat(), again.beat(), one.commit(queue, 1), int(one.sync().error_code)]
        steps.append(int(again.sync().error_code))
        once_more = Classic(wire, queue, (queue,))
        once_more.instance = "a"
        steps.append(shown(names, once_more.join(7)))  # told that another leads
        changed = Classic(wire, queue, (queue, queue + "-2"))
        changed.instance = "a"
        steps.append(shown(names, changed.join(9)))  # the topics that it reads are not looked at
        steps += [changed.sync({changed.id: b"x"})]
        fenced = changed.join_values() | {"member_id": "stranger"}
        steps.append(shown(names, changed.wire.call(ApiKey.JOIN_GROUP, 9, fenced)))
        gone = {"member_id": "", "group_instance_id": "a", "reason": None}
        steps.append(wire.call(ApiKey.LEAVE_GROUP, 5, {"group_id": queue, "members": [gone, gone]}))
        return steps

    return script(wire, queue)


@alike_in_groups
def test_described_listed_and_deleted(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps: list[Any] = []
    groups = (queue, f"{queue}-offsets", f"{queue}-none")

    def look() -> None:
        for version in (0, 3, 5, 6):
            values = {"groups": groups, "include_authorized_operations": False}
            described = wire.call(ApiKey.DESCRIBE_GROUPS, version, values).groups
            for group in described:
                steps.append(
                    (int(group.error_code), group.group_state, group.protocol_type,
                     group.protocol_data, len(group.members),
                     sorted((m.client_id, m.client_host, m.member_metadata,
                             m.member_assignment) for m in group.members))
                )  # fmt: skip
        for states, types in (((), ()), (("stable",), ()), (("Empty",), ("Classic",)),
                              ((), ("consumer",))):  # fmt: skip
            values = {"states_filter": states, "types_filter": types}
            listed = wire.call(ApiKey.LIST_GROUPS, 5, values).groups
            steps.append(sorted((g.group_id, g.protocol_type, g.group_state, g.group_type)
                                for g in listed if g.group_id in groups))  # fmt: skip

    look()
    commit(wire, groups[1], queue, 7)
    one, two = pair(wire, queue, queue)
    look()
    one.send_join()
    eventually(lambda: two.beat() == 27)
    look()
    two.send_join()
    one.joined()
    two.joined()
    look()
    one.leave()
    eventually(lambda: two.beat() == 27)
    two.leave()
    look()
    steps.append(delete_groups(wire, *groups))
    steps.append(committed(wire, groups[1], queue))
    look()
    return steps


@alike_in_groups
def test_offsets_deleted(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    made(wire, queue + "-2")
    steps: list[Any] = []

    def delete(*names: str) -> None:
        topics = [{"name": n, "partitions": [{"partition_index": 0}]} for n in names]
        answer = wire.call(ApiKey.OFFSET_DELETE, 0, {"group_id": queue, "topics": topics})
        codes = sorted((t.name, int(t.partitions[0].error_code)) for t in answer.topics)
        steps.append((int(answer.error_code), codes))

    delete(queue)
    one = Classic(wire, queue, (queue,))
    one.join()
    one.sync({one.id: b"all"})
    steps += [one.commit(queue, 3), one.commit(queue + "-2", 4)]
    delete(queue, queue + "-2", queue + "-no")
    steps += [committed(wire, queue, queue), committed(wire, queue, queue + "-2")]
    steps.append(one.leave())
    delete(queue)
    steps.append(committed(wire, queue, queue))
    return steps


def leave_codes(wire: Wire, group: str, *leaving: tuple[str, str | None]) -> list[int]:
    members = [{"member_id": m, "group_instance_id": i, "reason": None} for m, i in leaving]
    answer = wire.call(ApiKey.LEAVE_GROUP, 5, {"group_id": group, "members": members})
    return [int(answer.error_code), *(int(member.error_code) for member in answer.members)]


@alike_in_groups
def test_leaves_by_an_instance_id(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue)
    steps: list[Any] = []
    classic, waiting = Classic(wire, queue, (queue,)), Classic(wire, queue, (queue,))
    classic.instance = "i"
    classic.join()
    classic.sync({classic.id: b"all"})
    modern = Modern(wire, f"{queue}-modern", "one", queue)
    modern.instance = "i"
    modern.beat()
    for group, member in ((classic.group, classic.id), (modern.group, "one")):
        strange: tuple[tuple[str, str | None], ...] = (
            ("nobody", "i"), (member, "other"), ("", "other"), ("", None), ("nobody", None),
        )  # fmt: skip
        steps.append(leave_codes(wire, group, *strange))
    waiting.send_join()
    steps.append(int(waiting.joined().error_code))
    steps.append(leave_codes(wire, queue, (waiting.id, "another"), (waiting.id, None)))
    for group, member in ((classic.group, classic.id), (modern.group, "one")):
        steps.append(leave_codes(wire, group, (member, "i")))
        steps.append(leave_codes(wire, group, ("", "i")))
    return steps


@alike_in_groups
def test_a_sync_without_its_protocol(wire: Wire, queue: str) -> list[Any]:
    known(wire, queue)
    steps: list[Any] = []
    one = Classic(wire, queue, (queue,))
    one.join()
    one.sync({one.id: b"all"})

    def attempt(**changes: Any) -> None:
        answer = one.wire.call(ApiKey.SYNC_GROUP, 5, one.sync_values({}) | changes)
        steps.append((int(answer.error_code), answer.protocol_type, answer.protocol_name))

    for changes in (
        {"protocol_type": None}, {"protocol_name": None}, {"protocol_type": "connect"},
        {"protocol_name": None, "member_id": "nobody"},
        {"protocol_name": None, "group_id": ""},
        {"protocol_name": "other", "member_id": "nobody"},
        {"protocol_name": "other", "generation_id": 7},
    ):  # fmt: skip
        attempt(**changes)
    return steps


@alike_in_groups
def test_commits_beside_members(wire: Wire, queue: str) -> list[Any]:
    """The group's row is also written by a commit that no member makes."""
    made(wire, queue)
    steps: list[Any] = []

    def commit_at(version: int, member: str = "", generation: int = -1) -> None:
        steps.append(int(commit(wire, queue, queue, 7, member, generation, version=version)))

    def delete() -> None:
        steps.append(delete_groups(wire, queue)[0][1])

    commit_at(8, "stranger", 1)  # there is no such group
    commit_at(9, "stranger", 1)
    one = Classic(wire, queue, (queue,))
    one.send_join()
    steps.append(int(one.joined().error_code))  # it is given an id to join with
    commit_at(8)
    commit_at(9, "stranger", 1)
    one.send_join()
    steps.append(int(one.joined().error_code))
    steps += [one.sync({one.id: b"all"}).assignment, one.beat(), one.leave()]
    described = {"groups": (queue,), "include_authorized_operations": False}
    two = Classic(wire, queue, (queue,))
    two.send_join()
    steps.append(int(two.joined().error_code))
    steps.append(wire.call(ApiKey.DESCRIBE_GROUPS, 5, described).groups[0].protocol_type)
    delete()
    commit_at(8, "stranger", 1)
    two.send_join()
    steps.append(int(two.joined().error_code))  # the group and its ids are gone
    two.id = ""
    two.send_join()
    two.joined()
    delete()  # with nothing but an id
    delete()
    return steps
