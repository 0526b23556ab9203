"""Quotas are in force at every worker within a second, and outlive all of them."""

from pathlib import Path
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.security.quotas import WORKED
from tests.harness import Served, eventually
from tests.real_kafka import Kafka
from tests.wire import Wire
from tests.workers import Workers

_WITHIN_S = 1.0


def throttled(worker: Served) -> bool:
    """Ask each time by another connection: none is muted for that."""
    with Wire(worker.host, worker.port) as wire:
        told = wire.call(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
    return bool(told.throttle_time)


def limit(worker: Served, value: float | None) -> None:
    op = {"key": WORKED, "value": value or 0.0, "remove": value is None}
    entity = [{"entity_type": "client-id", "entity_name": "kproxy"}]
    values: Any = {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}
    with Wire(worker.host, worker.port) as wire:
        told = wire.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, values)
    assert told.entries[0].error_code == 0, told


def test_quotas_reach_every_worker_and_stay(kafka: Kafka, tmp_path: Path) -> None:
    workers = Workers(kafka, tmp_path, count=2, shards=4)
    with workers.running():
        for one in workers.workers:
            limit(one, 1e-9)
            assert throttled(one)  # at once where it was set
            for other in workers.workers:
                eventually(lambda w=other: throttled(w), _WITHIN_S, 0.005)
            limit(one, None)
            for other in workers.workers:
                eventually(lambda w=other: not throttled(w), _WITHIN_S, 0.005)
        limit(workers.workers[0], 1e-9)
        for index in range(2):
            workers.workers[index].kill()
        for index in range(2):
            workers.again(index).wait_ready()
        for worker in workers.workers:
            assert throttled(worker)
