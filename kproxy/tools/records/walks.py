"""A walk over queues by name, in search of a few."""

import time
from collections.abc import Callable
from typing import TypeVar

from kproxy.protocol.name_search import NameSearch
from kproxy.tools.client import Client

Found = TypeVar("Found")
Parts = dict[str, dict[int, int]]
"""The leaders of queues by partition."""
Pick = Callable[[Parts, int], list[tuple[str, Found]]]
"""The names among those that are wanted, by name, with what is said of each; so many at most."""

_PAGES_MAX = 10
WALK_S = 1.5


def walk(
    client: Client, pick: Pick[Found], *, first: str, prefix: str, limit: int
) -> tuple[list[tuple[str, Found]], str | None]:
    """Return the wanted queues that begin with a prefix, so many at most, and the name to go on
    from; None: there is no more.

    Names are looked at for a while, a page after another: it may find none and yet go on.
    """
    found: list[tuple[str, Found]] = []
    coming: Parts = {}
    until = time.monotonic() + WALK_S
    for number, topics in enumerate(client.pages(NameSearch(prefix, first=first)), 1):
        for topic in topics:
            if topic.name.startswith(prefix):
                leaders = coming.setdefault(topic.name, {})
                leaders.update((part.partition_index, part.leader_id) for part in topic.partitions)
        last = topics[-1].name if topics else prefix
        over = not last.startswith(prefix)
        # A queue of many partitions may go on in the next page.
        whole = {name: parts for name, parts in coming.items() if over or name != last}
        coming = {name: parts for name, parts in coming.items() if name not in whole}
        found += pick(whole, limit + 1 - len(found))
        if over or len(found) > limit:
            break
        if number >= _PAGES_MAX or time.monotonic() >= until:
            return found, last
    else:
        found += pick(coming, limit + 1 - len(found))
    return (found[:limit], found[limit][0]) if len(found) > limit else (found, None)
