"""The offsets of a source that a route passes on next, and the epoch that says where they go."""

from typing import NamedTuple

from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.routes import Epoch, Route


class Stretch(NamedTuple):
    """The offsets that are passed on next: from `start` to before `end`, of one epoch."""

    start: int
    end: int
    epoch: Epoch


def next_of(route: Route, row: Partition) -> Stretch | None:
    """Return what is to be passed on behind the last cut; None: nothing is decided there."""
    epoch = epoch_at(route, route.cut)
    ends = [one.start for one in route.epochs if one.start > route.cut]
    end = min([row.last_stable, *ends])
    if end <= route.cut:
        return None
    return Stretch(min(end, max(route.cut, row.log_start)), end, epoch)


def epoch_at(route: Route, offset: int) -> Epoch:
    """Return the epoch of an offset that is not passed on yet."""
    found = route.epochs[0]
    for epoch in route.epochs[1:]:
        if epoch.start <= offset:
            found = epoch
    return found
