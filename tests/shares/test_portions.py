"""The size of one SHARE: the fold applies it in one turn of the loop."""

from typing import Any

import pytest

from kproxy.shares.share_partitions import PartitionChange, _portions
from kproxy.virtual.commands.shares import Run

NOBODY: Any = None


def change(*records: int) -> PartitionChange:
    runs = [Run(10_000 * at, count, 0) for at, count in enumerate(records)]
    return PartitionChange(NOBODY, runs, None)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ([], []),
        ([change(1)] * 1200, [500, 500, 200]),
        # FAULT: windows of 4,000 records of 500 partitions held the loop for a tenth of a second
        ([change(4000)] * 100, [31, 31, 31, 7]),
        ([change(*[1] * 2000)] * 3, [1, 1, 1]),
        ([change(1), change(1 << 20), change(1)], [1, 1, 1]),
    ],
)
def test_a_share_is_some_milliseconds_of_the_fold(
    changes: list[PartitionChange], sizes: list[int]
) -> None:
    found = list(_portions(changes))
    assert [len(some) for some in found] == sizes
    assert [one for some in found for one in some] == changes
