"""docker-compose.yml as a user starts it: Kafka, two workers, Spark."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import Engine
from tests.harness import eventually, need, need_program

pytestmark = pytest.mark.long

PROJECT = "kproxytest"


class Composed:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.engine.run("docker-compose", "-p", PROJECT, *arguments, **options)

    def inspect(self, service: str) -> Any:
        container = self("ps", "-q", service).stdout.strip()
        return json.loads(self.engine.run("docker", "inspect", container).stdout)[0]

    def healthy(self) -> bool:
        return bool(self.inspect("kproxy")["State"]["Health"]["Status"] == "healthy")


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    import shutil

    need(shutil.which("docker-compose"), "docker-compose")
    engine = Engine(tmp_path_factory.mktemp("docker"))
    try:
        engine.have_images()
        composed = Composed(engine)
        composed("up", "-d", "--build")
        try:
            eventually(composed.healthy, 120, 1)
            yield composed
        finally:
            print(composed("logs", "--tail", "40", check=False).stdout)  # noqa: T201
            composed("down", "-v", "-t", "15", check=False)
    finally:
        engine.close()


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
