"""When Python's cyclic garbage collector runs: in small steps, and only over young objects.

Reference counting frees nearly everything. A full collection takes time in the number of all
objects: 200 ms with full caches of rows, one second with fetch sessions of a million partitions.
Therefore no long-lived object may be in a reference cycle that nobody cuts; a test holds a served
worker against that. `left_behind` counts the few small objects that are.
"""

import gc
from itertools import count

_YOUNG = 10_000
"""New objects before they are looked at: some milliseconds of the loop."""
_TIMES = 3
"""Passes over new objects before what survived them is looked at once more, and never again."""
_NEVER = 1 << 30
_PIECES_MAX = 100
_pieces = count(1)


def collect_less() -> None:
    """From now on; what is there already, code above all, is not looked at any more."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _TIMES, _NEVER)


def left_behind() -> None:
    """Cancelled tasks are left in a cycle of their own, about 40 KB of a shard that was given up.

    Once they are many, which takes rebalance after rebalance, all is looked at.
    """
    if next(_pieces) % _PIECES_MAX == 0:
        gc.collect()
