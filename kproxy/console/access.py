"""Users, rules and quotas."""

from typing import Any

from kproxy.console.pages import Asked, Page
from kproxy.tools.admin.access import or_reason, quotas, rules, users

_SHOWN_MAX = 200


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
