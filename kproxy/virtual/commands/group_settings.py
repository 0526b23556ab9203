"""The command that changes what is set of a group."""

from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import SHARES_FROM
from kproxy.virtual.rows.kinds import RowKind


@of_kind(
    Kind.CONFIGURE_GROUP, DiskUse.MODEST, by_items, level=SHARES_FROM,
    publishes=(RowKind.GROUP_CONFIG,), answered_across_workers=True,
    json="group set=given drop=dropped all=replace_all",
)  # fmt: skip
class ConfigureGroup(Command):
    """A group's settings change, whether there is such a group or not.

    `replace_all` drops those that are not given.
    """

    group: str
    given: dict[str, str]
    dropped: list[str]
    replace_all: bool = False
