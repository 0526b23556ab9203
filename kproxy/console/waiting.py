"""Records that wait until they are due: of all queues, and of one."""

from typing import Any

from kproxy.console.pages import LINES, Asked, Page, going_on, link
from kproxy.tools.records.waiting import REPLACE, listed, waiting_queues


def all_waiting_page(asked: Asked) -> Page:
    """List the queues for which records wait."""
    prefix, first = asked.query.text("prefix"), asked.query.text("from")
    found, after = waiting_queues(asked.client, first=first, prefix=prefix, limit=LINES)
    values = {"lines": found, "prefix": prefix, "after": after,
              "following": going_on("/waiting", prefix, after)}  # fmt: skip
    return Page("all_waiting.html", values)


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
