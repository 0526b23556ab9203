"""Transactions of Kafka's Java clients.

The clients of 4.3 use version 2 (KIP-890): the epoch grows with each. The clients of
3.9 use version 1.
"""

from pathlib import Path

import pytest

from tests.harness import KAFKA_LIBS, SPARK_JARS, java, need
from tests.workers import Site

PROGRAM = Path(__file__).with_name("Transactions.java")


_BESIDE = ("lz4", "slf4j", "snappy", "zstd")


def older_client() -> str:
    """Return the class path of Kafka's Java clients 3.9, which Spark comes with."""
    need(SPARK_JARS.exists(), "Spark's Kafka jars: make spark-jars")
    beside = [jar for jar in KAFKA_LIBS.glob("*.jar") if jar.name.startswith(_BESIDE)]
    return ":".join(map(str, [*SPARK_JARS.glob("kafka-clients-3.9*.jar"), *beside]))


@pytest.mark.parametrize("version", [2, 1])
def test_java(site: Site, queue: str, version: int) -> None:
    libs = older_client() if version == 1 else None
    printed = java(str(PROGRAM), "look", site.address, queue, libs=libs)
    said = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    # Which of the two it meets first is chance.
    assert said.pop("fenced") in ("ProducerFencedException", "InvalidProducerEpochException")
    part = f"[{queue}-in-0]"
    assert said == {
        "committed and aborted": "a,b,c to 6 lag 0",  # two markers, and what was aborted
        "uncommitted": "a,b,c,aborted to 6 lag 0",
        "open": "a,b,c to 6 lag 0",
        "open, uncommitted": "a,b,c,aborted,d to 7 lag 0",
        "open, by time": "0",
        "open, from its own time": "null",
        "described": f"Ongoing {part}",
        "its start": "6",
        "committed": "a,b,c,d to 8 lag 0",
        "epochs of one transaction": str(version - 1),
        "abort of offsets": "none",
        "commit of offsets": "its position",
        "transformed": "a0,b1,c2,d6,e8 to 12 lag 0",
        "lets a fenced one begin": "false",
        "fenced by an administrator": "ProducerFencedException",
        "after fencing": "a0,b1,c2,d6,e8,of the second to 16 lag 0",
    }
