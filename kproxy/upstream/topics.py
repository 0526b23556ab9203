"""The four topics: creates them at a first start, and checks their settings at each start.

A setting that could lose an acknowledged record or an offset is refused, with the command that
mends it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kproxy.common.errors import CannotStart
from kproxy.upstream.boundary import reason_of, translated
from kproxy.upstream.settings import Upstream

_log = structlog.get_logger()

_TIMEOUT_S = 15
_SEEN_S = 5.0
_REPLICAS, _IN_SYNC = 3, 2
_SEGMENT_BYTES_MAX = 128 << 20
_OVERHEAD_BYTES = 1 << 20
_CATALOGUE_LAG_MS = 60_000
_DAY_MS = 24 * 3600 * 1000
_AWAY = (
    UpstreamError._TIMED_OUT, UpstreamError._TRANSPORT, UpstreamError._ALL_BROKERS_DOWN,
    UpstreamError.REQUEST_TIMED_OUT, UpstreamError.NOT_CONTROLLER,
)  # fmt: skip
"""The errors of a cluster that may answer in a moment."""
_TOOL = "kafka-topics.sh --bootstrap-server"


class ClusterRefused(CannotStart):
    """The cluster is not as kproxy needs it; the message is one line that says how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as kproxy makes it."""

    name: str
    partitions: int
    configs: dict[str, str]


def row_bytes_max(message_bytes_max: int) -> int:
    """Return the bytes that a published row may take.

    One command may be all of it, and its packing may fail.
    """
    return message_bytes_max + _OVERHEAD_BYTES


def wanted(upstream: Upstream, shards: int, message_bytes_max: int) -> list[TopicSpec]:
    """Return the specifications of the four topics."""
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"}
    largest = str(row_bytes_max(message_bytes_max))
    rows = {**compacted, "segment.bytes": str(32 << 20), "max.message.bytes": largest}
    return [
        TopicSpec(
            name=upstream.data,
            partitions=shards,
            configs={
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "segment.bytes": str(_SEGMENT_BYTES_MAX),
                "max.message.bytes": str(message_bytes_max),
            },
        ),
        TopicSpec(name=upstream.offset, partitions=shards, configs=rows),
        TopicSpec(name=upstream.partitions, partitions=1, configs=compacted),
        # A reader up to an offset must not pass over a tombstone that was cleaned away just now.
        TopicSpec(
            name=upstream.queues,
            partitions=1,
            configs={**rows, "min.compaction.lag.ms": str(_CATALOGUE_LAG_MS)},
        ),
    ]


def _usable(metadata: ClusterMetadata, name: str) -> bool:
    topic = metadata.topics.get(name)
    return topic is not None and topic.error is None and bool(topic.partitions)


class Topics:
    """Checks a cluster's topics, and makes the missing ones. All calls block."""

    def __init__(
        self, admin: AdminClient, upstream: Upstream, *, shards: int, message_bytes_max: int,
        create: bool, single_replica: bool,
    ) -> None:  # fmt: skip
        self._admin = admin
        self._upstream = upstream
        self._create = create
        self._single_replica = single_replica
        self._wanted = wanted(upstream, shards, message_bytes_max)
        self._message_bytes_max = message_bytes_max
        self.tombstones_kept_ms = _DAY_MS
        """The time for which the queues topic says that a queue is gone, as found by `check`."""

    def prepare(self) -> None:
        """Make what is missing, check what is there.

        Raises ClusterRefused; KafkaError where the cluster cannot be asked.
        """
        with translated():
            self._prepare()

    def _prepare(self) -> None:
        metadata = self._admin.list_topics(timeout=_TIMEOUT_S)
        missing = [topic for topic in self._wanted if not _usable(metadata, topic.name)]
        if missing:
            replicas = min(_REPLICAS, len(metadata.brokers))
            self._check_replicas(replicas)
            if not self._create:
                raise ClusterRefused(
                    "topics are missing and --no-create was given; create them with: "
                    + " && ".join(self._command(topic, replicas) for topic in missing)
                )
            self._make(missing, replicas)
        self._check()

    def _check_replicas(self, replicas: int) -> None:
        if replicas < 2 and not self._single_replica:
            raise ClusterRefused(
                "the cluster has one broker, so a lost disk loses acknowledged records: add"
                " brokers, or for development accept it with --allow-single-replica"
            )

    def _configs(self, topic: TopicSpec, replicas: int) -> dict[str, str]:
        in_sync = {"min.insync.replicas": "2" if replicas > 1 else "1"}
        return {**topic.configs, **in_sync, "unclean.leader.election.enable": "false"}

    def _command(self, topic: TopicSpec, replicas: int) -> str:
        configs = " ".join(f"--config {k}={v}" for k, v in self._configs(topic, replicas).items())
        return (
            f"{_TOOL} {self._upstream.servers} --create --topic {topic.name}"
            f" --partitions {topic.partitions} --replication-factor {replicas} {configs}"
        )

    def _make(self, missing: list[TopicSpec], replicas: int) -> None:
        new = [
            NewTopic(
                topic.name,
                num_partitions=topic.partitions,
                replication_factor=replicas,
                config=self._configs(topic, replicas),
            )
            for topic in missing
        ]
        for name, future in self._admin.create_topics(new, operation_timeout=_TIMEOUT_S).items():
            try:
                future.result()
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() == UpstreamError.TOPIC_ALREADY_EXISTS:
                    continue  # another worker was first
                if cause.code() in _AWAY:
                    raise  # it is asked again
                raise ClusterRefused(f"cannot create topic {name}: {reason_of(error)}") from error

    # -- checking

    def _check(self) -> None:
        """Check the topics. Raises ClusterRefused, KafkaException."""
        names = [topic.name for topic in self._wanted]
        metadata = self._known_everywhere(names)
        configs = self._effective(names)
        if self._create and self._enlarge(configs):
            configs = self._enlarged(names)
        kept = configs[self._upstream.queues].get("delete.retention.ms", str(_DAY_MS))
        self.tombstones_kept_ms = int(kept)
        fewest: dict[str, int] = {}
        for topic in self._wanted:
            found = metadata.topics[topic.name].partitions
            if len(found) != topic.partitions:
                raise ClusterRefused(self._wrong_count(topic, len(found)))
            replicas = min(len(partition.replicas) for partition in found.values())
            for fault, mend in self._faults(topic, configs[topic.name], replicas):
                raise ClusterRefused(f"topic {topic.name}: {fault}; {mend}")
            fewest[topic.name] = replicas
        if short := [name for name, replicas in fewest.items() if replicas == _IN_SYNC]:
            # Perhaps a broker was away when they were made.
            _log.warning(
                "topics_lack_replicas", topics=short, replicas=_IN_SYNC,
                hint="while one broker is away nothing can be written: reassign them to three"
                " brokers (kafka-reassign-partitions.sh)",
            )  # fmt: skip

    def _known_everywhere(self, names: list[str]) -> ClusterMetadata:
        """Return the cluster's metadata with these topics in it: one just made takes a moment."""
        end = time.monotonic() + _TIMEOUT_S
        while True:
            metadata = self._admin.list_topics(timeout=_TIMEOUT_S)
            absent = [name for name in names if not _usable(metadata, name)]
            if not absent:
                return metadata
            if time.monotonic() > end:
                raise ClusterRefused(f"topic {absent[0]} was made, but is not to be seen")
            time.sleep(0.1)

    def _wrong_count(self, topic: TopicSpec, found: int) -> str:
        text = f"topic {topic.name} has {found} partitions, not {topic.partitions}"
        if topic.name in (self._upstream.data, self._upstream.offset):
            return (
                f"{text}: the number of shards never changes; start with --shards {found}, or use"
                " another --topic-prefix"
            )
        return f"{text}: delete it, kproxy makes it again, or use another --topic-prefix"

    def _effective(self, names: list[str]) -> dict[str, Mapping[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found: dict[str, Mapping[str, str]] = {}
        futures = self._admin.describe_configs(resources, request_timeout=_TIMEOUT_S)
        for resource, future in futures.items():
            found[resource.name] = {k: str(entry.value) for k, entry in future.result().items()}
        return found

    def _too_small(self, topic: TopicSpec, configs: Mapping[str, str]) -> int:
        """Return the record size that a topic of rows should take, where it takes less; else 0."""
        largest = int(topic.configs.get("max.message.bytes", "0"))
        return largest if int(configs.get("max.message.bytes", "0")) < largest else 0

    def _enlarge(self, configs: Mapping[str, Mapping[str, str]]) -> bool:
        """Let topics of rows that an earlier release made take the rows of large groups."""
        resources = []
        for topic in self._wanted:
            largest = self._too_small(topic, configs[topic.name])
            if largest and topic.name != self._upstream.data:
                entry = ConfigEntry(
                    "max.message.bytes", str(largest), incremental_operation=AlterConfigOpType.SET
                )
                resources.append(
                    ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
                )
        if resources:
            futures = self._admin.incremental_alter_configs(resources, request_timeout=_TIMEOUT_S)
            for resource, future in futures.items():
                try:
                    future.result()
                except KafkaException as error:
                    reason = reason_of(error)
                    _log.warning("topic_not_altered", topic=resource.name, reason=reason)
        return bool(resources)

    def _enlarged(self, names: list[str]) -> dict[str, Mapping[str, str]]:
        """Return the topics' configs once all are seen to be large enough:

        a change takes a moment.
        """
        end = time.monotonic() + _SEEN_S
        while True:
            configs = self._effective(names)
            small = any(self._too_small(topic, configs[topic.name]) for topic in self._wanted)
            if not small or time.monotonic() > end:
                return configs
            time.sleep(0.1)

    def _faults(
        self, topic: TopicSpec, configs: Mapping[str, str], replicas: int
    ) -> Iterator[tuple[str, str]]:
        """Yield (the fault, its remedy)."""

        def alter(setting: str) -> str:
            return (
                f"mend it with: kafka-configs.sh --bootstrap-server {self._upstream.servers}"
                f" --alter --entity-type topics --entity-name {topic.name} --add-config {setting}"
            )

        policy = topic.configs["cleanup.policy"]
        if configs.get("cleanup.policy") != policy:
            found = configs.get("cleanup.policy")
            yield f"cleanup.policy is {found}, which loses data", alter(f"cleanup.policy={policy}")
        if topic.name == self._upstream.data:
            yield from self._data_faults(configs, alter)
        elif largest := self._too_small(topic, configs):
            yield (
                f"max.message.bytes is {configs['max.message.bytes']}: too small for rows of large"
                " groups",
                alter(f"max.message.bytes={largest}"),
            )
        if configs.get("unclean.leader.election.enable") == "true":
            yield (
                "unclean.leader.election.enable is true, which can lose acknowledged records",
                alter("unclean.leader.election.enable=false"),
            )
        in_sync = int(configs.get("min.insync.replicas", "1"))
        if replicas < 2:
            if not self._single_replica:
                yield (
                    "it has one replica, so a lost disk loses acknowledged records",
                    "reassign it to three brokers (kafka-reassign-partitions.sh), or for"
                    " development accept it with --allow-single-replica",
                )
        elif in_sync < 2:
            yield (
                "min.insync.replicas is 1, so a lost leader loses acknowledged records",
                alter("min.insync.replicas=2"),
            )
        if in_sync > replicas:
            yield (
                f"min.insync.replicas is {in_sync} of {replicas} replicas: no write can succeed",
                alter(f"min.insync.replicas={replicas}"),
            )

    def _data_faults(
        self, configs: Mapping[str, str], alter: Callable[[str], str]
    ) -> Iterator[tuple[str, str]]:
        for name in ("retention.ms", "retention.bytes"):
            if configs.get(name) != "-1":
                yield f"{name} is {configs.get(name)}: only kproxy may trim it", alter(f"{name}=-1")
        if int(configs.get("segment.bytes", "0")) > _SEGMENT_BYTES_MAX:
            yield (
                f"segment.bytes is {configs['segment.bytes']}: space comes back by whole segments",
                alter(f"segment.bytes={_SEGMENT_BYTES_MAX}"),
            )
        largest = int(configs.get("max.message.bytes", "0"))
        if largest < self._message_bytes_max:
            yield (
                f"max.message.bytes is {largest}: smaller than what clients may send",
                alter(f"max.message.bytes={self._message_bytes_max}"),
            )
