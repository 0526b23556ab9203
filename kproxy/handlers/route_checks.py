"""What a queue's settings of routes say about other queues, asked of the catalogue."""

from collections.abc import Callable, Collection, Mapping

from kproxy.errors import Code, KafkaError
from kproxy.metadata.route_settings import QUEUES_MAX, names_conflict, partitions_conflict
from kproxy.metadata.routing import read_template
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.security.permits import Permits
from kproxy.virtual.route_fold import CONFIGS, FROM, FROM_SETTINGS, TO, UNROUTABLE
from kproxy.worker.worker import Worker

_TO_SETTINGS = (TO, UNROUTABLE, CONFIGS, QUEUES_MAX)
"""What says where records go, and what is made for them."""


def check_routes(
    worker: Worker,
    permits: Permits,
    name: str,
    partitions: int,
    values: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    named: Collection[str] = (),
) -> None:
    """Settings that the queue `name` is to have. Raises KafkaError (INVALID_CONFIG,
    TOPIC_AUTHORIZATION_FAILED).

    `before`: those it has. The source of a route may be gone since, and nobody is to be kept from
    changing another setting: only what changes is looked up. `named`: those that the request sets
    or drops; this worker may not know yet that another has changed one.
    """
    was = before or {}
    if not permits.all:
        _check_permits(permits, values, lambda key: key in named or values.get(key) != was.get(key))
    source = values.get(FROM)
    if not source and not values.get(TO):
        return
    fault = names_conflict(values, name) or partitions_conflict(values, partitions)
    if fault is None and source and source != was.get(FROM):
        fault = _source_fault(worker, permits, source)
    if fault:
        raise KafkaError(Code.INVALID_CONFIG, fault)


def _check_permits(
    permits: Permits, values: Mapping[str, str], touched: Callable[[str], bool]
) -> None:
    """A route does what its definer may do: READ where it comes from, WRITE where it may go.

    An entrance makes the queues that its template names: CREATE as well. Who changes a part of a
    route, its filter for example, is asked the same. Raises KafkaError.
    """
    allowed = True
    if (source := values.get(FROM)) and any(map(touched, FROM_SETTINGS)):
        allowed = permits.topic(Op.READ, source)
    if (template := values.get(TO)) and any(map(touched, _TO_SETTINGS)):
        beginning = read_template(template).prefix
        allowed = allowed and permits.topics(Op.WRITE, beginning)
        if not permits.sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            allowed = allowed and permits.topics(Op.CREATE, beginning)
    if (other := values.get(UNROUTABLE)) and any(map(touched, _TO_SETTINGS)):
        allowed = allowed and permits.topic(Op.WRITE, other) and permits.may_create(other)
    if not allowed:
        text = "a route reads and writes what its definer may read and write, as its names say"
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, text)


def _source_fault(worker: Worker, permits: Permits, source: str) -> str | None:
    found = worker.catalogue.find(source)
    if found is None:
        return f"{FROM}={source}: there is no such queue: create it first"
    beyond = found.configs.get(FROM)
    if beyond:
        shown = f"{beyond}, " if permits.sees(Op.DESCRIBE, Resource.TOPIC, beyond) else "the queue "
        return (
            f"{FROM}={source}: that queue gets records by a route itself, and those are not routed"
            f" on: name {shown}where they come from"
        )
    return None
