"""The schedule of Python's cyclic garbage collector: small steps, and only over young objects.

Reference counting frees nearly everything. A full collection takes time in the number of all
objects: 200 ms with full caches of rows, one second with fetch sessions of a million partitions.
Therefore no long-lived object may be in a reference cycle that nobody cuts; tests hold the code and
a served worker against that (`tests/project/test_cycles.py`, `tests/loop/test_garbage.py`).

`GarbageNet` catches the rest: a mistake costs time, and not the process. It looks at what has grown
old since its last look, some ten milliseconds' worth, and sets aside what it found alive. It looks
at everything where nobody asks for anything, or where memory has doubled.
"""

import gc
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

_YOUNG = 10_000
"""New objects before they are looked at: some milliseconds of the loop."""
_TIMES = 3
"""Passes over new objects before what survived them is looked at once more, and left to the net."""
_NEVER = 1 << 30
_STEPS_MAX = 8
"""Times that objects may grow old before the net looks at them: `_YOUNG * _TIMES` each."""
_IDLE_LOOKS = 60
"""Times in a row without a request, after which nobody is held up."""
_IDLE_BLOCKS, _BUSY_BLOCKS = 1_000_000, 4_000_000
"""Blocks of memory, of some 100 bytes each, by which all objects have grown since they were looked
at: where nobody asks for anything, and where somebody does and they have doubled."""


def collect_less() -> None:
    """Collect young objects only from now on; present ones, code above all, are not looked at any
    more.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, _TIMES, _NEVER)


class Look(NamedTuple):
    """A look at old objects."""

    found: int
    """Objects in cycles that nobody had cut, and whatever only they held."""
    seconds: float
    everything: bool


class GarbageNet:
    """A net that collects old objects now and then. `look` is to be called about once a second."""

    def __init__(
        self, blocks: Callable[[], int] = sys.getallocatedblocks,
        grown_old: Callable[[], int] = lambda: gc.get_count()[2],
    ) -> None:  # fmt: skip
        self._blocks = blocks
        self._grown_old = grown_old
        self._blocks_before = blocks()
        self._requests = -1
        self._idle_looks = 0

    def look(self, requests: int) -> Look | None:
        """Collect where that is due. `requests`: how many there were, ever."""
        self._idle_looks = self._idle_looks + 1 if requests == self._requests else 0
        self._requests = requests
        if self._is_all_due():
            gc.unfreeze()
            return self._collected(everything=True)
        if self._grown_old() >= _STEPS_MAX:
            return self._collected(everything=False)
        return None

    def _is_all_due(self) -> bool:
        idle = self._idle_looks and self._idle_looks % _IDLE_LOOKS == 0
        if not idle and self._grown_old() < _STEPS_MAX:
            return False
        blocks, before = self._blocks(), self._blocks_before
        if idle:
            return blocks > before + _IDLE_BLOCKS
        return blocks > max(2 * before, before + _BUSY_BLOCKS)

    def _collected(self, *, everything: bool) -> Look:
        began = time.perf_counter()
        found = gc.collect()
        gc.freeze()
        if everything:
            self._blocks_before = self._blocks()
        return Look(found, time.perf_counter() - began, everything)
