"""Both ways of sending records to a cluster do the same: librdkafka's own, confluent-kafka's."""

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import confluent_kafka.cimpl
import pytest
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy.upstream import producer
from kproxy.upstream.native_producer import NativeProducer, Reported, Reports, library
from kproxy.upstream.producer import Appender, PlainProducer, ProducerBackend, Report, sending
from kproxy.upstream.read_topic import read_to_end
from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.virtual.commands.envelope import Envelope, Kind
from tests.harness import free_port, until
from tests.real_kafka import Kafka

Way = Callable[[dict[str, Any], Reported], ProducerBackend]
BIG = 1_000_000


def native(settings: dict[str, Any], reported: Reported) -> ProducerBackend:
    lib = library()
    assert lib is not None
    return NativeProducer(lib, settings, reported)


WAYS = pytest.mark.parametrize("way", [native, PlainProducer])


def upstream(servers: str) -> Upstream:
    return Upstream(servers=servers, prefix="sent", client={}, connectivity=Connectivity(servers))


def settings(servers: str, **more: Any) -> dict[str, Any]:
    limits = {
        "message_max_bytes": BIG, "queue_buffering_max_kbytes": 100_000,
        "queue_buffering_max_messages": 100_000,
    }  # fmt: skip
    return upstream(servers).settings(enable_idempotence=True, linger_ms=0, **{**limits, **more})


def topic(kafka: Kafka, name: str, **configs: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    made = admin.create_topics([NewTopic(name, 2, 1, config=configs)])[name]
    with suppress(KafkaException):  # the other way's test made it
        made.result()
    return name


class Came:
    """The reports that came back, by tag; `wait` until there are so many."""

    def __init__(self) -> None:
        self.found: dict[int, int | None] = {}
        self.turns = 0

    def __call__(self, reports: Reports) -> None:
        self.turns += 1
        for tag, offset in reports:
            assert tag not in self.found
            self.found[tag] = offset

    async def wait(self, count: int) -> None:
        await until(lambda: len(self.found) >= count)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Return the loop that kproxy is served on."""
    return "asyncio", {"use_uvloop": True}


@WAYS
async def test_records_arrive_as_they_were_and_each_is_reported(kafka: Kafka, way: Way) -> None:
    name = topic(kafka, f"whole-{way.__name__}", **{"max.message.bytes": str(2 * BIG)})
    values = [None, b"", b"x", bytes(2048), b"y" * 2049, b"z" * 70_000, b"w" * BIG] * 30
    reports = Came()

    sender = way(settings(kafka.address, message_max_bytes=2 * BIG), reports)
    for tag, value in enumerate(values, 1):
        sender.put(name, tag % 2, b"%d" % tag, value, tag)
    await reports.wait(len(values))
    await sender.close(5)
    here = upstream(kafka.address)
    for partition in (0, 1):
        tags = [tag for tag in range(1, len(values) + 1) if tag % 2 == partition]
        assert [reports.found[tag] for tag in tags] == list(range(len(tags)))
        read = [row for chunk in read_to_end(here, name, partition) for row in chunk]
        assert read == [(b"%d" % tag, values[tag - 1]) for tag in tags]


@WAYS
async def test_many_reports_come_in_few_turns(kafka: Kafka, way: Way) -> None:
    name, reports = topic(kafka, f"many-{way.__name__}"), Came()

    sender = way(settings(kafka.address), reports)
    for tag in range(1, 50_001):
        sender.put(name, 0, b"key", b"value", tag)
    await reports.wait(50_000)
    await sender.close(5)
    assert reports.turns < 10_000


@WAYS
async def test_close_sends_what_is_in_line(kafka: Kafka, way: Way) -> None:
    name, reports = topic(kafka, f"closed-{way.__name__}"), Came()

    sender = way(settings(kafka.address), reports)
    for tag in range(1, 1001):
        sender.put(name, 0, b"key", bytes(5000), tag)
    await sender.close(20)
    await reports.wait(1000)
    assert list(reports.found.values()) == list(range(1000))


@WAYS
async def test_without_a_cluster_the_fate_is_not_known(way: Way) -> None:
    reports = Came()

    sender = way(settings(f"127.0.0.1:{free_port()}", delivery_timeout_ms=1000), reports)
    sender.put("absent", 0, b"key", b"value", 7)
    await reports.wait(1)
    sender.put("absent", 0, b"key", b"value", 8)
    began = time.monotonic()
    await sender.close(0.2)
    assert time.monotonic() - began < 5
    await reports.wait(2)
    assert reports.found == {7: None, 8: None}


@WAYS
async def test_record_that_cannot_be_sent_is_refused_at_once(way: Way) -> None:
    there = f"127.0.0.1:{free_port()}"
    sender = way(settings(there, queue_buffering_max_messages=2), Came())
    with pytest.raises(KafkaException) as failed:
        sender.put("absent", 0, b"key", bytes(2 * BIG), 1)
    assert failed.value.args[0].code() == UpstreamError.MSG_SIZE_TOO_LARGE
    sender.put("absent", 0, b"key", b"value", 2)
    sender.put("absent", 0, b"key", b"value", 3)
    with pytest.raises(BufferError):
        sender.put("absent", 0, b"key", b"value", 4)
    await sender.close(0)
    with pytest.raises(KafkaException, match="compression"):
        way(settings(there, compression_type="none of them"), Came())


async def test_tokens_from_callbacks_are_left_to_confluent_kafka() -> None:
    there = f"127.0.0.1:{free_port()}"
    plain = sending(
        settings(there, sasl_oauthbearer_method="default", sasl_mechanism="OAUTHBEARER",
                 security_protocol="SASL_PLAINTEXT"),
        Came(),
    )  # fmt: skip
    assert isinstance(plain, PlainProducer)
    await plain.close(0)
    usual = sending(settings(there), Came())
    assert isinstance(usual, NativeProducer)
    await usual.close(0)


async def test_a_failed_producer_is_replaced(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fatal error, set off as librdkafka lets its users do for tests."""
    made: list[NativeProducer] = []

    def kept(settings: dict[str, Any], reported: Reported) -> ProducerBackend:
        sender = native(settings, reported)
        assert isinstance(sender, NativeProducer)
        made.append(sender)
        return sender

    monkeypatch.setattr(producer, "sending", kept)
    topic(kafka, "sent-data")
    reports: list[Report] = []

    appender = Appender(
        upstream(kafka.address), reports.extend, message_bytes_max=BIG,
        buffered_bytes_max=10 * BIG, delivery_ms_max=20_000,
    )  # fmt: skip

    async def send(count: int) -> None:
        envelope = Envelope(Kind.APPEND, body=b"body", counter=appender.next_counter())
        appender.send(1, envelope)
        await until(lambda: len(reports) >= count, 20)

    await send(1)
    lib: Any = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    lib.rd_kafka_test_fatal_error.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    lib.rd_kafka_test_fatal_error(made[0]._producer, 47, b"as a test wants it")
    await until(lambda: len(made) >= 2, 10)
    await send(2)
    await appender.close()
    assert [(partition, offset) for partition, _, offset in reports] == [(1, 0), (1, 1)]
