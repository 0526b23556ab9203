"""Commands with bodies written by hand: as older kproxies wrote them, or nobody would."""

import json
from typing import Any

from kproxy.virtual.commands.envelope import NO_QUEUE, Envelope, Kind
from kproxy.virtual.types import QueueId


def command(
    kind: Kind,
    queue_id: QueueId = NO_QUEUE,
    partition: int = 0,
    *,
    number: int = 0,
    time_ms: int = 0,
    values: dict[str, Any] | None = None,
) -> Envelope:
    """Return an envelope that is not a client's batch; its body is JSON."""
    body = b"" if values is None else json.dumps(values, separators=(",", ":")).encode()
    return Envelope(kind, queue_id, partition, number=number, time_ms=time_ms, body=body)


def values_of(envelope: Envelope) -> dict[str, Any]:
    """Return the values of a JSON body."""
    values: dict[str, Any] = json.loads(envelope.body)
    return values
