"""The topology of a Kafka Streams application, as its group keeps it (KIP-1071).

The first member of a group says what it is, and it stays until the group is deleted. A task is one
partition of a subtopology. A member has a set of tasks as those of other groups have partitions:
in the place of a queue's id stand the role of the task and the number of the subtopology.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.steps import EVERY, Steps
from kproxy.virtual.rows.groups import Row
from kproxy.virtual.types import PartitionKey, QueueId

ACTIVE, STANDBY, WARMUP = ROLES = range(3)
"""The roles of a task."""
_SUBTOPOLOGIES_MAX = 1000
_TOPICS_MAX = 10_000
_TOPOLOGY_BYTES_MAX = 1 << 20  # characters of names and settings
_OWN_SETTINGS = "kproxy."


@lru_cache(3 * _SUBTOPOLOGIES_MAX)
def task_key(role: int, number: int) -> QueueId:
    """Return what stands for a subtopology's tasks of a role in the place of a queue's id."""
    return QueueId(bytes((role,)) + number.to_bytes(15, "big"))


def in_role(task: PartitionKey, role: int) -> PartitionKey:
    """Return the same task in another role."""
    return task_key(role, number_of(task)), task[1]


def role_of(task: PartitionKey) -> int:
    return task[0][0]


def number_of(task: PartitionKey) -> int:
    """Return the number of a task's subtopology."""
    return int.from_bytes(task[0][1:], "big")


class InternalTopic(NamedTuple):
    """A topic of the application's own. `partitions`: 0 where others decide how many."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class Subtopology(NamedTuple):
    """A part of a topology. `copartitions`: topics that need equal numbers of partitions."""

    id: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]  # repartition topics that it writes
    changelogs: tuple[InternalTopic, ...]
    repartitions: tuple[InternalTopic, ...]  # that it reads
    copartitions: tuple[tuple[str, ...], ...]

    def inputs(self) -> Iterator[str]:
        """Yield the topics that it reads."""
        yield from self.sources
        for topic in self.repartitions:
            yield topic.name

    def required(self) -> Iterator[str]:
        """Yield the topics that have to be there."""
        yield from self.inputs()
        for topic in self.changelogs:
            yield topic.name


class Topology(NamedTuple):
    """All subtopologies, by id: tasks name them by their place."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    def required(self) -> Iterator[str]:
        """Yield the topics that have to be there; some may come more than once."""
        for one in self.subtopologies:
            yield from one.required()

    def numbers(self) -> dict[str, int]:
        """Return the numbers of the subtopologies by their ids."""
        return {one.id: number for number, one in enumerate(self.subtopologies)}

    def row(self) -> Row:
        return {"epoch": self.epoch, "protocols": (), "subtopologies": self.subtopologies}


def of_row(row: Row) -> Topology:
    return Topology(row["epoch"], tuple(_subtopology(one) for one in row["subtopologies"]))


def _subtopology(given: list[Any]) -> Subtopology:
    name, sources, sinks, changelogs, repartitions, copartitions = given
    return Subtopology(
        name, tuple(sources), tuple(sinks), _topics(changelogs), _topics(repartitions),
        tuple(map(tuple, copartitions)),
    )  # fmt: skip


def _topics(given: list[Any]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(name, partitions, factor, tuple((key, value) for key, value in configs))
        for name, partitions, factor, configs in given
    )


# -- as a request has it


def of_request(given: Any) -> Steps[Topology]:
    """Return the topology that a heartbeat has. Raise KafkaError.

    The first member describes the internal topics, and any that may create topics makes them.
    Therefore they have none of kproxy's own settings, which act with their author's rights.
    """
    found: dict[str, Subtopology] = {}
    if len(given.subtopologies) > _SUBTOPOLOGIES_MAX:
        raise _refused(f"It has more than {_SUBTOPOLOGIES_MAX} subtopologies.")
    if given.epoch < 0:
        raise _refused("Topology epoch must be non-negative.")
    topics = places = size = 0
    for one in given.subtopologies:
        if one.subtopology_id in found:
            raise _refused(f"It has subtopology {one.subtopology_id} twice.")
        names = (*one.source_topics, *one.repartition_sink_topics)
        internal = (*one.state_changelog_topics, *one.repartition_source_topics)
        topics += len(names) + len(internal)
        if topics > _TOPICS_MAX:
            raise _refused(f"It has more than {_TOPICS_MAX} topics.")
        places += sum(
            1 + len(group.source_topics) + len(group.repartition_source_topics)
            for group in one.copartition_groups
        )
        if places > _TOPICS_MAX:
            raise _refused(f"Its copartition groups have more than {_TOPICS_MAX} topics.")
        size += len(one.subtopology_id) + sum(map(len, names))
        for number, topic in enumerate(internal, 1):
            size += len(topic.name) + sum(len(c.key) + len(c.value) for c in topic.topic_configs)
            if any(config.key.startswith(_OWN_SETTINGS) for config in topic.topic_configs):
                raise _refused(f"Internal topic {topic.name} must not have kproxy's own settings.")
            if number % EVERY == 0:
                yield
        made = found[one.subtopology_id] = _asked(one)
        size += sum(len(name) for group in made.copartitions for name in group)
        if size > _TOPOLOGY_BYTES_MAX:
            raise _refused(f"Its names and settings have over {_TOPOLOGY_BYTES_MAX} characters.")
        yield
    return Topology(given.epoch, tuple(found[name] for name in sorted(found)))


def _refused(why: str) -> KafkaError:
    return KafkaError(Code.STREAMS_INVALID_TOPOLOGY, why)


def _asked(given: Any) -> Subtopology:
    for topic in given.state_changelog_topics:
        if topic.partitions:
            raise _refused(
                f"Changelog topic {topic.name} must have an undefined partition count, but it is"
                f" set to {topic.partitions}."
            )
    repartitions = _asked_topics(given.repartition_source_topics)
    names = [topic.name for topic in repartitions]
    copartitions = [
        (*_named(given.source_topics, group.source_topics),
         *_named(names, group.repartition_source_topics))
        for group in given.copartition_groups
    ]  # fmt: skip
    return Subtopology(
        given.subtopology_id, tuple(given.source_topics), tuple(given.repartition_sink_topics),
        _asked_topics(given.state_changelog_topics), repartitions, tuple(copartitions),
    )  # fmt: skip


def _asked_topics(given: Iterable[Any]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            topic.name, topic.partitions, topic.replication_factor,
            tuple((config.key, config.value) for config in topic.topic_configs),
        )
        for topic in given
    )  # fmt: skip


def _named(names: Any, places: Iterable[int]) -> list[str]:
    """Return the topics at these places of a list."""
    wanted = tuple(places)
    if any(not 0 <= place < len(names) for place in wanted) or len(set(wanted)) < len(wanted):
        raise _refused("A copartition group names a topic that is not there, or one twice.")
    return [names[place] for place in wanted]
