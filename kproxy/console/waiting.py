"""Records that wait until they are due: of all queues, and of one."""

from typing import Any

from kproxy.console.pages import LINES, Asked, Page, link, walked
from kproxy.tools.records.waiting import REPLACE, listed, waiting_queues


def all_waiting_page(asked: Asked) -> Page:
    """List the queues for which records wait."""
    return Page("all_waiting.html", walked(asked, "/waiting", waiting_queues))


def waiting_page(asked: Asked) -> Page:
    """List the records of a queue that wait, the next due first."""
    name, first = asked.query.text("queue"), asked.query.number("from", 0) or 0
    lines: list[dict[str, Any]] = listed(asked.client, name, first, LINES + 1)
    by_key = asked.client.settings(name, (REPLACE,)).get(REPLACE) == "key"
    values = {
        "queue": {"name": name}, "tab": "waiting", "lines": lines[:LINES], "by_key": by_key,
        "contents": asked.contents,
        "following": link("", **{"from": lines[LINES]["due_ms"]}) if len(lines) > LINES else None,
    }  # fmt: skip
    return Page("waiting.html", values)
