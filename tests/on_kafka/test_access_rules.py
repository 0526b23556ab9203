"""Access rules are in force at every worker within a second, and outlive all of them."""

import time
from pathlib import Path
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served, eventually
from tests.real_kafka import Kafka
from tests.wire import Wire, batch, fetch_values
from tests.workers import Workers

FLAGS = "--authorizer", "acl", "--allow-everyone-if-no-acl-found"
"""All come as User:ANONYMOUS here: each may do what no rule speaks of."""
QUEUES = [f"q{n}" for n in range(4)]
_RULE = {
    "resource_type": 2, "resource_pattern_type": 3, "principal": "User:ANONYMOUS", "host": "*",
    "operation": 3, "permission_type": 2,
}  # fmt: skip
_WITHIN_S = 1.0


def wire_to(worker: Served) -> Wire:
    return Wire(worker.host, worker.port)


def read(wire: Wire, queue: str) -> int:
    """Return the code of a Fetch; a worker that does not lead the partition refuses by rights
    first.
    """
    return int(wire.fetch(queue, 0).error_code)


def deny(wire: Wire, queue: str) -> None:
    told = wire.call(ApiKey.CREATE_ACLS, 3, {"creations": [_RULE | {"resource_name": queue}]})
    assert int(told.results[0].error_code) == 0, told


def allow(wire: Wire, queue: str) -> None:
    wanted = {
        "resource_type_filter": 2, "resource_name_filter": queue, "pattern_type_filter": 3,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    told = wire.call(ApiKey.DELETE_ACLS, 3, {"filters": [wanted]})
    assert len(told.filter_results[0].matching_acls) == 1


def leads(wires: list[Wire], queue: str) -> Wire:
    def look() -> Wire | None:
        return next((w for w in wires if w.produce(queue, batch(b"v")).error_code == 0), None)

    found: Wire = eventually(look)
    return found


def test_rules_reach_every_worker_and_stay(kafka: Kafka, tmp_path: Path) -> None:
    workers = Workers(kafka, tmp_path, *FLAGS, count=2, shards=4)
    with workers.running():
        wires = [wire_to(worker) for worker in workers.workers]
        took: list[float] = []
        for queue in QUEUES:
            leader = leads(wires, queue)
            session = leader.call(
                ApiKey.FETCH, 12, fetch_values({(queue, 0): 1}, epoch=0)
            ).session_id
            for number, asked in enumerate(wires):
                deny(asked, queue)
                assert read(asked, queue) == 29  # at once where it was said
                began = time.monotonic()
                for other in wires:
                    eventually(lambda w=other, q=queue: read(w, q) == 29, _WITHIN_S, 0.005)
                more = fetch_values({}, session_id=session, epoch=2 * number + 1)
                polled: Any = leader.call(ApiKey.FETCH, 12, more)
                assert int(polled.responses[0].partitions[0].error_code) == 29
                allow(wires[1 - number], queue)
                for other in wires:
                    eventually(lambda w=other, q=queue: read(w, q) != 29, _WITHIN_S, 0.005)
                took.append(time.monotonic() - began)
                more = fetch_values({}, session_id=session, epoch=2 * number + 2)
                leader.call(ApiKey.FETCH, 12, more)
        assert max(took) < 2 * _WITHIN_S, took
        deny(wires[0], QUEUES[0])
        for wire in wires:
            wire.socket.close()
        for index in range(2):
            workers.workers[index].kill()
        for index in range(2):
            workers.again(index).wait_ready()
        workers.wait_served()
        for worker in workers.workers:
            with wire_to(worker) as wire:
                assert read(wire, QUEUES[0]) == 29  # before anything else is heard
                assert read(wire, QUEUES[1]) != 29
