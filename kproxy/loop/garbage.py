"""When Python looks for cycles among objects: in small steps, and only among young ones.

Nearly everything dies by its counts; what does not was made for a moment. A look at all there is
takes as long as all there is: 200 ms with the caches of rows full, a second with fetch sessions of
a million partitions. So nothing that lives long may be in a cycle that nobody cuts: `tests` hold a
served worker against that. What cannot be cut is small, and counted: `left_behind`.
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
