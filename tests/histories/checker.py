"""Checks of a whole history: which anomalies it has, by what its own rules promise.

    python -m tests.histories.checker DIRECTORY

says so of one that was written, and fails where there are any. Time grows as n log n with the
records, memory as n: 100,000 transactions of seven records take 4 seconds and 300 MB.
"""

import gc
import sys
from collections.abc import Collection
from pathlib import Path

from tests.histories.anomalies import ALLOWED, Found, Rules
from tests.histories.cycles import Cycles
from tests.histories.operations import Operation, load
from tests.histories.order import Polls, check_sends
from tests.histories.records import Records
from tests.histories.registers import check_committed, check_ends
from tests.histories.shares import check_shares


def check(operations: list[Operation], allowed: Collection[str] = ALLOWED) -> Found:
    """Return the anomalies of a history but those that are allowed."""
    rules, was_on = Rules(), gc.isenabled()
    for op in operations:
        if op.f == "rules":
            rules = rules.changed(op.value)
    gc.disable()  # a third of the time: it looks at a million objects, none of which goes
    try:
        found = _anomalies(operations, rules)
    finally:
        if was_on:
            gc.enable()
    for kind in allowed:
        del found.counts[kind]
    found.kept = [one for one in found.kept if one.kind not in allowed]
    return found


def _anomalies(operations: list[Operation], rules: Rules) -> Found:
    found = Found()
    records = Records(operations, rules, found)
    records.check_reads()
    gone = records.replaced()
    if records.reads:
        records.check_losses(gone)
    check_sends(records)
    Polls(records, records.readable(gone)).check(operations)
    Cycles(operations, records).check(found)
    check_ends(operations, records)
    check_committed(operations, records)
    check_shares(operations, records, rules, found)
    return found


def assert_sound(directory: Path) -> list[Operation]:
    """Fail with the anomalies of a history, and say where it is; return its operations."""
    operations = load(directory)
    found = check(operations)
    assert operations, f"nothing was recorded in {directory}"
    assert not found.counts, f"{directory}, {len(operations)} operations:\n{found.shown()}"
    return operations


if __name__ == "__main__":
    try:
        assert_sound(Path(sys.argv[1]))
    except AssertionError as error:
        sys.exit(str(error))
