"""Walking over many rows in slices, so that live traffic goes between them."""

from collections.abc import AsyncIterator
from itertools import islice

from anyio.lowlevel import checkpoint

from kproxy.virtual.state import Kv

_SLICE = 200


async def slices(kv: Kv, start: bytes, end: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Pairs with start <= key < end, some at a time, each slice as the rows stand by then."""
    while found := list(islice(kv.scan(start, end), _SLICE)):
        yield found
        start = found[-1][0] + b"\0"
        await checkpoint()
