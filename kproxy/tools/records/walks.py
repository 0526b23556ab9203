"""A walk over queues by name, in search of a few."""

import time
from collections.abc import Callable
from typing import TypeVar

from kproxy.protocol.name_search import NameSearch
from kproxy.tools.client import Client, Cursor

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
    search = NameSearch(prefix, first=first)
    cursor: Cursor | None = {"topic_name": search.begin, "partition_index": 0}
    found: list[tuple[str, Found]] = []
    coming: Parts = {}
    until, pages = time.monotonic() + WALK_S, 0
    while cursor is not None:
        enough = pages >= _PAGES_MAX or (pages and time.monotonic() >= until)
        if enough and not cursor["partition_index"]:
            return found, cursor["topic_name"]
        topics, cursor = client.page(cursor, search=search)
        for topic in topics:
            leaders = coming.setdefault(topic.name, {})
            leaders.update((part.partition_index, part.leader_id) for part in topic.partitions)
        # A queue of many partitions may go on in the next page.
        rest = None if cursor is None else cursor["topic_name"]
        whole = {name: parts for name, parts in coming.items() if name != rest}
        coming = {name: parts for name, parts in coming.items() if name == rest}
        found += pick(whole, limit + 1 - len(found))
        if len(found) > limit:
            return found[:limit], found[limit][0]
        pages += 1
    return found, None
