"""Released clients from 2021 to today: each connects, writes, reads, commits and administers.

An answer can break a client by its content at the version that only this client asks for, so the
newest release stands for no other.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import CLIENT_JARS, KAFKA_LIBS, OLD_KAFKA_PYTHON, java, need, need_program
from tests.workers import Site

JAVA = ("2.8.1", "3.4.1", "3.7.1", "3.9.0", "4.4.0")
PROGRAM = Path(__file__).with_name("Basics.java")
SPARK_CALLS = Path(__file__).with_name("SparkCalls.java")
PYTHON_PROGRAM = Path(__file__).with_name("basics.py")
LIBRDKAFKA = Path(__file__).with_name("librdkafka")
BESIDE = ("jackson", "lz4", "slf4j", "snappy", "zstd")
"""Libraries that all versions take in the release that Kafka's own have."""


def class_path(version: str) -> str:
    """Return the class path of kafka-clients of a version alone."""
    need(CLIENT_JARS.exists(), "earlier Java clients: make old-clients")
    beside = [jar for jar in KAFKA_LIBS.glob("*.jar") if jar.name.startswith(BESIDE)]
    return ":".join(map(str, [CLIENT_JARS / f"kafka-clients-{version}.jar", *beside]))


def steps(printed: str) -> dict[str, str]:
    """Return what each step of a program gave."""
    return dict(re.findall(r"^([a-z ]+)=(.*)$", printed, re.MULTILINE))


def run(*command: str, environment: dict[str, str] | None = None, seconds: float = 120) -> str:
    """Run a program and return its standard output. Fails the test if the program fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False,
        env=os.environ | (environment or {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("version", JAVA)
def test_java_client_of_this_version_works(site: Site, queue: str, version: str) -> None:
    printed = java(str(PROGRAM), site.address, queue, libs=class_path(version))
    assert steps(printed) == {
        "listed": "true",
        "consumed": "v0,v1,v2,v0,v1,v2",
        "end": "9",  # an aborted record and two markers
        "committed": "9",
        "features": "true",
        "still listed": "false",
    }


def test_requests_of_spark_3_5_work(site: Site, queue: str) -> None:
    """Its connector for Kafka is not to be had everywhere; its client, kafka-clients 3.4.1, is."""
    printed = java(str(SPARK_CALLS), site.address, queue, libs=class_path("3.4.1"))
    assert steps(printed) == {
        "partitions": f"[{queue}-0]",
        "earliest": "0",
        "latest": "5",
        "by time": "2",
        "by a time to come": "-1",
        "batch": "v1/1,v2/2,v3/3,v4/4 of 0-5",
        "micro batch": "v5/5,v6/6,v7/7 of 0-8",
        "beyond the end": "out of range",
        "by a group": "[8]",
    }


@pytest.mark.parametrize("version", ["2.0.2", "newest"])
def test_kafka_python_of_this_version_works(site: Site, queue: str, version: str) -> None:
    environment = {"PYTHONWARNINGS": "ignore"}
    if version != "newest":
        need(sys.version_info < (3, 12), f"a Python that kafka-python {version} can be read by")
        need(OLD_KAFKA_PYTHON.exists(), f"kafka-python {version}: make old-clients")
        environment["PYTHONPATH"] = str(OLD_KAFKA_PYTHON)
    said = steps(
        run(sys.executable, str(PYTHON_PROGRAM), site.address, queue, environment=environment)
    )
    assert (said.pop("version") == version) == (version != "newest")
    committed = said.pop("committed")
    assert said == {"consumed": "v0,v1,v2,v3,v4,v5", "end": "6"}
    assert re.search(r"\b6\b", committed)


@pytest.fixture(scope="module")
def librdkafka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a program with librdkafka 1.9.2 within it."""
    need_program("go")
    need_program("gcc")
    built = tmp_path_factory.mktemp("librdkafka") / "basics"
    subprocess.run(
        ["go", "build", "-p", "1", "-mod=readonly", "-buildvcs=false", "-o", str(built), "."],
        cwd=LIBRDKAFKA, env=os.environ | {"GOTOOLCHAIN": "local"}, check=True, timeout=600,
    )  # fmt: skip
    return built


def test_librdkafka_1_9_works(site: Site, queue: str, librdkafka: Path) -> None:
    assert steps(run(str(librdkafka), site.address, queue)) == {
        "version": "1.9.2",
        "created": "Success",
        "end": "9",
        "consumed": "v0,v1,v2,v0,v1,v2",
        "deleted": "Success",
    }
