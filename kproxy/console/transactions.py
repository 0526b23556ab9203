"""Transactions: those that are open, the oldest first."""

from kproxy.console.pages import Asked, Page
from kproxy.tools.admin.transactions import OPEN_STATES, transactions

_SHOWN_MAX = 200


def transactions_page(asked: Asked) -> Page:
    """List transactions by their start."""
    query = asked.query
    prefix, which = query.text("prefix"), query.choice("which", ("open", "all"))
    found, left_out = transactions(
        asked.client, OPEN_STATES if which == "open" else (), prefix, _SHOWN_MAX
    )
    values = {"lines": found, "left_out": left_out, "prefix": prefix, "which": which}
    return Page("transactions.html", values)
