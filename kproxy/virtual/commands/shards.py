"""Commands of a shard itself."""

from typing import NamedTuple

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind, one
from kproxy.virtual.levels import OLDEST
from kproxy.virtual.rows.kinds import RowKind


@of_kind(Kind.CLAIM, DiskUse.ALWAYS, one, level=OLDEST, publishes=(RowKind.TERM,))
class Claim(NamedTuple):
    """The envelope's writer serves the shard from now on."""

    writer: int = 0

    def envelope(self) -> Envelope:
        """The log that sends it fills in the writer."""
        return Envelope(Kind.CLAIM, writer=self.writer)

    @staticmethod
    def decode(envelope: Envelope) -> "Claim":
        return Claim(envelope.writer)


@of_kind(Kind.FOREIGN, DiskUse.ORDINARY, by_items, level=OLDEST)
class Foreign(NamedTuple):
    """In the place of a record of the data topic that no kproxy wrote."""

    def envelope(self) -> Envelope:
        return Envelope(Kind.FOREIGN)

    @staticmethod
    def decode(envelope: Envelope) -> "Foreign":
        return Foreign()
