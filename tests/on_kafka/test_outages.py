"""The real Kafka away at the start, killed under load, and away for a while."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from kproxy.common.errors import KafkaError
from kproxy.metadata.levels import Level
from kproxy.protocol.api_keys import ApiKey
from kproxy.upstream.link import DataLink
from tests.harness import Served, eventually, patient, stand_still
from tests.on_kafka.load import Load
from tests.on_kafka.test_two_writers import CONFIG, upstream
from tests.real_kafka import Kafka
from tests.wire import Wire, batch, produce_values
from tests.workers import Workers

QUEUES = [f"queue-{i}" for i in range(6)]
SOON_BACK = "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500"
"""A killed Kafka is not taken in again before its session has ended: nine seconds otherwise."""


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """Yield a Kafka that a test may kill."""
    (tmp_path / "kafka").mkdir()
    running = Kafka(tmp_path / "kafka", more=SOON_BACK)
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def test_a_broker_killed_under_load(own_kafka: Kafka, tmp_path: Path) -> None:
    with Workers(own_kafka, tmp_path, count=2, shards=4).running() as workers:
        with Load(workers.address, QUEUES) as load:
            load.wait_for(2000)
            own_kafka.kill()
            eventually(lambda: all(w.event("kafka_unreachable") for w in workers.workers), 20)
            own_kafka.start()
            own_kafka.wait_ready()
            load.wait_for(3000)
            workers.wait_served(30)
        load.check()


def test_kafka_away_at_the_start(own_kafka: Kafka, tmp_path: Path) -> None:
    own_kafka.kill()
    workers = Workers(own_kafka, tmp_path, count=1, shards=2)
    worker = workers.workers[0]
    said = eventually(lambda: worker.event("kafka_unreachable"), 30)
    assert own_kafka.address in said["servers"]
    assert "--bootstrap-servers" in said["hint"]
    own_kafka.start()
    own_kafka.wait_ready()
    with workers.running(), worker.wire("q") as wire:
        assert wire.produce("q", batch(b"v")).error_code == 0


def test_away_for_long_is_answered_with_retriable_errors_in_bounded_memory(
    own_kafka: Kafka, tmp_path: Path
) -> None:
    limits = ("--delivery-ms-max", "3000", "--request-bytes-buffered-max", "8MiB")
    with Workers(own_kafka, tmp_path, *limits, count=1, shards=2).running() as workers:
        worker = workers.workers[0]
        with worker.wire("q") as wire:
            assert wire.produce("q", batch(b"before")).base_offset == 0
            own_kafka.kill()
            used = worker.rss()
            for _ in range(3):
                wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(900_000))))
            refused = {_code(wire.receive(ApiKey.PRODUCE, 9)[1]) for _ in range(3)}
            assert refused <= {6, 7}  # not leader, timed out: clients try again
            flood(worker)
            assert worker.rss() - used < 150 << 20
            assert wire.fetch("q", 0).high_watermark == 1  # present records can be read meanwhile
            own_kafka.start()
            own_kafka.wait_ready()
            eventually(lambda: wire.produce("q", batch(b"after")).error_code == 0, 30)


def _code(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def flood(worker: Served) -> None:
    """Send 100 MB of produces that nobody can take, over ten connections."""
    wires = [Wire(worker.host, worker.port, seconds=60) for _ in range(10)]
    for wire in wires:
        wire.socket.settimeout(0.3)
        try:
            for _ in range(11):
                wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(900_000))))
        except OSError:
            pass  # no more is taken in, or too much was: the bound
    for wire in wires:
        wire.socket.close()


async def _known(link: DataLink) -> None:
    with anyio.fail_after(patient(20)):  # a broker leads a moment after it, or the topic, is there
        while True:
            try:
                assert (await link.ends([0]))[0].offset == 0
            except KafkaError:
                await anyio.sleep(0.2)
            else:
                return


async def test_ends_of_logs_are_known_again_after_a_broker_came_back(own_kafka: Kafka) -> None:
    """A restarted broker leads with a new epoch, and refuses requests that carry the old one."""
    site = upstream(own_kafka, "epochs")

    link = DataLink(site, CONFIG, Level())
    await _known(link)
    for _ in range(2):
        await to_thread.run_sync(own_kafka.kill)
        own_kafka.start()
        await to_thread.run_sync(own_kafka.wait_ready)
        await _known(link)
    await link.close()


async def test_a_broker_that_stands_still_says_nothing_of_where_logs_end(own_kafka: Kafka) -> None:
    """FAULT: librdkafka gives -1001 then, and no error: copies were thrown away for it."""
    link = DataLink(upstream(own_kafka, "still"), CONFIG, Level())
    try:
        await _known(link)
        stand_still(own_kafka.process)
        with pytest.raises(KafkaError):
            await link.end(0)
    finally:
        own_kafka.process.send_signal(signal.SIGCONT)
        await link.close()
