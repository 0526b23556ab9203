"""Released clients from 2021 to today: each connects, writes, reads, commits and administers.

An answer can break a client by its content at the version that only this client asks for, so the
newest release stands for no other.
"""

from pathlib import Path

import pytest

from tests.harness import CLIENT_JARS, KAFKA_LIBS, java, need
from tests.workers import Site

JAVA = ("2.8.1", "3.4.1", "3.7.1", "3.9.0", "4.4.0")
PROGRAM = Path(__file__).with_name("Basics.java")
BESIDE = ("jackson", "lz4", "slf4j", "snappy", "zstd")
"""Libraries that all versions take in the release that Kafka's own have."""


def class_path(version: str) -> str:
    """Return the class path of kafka-clients of a version alone."""
    need(CLIENT_JARS.exists(), "earlier Java clients: make client-jars")
    beside = [jar for jar in KAFKA_LIBS.glob("*.jar") if jar.name.startswith(BESIDE)]
    return ":".join(map(str, [CLIENT_JARS / f"kafka-clients-{version}.jar", *beside]))


@pytest.mark.parametrize("version", JAVA)
def test_java_client_of_this_version_works(site: Site, queue: str, version: str) -> None:
    printed = java(str(PROGRAM), site.address, queue, libs=class_path(version))
    said = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    assert said == {
        "listed": "true",
        "consumed": "v0,v1,v2,v0,v1,v2",
        "end": "9",  # an aborted record and two markers
        "committed": "9",
        "features": "true",
        "still listed": "false",
    }
