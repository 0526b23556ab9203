"""Topologies held against the topics there are: partitions, tasks, and what does not fit."""

from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.configured_topology import ConfiguredTopology, configured
from kproxy.groups.assigning.sticky_assignor import SubtopologySize, TaskMember, sticky
from kproxy.groups.model.topology import (
    ACTIVE,
    STANDBY,
    Subtopology,
    Topology,
    number_of,
    of_request,
    of_row,
    role_of,
    task_key,
)
from kproxy.loop.steps import at_once
from kproxy.virtual.rows.groups import decode_member, encode_member
from tests.groups.streams_groups.threads import internal, part, topology

TOPICS = {"q": 4, "p": 2, "o": 4}


def found(*parts: Subtopology, **topics: int) -> ConfiguredTopology:
    return at_once(configured(topology(*parts), (TOPICS | topics).get))


def test_internal_topics_get_the_partitions_of_what_is_written_to_them() -> None:
    result = found(
        part("0", "q", "p", sinks=("r",)),
        part("1", repartitions=(internal("r"),), sinks=("s",), changelogs=("c",)),
        part("2", repartitions=(internal("s", 3),), changelogs=("d",)),
    )
    assert result.tasks == (4, 4, 3)
    assert result.internal == {"r": 4, "s": 3, "c": 4, "d": 3}
    assert [one.topic.name for one in result.missing] == ["c", "d", "r", "s"]
    assert result.status is not None
    assert result.status.detail == "Internal topics are missing: c, d, r and 1 additional topics"


def test_topics_that_are_there_decide() -> None:
    result = found(part("0", "q", sinks=("r",)), part("1", repartitions=(internal("r"),)), r=4)
    assert result.ready
    assert result.tasks == (4, 4)


@pytest.mark.parametrize(
    ("parts", "code", "detail"),
    [
        ((part("0", "x", "w"),), 1, "Source topics w, x are missing."),
        ((part("0", "q", "p", copartitions=(("q", "p"),)),), 2,
         "Following topics do not have the same number of partitions: [{p=2, q=4}]"),
        ((part("0", "q", changelogs=("p",)),), 2,
         "Existing topic p has different number of partitions: expected 4, found 2"),
        ((part("0", "q", repartitions=(internal("r", 5),), sinks=("r",),
               copartitions=(("q", "r"),)),), 2,
         "Number of partitions [5] of repartition topic [r] doesn't match number of partitions [4]"
         " of the source topic."),
        ((part("0", "big"),), 2, "The topology has more than 100000 tasks."),
        ((part("0", "half", changelogs=("c", "d")),), 2,
         "Its internal topics have more than 100000 partitions."),
    ],
)  # fmt: skip
def test_topics_that_do_not_fit(parts: Any, code: int, detail: str) -> None:
    assert found(*parts, big=100_001, half=60_000).status == (code, detail)


@pytest.mark.parametrize(
    "parts",
    [
        (part("0", sinks=("r",), repartitions=(internal("r"),)),),
        (part("0", "q", repartitions=(internal("r"),)),),
        (part("0"),),
    ],
)
def test_topologies_that_cannot_be(parts: Any) -> None:
    fault = found(*parts).fault
    assert fault is not None
    assert fault.code == Code.STREAMS_INVALID_TOPOLOGY


def test_copartitioned_repartition_topics_get_the_partitions_of_the_others() -> None:
    parts = (
        part("0", "q", sinks=("r",)), part("1", "p", sinks=("s",)),
        part("2", repartitions=(internal("r"), internal("s")), copartitions=(("r", "s"),)),
    )  # fmt: skip
    assert found(*parts).internal == {"r": 4, "s": 4}


def test_a_long_chain_of_subtopologies_in_the_wrong_order_is_bounded() -> None:
    count = 300
    chain = [
        part(f"{count - n:03}", repartitions=(internal(f"t{n}"),), sinks=(f"t{n + 1}",))
        for n in range(count)
    ]
    first = part("999", "q", sinks=("t0",))
    last = part("000", repartitions=(internal(f"t{count}"),))
    result = found(first, *chain, last)
    assert result.tasks is not None
    assert set(result.tasks) == {4}


def test_a_topology_survives_its_row() -> None:
    whole = topology(
        part("0", "q", sinks=("r",), copartitions=(("q", "r"),)),
        part("1", repartitions=(internal("r", 2),), changelogs=("c",)), epoch=3,
    )  # fmt: skip
    assert of_row(decode_member(encode_member(whole.row(), packed=True))) == whole


class _Given:
    """A part of a request."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _asked(count: int = 1, topics: int = 1, name: str = "q") -> Any:
    return _Given(epoch=0, subtopologies=[
        _Given(
            subtopology_id=str(number), source_topics=[name] * topics, repartition_sink_topics=(),
            state_changelog_topics=(), repartition_source_topics=(), copartition_groups=(),
        )
        for number in range(count)
    ])  # fmt: skip


def _copartitioned(groups: int, topics: int) -> Any:
    """Return a topology whose copartition groups name the same topics again and again."""
    given = _asked(topics=topics, name="x" * 200)
    group = _Given(source_topics=tuple(range(topics)), repartition_source_topics=())
    given.subtopologies[0].copartition_groups = [group] * groups
    return given


@pytest.mark.parametrize(
    "given",
    [_asked(1001), _asked(topics=10_001), _asked(topics=10_000, name="x" * 105),
     _copartitioned(10_001, 1), _copartitioned(90, 100)],
)  # fmt: skip
def test_topologies_that_are_too_large_are_refused(given: Any) -> None:
    with pytest.raises(KafkaError) as refused:
        at_once(of_request(given))
    assert refused.value.code == Code.STREAMS_INVALID_TOPOLOGY


def test_copartition_groups_name_topics_by_place() -> None:
    for places in ((0, 1), (-1,), (0, 0)):
        given = _asked()
        group = _Given(source_topics=places, repartition_source_topics=())
        given.subtopologies[0].copartition_groups = (group,)
        with pytest.raises(KafkaError):
            at_once(of_request(given))


def test_internal_topics_have_none_of_the_settings_that_act_with_their_authors_rights() -> None:
    given = _asked()
    setting = _Given(key="kproxy.route.keep", value="true")
    one = _Given(name="c", partitions=0, replication_factor=0, topic_configs=[setting])
    given.subtopologies[0].state_changelog_topics = [one]
    with pytest.raises(KafkaError, match="must not have kproxy's own settings"):
        at_once(of_request(given))


# -- the assignor


def assigned(
    sizes: list[tuple[int, bool]], processes: dict[str, str], replicas: int = 0,
    before: Any = None,
) -> dict[str, Any]:  # fmt: skip
    wishes = {
        member: TaskMember(process, (before or {}).get(member, frozenset()))
        for member, process in processes.items()
    }
    return at_once(sticky(wishes, [SubtopologySize(*size) for size in sizes], replicas))


def counts(target: dict[str, Any], role: int) -> list[int]:
    return [sum(role_of(task) == role for task in target[member]) for member in sorted(target)]


def test_each_task_is_assigned_once_and_evenly() -> None:
    target = assigned([(7, False), (5, True)], {"a": "A", "b": "A", "c": "B"})
    tasks = [task for parts in target.values() for task in parts]
    assert len(tasks) == len(set(tasks)) == 12
    assert counts(target, ACTIVE) == [4, 4, 4]


def test_nothing_moves_without_need() -> None:
    processes = {"a": "A", "b": "B", "c": "C"}
    first = assigned([(9, True)], processes, 1)
    assert assigned([(9, True)], processes, 1, first) == first
    fewer = {"a": "A", "b": "B"}
    second = assigned([(9, True)], fewer, 0, first)
    for member in fewer:
        had = {task for task in first[member] if role_of(task) == ACTIVE}
        assert had <= second[member]


def test_a_task_goes_to_where_its_standby_was() -> None:
    first = assigned([(4, True)], {"a": "A", "b": "B"}, 1)
    assert counts(first, STANDBY) == [2, 2]
    second = assigned([(4, True)], {"b": "B", "c": "C"}, 0, first)
    standby = {task[1] for task in first["b"] if role_of(task) == STANDBY}
    active = {task[1] for task in second["c"]} | {task[1] for task in second["b"]}
    assert active == {0, 1, 2, 3}
    kept = {task[1] for task in first["b"] if role_of(task) == ACTIVE}
    assert {task[1] for task in second["b"]} == kept
    alone = assigned([(4, True)], {"b": "B"}, 0, first)
    assert {task[1] for task in alone["b"]} == standby | kept


def test_a_process_has_a_task_once() -> None:
    processes = {"a": "A", "b": "A", "c": "B", "d": "C"}
    target = assigned([(6, True), (3, False)], processes, 2)
    for process in "ABC":
        mine = [
            (number_of(task), task[1])
            for member, its in processes.items()
            for task in target[member]
            if its == process
        ]
        assert len(mine) == len(set(mine))
    assert sum(counts(target, STANDBY)) == 12
    assert not any(
        role_of(task) == STANDBY and number_of(task) == 1
        for parts in target.values() for task in parts
    )  # fmt: skip


def test_more_standby_tasks_than_processes_are_left_out() -> None:
    target = assigned([(3, True)], {"a": "A", "b": "B"}, 2)
    assert sum(counts(target, STANDBY)) == 3
    assert assigned([(3, True)], {}, 2) == {}


def test_keys_of_tasks_tell_role_and_subtopology() -> None:
    for role in (ACTIVE, STANDBY):
        key = task_key(role, 999), 5
        assert (role_of(key), number_of(key)) == (role, 999)
    assert Topology(0, ()).numbers() == {}
