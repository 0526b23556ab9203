"""A cluster's topics as a start finds them, without a cluster."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException

from kproxy.common.errors import KafkaError
from kproxy.upstream import topics
from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.upstream.topics import ClusterRefused, Topics, TopicSpec

UPSTREAM = Upstream(servers="nowhere", prefix="t", client={}, connectivity=Connectivity("nowhere"))
BYTES = 2 << 20


def done(value: Any = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Cluster:
    """An admin client of a cluster that shows a change only after some questions."""

    def __init__(self, shown_after: int, replicas: int = 1) -> None:
        self.shown_after = shown_after
        self.replicas = list(range(replicas))
        self.asked = 0
        self.altered: set[str] = set()
        specs = topics.wanted(UPSTREAM, 2, BYTES)
        self.specs: dict[str, TopicSpec] = {spec.name: spec for spec in specs}

    def list_topics(self, timeout: float) -> Any:
        found = {}
        for spec in self.specs.values():
            partitions = {
                n: SimpleNamespace(replicas=self.replicas) for n in range(spec.partitions)
            }
            found[spec.name] = SimpleNamespace(error=None, partitions=partitions)
        return SimpleNamespace(topics=found, brokers={1: None})

    def describe_configs(self, resources: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        self.asked += bool(self.altered)
        return {resource: done(self.configs(resource.name)) for resource in resources}

    def configs(self, name: str) -> dict[str, Any]:
        in_sync = str(min(2, len(self.replicas)))
        configs = {**self.specs[name].configs, "min.insync.replicas": in_sync}
        shown = name in self.altered and self.asked > self.shown_after
        if name in (UPSTREAM.offset, UPSTREAM.queues) and not shown:
            configs["max.message.bytes"] = str(BYTES)  # as an older release made it
        return {key: SimpleNamespace(value=value) for key, value in configs.items()}

    def incremental_alter_configs(self, resources: Any, **_: Any) -> dict[Any, Future[None]]:
        self.altered |= {resource.name for resource in resources}
        return {resource: done() for resource in resources}


@pytest.mark.parametrize("code", [UpstreamError._TIMED_OUT, UpstreamError.REQUEST_TIMED_OUT])
def test_a_cluster_that_is_slow_to_make_topics_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """FAULT: the start was refused, as where topics may not be made."""
    failed: Future[None] = Future()
    failed.set_exception(KafkaException(UpstreamError(code)))
    cluster: Any = Cluster(0)
    cluster.create_topics = lambda new, operation_timeout: {new[0].topic: failed}
    monkeypatch.setattr(topics, "_usable", lambda *_: False)
    with pytest.raises(KafkaError):
        check(cluster)


def check(cluster: Cluster) -> None:
    admin: Any = cluster
    Topics(
        admin, UPSTREAM, shards=2, message_bytes_max=BYTES, create=True, single_replica=True
    ).prepare()


def test_a_start_waits_until_what_it_enlarged_is_shown() -> None:
    """FAULT: on a busy cluster it refused its own change."""
    cluster = Cluster(shown_after=2)
    check(cluster)
    assert cluster.altered == {UPSTREAM.offset, UPSTREAM.queues}
    assert cluster.asked == 3


def test_a_change_that_is_never_shown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_SEEN_S", 0.15)
    with pytest.raises(ClusterRefused, match="too small for rows of large groups"):
        check(Cluster(shown_after=1000))


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_topics_that_no_broker_may_be_missing_from_are_told_of(replicas: int) -> None:
    """FAULT: made while one of three brokers was away they have two replicas, and nobody knew."""
    with structlog.testing.capture_logs() as said:
        check(Cluster(shown_after=0, replicas=replicas))
    told = [line["topics"] for line in said if line["event"] == "topics_lack_replicas"]
    assert told == ([[spec.name for spec in Cluster(0).specs.values()]] if replicas == 2 else [])
