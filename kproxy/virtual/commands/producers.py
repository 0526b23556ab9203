"""Commands of idempotent producers: an id for one, and a partition that forgets some.

When a producer has not been used for long is the clock's to say, and no fold reads one: the shard's
owner looks, and names those it found with the time at which each was used. One that was used since
has another time, and stays.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.traits import DiskUse, of_kind, one
from kproxy.virtual.levels import OLDEST, PRODUCERS_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey

FORGOTTEN_MAX = 500
"""Producers in one FORGET_PRODUCERS."""

_FORM = 1
_PRODUCER = struct.Struct(">qQ")


def _weight(envelope: Envelope) -> int:
    return 1 + len(envelope.body) // _PRODUCER.size


@of_kind(
    Kind.FORGET_PRODUCERS,
    DiskUse.ALWAYS,
    _weight,
    level=PRODUCERS_FROM,
    publishes=(RowKind.PARTITION, RowKind.PRODUCER),
)
class ForgetProducers(NamedTuple):
    """Producers of a partition, as (id, `producer_rows.used_ms_of` its row), were not used since.

    The outcome's number is how many were forgotten: one with an open transaction is not.
    """

    key: PartitionKey
    producers: Sequence[tuple[int, int]]

    def envelope(self) -> Envelope:
        body = bytes([_FORM]) + b"".join(_PRODUCER.pack(*one) for one in self.producers)
        return Envelope(Kind.FORGET_PRODUCERS, *self.key, body=body)

    @staticmethod
    def decode(envelope: Envelope) -> "ForgetProducers":
        """Raises ValueError for a form of a later kproxy."""
        body = bytes(envelope.body)
        if body[0] != _FORM:
            raise later_form("a command FORGET_PRODUCERS", body[0])
        key = envelope.queue_id, envelope.partition
        return ForgetProducers(key, list(_PRODUCER.iter_unpack(body[1:])))


@of_kind(Kind.PRODUCER_ID, DiskUse.ORDINARY, one, level=OLDEST)
class AllocateProducerId(NamedTuple):
    """A producer id that nobody has had."""

    def envelope(self) -> Envelope:
        return Envelope(Kind.PRODUCER_ID)

    @staticmethod
    def decode(envelope: Envelope) -> "AllocateProducerId":
        return AllocateProducerId()
