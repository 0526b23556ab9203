"""Following topics: a worker that cannot take in what it hears says so and ends."""

import threading
from typing import Any

import anyio
import pytest
from anyio import to_thread
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException, TopicPartition

from kproxy.common.errors import KafkaError
from kproxy.store.rocks import RowsFailed
from kproxy.upstream import topic_tailer
from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.upstream.topic_tailer import Record, TopicTailer
from tests.harness import patient, until
from tests.upstream.consumers import FakeConsumer

UPSTREAM = Upstream(servers="nowhere", prefix="t", client={}, connectivity=Connectivity("nowhere"))


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
async def test_failed_delivery_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """FAULT S3: the thread ended without a word, and the catalogue stood still."""
    monkeypatch.setattr(topic_tailer, "Consumer", FakeConsumer)

    reasons: list[str] = []
    taken: list[int] = []

    async def deliver(records: list[Record]) -> None:
        taken.extend(record.offset for record in records)
        raise error("of a later kproxy")

    def began_again(topic: str) -> None:
        pytest.fail(topic)

    given: Any = {"t": 0}
    follower = TopicTailer(UPSTREAM, given, deliver, began_again, reasons.append)
    follower.start()
    await until(lambda: reasons, 10)
    await to_thread.run_sync(follower.close)
    assert "of a later kproxy" in reasons[0]
    assert taken == [0, 1]  # and no more


async def test_a_catalogue_that_cannot_begin_again_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: the thread ended without a word, and the start waited for ever."""
    monkeypatch.setattr(topic_tailer, "Consumer", FakeConsumer)
    reasons: list[str] = []

    async def deliver(records: list[Record]) -> None:
        pytest.fail(str(records))

    def began_again(topic: str) -> None:
        raise RowsFailed("no space left")

    beyond = FakeConsumer.records + 1
    follower = TopicTailer(UPSTREAM, {"t": beyond}, deliver, began_again, reasons.append)
    follower.start()
    await until(lambda: reasons, 5)
    await to_thread.run_sync(follower.close)
    assert "no space left" in reasons[0]


async def test_a_topic_is_read_again_while_it_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_tailer, "Consumer", FakeConsumer)

    taken: list[int] = []

    async def deliver(records: list[Record]) -> None:
        taken.extend(record.offset for record in records)

    def never(reason: str) -> None:
        pytest.fail(reason)

    follower = TopicTailer(UPSTREAM, {"t": 0}, deliver, never, never)
    follower.start()
    with anyio.fail_after(patient(10)):
        await follower.caught_up.wait()
        await follower.again("t", taken.clear)
        await until(lambda: len(taken) >= FakeConsumer.records)
    await to_thread.run_sync(follower.close)
    assert taken == list(range(FakeConsumer.records))


async def test_a_topic_that_cannot_be_read_again_is_followed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Away(FakeConsumer):
        def seek(self, one: TopicPartition) -> None:
            raise KafkaException(UpstreamError(UpstreamError._TRANSPORT))

    monkeypatch.setattr(topic_tailer, "Consumer", Away)

    async def deliver(records: list[Record]) -> None:
        pass

    def never(reason: str = "") -> None:
        pytest.fail(reason)

    follower = TopicTailer(UPSTREAM, {"t": 0}, deliver, never, never)
    follower.start()
    with anyio.fail_after(patient(10)):
        with pytest.raises(KafkaError):
            await follower.again("t", never)
        await follower.caught_up.wait()
    await to_thread.run_sync(follower.close)


async def test_a_tailer_closes_while_the_cluster_does_not_say_where_a_topic_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()

    class Unanswered(FakeConsumer):
        def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
            answer.wait()
            return super().get_watermark_offsets()

    monkeypatch.setattr(topic_tailer, "Consumer", Unanswered)
    monkeypatch.setattr(topic_tailer, "CLOSE_S", 0.01)

    async def deliver(records: list[Record]) -> None:
        pytest.fail("a closed tailer delivers nothing")

    tailer = TopicTailer(UPSTREAM, {"t": 0}, deliver, pytest.fail, pytest.fail)
    tailer.start()
    with anyio.fail_after(5):
        await to_thread.run_sync(tailer.close)
    answer.set()
    with anyio.fail_after(5):
        await to_thread.run_sync(tailer._thread.join)
