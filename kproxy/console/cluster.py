"""The cluster: an overview, the workers in the last hour, transactions, and who may what."""

from collections import Counter
from typing import Any

from kproxy.console.charts import Chart, chart
from kproxy.console.history import History
from kproxy.console.pages import Asked, Page
from kproxy.console.shown import seconds
from kproxy.tools.admin.access import or_reason, quotas, rules, users
from kproxy.tools.admin.transactions import OPEN_STATES, transactions
from kproxy.tools.output import size
from kproxy.tools.upgrade import known

_SHOWN_MAX = 200


def overview(asked: Asked) -> Page:
    """Return the page at the root."""
    client = asked.client
    cluster = client.cluster()
    workers = [known(client, node) for node in sorted(client.nodes())]
    listed = client.groups()
    values = {
        "cluster": cluster.cluster_id, "controller": cluster.controller_id, "workers": workers,
        "disks": {worker.node: client.disk(worker.node) for worker in workers},
        "groups": len(listed),
        "states": sorted(Counter((one.group_type, one.group_state) for one in listed).items()),
    }  # fmt: skip
    return Page("overview.html", values)


def workers_page(asked: Asked) -> Page:
    """Show the workers, and charts for who may see them: names of nothing are in them."""
    client, history = asked.client, asked.history
    nodes = client.nodes()
    if history is not None:
        history.know(nodes.values())
    workers = [known(client, node) for node in sorted(nodes)[:_SHOWN_MAX]]
    disks = {worker.node: client.disk(worker.node) for worker in workers}
    allowed = any(disk is not None for disk in disks.values())
    values = {
        "workers": workers, "disks": disks, "controller": client.cluster().controller_id,
        "allowed": allowed, "left_out": max(0, len(nodes) - _SHOWN_MAX),
        "now": history.workers() if history is not None and allowed else {},
        "charts": _charts(history) if history is not None and allowed else [],
    }  # fmt: skip
    return Page("workers.html", values)


def _charts(history: History) -> list[Chart]:
    found = (
        chart("Records a second", [("in", history.total("records_in")),
                                   ("out", history.total("records_out"))], _number),
        chart("Bytes a second", [("in", history.total("bytes_in")),
                                 ("out", history.total("bytes_out"))], _bytes),
        chart("Lag of the busiest groups", [("records", history.total("lag"))], _number),
        chart("Event loop, 99 of 100 turns begin within",
              [("the slowest worker", history.total("loop"))], seconds),
        chart("Records of the logs' ends that are not applied",
              [("records", history.total("behind"))], _number),
    )  # fmt: skip
    return [one for one in found if one is not None]


def lag_chart(asked: Asked, group: str) -> Chart | None:
    """Return a group's lag in the last hour; None: it is unknown."""
    values = asked.history.lag(group) if asked.history is not None else []
    return chart("Lag", [("records", values)], _number)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _bytes(value: float) -> str:
    return size(int(value))


def transactions_page(asked: Asked) -> Page:
    """List transactions by their start."""
    query = asked.query
    prefix, which = query.text("prefix"), query.choice("which", ("open", "all"))
    found, left_out = transactions(
        asked.client, OPEN_STATES if which == "open" else (), prefix, _SHOWN_MAX
    )
    values = {"lines": found, "left_out": left_out, "prefix": prefix, "which": which}
    return Page("transactions.html", values)


def access_page(asked: Asked) -> Page:
    """Show users, rules and quotas; what the user may not see is said."""
    text = asked.query.text("contains")
    values: dict[str, Any] = {"contains": text}
    for name, ask in (("users", users), ("rules", rules), ("quotas", quotas)):
        found, reason = or_reason(ask, asked.client)
        lines = [line for line in found if text in str(tuple(line))]
        values |= {name: lines[:_SHOWN_MAX], f"{name}_reason": reason,
                   f"{name}_left_out": max(0, len(lines) - _SHOWN_MAX)}  # fmt: skip
    return Page("access.html", values)
