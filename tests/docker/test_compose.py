"""docker-compose.yml as a user starts it: Kafka, two workers, Spark; and its secured variant."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.docker.engine import Engine
from tests.harness import ROOT, eventually, need, need_program
from tests.securing import Authority

pytestmark = pytest.mark.long

PROJECT = "kproxytest"
SECURED = ROOT / "deploy" / "secured"
USER = 10001  # the image's user


class Composed:
    def __init__(self, engine: Engine, *files: str) -> None:
        self.engine = engine
        self._files = [part for file in files for part in ("-f", file)]

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = ("docker-compose", "-p", PROJECT, *self._files, *arguments)
        return self.engine.run(*command, **options)

    def inspect(self, service: str) -> Any:
        container = self("ps", "-q", service).stdout.strip()
        return json.loads(self.engine.run("docker", "inspect", container).stdout)[0]

    def healthy(self) -> bool:
        return bool(self.inspect("kproxy")["State"]["Health"]["Status"] == "healthy")

    @contextmanager
    def running(self, *services: str) -> Iterator["Composed"]:
        self("up", "-d", "--build", *services)
        try:
            eventually(self.healthy, 120, 1)
            yield self
        finally:
            print(self("logs", "--tail", "40", check=False).stdout)  # noqa: T201
            self("down", "-v", "-t", "15", check=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    need(shutil.which("docker-compose"), "docker-compose")
    engine = Engine(tmp_path_factory.mktemp("docker"))
    try:
        engine.have_images()
        yield engine
    finally:
        engine.close()


@pytest.fixture
def compose(engine: Engine) -> Iterator[Composed]:
    with Composed(engine).running() as composed:
        yield composed


@pytest.fixture
def certificate(tmp_path: Path) -> Iterator[Authority]:
    """Yield the certificate that docs/security.md asks for."""
    there = SECURED / "tls"
    need(not there.exists(), f"no certificates of somebody in {there}")
    authority = Authority(tmp_path)
    there.mkdir()
    try:
        shutil.copy(authority.server, there / "server.pem")
        shutil.copy(authority.server, there / "key.pem")
        for file in there.iterdir():
            os.chown(file, USER, USER)
            file.chmod(0o400)
        yield authority
    finally:
        shutil.rmtree(there)


def kcat(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [need_program("kcat"), "-b", "127.0.0.1:9092", *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_workers_serve_outside_and_inside(compose: Composed, tmp_path: Path) -> None:
    kcat("-P", "-t", "user-42", stdin="hello\nworld\n")
    read = ("-C", "-t", "user-42", "-e", "-q", "-f", "%t %o %s\n")
    assert kcat(*read) == "user-42 0 hello\nuser-42 1 world\n"
    brokers = json.loads(kcat("-L", "-J"))["brokers"]
    assert {broker["name"] for broker in brokers} == {"localhost:9092", "localhost:9093"}
    shown = compose(
        "exec", "-T", "spark", "python3", "spark_examples/first_read.py", "user-42"
    ).stdout
    assert "|user-42|     0|hello|" in shown
    assert "|user-42|     1|world|" in shown
    where = compose(
        "exec", "-T", "kproxy", "kproxy", "locate", "user-42", "--bootstrap-servers", "kafka:9092"
    ).stdout
    assert "address localhost:909" in where


def test_it_is_not_root_and_ends_at_once(compose: Composed) -> None:
    assert compose.inspect("kproxy")["Config"]["User"] == "kproxy"
    assert compose("exec", "-T", "kproxy", "id", "-u").stdout.strip() == "10001"
    kcat("-P", "-t", "kept", stdin="before\n")
    began = time.monotonic()
    compose("stop", "-t", "30", "kproxy")
    assert time.monotonic() - began < 8
    assert compose.inspect("kproxy")["State"]["ExitCode"] == 0
    compose("start", "kproxy")
    eventually(compose.healthy, 60, 1)
    read = ("-C", "-t", "kept", "-e", "-q")
    eventually(lambda: kcat(*read) == "before\n", 30, 1)


def test_secured(engine: Engine, certificate: Authority) -> None:
    """The first user is made in a container, and makes another, who may do what a rule says."""
    composed = Composed(engine, "docker-compose.yml", "docker-compose.secured.yml")
    with composed.running("kproxy"):
        add = ("exec", "-T", "kproxy", "kproxy", "users", "add")
        composed(*add, "admin", "--data-dir", "/data", stdin="of-admin\n")
        composed(*add, "alice", "--data-dir", "/data", stdin="of-alice\n")

        def settings(user: str) -> dict[str, Any]:
            return {
                "bootstrap.servers": "localhost:9092", "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(certificate.ca), "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": user, "sasl.password": f"of-{user}",
            }  # fmt: skip

        admin = AdminClient(settings("admin"))
        nodes = eventually(lambda: len(admin.describe_cluster().result().nodes) == 2, 30)
        assert nodes
        wanted = AclBinding(
            ResourceType.TOPIC, "of-alice", ResourcePatternType.LITERAL, "User:alice", "*",
            AclOperation.ALL, AclPermissionType.ALLOW,
        )  # fmt: skip
        admin.create_acls([wanted])[wanted].result()
        told: dict[str, Any] = {}
        producer = Producer(settings("alice"))
        for queue in ("of-alice", "of-bob"):
            producer.produce(
                queue, b"v", on_delivery=lambda error, sent: told.update({sent.topic(): error})
            )
        assert producer.flush(30) == 0
        assert told["of-alice"] is None
        assert told["of-bob"].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", 9644), 2)
