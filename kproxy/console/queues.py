"""Queues: the list by name, and one queue with its partitions, settings, routes and readers."""

from typing import Any

from kproxy.console.pages import LINES, Asked, Page, Query, link, walked
from kproxy.protocol.name_search import NameSearch
from kproxy.tools.views import described, readers, some_queues, some_routes

_SHOWN_MAX = 200
"""The partitions or readers of a page; a queue may have many thousands."""


def queues_page(asked: Asked) -> Page:
    """List queues by name, from a beginning or with a text in their names."""
    query = asked.query
    prefix, contains, first = (query.text(name) for name in ("prefix", "contains", "from"))
    search = NameSearch(prefix, contains, first=first)
    found, after = some_queues(asked.client, search, limit=LINES)
    following = after and link("/queues", **{"prefix": prefix, "contains": contains, "from": after})
    values = {
        "queues": found, "prefix": prefix, "contains": contains, "first": first, "after": after,
        "following": following,
    }  # fmt: skip
    return Page("queues.html", values)


def routes_page(asked: Asked) -> Page:
    """List the queues that define a route, with how far each is behind."""
    return Page("routes.html", walked(asked, "/routes", some_routes))


def queue_page(asked: Asked) -> Page:
    """Show a queue's partitions, settings and routes."""
    found, _ = described(asked.client, _name(asked.query))
    first, shown, following = some(asked.query, found.partitions)
    values = {
        "queue": found, "tab": "queue", "first": first, "shown": shown, "following": following,
        "records": sum(max(0, one.end - one.start) for one in found.partitions),
        "bytes": sum(told) if (told := [one.bytes for one in found.partitions
                                        if one.bytes is not None]) else None,
    }  # fmt: skip
    return Page("queue.html", values)


def readers_page(asked: Asked) -> Page:
    """Show the groups that read a queue, and how far they are behind."""
    found, leaders = described(asked.client, _name(asked.query))
    groups, shares = readers(asked.client, found.name, leaders, found.partitions)
    groups.sort(key=lambda one: -int(one["lag"]))
    values = {
        "queue": found, "tab": "readers", "groups": groups[:_SHOWN_MAX],
        "shares": shares[:_SHOWN_MAX], "left_out": max(0, len(groups) - _SHOWN_MAX),
    }  # fmt: skip
    return Page("readers.html", values)


def some(query: Query, lines: list[Any]) -> tuple[int, list[Any], str | None]:
    """Return the first line's number, lines of a long list, and the address of those after."""
    first = query.number("from", 0) or 0
    after = first + _SHOWN_MAX
    return first, lines[first:after], link("", **{"from": after}) if after < len(lines) else None


def _name(query: Query) -> str:
    return query.text("queue")
