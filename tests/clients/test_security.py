"""Each client logs in by each mechanism that it has, over TLS: embedded, and on Kafka with two
workers.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.harness import eventually, java, need_program
from tests.real_kafka import Kafka
from tests.securing import MECHANISMS, PASSWORD, Site

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"


@pytest.fixture(scope="module", params=["embedded", "on Kafka"])
def secured(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    if request.param == "embedded":
        site, flags = Site(directory), ()
        with site.running("--connections-max-reauth-ms", "4000"):
            site.add_user("alice")
            yield site
        return
    kafka = Kafka(directory).wait_ready()
    try:
        site = Site(directory, workers=2)
        flags = (
            "--bootstrap-servers", kafka.address, "--workers", "2", "--shards", "8",
            "--allow-single-replica", "--drain-ms-max", "0",
        )  # fmt: skip
        with site.running(*flags, "--connections-max-reauth-ms", "4000"):
            admin = AdminClient(site.librdkafka("INSIDE"))
            eventually(lambda: len(admin.describe_cluster().result().nodes) == 2, 30)
            eventually(lambda: _added(site), 30)
            yield site
    finally:
        kafka.stop()


def _added(site: Site) -> bool:
    try:
        site.add_user("alice")
    except AssertionError:  # shard 0 has no owner yet
        return False
    return True


def roundtrip(settings: dict[str, Any], queue: str, count: int = 100) -> None:
    producer = Producer(settings)
    for number in range(count):
        producer.produce(queue, b"%d" % number)
    assert producer.flush(30) == 0
    consumer = Consumer(settings | {"group.id": queue, "auto.offset.reset": "earliest"})
    consumer.subscribe([queue])
    found: list[bytes] = []

    def consumed() -> bool:
        found.extend(m.value() for m in consumer.consume(count, 0.5) if not m.error())
        return len(found) >= count

    eventually(consumed, 40)
    consumer.close()
    assert sorted(found, key=int) == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("name", ["SASL", "OUTSIDE"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(secured: Site, mechanism: str, name: str) -> None:
    roundtrip(secured.librdkafka(name, mechanism), f"rdkafka-{name}-{mechanism}".lower())


def test_librdkafka_by_certificate(secured: Site) -> None:
    certificate = str(secured.authority.issue("carl", "carl", common_name="carl"))
    files = {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
    roundtrip(secured.librdkafka("MUTUAL") | files, "rdkafka-mutual")


def test_librdkafka_by_token(secured: Site) -> None:
    def token(_: str) -> tuple[str, float]:
        import time

        return secured.issuer.token("carol", 3), time.time() + 3

    settings = secured.librdkafka("OUTSIDE") | {
        "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token,
    }  # fmt: skip
    roundtrip(settings, "rdkafka-token")


def test_librdkafka_logs_in_again_under_load(secured: Site) -> None:
    """Logins last 4 s: over 10 s nothing is lost, doubled or out of order."""
    import time

    settings = secured.librdkafka("OUTSIDE", "SCRAM-SHA-512")
    producer = Producer(settings | {"enable.idempotence": True, "linger.ms": 5})
    consumer = Consumer(settings | {"group.id": "again", "auto.offset.reset": "earliest"})
    count, until = 0, time.monotonic() + 10
    failed: list[Any] = []
    while time.monotonic() < until:
        producer.produce(
            "again",
            b"%d" % count,
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        count += 1
        producer.poll(0.002)
    assert producer.flush(30) == 0
    assert not failed
    consumer.subscribe(["again"])
    found: list[bytes] = []

    def consumed() -> bool:
        found.extend(m.value() for m in consumer.consume(5000, 0.5) if not m.error())
        return len(found) >= count

    eventually(consumed, 40)
    time.sleep(4)
    producer.produce("again", b"%d" % count, partition=0)
    producer.flush(30)
    eventually(lambda: consumed() and len(found) == count + 1, 20)
    consumer.close()
    assert found == [b"%d" % number for number in range(count + 1)]
    assert any(e["event"] == "login" and e["again"] for e in secured.server.events)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat(secured: Site, mechanism: str) -> None:
    """The librdkafka 2.0 of Debian's kcat sends its nonce twice in SCRAM's last message.

    Kafka refuses that since CVE-2024-56128, and so does kproxy.
    """
    settings = secured.librdkafka("OUTSIDE", mechanism)
    address = settings.pop("bootstrap.servers")
    flags = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

    def kcat(*arguments: str, stdin: str | None = None) -> str:
        return subprocess.run(
            [need_program("kcat"), "-b", address, *flags, *arguments], input=stdin, text=True,
            capture_output=True, timeout=40, check=True,
        ).stdout  # fmt: skip

    queue = f"kcat-{mechanism}".lower()
    if "SCRAM" in mechanism and "librdkafka 2.0" in kcat("-V"):
        with pytest.raises(subprocess.CalledProcessError):
            kcat("-P", "-t", queue, stdin="one\n")
        failed = [e["reason"] for e in secured.server.events if e["event"] == "login_failed"]
        assert failed[-1] == "another nonce than at first"
        return
    kcat("-P", "-t", queue, stdin="one\ntwo\n")
    assert kcat("-C", "-t", queue, "-e", "-q") == "one\ntwo\n"


def java_settings(site: Site, path: Path, mechanism: str) -> str:
    module = "scram.ScramLoginModule" if "SCRAM" in mechanism else "plain.PlainLoginModule"
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    properties = path / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={site.authority.ca}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required"
        f' username="alice" password="{escaped}";\n'.replace("\\", "\\\\").replace("ä", "\\u00e4")
    )
    return str(properties)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java(secured: Site, mechanism: str, tmp_path: Path) -> None:
    file = java_settings(secured, tmp_path, mechanism)
    queue = f"java-{mechanism}".lower()
    at = ("--bootstrap-server", secured.address("OUTSIDE"), "--command-config", file)
    java(PRODUCER, *at, "--topic", queue, stdin="one\ntwo\n")
    out = java(CONSUMER, *at, "--topic", queue, "--from-beginning", "--max-messages", "2",
               "--timeout-ms", "30000")  # fmt: skip
    assert out == "one\ntwo\n"


def test_users_by_kafka_configs(secured: Site, tmp_path: Path) -> None:
    file = java_settings(secured, tmp_path, "SCRAM-SHA-512")
    at = ("--bootstrap-server", secured.address("OUTSIDE"), "--command-config", file)
    bob = ("--entity-type", "users", "--entity-name", "bob")
    added = "SCRAM-SHA-256=[iterations=8192,password=secret],SCRAM-SHA-512=[password=secret]"
    java(CONFIGS, *at, *bob, "--alter", "--add-config", added)
    shown = java(CONFIGS, *at, *bob, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in shown
    assert "SCRAM-SHA-512=iterations=4096" in shown
    bobs = secured.librdkafka("OUTSIDE", "SCRAM-SHA-256", "bob") | {"sasl.password": "secret"}
    roundtrip(bobs, "of-bob")
    java(CONFIGS, *at, *bob, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in java(CONFIGS, *at, *bob, "--describe")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Site, mechanism: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    settings = {
        "bootstrap_servers": secured.address("OUTSIDE"), "security_protocol": "SASL_SSL",
        "ssl_cafile": str(secured.authority.ca), "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD,
    }  # fmt: skip
    queue = f"kafka-python-{mechanism}".lower()
    producer = KafkaProducer(**settings)
    for number in range(20):
        producer.send(queue, b"%d" % number)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(**settings, consumer_timeout_ms=10_000)
    consumer.assign([TopicPartition(queue, 0)])
    consumer.seek_to_beginning()
    assert [next(consumer).value for _ in range(20)] == [b"%d" % number for number in range(20)]
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: Site, mechanism: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    queue = f"aiokafka-{mechanism}".lower()

    async def run() -> None:
        settings = {
            "bootstrap_servers": secured.address("OUTSIDE"), "security_protocol": "SASL_SSL",
            "ssl_context": secured.authority.context(), "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD,
        }  # fmt: skip
        async with AIOKafkaProducer(**settings) as producer:
            for number in range(20):
                await producer.send_and_wait(queue, b"%d" % number)
        consumer = AIOKafkaConsumer(**settings)
        async with consumer:
            consumer.assign([TopicPartition(queue, 0)])
            await consumer.seek_to_beginning()
            for number in range(20):
                record = await asyncio.wait_for(consumer.getone(), 20)
                assert record.value == b"%d" % number

    asyncio.run(run())
