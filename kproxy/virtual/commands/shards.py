"""Commands of a shard itself."""

from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.levels import OLDEST
from kproxy.virtual.rows.kinds import RowKind


@of_kind(Kind.CLAIM, DiskUse.ALWAYS, level=OLDEST, publishes=(RowKind.TERM,), head="writer")
class Claim(Command):
    """The envelope's writer serves the shard from now on."""

    writer: int = 0


@of_kind(Kind.FOREIGN, DiskUse.ORDINARY, by_items, level=OLDEST)
class Foreign(Command):
    """A stand-in for a record of the data topic that no kproxy wrote."""
