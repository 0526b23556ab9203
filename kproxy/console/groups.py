"""Groups: the list by name; one group with its members and lag; one share group by state."""

from typing import Any

from kproxy.console.cluster import lag_chart
from kproxy.console.pages import LINES, Asked, Page, link
from kproxy.protocol.name_search import NameSearch
from kproxy.tools.client import GROUP, Client, Refused
from kproxy.tools.groups.lanes import lanes
from kproxy.tools.groups.members import group_state, lag_lines
from kproxy.tools.views import groups

_SHOWN_MAX = 200
"""The members or partitions of a page."""
_QUEUES_SHOWN = 50
_OF_GROUP = 8  # the source of a setting that the group sets itself
_LANE = "kproxy.share.lane"


def groups_page(asked: Asked) -> Page:
    """List groups by name, from a beginning or with a text in their names."""
    query = asked.query
    prefix, contains, first = (query.text(name) for name in ("prefix", "contains", "from"))
    search = NameSearch(prefix, contains, first=first, limit=LINES + 1)
    found = groups(asked.client, search)
    after = found[LINES].group if len(found) > LINES else None
    following = after and link("/groups", **{"prefix": prefix, "contains": contains, "from": after})
    values = {
        "groups": found[:LINES], "prefix": prefix, "contains": contains, "first": first,
        "following": following,
    }  # fmt: skip
    return Page("groups.html", values)


def group_page(asked: Asked) -> Page:
    """Show a group's members, and how far it is behind in each partition."""
    client, group = asked.client, asked.query.text("id")
    state = group_state(client, group)
    if state.type == "share":
        return share_page(asked)
    lines = lag_lines(client, group)
    values = {
        "group": state, "chart": lag_chart(asked, group), "settings": _settings(client, group),
        "members": state.members[:_SHOWN_MAX], "lines": lines[:_SHOWN_MAX],
        "left_out": max(0, len(lines) - _SHOWN_MAX),
        "members_left_out": max(0, len(state.members) - _SHOWN_MAX),
        "lag": sum(one.lag or 0 for one in lines), "partitions": len(lines),
    }  # fmt: skip
    return Page("group.html", values)


def _settings(client: Client, group: str) -> dict[str, str]:
    found = client.configs([group], None, kind=GROUP)
    return {
        one.name: one.value
        for result in found for one in result.configs
        if one.config_source == _OF_GROUP and one.value is not None
    }  # fmt: skip


def share_page(asked: Asked) -> Page:
    """Show a share group: its members, and of each partition the records by state."""
    client, group = asked.client, asked.query.text("id")
    state = group_state(client, group)
    if state.type != "share":
        raise Refused(f"group {group} is no share group")
    shares = client.shared([group]).get(group, {})
    names = sorted({name for name, _ in shares})
    lines, owed = _states(client, group, shares, names[:_QUEUES_SHOWN])
    values = {
        "group": state, "settings": (settings := _settings(client, group)),
        "chart": lag_chart(asked, group),
        "members": state.members[:_SHOWN_MAX], "lines": lines[:_SHOWN_MAX],
        "members_left_out": max(0, len(state.members) - _SHOWN_MAX),
        "left_out": max(0, len(shares) - min(len(lines), _SHOWN_MAX)), "owed": owed,
        "lag": sum(max(0, lag) for _, lag in shares.values()), "queues": len(names),
        "lanes": _lanes(client, group, names[:_QUEUES_SHOWN]) if _LANE in settings else [],
    }  # fmt: skip
    return Page("share.html", values)


def _states(
    client: Client, group: str, shares: dict[tuple[str, int], tuple[int, int]], names: list[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return a line for each partition of these queues, and how many dead letters wait."""
    lines, owed = [], 0
    leaders = client.leaders(names)
    for queue in names:
        nodes = {node for (name, _), node in leaders.items() if name == queue and node >= 0}
        waiting, stands = client.share_states(group, queue, nodes)
        owed += waiting
        for (name, index), (start, lag) in sorted(shares.items()):
            if name == queue:
                line = {"queue": queue, "partition": index, "start": start, "lag": lag}
                lines.append(line | stands.get(index, {}))
    return lines, owed


def _lanes(client: Client, group: str, names: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for queue in names:
        try:
            found += lanes(client, group, queue)
        except Refused:  # nobody has read it by lanes yet
            continue
    return found[:_SHOWN_MAX]
