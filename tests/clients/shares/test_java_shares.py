"""Share groups of Kafka's Java client: `Shares.java` says what each step gives.

A real Kafka says the same, but for the offset: that is where the last acknowledgement but one left
it.
"""

from pathlib import Path

from tests.clients.shares.members import FLAGS
from tests.harness import java
from tests.workers import Site

__all__ = ["FLAGS"]

PROGRAM = Path(__file__).with_name("Shares.java")


def test_java(site: Site, queue: str) -> None:
    printed = java(str(PROGRAM), "look", site.address, queue)
    said = [line for line in printed.splitlines() if "=" in line]
    assert said == [
        "given=ax1 bx1 cx1 dx1",
        "held for=30000",
        "acknowledged=done",
        "renewed=dx1",
        "accepted=done",
        "released=bx2",
        "accepted again=done",
        "woken=WakeupException",
        "told={0=done, 1=done, 2=done, 3=done}",
        "held at its close=ex1 fx1",
        "given back=fx2",
        "refused=IllegalStateException",  # in implicit mode a member may not acknowledge by itself
        "of three=gx1 hx1",
        "of three=ix1 jx1",
        "of three=kx1 lx1",
        f"described=Stable 3 [{queue}-queue-0]",
        "done=done",
        "done=done",
        "done=done",
        "after its time=mx2 nx2",
        "too late=InvalidRecordStateException",
        "in time=done",
        "listed=Share share Empty",
        "offsets=14 lag 0",
        "altered=3 lag 11",
        "given anew=dx1 ex1 fx1 gx1 hx1 ix1 jx1 kx1 lx1 mx1 nx1",
        "alter of one in use=GroupNotEmptyException",
        "delete of one in use=GroupNotEmptyException",
        "deleted=none",
        "gone=GroupIdNotFoundException",
    ]
