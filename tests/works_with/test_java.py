"""Spring for Apache Kafka and Apache Flink, each by a program in `java`."""

import re
from pathlib import Path

from tests.clients.calls import create, producer
from tests.clients.transactions.calls import COMMITTED, values
from tests.harness import ROOT, java, need, need_program
from tests.workers import Site
from tests.works_with.programs import HERE, run

FLAGS = ("--group-initial-rebalance-delay-ms", "200")


def program(name: str, libraries: str, classes: Path, *arguments: str) -> dict[str, str]:
    """Compile and run a Java program with its libraries; return what it says, by name.

    Flink loads its classes from files.
    """
    libs = ROOT / ".tools" / libraries
    need(libs.exists(), f"{name}'s libraries: make works-with")
    need_program("javac")
    source = str(HERE / "java" / f"{name}.java")
    run("javac", "-nowarn", "-d", str(classes), "-cp", f"{libs}/*", source)
    printed = java(name, *arguments, libs=f"{classes}:{libs}/*", seconds=300)
    return dict(re.findall(r"^([a-z]+)=(.*)$", printed, re.MULTILINE))


def test_spring_kafka(site: Site, queue: str, tmp_path: Path) -> None:
    """A record that fails three times goes to the dead letters; the rest is copied once."""
    create(site.address, queue, f"{queue}-out", f"{queue}-dlt")
    said = program("SpringKafka", "spring-libs", tmp_path, site.address, queue)
    assert said == {"copied": "99", "dead": "[7]", "failures": "3"}
    copied = values(site.address, f"{queue}-out", COMMITTED)
    assert sorted(copied) == sorted(b"%d" % n for n in range(100) if n != 7)


def test_flink(site: Site, queue: str, tmp_path: Path) -> None:
    """Through a failure each record is copied exactly once."""
    create(site.address, queue, f"{queue}-out")
    written = [b"%d" % number for number in range(300)]
    writer = producer(site.address)
    for value in written:
        writer.produce(queue, value)
    assert writer.flush(30) == 0
    said = program("FlinkCopy", "flink-libs", tmp_path, site.address, queue)
    assert said == {"failed": "true"}
    assert values(site.address, f"{queue}-out", COMMITTED) == written
