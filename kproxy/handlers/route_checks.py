"""What a queue's settings of routes say about other queues, asked of the catalogue."""

from collections.abc import Mapping

from kproxy.errors import Code, KafkaError
from kproxy.metadata.route_settings import names_conflict, partitions_conflict
from kproxy.virtual.route_fold import FROM, TO
from kproxy.worker.worker import Worker


def check_routes(
    worker: Worker,
    name: str,
    partitions: int,
    values: Mapping[str, str],
    before: Mapping[str, str] | None = None,
) -> None:
    """Settings that the queue `name` is to have. Raises KafkaError (INVALID_CONFIG).

    `before`: those it has. The source of a route may be gone since, and nobody is to be kept from
    changing another setting: only what changes is looked up.
    """
    source = values.get(FROM)
    if not source and not values.get(TO):
        return
    fault = names_conflict(values, name) or partitions_conflict(values, partitions)
    if fault is None and source and source != (before or {}).get(FROM):
        fault = _source_fault(worker, source)
    if fault:
        raise KafkaError(Code.INVALID_CONFIG, fault)


def _source_fault(worker: Worker, source: str) -> str | None:
    found = worker.catalogue.find(source)
    if found is None:
        return f"{FROM}={source}: there is no such queue: create it first"
    beyond = found.configs.get(FROM)
    if beyond:
        return (
            f"{FROM}={source}: that queue gets records by a route itself, and those are not routed"
            f" on: name {beyond}, where they come from"
        )
    return None
