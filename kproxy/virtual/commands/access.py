"""The command that changes rows of security."""

from collections.abc import Mapping
from typing import Any

from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.forms import Command, Form
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import SECURITY_FROM
from kproxy.virtual.rows.kinds import RowKind


@of_kind(
    Kind.SECURE,
    DiskUse.ALWAYS,  # a right that is taken away does not wait for disk
    by_items,
    level=SECURITY_FROM,
    publishes=(RowKind.SECURED,),
    answered_across_workers=True,
    form=Form(json="changes"),
)
class Secure(Command):
    """Rows by name are put, or with None dropped: all of them, in one step."""

    changes: Mapping[str, dict[str, Any] | None]
