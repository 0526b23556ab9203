"""Streams groups (KIP-1071): answers as a real Kafka 4.3.1 gives them."""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.canonical import unheard
from tests.kafka.groups.members import Classic, Modern, alike_in_groups, commit, delete_groups
from tests.kafka.groups.streams import (
    Thread,
    at_once,
    describe,
    part,
    ready,
    settle,
    together,
    topic,
)
from tests.wire import Wire


@alike_in_groups
def test_one_member(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 3)
    one = Thread(wire, queue, "one", part("0", queue))
    steps = [one.shown(), one.shown(), one.shown(active_tasks=None, standby_tasks=None,
             warmup_tasks=None)]  # fmt: skip
    epoch = one.epoch
    steps.append(one.shown(member_epoch=epoch + 1))
    steps.append(one.shown(member_epoch=epoch - 1))
    steps.append(one.shown(member_epoch=epoch - 1, active_tasks=None, standby_tasks=None,
                 warmup_tasks=None))  # fmt: skip
    steps.append(one.shown(rebalance_timeout=7000))
    steps.append(one.shown(rack_id="r"))
    steps.append(one.shown(process_id="another"))
    steps.append(one.shown(client_tags=({"key": "zone", "value": "a"},)))
    steps.append(one.shown(member_epoch=0, **_joining(one)))
    steps.append(describe(wire, queue))
    steps.append(one.shown(member_epoch=-1))
    one.epoch = 3
    steps.append(one.shown())
    steps.append(one.shown(member_epoch=-1))
    steps.append(describe(wire, queue, f"{queue}-not-there"))
    return steps


def _joining(member: Thread) -> dict[str, Any]:
    """Return the fields of a first heartbeat."""
    values = member.values(member_epoch=0)
    return {name: value for name, value in values.items() if name != "member_epoch"}


@alike_in_groups
def test_refusals(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue)
    own = part("0", queue)
    task = ({"subtopology_id": "0", "partitions": (0,)},)
    offset = ({"subtopology_id": "0", "partition": 0, "offset": 1},)
    steps: list[Any] = []
    for changes in (
        {"member_id": ""}, {"member_id": " "}, {"group_id": ""}, {"group_id": " "},
        {"instance_id": "i"}, {"rack_id": ""}, {"member_epoch": -3}, {"member_epoch": -2},
        {"member_epoch": 5}, {"member_epoch": -1}, {"rebalance_timeout": -1},
        {"active_tasks": None}, {"active_tasks": task}, {"standby_tasks": task},
        {"warmup_tasks": task}, {"warmup_tasks": None}, {"topology": None},
        {"task_offsets": offset}, {"task_end_offsets": offset}, {"task_offsets": ()},
        {"member_epoch": 5, "topology": {"epoch": 0, "subtopologies": (own,)}},
    ):  # fmt: skip
        one = Thread(wire, f"{queue}-refused", "one", own)
        steps.append((sorted(changes), one.shown(**changes)))
    return steps


@alike_in_groups
def test_topologies_that_make_no_sense(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue)
    steps: list[Any] = []
    for number, parts in enumerate((
        (part("0", queue, source_topic_regex=("a.*",)),),
        (part("0", "__consumer_offsets"),),
        (part("0", "__share_group_state", "__transaction_state"),),
        (part("0", "no name"),),
        (part("0", queue, repartition_sink_topics=("",)),),
        (part("0", queue, state_changelog_topics=(topic("c", 2),)),),
        (part("0", queue, repartition_source_topics=(topic("nobody-writes-it"),)),),
        (part("0"),),
        (part("0", repartition_source_topics=(topic("loop"),), repartition_sink_topics=("loop",)),),
    )):  # fmt: skip
        one = Thread(wire, f"{queue}-senseless-{number}", "one", *parts)
        answer = one.beat()
        steps.append((number, int(answer.error_code), [s.status_code for s in answer.status or ()]))
    steps.append(describe(wire, f"{queue}-senseless-0"))
    return steps


@alike_in_groups
def test_members_come_and_go(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 4)
    own = part("0", queue)
    one, two = Thread(wire, queue, "one", own), Thread(wire, queue, "two", own)
    steps = [one.shown(), two.shown(), two.shown()]
    before = one.owned("active")
    steps.append(describe(wire, queue).groups[0].group_state)
    steps.append(one.shown())  # told to give up two
    steps.append(one.shown(active_tasks=before))  # has not
    steps.append(two.shown())
    steps.append(one.shown())  # has
    steps.append(two.shown())
    steps.append(one.shown())
    assert sorted(p for m in (one, two) for q in m.has["active"].values() for p in q) == [
        0,
        1,
        2,
        3,
    ]
    steps.append(describe(wire, queue).groups[0].group_state)
    three = Thread(wire, queue, "three", own)
    three.beat()
    settle(one, two, three)
    steps.append(sorted(m.counts() for m in (one, two, three)))
    steps.append(two.shown(member_epoch=-1))
    settle(one, three)
    steps.append(sorted(m.counts() for m in (one, three)))
    steps.append(one.shown(active_tasks=({"subtopology_id": "9", "partitions": (0,)},)))
    steps.append(one.shown(active_tasks=({"subtopology_id": "0", "partitions": (4,)},)))
    return steps


@alike_in_groups
def test_internal_topics(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 3)
    repartition, changelog = f"{queue}-counts-repartition", f"{queue}-counts-changelog"
    parts = (
        part("0", queue, repartition_sink_topics=(repartition,)),
        part("1", repartition_source_topics=(topic(repartition, segment_bytes="52428800"),),
             state_changelog_topics=(topic(changelog, cleanup_policy="compact"),)),
    )  # fmt: skip
    one = Thread(wire, queue, "one", *parts)
    steps = [one.shown(), describe(wire, queue)]
    with unheard():
        eventually(lambda: bool(one.beat().error_code == 0 and one.has["active"]), period=0.2)
    steps.append(one.tasks())
    steps.append(one.epoch)
    steps.append(describe(wire, queue))
    for name in (repartition, changelog):
        found = wire.metadata(name, create=False).topics[0]
        steps.append((name, int(found.error_code), len(found.partitions)))
    settings = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, {
        "resources": [{"resource_type": 2, "resource_name": changelog,
                       "configuration_keys": ("cleanup.policy",)}],
        "include_synonyms": False, "include_documentation": False,
    })  # fmt: skip
    steps.append([(c.name, c.value) for c in settings.results[0].configs])
    return steps


@alike_in_groups
def test_topics_that_do_not_fit(wire: Wire, queue: str) -> list[Any]:
    other, few = f"{queue}-other", f"{queue}-few"
    ready(wire, queue, 3)
    ready(wire, other, 2)
    ready(wire, few, 1)
    steps: list[Any] = []
    cases: tuple[tuple[dict[str, Any], ...], ...] = (
        (part("0", f"{queue}-1", f"{queue}-2"), part("1", f"{queue}-3", f"{queue}-4")),
        (part("0", queue, other),),
        (part("0", queue, other, copartition_groups=(together(0, 1),)),),
        (part("0", queue, state_changelog_topics=(topic(few),)),),
        (part("0", queue, repartition_source_topics=(topic(f"{queue}-fixed", 5),),
              copartition_groups=(together(0, repartitions=(0,)),)),),
        (part("0", repartition_source_topics=(topic(f"{queue}-a", 5), topic(f"{queue}-b", 4)),
              copartition_groups=(together(repartitions=(0, 1)),)),
         part("1", queue, repartition_sink_topics=(f"{queue}-a", f"{queue}-b"))),
    )  # fmt: skip
    for number, parts in enumerate(cases):
        group = f"{queue}-unfit-{number}"
        at_once(wire, group)
        one = Thread(wire, group, "one", *parts)
        steps.append((number, one.shown(), one.shown()))
        found = describe(wire, group).groups[0]
        steps.append((found.group_state, found.group_epoch, found.assignment_epoch, found.topology))
    return steps


@alike_in_groups
def test_a_source_that_comes_later(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 1)
    late = f"{queue}-late"
    one = Thread(wire, queue, "one", part("0", late))
    steps = [one.shown(), one.shown()]
    wire.create(late, 2)
    with unheard():
        eventually(lambda: bool(one.beat().error_code == 0 and one.has["active"]), period=0.2)
    steps += [one.epoch, one.tasks(), describe(wire, queue).groups[0].group_state]
    return steps


@alike_in_groups
def test_topologies_of_other_epochs(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 2)
    one = Thread(wire, queue, "one", part("0", queue))
    one.topology_epoch = 2
    steps = [one.shown()]
    old = Thread(wire, queue, "old", part("0", queue), part("1", queue))
    old.topology_epoch = 1
    steps += [old.shown(), old.shown()]
    for epoch, parts in ((2, old.parts), (3, old.parts), (3, one.parts), (2, one.parts)):
        new = Thread(wire, queue, "new", *parts)
        new.topology_epoch = epoch
        steps.append((epoch, len(parts), new.shown()))
    return steps


@alike_in_groups
def test_standby_tasks(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 4, num_standby_replicas="1")
    changelog = f"{queue}-changelog"
    own = (part("0", queue, state_changelog_topics=(topic(changelog),)), part("1", queue))
    one, two = Thread(wire, queue, "one", *own), Thread(wire, queue, "two", *own)
    one.beat()
    with unheard():
        eventually(lambda: bool(one.beat().error_code == 0 and one.has["active"]), period=0.2)
    steps: list[Any] = [one.counts()]
    two.beat()
    settle(one, two)
    steps.append(sorted(m.counts() for m in (one, two)))
    for role in ("active", "standby"):
        steps.append(sorted(p for m in (one, two) for p in m.has[role].get("0", ())))
    same = Thread(wire, queue, "same", *own)
    same.process = one.process
    same.beat()
    settle(one, two, same)
    steps.append([sum(one.counts()) + sum(same.counts()), sum(two.counts())])
    assert not set(one.has["active"].get("0", ())) & set(same.has["standby"].get("0", ()))
    two.beat(member_epoch=-1)
    settle(one, same)
    steps.append([a + b for a, b in zip(one.counts(), same.counts(), strict=True)])
    return steps


@alike_in_groups
def test_a_shutdown_of_all(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 2)
    own = part("0", queue)
    one, two = Thread(wire, queue, "one", own), Thread(wire, queue, "two", own)
    steps = [one.shown(), one.shown(shutdown_application=True), two.shown(), one.shown()]
    steps += [one.shown(member_epoch=-1), two.shown(), two.shown(member_epoch=-1)]
    steps.append(two.shown(member_epoch=0, **_joining(two)))
    steps.append(two.shown(member_epoch=-1, shutdown_application=True))
    return steps


@alike_in_groups
def test_waits_before_assignments(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 2, initial_rebalance_delay_ms="1500", assignment_interval_ms="15000")
    own = part("0", queue)
    one, two = Thread(wire, queue, "one", own), Thread(wire, queue, "two", own)
    steps = [one.shown(), two.shown(), one.shown()]
    steps.append(describe(wire, queue).groups[0].group_state)
    with unheard():
        eventually(lambda: bool(one.beat().error_code == 0 and one.has["active"]), period=0.2)
    steps.append((one.epoch, one.counts()))
    steps.append(two.shown())
    three = Thread(wire, queue, "three", own)
    steps += [three.shown(), one.shown()]
    return steps


@alike_in_groups
def test_endpoints(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 3)
    own = part("0", queue)
    one, two = Thread(wire, queue, "one", own), Thread(wire, queue, "two", own)
    one.endpoint = ("localhost", 7001)
    steps: list[Any] = []

    def told(member: Thread) -> Any:
        answer = member.beat()
        epoch, lines = answer.endpoint_information_epoch, answer.partitions_by_user_endpoint
        member.endpoint_epoch = epoch
        return epoch, lines and [
            (line.user_endpoint.host, line.user_endpoint.port,
             [(p.topic, sorted(p.partitions)) for p in line.active_partitions],
             [(p.topic, sorted(p.partitions)) for p in line.standby_partitions])
            for line in lines
        ]  # fmt: skip

    steps += [
        told(one),
        told(one),
        told(one),
        told(two),
        told(two),
        told(one),
        told(one),
        told(two),
    ]
    steps.append([(m.user_endpoint, m.process_id) for m in describe(wire, queue).groups[0].members])
    return steps


@alike_in_groups
def test_offsets_of_members(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 4)
    own = part("0", queue)
    one, two = Thread(wire, queue, "one", own), Thread(wire, queue, "two", own)
    one.beat()
    first = one.epoch
    steps: list[Any] = []
    for epoch, version in ((first, 9), (first, 8), (first + 1, 9), (first - 1, 9), (-1, 9)):
        steps.append((epoch - first, version, one.commit(queue, epoch, version)))
    steps.append(commit(wire, queue, queue, 5))
    steps.append([one.fetch_code(queue, first + more) for more in (0, 1, -1)])
    two.beat()
    settle(one, two)
    second = one.epoch - first
    kept, gone = one.has["active"]["0"][0], two.has["active"]["0"][0]
    steps.append(second > 0)
    for epoch, partition in ((first, kept), (first, gone), (first - 1, kept), (one.epoch, gone)):
        steps.append(one.commit(queue, epoch, partition=partition))
    for epoch in (first, two.epoch - 1, two.epoch):
        steps.append(two.commit(queue, epoch, partition=gone))
    steps.append(one.commit(f"{queue}-not-read", first))
    one.beat(member_epoch=-1)
    two.beat(member_epoch=-1)
    steps.append(commit(wire, queue, queue, 5))
    steps.append(one.commit(queue, first))
    steps.append(one.fetch_code(queue, first))
    return steps


def _listed(wire: Wire, group: str) -> list[Any]:
    values: dict[str, Any] = {"states_filter": (), "types_filter": ()}
    found = wire.call(ApiKey.LIST_GROUPS, 5, values).groups
    streams = wire.call(ApiKey.LIST_GROUPS, 5, values | {"types_filter": ("streams",)}).groups
    not_ready = wire.call(ApiKey.LIST_GROUPS, 5, values | {"states_filter": ("NotReady",)}).groups
    return [
        [(g.group_id, g.protocol_type, g.group_state, g.group_type)
         for g in some if g.group_id == group]
        for some in (found, streams, not_ready)
    ]  # fmt: skip


@alike_in_groups
def test_groups_that_become_others(wire: Wire, queue: str) -> list[Any]:
    ready(wire, queue, 2)
    steps: list[Any] = []
    classic = Classic(wire, queue, (queue,))
    classic.join()
    classic.sync({classic.id: b""})
    one = Thread(wire, queue, "one", part("0", queue))
    steps.append(one.shown())  # it has members
    steps.append(classic.commit(queue, 7))
    steps.append(classic.leave())
    steps.append(_listed(wire, queue))
    steps.append(one.shown())
    steps.append(_listed(wire, queue))
    steps.append(Classic(wire, queue, (queue,)).join().error_code)
    modern = Modern(wire, queue, "modern", queue)
    steps.append(int(modern.beat().error_code))
    steps.append(delete_groups(wire, queue))
    steps.append(one.shown(member_epoch=-1))
    steps.append(_listed(wire, queue))
    steps.append(int(modern.beat().error_code))
    back = Classic(wire, queue, (queue,))
    steps.append(int(back.join().error_code))
    steps.append(int(back.sync({back.id: b""}).error_code))
    steps.append(_listed(wire, queue))
    steps.append(describe(wire, queue))
    steps.append(back.leave())
    again = Thread(wire, queue, "again", part("7", queue))
    steps.append(again.shown())
    steps.append(again.shown(member_epoch=-1))
    steps.append(delete_groups(wire, queue, queue))
    steps.append(_listed(wire, queue))
    of_consumers = Modern(wire, f"{queue}-modern", "m", queue)
    of_consumers.beat()
    steps.append(Thread(wire, f"{queue}-modern", "one", part("0", queue)).shown())
    of_consumers.beat(member_epoch=-1)
    steps.append(Thread(wire, f"{queue}-modern", "one", part("0", queue)).shown())
    return steps
