"""The command that changes rows of security."""

from collections.abc import Mapping
from typing import Any

from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import SECURITY_FROM
from kproxy.virtual.rows.kinds import RowKind


@of_kind(
    Kind.SECURE, DiskUse.ALWAYS, by_items, level=SECURITY_FROM, publishes=(RowKind.SECURED,),
    answered_across_workers=True, json="changes",
)  # fmt: skip
class Secure(Command):
    """Rows by name are put, or with None dropped: all of them, in one step.

    It is never refused for want of disk: a right that is taken away does not wait for that.
    """

    changes: Mapping[str, dict[str, Any] | None]
