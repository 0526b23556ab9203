"""The decoder of requests that are too large for one turn of the loop.

It decodes on a thread, one at a time, of each client in turn. The thread shares the interpreter's
lock and gives it away every few milliseconds, so the loop answers other connections meanwhile.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from anyio.lowlevel import RunVar

from kproxy.loop.asking import ASKING, counted
from kproxy.loop.fair_threads import FairThreads

Result = TypeVar("Result")

LIGHT_BYTES = 1 << 10
"""A request up to this size begins at once: a millisecond of the smallest elements."""
REQUEST_BYTES = 32 << 10
"""A request up to this size is decoded where it is: 20 ms of the smallest elements."""
ELEMENTS_AT_ONCE = 20_000
"""A request of up to so many elements is decoded in one go: kio holds the interpreter for 20 ms."""
PRODUCE_ELEMENTS = 1000
"""A Produce up to this many topics and partitions is decoded where it is."""
ANSWER_WEIGHT = 512 << 10
"""An answer up to this weight is encoded where it is: 10 ms of parts of a few fields."""

_ELEMENT = 100  # bytes of a decoded element of a request, besides its strings
_DICT = 300  # the bytes of a part of an answer as a dict, kio's value and bytes together
_ITEM = 32

_one_at_a_time: RunVar[FairThreads] = RunVar("kproxy.server.large_requests")


async def aside(work: Callable[..., Result], *arguments: Any) -> Result:
    """Do this on a thread, when it is its client's turn."""
    threads = _one_at_a_time.get(None)
    if threads is None:
        threads = FairThreads(1)
        _one_at_a_time.set(threads)
    return await threads.run(ASKING.get().holder, counted(partial(work, *arguments)))


def decoded_bytes(frame_bytes: int, elements: int) -> int:
    """Estimate the bytes of a request once it is decoded."""
    return frame_bytes + elements * _ELEMENT


def weight(values: Any, most: int) -> int:
    """Estimate the bytes of an answer while it is made, counted until it is more than `most`."""
    found = 0
    left = [values]
    while left and found <= most:
        value = left.pop()
        if isinstance(value, dict):
            found += _DICT
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            found += _ITEM * len(value)
            if found <= most:
                left.extend(value)
        elif isinstance(value, str):
            found += len(value) if value.isascii() else 4 * len(value)
        elif isinstance(value, bytes | bytearray):
            found += len(value)
    return found
