"""Transactions of Kafka's Java client, which are of version 2: the epoch grows with each."""

from pathlib import Path

from tests.harness import java
from tests.workers import Site

PROGRAM = Path(__file__).with_name("Transactions.java")


def test_java(site: Site, queue: str) -> None:
    said = dict(
        line.split("=", 1)
        for line in java(str(PROGRAM), "look", site.address, queue).splitlines()
        if "=" in line
    )
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
        "epochs of one transaction": "1",
        "abort of offsets": "none",
        "commit of offsets": "its position",
        "transformed": "a0,b1,c2,d6,e8 to 12 lag 0",
        "fenced": "InvalidProducerEpochException",
        "lets a fenced one begin": "false",
        "fenced by an administrator": "ProducerFencedException",
        "after fencing": "a0,b1,c2,d6,e8,of the second to 16 lag 0",
    }
