"""Reading a topic to its end through a cluster's hiccups."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as UpstreamError

from kproxy.common.errors import KafkaError
from kproxy.loop.threads import Stop, Stopped
from kproxy.upstream import read_topic
from kproxy.upstream.read_topic import read_to_end
from tests.upstream.consumers import FakeConsumer
from tests.upstream.test_topics import UPSTREAM


def said(code: int) -> Any:
    return SimpleNamespace(error=lambda: UpstreamError(code))


class Hiccups(FakeConsumer):
    """A consumer that reports an error before each record, and the end at last."""

    def consume(self, count: int, seconds: float) -> list[Any]:
        if not seconds:
            return super().consume(count, seconds)
        found: list[Any] = super().consume(1, seconds)
        return [said(UpstreamError.LEADER_NOT_AVAILABLE), *found] if found else [
            said(UpstreamError._PARTITION_EOF)
        ]  # fmt: skip


class Silent(FakeConsumer):
    def consume(self, count: int, seconds: float) -> list[Any]:
        return [said(UpstreamError.UNKNOWN_TOPIC_OR_PART)]


def test_an_error_between_records_does_not_break_off_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker's hiccup during a rebuild left a shard unserved for 30 s."""
    monkeypatch.setattr(read_topic, "Consumer", Hiccups)
    rows = [row for chunk in read_to_end(UPSTREAM, "t") for row in chunk]
    assert [value for _, value in rows] == [b"%d" % n for n in range(FakeConsumer.records)]


def test_a_read_without_records_ends_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_topic, "Consumer", Silent)
    seconds = count()
    with pytest.raises(KafkaError, match=r"does not answer: .*[Uu]nknown topic"):
        list(read_to_end(UPSTREAM, "t", timeout_s=5, now=lambda: float(next(seconds))))
    assert next(seconds) < 10


def test_a_read_of_a_silent_cluster_stops_when_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGTERM during a rebuild was heeded at the end of the topic, which never came."""
    monkeypatch.setattr(read_topic, "Consumer", Silent)
    stop = Stop()
    stop.tell()
    with pytest.raises(Stopped):
        list(read_to_end(UPSTREAM, "t", check=stop.check))
