"""The fold's part for redrives: which records of a queue are passed on once more, and until where.

A redrive is a route out of a queue that its own settings define (`rows.routes`). It begins at the
queue's start, and ends where each partition ended when it was told of it: what comes later is of
the next one. Its row stays when it is over, and goes when the queue has another: so it is known to
be over. It goes on as it began, whatever is set, until it ends: what is cut next may be on its way
already.
"""

import json
from collections.abc import Mapping

from kproxy.virtual.rows.queues import Partition, Queue
from kproxy.virtual.rows.routes import Epoch, Route, redrive_id
from kproxy.virtual.types import QueueId

TO, JOB = "kproxy.redrive.to", "kproxy.redrive.job"
FILTER, TIMES_MAX = "kproxy.redrive.filter", "kproxy.redrive.times.max"
REDRIVE_SPEC = (TO, FILTER, TIMES_MAX)


def redrive_of(queue_id: QueueId, configs: Mapping[str, str]) -> QueueId | None:
    """Return the definer of the redrive that a queue's settings say; None: none."""
    return redrive_id(queue_id, configs.get(JOB, "")) if configs.get(TO) else None


def redrives_between(before: Queue | None, after: Queue | None) -> list[tuple[QueueId, str]]:
    """Return what a made, changed or deleted queue has to tell: specs by definer; "": an end."""
    was = None if before is None else redrive_of(before.queue_id, before.configs)
    now = None if after is None else redrive_of(after.queue_id, after.configs)
    told = [] if was is None or was == now else [(was, "")]
    if after is not None and now is not None:
        told.append((now, _spec_of(after)))
    return told


def _spec_of(queue: Queue) -> str:
    spec = {name: queue.configs[name] for name in REDRIVE_SPEC if name in queue.configs}
    return json.dumps({"name": queue.name, **spec}, sort_keys=True)


def begun(start: int, row: Partition, spec: bytes, as_of: int) -> Route:
    """Return the row of a redrive that a partition is told of."""
    epochs = Epoch(start, spec), Epoch(row.next_offset, b"")
    return Route(start, start, 1, 0, as_of, epochs)


def ended(route: Route, as_of: int) -> Route | None:
    """Return the row of a redrive that ends where it is cut; None: it is cut to its end already."""
    if route.cut >= route.epochs[-1].start:
        return None
    kept = [one for one in route.epochs[:-1] if one.start < route.cut]
    return route._replace(as_of=as_of, epochs=(*kept, Epoch(route.cut, b"")))
