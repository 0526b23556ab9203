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

from tests.clients.security.secured import KINDS, running
from tests.harness import eventually, java, need_program
from tests.securing import LOGINS, MECHANISMS, PASSWORD, Site

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"


@pytest.fixture(scope="module", params=KINDS)
def secured(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(request.param, tmp_path_factory.mktemp("site")) as site:
        yield site


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


def certified(site: Site) -> dict[str, Any]:
    """Return the settings of librdkafka for a client with a certificate."""
    certificate = str(site.carls)
    files = {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
    return site.librdkafka("MUTUAL") | files


def test_librdkafka_by_certificate(secured: Site) -> None:
    roundtrip(certified(secured), "rdkafka-mutual")


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


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "certificate"])
def test_kcat(secured: Site, mechanism: str) -> None:
    """The librdkafka 2.0 of Debian's kcat sends its nonce twice in SCRAM's last message.

    Kafka refuses that since CVE-2024-56128, and so does kproxy.
    """
    if mechanism == "certificate":
        settings = certified(secured)
    else:
        settings = secured.librdkafka("OUTSIDE", mechanism)
    queue = f"kcat-{mechanism}".lower()
    if "SCRAM" in mechanism and "librdkafka 2.0" in kcat({}, "-V"):
        assert kcat_is_refused(secured, settings, queue) == "another nonce than at first"
        return
    kcat(settings, "-P", "-t", queue, stdin="one\ntwo\n")
    assert kcat(settings, "-C", "-t", queue, "-e", "-q") == "one\ntwo\n"


def test_kcat_by_a_token_that_it_does_not_sign(secured: Site) -> None:
    """Debian's has no others: it is built without a way to fetch one."""
    settings = secured.librdkafka("OUTSIDE") | {
        "sasl.mechanism": "OAUTHBEARER", "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice",
    }  # fmt: skip
    assert "issuer" in kcat_is_refused(secured, settings, "kcat-unsigned")


def kcat(settings: dict[str, Any], *arguments: str, stdin: str | None = None) -> str:
    flags = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    return subprocess.run(
        [need_program("kcat"), *flags, *arguments], input=stdin, text=True,
        capture_output=True, timeout=40, check=True,
    ).stdout  # fmt: skip


def kcat_is_refused(site: Site, settings: dict[str, Any], queue: str) -> str:
    """Return the reason that is logged."""
    with pytest.raises(subprocess.CalledProcessError):
        kcat(settings, "-P", "-t", queue, stdin="one\n")
    failed = [event for event in site.server.events if event["event"] == "login_failed"]
    return str(failed[-1]["reason"])


TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"
SASL = "org.apache.kafka.common.security"


def java_settings(site: Site, path: Path, mechanism: str) -> str:
    """Write the settings of a client that logs in so, and return their file."""
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(site.authority.ca)}
    if mechanism == "certificate":
        properties |= {
            "security.protocol": "SSL", "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(site.carls),
        }  # fmt: skip
    else:
        properties |= {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        token = path / "token"
        token.write_text(site.issuer.token("carol"))
        properties |= {
            "sasl.login.callback.handler.class": f"{TOKENS}LoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            "sasl.jaas.config": f"{TOKENS}LoginModule required;",
        }
    elif mechanism in MECHANISMS:
        module = "scram.Scram" if "SCRAM" in mechanism else "plain.Plain"
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        login = f'required username="alice" password="{escaped}";'
        properties["sasl.jaas.config"] = f"{SASL}.{module}LoginModule {login}"
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    file = path / "client.properties"
    file.write_text(text.replace("\\", "\\\\").replace("ä", "\\u00e4"))
    return str(file)


@pytest.mark.parametrize("mechanism", LOGINS)
def test_java(
    secured: Site, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = java_settings(secured, tmp_path, mechanism)
    if mechanism == "OAUTHBEARER":
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed."
        token = tmp_path / "token"
        monkeypatch.setenv(
            "JDK_JAVA_OPTIONS", f"{allowed}urls={token.as_uri()} {allowed}files={token}"
        )
    queue = f"java-{mechanism}".lower()
    at = ("--bootstrap-server", secured.address(listener(mechanism)), "--command-config", file)
    java(PRODUCER, *at, "--topic", queue, stdin="one\ntwo\n")
    out = java(CONSUMER, *at, "--topic", queue, "--from-beginning", "--max-messages", "2",
               "--timeout-ms", "30000")  # fmt: skip
    assert out == "one\ntwo\n"


def listener(mechanism: str) -> str:
    return "MUTUAL" if mechanism == "certificate" else "OUTSIDE"


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


@pytest.mark.parametrize("mechanism", LOGINS)
def test_kafka_python(secured: Site, mechanism: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return secured.issuer.token("carol")

    settings: dict[str, Any] = {
        "bootstrap_servers": secured.address(listener(mechanism)),
        "ssl_cafile": str(secured.authority.ca), "security_protocol": "SASL_SSL",
    }  # fmt: skip
    if mechanism == "certificate":
        files = {"ssl_certfile": str(secured.carls), "ssl_keyfile": str(secured.carls)}
        settings |= {"security_protocol": "SSL", **files}
    elif mechanism == "OAUTHBEARER":
        settings |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens()}
    else:
        settings |= {"sasl_mechanism": mechanism, **PASSWORDS}
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


PASSWORDS = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}


@pytest.mark.parametrize("mechanism", LOGINS)
def test_aiokafka(secured: Site, mechanism: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return secured.issuer.token("carol")

    own = secured.carls if mechanism == "certificate" else None
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.address(listener(mechanism)),
        "ssl_context": secured.authority.context(own),
        "security_protocol": "SASL_SSL" if own is None else "SSL",
    }
    queue = f"aiokafka-{mechanism}".lower()

    async def run() -> None:
        if own is None:
            settings["sasl_mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = Tokens()
        elif own is None:
            settings.update(PASSWORDS)
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
