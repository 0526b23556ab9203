"""The record batches that an envelope carries, and the queue partitions that have them."""

from collections.abc import Iterator

from kproxy.protocol.batch import CONTROL_BATCH_BYTES
from kproxy.virtual.commands.delays import Due, Later
from kproxy.virtual.commands.envelope import Body, Envelope, Kind
from kproxy.virtual.commands.records import AppendIf
from kproxy.virtual.commands.routes import Ship
from kproxy.virtual.commands.shares import batch_of
from kproxy.virtual.commands.transactions import Marker
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows.delays import hidden
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

Carried = tuple[PartitionKey, Body, LogLocation]
"""A partition, a batch of it, and where that lies."""
ALONE = (Kind.APPEND, Kind.APPEND_IF, Kind.FORWARD)
"""Kinds that carry one batch, of the partition in their heads."""
DELAYS = (Kind.LATER, Kind.DUE)
"""Kinds that may carry several batches for one partition."""
SEVERAL = (Kind.MARKER, Kind.SHIP, *DELAYS)
"""Kinds that say in their bodies which partitions have batches of theirs."""


def carried(
    state: State, log_offset: int, envelope: Envelope, location: LogLocation
) -> Iterator[Carried]:
    """Yield the batches that an envelope carries: an APPEND, a FORWARD, a SHIP and so on, if any.

    A SHIP names queues. One that has such a name now, and was made behind it, is another.
    """
    kind, body = envelope.kind, envelope.body
    if kind == Kind.APPEND:
        yield (envelope.queue_id, envelope.partition), body, location
    elif kind in (Kind.FORWARD, Kind.APPEND_IF):
        batch = batch_of(envelope) if kind == Kind.FORWARD else AppendIf.batch_of(envelope)
        place = location._replace(length=len(batch))
        yield (envelope.queue_id, envelope.partition), batch, place
    elif kind == Kind.MARKER:
        place = location._replace(length=CONTROL_BATCH_BYTES)
        for key in Marker.decode(envelope).partitions:
            yield key, body[:CONTROL_BATCH_BYTES], place
    elif kind == Kind.SHIP:
        asked, whole = Ship.decode(envelope), memoryview(body)
        for name, position, length, _ in asked.targets:
            queue = state.queue(name)
            if queue is None or queue.created_at > log_offset:
                continue
            if asked.only and queue.queue_id != asked.definer:
                continue
            place = LogLocation(location.segment, location.position + position, length)
            yield (queue.queue_id, 0), whole[position : position + length], place
    elif kind in DELAYS:
        yield from _delayed(envelope, location)


def _delayed(envelope: Envelope, location: LogLocation) -> Iterator[Carried]:
    whole = memoryview(envelope.body)
    if envelope.kind == Kind.DUE:
        due = Due.decode(envelope)
        key, now, later = due.key, due.now, due.later
    else:
        asked = Later.decode(envelope)
        key, now, later = asked.key, () if asked.now is None else (asked.now,), asked.later
    for target, spans in ((key, now), (hidden(key), later)):
        for position, length in spans:
            place = LogLocation(location.segment, location.position + position, length)
            yield target, whole[position : position + length], place
