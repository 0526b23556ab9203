"""The command that follows a restore."""

from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, of_kind, turn
from kproxy.virtual.levels import RESTORES_FROM
from kproxy.virtual.rows.kinds import RowKind

OFFSETS_PER_MS = 1 << 11
"""No log grows as fast in the long run. Until the year 2109 offsets stay below 2^53, as far as some
languages count; a batch's row has room for 2^56."""


def first_offset(next_offset: int, time_ms: int) -> int:
    """Return where a log restored at this time goes on, if it ended at `next_offset`.

    Offsets that the lost end of the log gave out, and an earlier restore of the same backup, lie
    before it: producer ids are log offsets.
    """
    return max(next_offset, time_ms * OFFSETS_PER_MS)


@of_kind(
    Kind.RESTORED, DiskUse.ALWAYS, turn, level=RESTORES_FROM,
    publishes=(RowKind.RESTORED, RowKind.TRANSACTION), head="time_ms",
)  # fmt: skip
class Restored(Command):
    """A note that the log before this comes from a backup: what came behind that is lost.

    Transactions that are open are aborted, and whoever has a transactional id's producer id from
    before is fenced: epochs of it may have been given out that the log does not know.
    """

    time_ms: int
