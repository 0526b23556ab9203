"""The partitions that a topology needs, as Kafka's `InternalTopicManager` finds them (4.3).

A repartition topic has as many as the inputs of what writes it, or as the topics that it is to be
copartitioned with; a changelog topic as many as its subtopology has tasks. Order of checks, codes
and messages follow Kafka.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.model.topology import InternalTopic, Topology
from kproxy.loop.steps import Spending, Steps, in_order

TASKS_MAX = 100_000
"""Active tasks of one group; partitions of all its internal topics, likewise."""
_SHOWN = 3  # names in a message

MISSING_SOURCE_TOPICS, INCORRECTLY_PARTITIONED_TOPICS, MISSING_INTERNAL_TOPICS = 1, 2, 3

PartitionsOf = Callable[[str], int | None]
"""The partitions that a topic has; None: it is not there."""


class Status(NamedTuple):
    """A status of a group, as its members are told it."""

    code: int
    detail: str


class MissingTopic(NamedTuple):
    """An internal topic that is to be made."""

    topic: InternalTopic
    partitions: int


class ConfiguredTopology(NamedTuple):
    """The numbers that a topology comes to with the topics there are now.

    `tasks`: by subtopology; None where topics are missing or do not fit. `internal`: partitions of
    internal topics, by name. `fault`: a topology that cannot be, whatever topics there are.
    """

    tasks: tuple[int, ...] | None = None
    internal: dict[str, int] = {}  # noqa: RUF012 (nobody changes it)
    missing: tuple[MissingTopic, ...] = ()
    status: Status | None = None
    fault: KafkaError | None = None

    @property
    def ready(self) -> bool:
        return self.status is None and self.fault is None


class _Unfit(Exception):
    """Topics are missing, or have other numbers of partitions than they need."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configured(topology: Topology, partitions_of: PartitionsOf) -> Steps[ConfiguredTopology]:
    """Return what a topology comes to."""
    try:
        return (yield from _Configuring(topology, partitions_of).steps())
    except _Unfit as unfit:
        return ConfiguredTopology(status=unfit.status)
    except KafkaError as fault:
        return ConfiguredTopology(fault=fault)


def _invalid(why: str) -> KafkaError:
    return KafkaError(Code.STREAMS_INVALID_TOPOLOGY, why)


def _summary(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} additional topics" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class _Configuring:
    """One look at a topology."""

    def __init__(self, topology: Topology, partitions_of: PartitionsOf) -> None:
        self._parts = topology.subtopologies
        self._partitions_of = partitions_of
        self._decided: dict[str, int] = {}
        self._spent = Spending().add

    def _count(self, topic: str) -> int | None:
        """Return the partitions that a topic has, or is to have."""
        there = self._partitions_of(topic)
        return there if there is not None else self._decided.get(topic)

    def _known(self, topic: str) -> int:
        count = self._count(topic)
        if count is None:
            text = f"Number of partitions must be set for topic {topic}"
            raise KafkaError(Code.UNKNOWN_SERVER_ERROR, text)
        return count

    def steps(self) -> Steps[ConfiguredTopology]:
        yield from self._need_sources()
        yield from self._decide_repartitions()
        yield from self._enforce_copartitions()
        tasks = yield from self._decide_changelogs()
        if sum(tasks) > TASKS_MAX:
            text = f"The topology has more than {TASKS_MAX} tasks."
            raise _Unfit(INCORRECTLY_PARTITIONED_TOPICS, text)
        internal, missing = yield from self._internal()
        status = None
        if missing:
            names = yield from in_order(one.topic.name for one in missing)
            text = f"Internal topics are missing: {_summary(names)}"
            status = Status(MISSING_INTERNAL_TOPICS, text)
        return ConfiguredTopology(tasks, internal, missing, status)

    def _need_sources(self) -> Steps[None]:
        missing: set[str] = set()
        for one in self._parts:
            missing.update(name for name in one.sources if self._partitions_of(name) is None)
            yield from self._spent(8 + len(one.sources))
        if missing:
            names = yield from in_order(missing)
            raise _Unfit(MISSING_SOURCE_TOPICS, f"Source topics {_summary(names)} are missing.")

    # -- repartition topics

    def _decide_repartitions(self) -> Steps[None]:
        decided = self._decided
        for one in self._parts:
            decided |= {
                topic.name: topic.partitions for topic in one.repartitions if topic.partitions
            }
        left = [one for one in self._parts if any(sink not in decided for sink in one.sinks)]
        while left:
            before, still = len(decided), []
            for one in left:
                sources = [self._partitions_of(name) for name in one.sources]
                sources += [decided.get(topic.name) for topic in one.repartitions]
                count = max((found for found in sources if found is not None), default=None)
                if count is None:
                    still.append(one)
                else:
                    decided |= {sink: count for sink in one.sinks if sink not in decided}
                yield from self._spent(8 + len(sources) + len(one.sinks))
            if still and len(decided) == before:
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may"
                    " be loops in the topology that cannot be resolved."
                )
            left = still
        if any(topic.name not in decided for one in self._parts for topic in one.repartitions):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a"
                " repartition source topic is never used as a sink topic."
            )

    # -- copartition groups

    def _enforce_copartitions(self) -> Steps[None]:
        internal = {t.name: bool(t.partitions) for one in self._parts for t in one.repartitions}
        yield from self._spent(len(internal))
        for one in self._parts:
            for group in one.copartitions:
                self._enforce(group, internal)
                yield from self._spent(8 + 4 * len(group))

    def _enforce(self, group: tuple[str, ...], internal: dict[str, bool]) -> None:
        """Give the repartition topics of a group equal counts. `internal`: whether it is fixed."""
        if not group:
            return
        repartitions = {name: self._known(name) for name in group if name in internal}
        others = {name: self._known(name) for name in group if name not in internal}
        fixed = {name: repartitions[name] for name in repartitions if internal[name]}
        if others:
            count = _same(others, others)
        elif fixed:
            count = _same(fixed, repartitions)
        else:
            count = max(repartitions.values())
        for name, given in repartitions.items():
            self._decided[name] = count
            if internal[name] and given != count:
                raise _Unfit(
                    INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{given}] of repartition topic [{name}] doesn't match"
                    f" number of partitions [{count}] of the source topic.",
                )

    # -- changelog topics, and tasks

    def _decide_changelogs(self) -> Steps[tuple[int, ...]]:
        tasks = []
        for one in self._parts:
            counts = [self._known(name) for name in one.inputs()]
            if not counts:
                raise _invalid(f"No source topics found for subtopology {one.id}")
            tasks.append(max(counts))
            self._decided |= {topic.name: tasks[-1] for topic in one.changelogs}
            yield from self._spent(8 + len(counts) + len(one.changelogs))
        return tuple(tasks)

    def _internal(self) -> Steps[tuple[dict[str, int], tuple[MissingTopic, ...]]]:
        """Return the partitions of internal topics by name, and those that are missing."""
        counts: dict[str, int] = {}
        missing = {}
        for one in self._parts:
            for topic in (*one.repartitions, *one.changelogs):
                wanted = topic.partitions or self._decided[topic.name]
                there = self._partitions_of(topic.name)
                counts[topic.name] = wanted
                if there is None:
                    missing[topic.name] = MissingTopic(topic, wanted)
                elif there != wanted:
                    raise _Unfit(
                        INCORRECTLY_PARTITIONED_TOPICS,
                        f"Existing topic {topic.name} has different number of partitions: expected"
                        f" {wanted}, found {there}",
                    )
                yield from self._spent(4)
        if sum(counts.values()) > TASKS_MAX:
            text = f"Its internal topics have more than {TASKS_MAX} partitions."
            raise _Unfit(INCORRECTLY_PARTITIONED_TOPICS, text)
        return counts, tuple(missing[name] for name in (yield from in_order(missing)))


def _same(counts: dict[str, int], shown: dict[str, int]) -> int:
    """Return the number of partitions that all have. Raise _Unfit."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={shown[name]}" for name in sorted(shown))
        text = f"Following topics do not have the same number of partitions: [{{{listed}}}]"
        raise _Unfit(INCORRECTLY_PARTITIONED_TOPICS, text)
    return next(iter(counts.values()))
