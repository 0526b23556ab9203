"""The standing of routes out of a partition, for people: how far they are, and why they wait."""

from collections.abc import Iterator, Mapping
from typing import NotRequired, TypedDict

import orjson

from kproxy.log.base import Ticket
from kproxy.metadata.catalogue import Catalogue
from kproxy.routes.passages import Passages
from kproxy.shard.shard import Shard
from kproxy.virtual.folds.redrives import JOB, redrive_of
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.routes import ROUTES, Route, decode_route, is_redrive
from kproxy.virtual.types import PartitionKey

_OPEN = "a transaction is open"


class RouteStanding(TypedDict):
    """A route out of one partition of its source."""

    queue: str
    """The queue that defines it: the source itself where that is an entrance."""
    partition: int
    landed: int
    """All records before this offset have landed."""
    end: int
    """The offset up to which records are passed on: the partition's end, or the route's."""
    lag: int
    """Records that wait."""
    made: int
    """Queues that were made for it."""
    waits: str | None
    """The reason why nothing is passed on."""
    redrive: NotRequired[str]
    """The name of a redrive's job. It is told of when it is over, too."""
    begin: NotRequired[int]
    """The offset that a redrive began with, as far as that is still known."""


def standing_of(
    passages: Passages, catalogue: Catalogue[Ticket], shard: Shard, source: PartitionKey
) -> Iterator[RouteStanding]:
    """Yield all routes out of a partition that go on, or have something left."""
    state = shard.state
    row = state.partition(source)
    if row is None or not row.any_routes:
        return
    for key, data in state.kv.scan(*ROUTES.range(source)):
        _, definer = ROUTES.parts(key)
        route = decode_route(data)
        landed, end = _from_to(route, row)
        lag = max(0, end - landed)
        redrive, configs = is_redrive(definer), _configs(catalogue, source)
        if redrive and redrive_of(source[0], configs) != definer:
            continue
        if not lag and route.ends is not None and not redrive:
            continue  # it is over, and not dropped yet
        waits = None
        if lag:
            waits = passages.waits(shard, source, definer)
            if waits is None and row.last_stable <= route.cut:
                waits = _OPEN
        queue = catalogue.find_id(source[0] if redrive else definer)
        standing = RouteStanding(
            queue=_last_name(route) if queue is None else queue.name,
            partition=source[1], landed=landed, end=end, lag=lag, made=route.made, waits=waits,
        )  # fmt: skip
        if redrive:
            standing |= {"redrive": configs.get(JOB, ""), "begin": route.epochs[0].start}
        yield standing


def _configs(catalogue: Catalogue[Ticket], source: PartitionKey) -> Mapping[str, str]:
    queue = catalogue.find_id(source[0])
    return {} if queue is None else queue.configs


def _from_to(route: Route, row: Partition) -> tuple[int, int]:
    end = row.next_offset if route.ends is None else min(route.ends, row.next_offset)
    return max(route.landed, min(row.log_start, end)), end


def _last_name(route: Route) -> str:
    """Return the name of the queue that has defined it, and is gone."""
    specs = [one.spec for one in route.epochs if one.spec]
    return str(orjson.loads(specs[-1])["name"]) if specs else ""
