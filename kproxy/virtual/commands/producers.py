"""Commands of idempotent producers: an id for one, and a partition that forgets some.

When a producer has not been used for long is the clock's to say, and no fold reads one: the shard's
owner looks, and names those it found with the time at which each was used. One that was used since
has another time, and stays.
"""

import struct
from collections.abc import Sequence

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.traits import DiskUse, of_kind
from kproxy.virtual.levels import OLDEST, PRODUCERS_FROM
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey

FORGOTTEN_MAX = 500
"""Producers in one FORGET_PRODUCERS."""

_FORM = 1
_PRODUCER = struct.Struct(">qQ")


def _weight(envelope: Envelope) -> int:
    return 1 + len(envelope.body) // _PRODUCER.size


@of_kind(
    Kind.FORGET_PRODUCERS, DiskUse.ALWAYS, _weight, level=PRODUCERS_FROM,
    publishes=(RowKind.PARTITION, RowKind.PRODUCER), head="key", body="producers:(qQ)",
)  # fmt: skip
class ForgetProducers(Command):
    """Producers of a partition, as (id, `rows.producers.used_ms_of` its row), were not used since.

    The outcome's number is how many were forgotten: one with an open transaction is not.
    """

    key: PartitionKey
    producers: Sequence[tuple[int, int]]


@of_kind(Kind.PRODUCER_ID, DiskUse.ORDINARY, level=OLDEST)
class AllocateProducerId(Command):
    """A producer id that nobody has had."""
