"""Every method of Java's AdminClient: the answer, or the refusal, of a real Kafka 4.3.1."""

from pathlib import Path

import pytest

from tests.harness import Served, run_java
from tests.kafka.canonical import digest
from tests.kafka.recorded import Recorded

OWN_SERVER = True  # it lists all there is

pytestmark = pytest.mark.outside
_PROGRAM = Path(__file__).with_name("AdminTable.java")

OTHERWISE = {
    "createTopics, only checked",  # records are kept for two weeks, not for one
    "describeConfigs, broker",  # read-only
    "describeConfigs, names of a topic's",  # Kafka 4.4's are among them
    "describeConfigs, loggers",  # one; the Kafka here, without log4j, has none
    "describeFeatures, ",  # its own: kproxy.level
}
"""Answered, but not as by Kafka, on purpose."""


def table(address: str, prefix: str, node: int) -> dict[str, str]:
    """Return the result by method and case."""
    done = run_java(str(_PROGRAM), address, prefix, str(node), seconds=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {f"{method}, {case}": said.replace(prefix, "P") for method, case, said in rows}


def test_every_method(recorded: Recorded, server: Served) -> None:
    asked = digest(_PROGRAM.read_bytes())
    theirs, ours = recorded.both(lambda at: table(at.address, recorded.name, 1), server, asked)
    assert theirs["METHODS, not called"] == "[]"
    assert ours.keys() == theirs.keys()
    different = {key: ours[key] for key, said in theirs.items() if ours[key] != said}
    assert different.keys() == OTHERWISE, different
