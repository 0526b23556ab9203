"""Bulk jobs over a worker in memory: what they do, for whom, and what is refused."""

import json
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.handlers.configs import jobs as orders
from kproxy.metadata.levels import Level
from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import Op, Pattern
from kproxy.security.peer import Peer
from kproxy.server import bulk_jobs
from kproxy.server.bulk_jobs import BulkJobs
from kproxy.store.rocks import RowsClosed
from kproxy.worker.worker import Worker
from tests.handlers.secured import ALICE, ROOT, Secured, rule
from tests.harness import until

BOB = Peer("User:bob", "10.0.0.2")
DELETE: dict[str, Any] = {"do": "delete", "search": {"prefix": "a-"}}
NAMES = [f"{letter}-{number:03}" for letter in "ab" for number in range(30)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Secured:
    monkeypatch.setattr(bulk_jobs, "_LOT", 7)
    found = Secured()
    for name in NAMES:
        found.worker.catalogue.create(name, 1)
    return found


async def ordered(
    here: Secured, said: Any, peer: Peer = ROOT, name: str = "j", *, dry: bool = False
) -> int:
    """Send an order; None ends the job."""
    change = {
        "name": f"kproxy.job.{name}", "config_operation": 1 if said is None else 0,
        "value": said if said is None or isinstance(said, str) else json.dumps(said),
    }  # fmt: skip
    resource = {"resource_type": 4, "resource_name": "", "configs": (change,)}
    values = {"resources": (resource,), "validate_only": dry}
    told = await here.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values, peer)
    return int(told.responses[0].error_code)


async def listed(here: Secured, peer: Peer = ROOT) -> list[dict[str, Any]]:
    resource = {"resource_type": 4, "resource_name": "", "configuration_keys": (orders.JOBS,)}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    told = await here.call(ApiKey.DESCRIBE_CONFIGS, 4, values, peer)
    found: list[dict[str, Any]] = json.loads(told.results[0].configs[0].value)
    return found


async def over(worker: Worker) -> None:
    jobs = BulkJobs(worker)
    while await jobs.look():
        pass


def left(here: Secured) -> list[str]:
    return [queue.name for queue in here.worker.catalogue.all()]


async def test_a_job_deletes_all_queues_that_match_and_no_other(here: Secured) -> None:
    assert await ordered(here, DELETE | {"queues": 30}) == 0
    assert left(here) == NAMES
    await over(here.worker)
    assert left(here) == NAMES[30:]
    (job,) = await listed(here)
    assert (job["over"], job["done"], job["refused"], job["by"]) == (True, 30, 0, "User:root")


async def test_a_job_sets_settings_of_all_queues_that_match(here: Secured) -> None:
    said = {"do": "set", "set": {"retention.ms": "5"}, "search": {"matching": ".*-01."}}
    assert await ordered(here, said) == 0
    await over(here.worker)
    changed = [q.name for q in here.worker.catalogue.all() if q.configs.get("retention.ms") == "5"]
    assert changed == [name for name in NAMES if "-01" in name]
    assert await ordered(here, {"do": "set", "unset": ["retention.ms"],
                                "search": {"contains": "-"}}, name="k") == 0  # fmt: skip
    await over(here.worker)
    assert not any("retention.ms" in queue.configs for queue in here.worker.catalogue.all())


async def test_a_job_has_the_rights_of_who_has_ordered_it_at_each_lot(here: Secured) -> None:
    prefixed = {"resource_pattern_type": Pattern.PREFIXED}
    assert await ordered(here, DELETE, ALICE) == Code.TOPIC_AUTHORIZATION_FAILED
    assert await here.add(rule(Op.DESCRIBE, "a-", **prefixed), rule(Op.DELETE, "a-00", **prefixed),
                          rule(Op.DELETE, "b-", **prefixed)) == [0, 0, 0]  # fmt: skip
    assert await ordered(here, DELETE, ALICE) == 0
    await over(here.worker)
    assert left(here) == NAMES[10:]
    (job,) = await listed(here, ALICE)
    assert (job["done"], job["refused"], job["over"]) == (10, 20, True)
    assert "uthoriz" in job["reason"]
    assert await ordered(here, {"do": "delete", "search": {"prefix": "b-"}}, ALICE, "k") == 0
    await here.drop(principal_filter=ALICE.principal)
    await over(here.worker)
    assert left(here) == NAMES[10:]


async def test_a_job_is_for_who_has_ordered_it_and_for_who_may_change_the_cluster(
    here: Secured,
) -> None:
    assert await here.add(rule(Op.DELETE, "a-", resource_pattern_type=Pattern.PREFIXED)) == [0]
    assert await ordered(here, DELETE, ALICE) == 0
    assert await listed(here, BOB) == []
    for said in (None, {"paused": True}, DELETE):
        assert await ordered(here, said, BOB) == Code.CLUSTER_AUTHORIZATION_FAILED
    assert [job["job"] for job in await listed(here, ALICE)] == ["j"]
    assert await ordered(here, {"paused": True}, ALICE) == 0
    await over(here.worker)
    assert left(here) == NAMES
    assert await ordered(here, None, ROOT) == 0
    assert await listed(here) == []
    assert await ordered(here, None, ROOT) == Code.RESOURCE_NOT_FOUND


async def test_a_rate_bounds_how_many_queues_are_touched(here: Secured) -> None:
    assert await ordered(here, DELETE | {"rate": "3/h"}) == 0
    jobs = BulkJobs(here.worker)
    assert [await jobs.look() for _ in range(4)] == [True, True, False, False]
    assert left(here) == NAMES[1:]
    assert await ordered(here, {"rate": "100/s"}) == 0
    while not await jobs.look():
        await anyio.sleep(0.002)
    assert await ordered(here, {"rate": ""}) == 0
    while await jobs.look():
        pass
    assert left(here) == NAMES[30:]


@pytest.mark.parametrize("said", [
    "", "{", "[]", "{}", "1", "[" * 19_000, {"do": "delete"},
    {"do": "drop", "search": {"prefix": "a"}},
    {"do": "delete", "search": {}}, {"do": "delete", "search": {"limit": 3}},
    {"do": "delete", "search": {"prefix": 3}}, {"do": "delete", "search": [1]},
    DELETE | {"set": {"a": "b"}}, {"do": "set", "search": {"prefix": "a"}},
    DELETE | {"rate": "fast"}, DELETE | {"rate": 3}, DELETE | {"after": "z"}, DELETE | {"by": "x"},
    {"do": "set", "set": {"retention.ms": 5}, "search": {"prefix": "a"}},
    {"do": "set", "unset": [3], "search": {"prefix": "a"}},
    DELETE | {"queues": "many"}, DELETE | {"paused": 1}, "x" * 30_000,
])  # fmt: skip
async def test_orders_that_are_none_are_refused(here: Secured, said: Any) -> None:
    assert await ordered(here, said) == Code.INVALID_REQUEST
    assert await listed(here) == []


async def test_orders_that_no_queue_could_obey_are_refused(here: Secured) -> None:
    search = {"search": {"prefix": "a"}}
    assert await ordered(here, {"do": "set", "set": {"no": "1"}, **search}) == Code.INVALID_CONFIG
    bad = {"do": "delete", "search": {"matching": "("}}
    assert await ordered(here, bad) == Code.INVALID_REGULAR_EXPRESSION
    assert await ordered(here, DELETE, name="") == Code.INVALID_REQUEST
    assert await ordered(here, DELETE, name="x" * 101) == Code.INVALID_REQUEST
    assert await ordered(here, DELETE, dry=True) == 0
    assert await listed(here) == []
    assert await ordered(here, DELETE) == 0
    assert await ordered(here, DELETE) == Code.DUPLICATE_RESOURCE


async def test_there_are_so_many_jobs_and_those_that_are_over_make_room(
    here: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_JOBS_MAX", 2)
    paused = DELETE | {"paused": True}
    assert [await ordered(here, paused, name=name) for name in "ab"] == [0, 0]
    assert await ordered(here, paused, name="c") == Code.POLICY_VIOLATION
    assert await ordered(here, {"paused": False}, name="b") == 0
    await over(here.worker)
    assert await ordered(here, paused, name="c") == 0
    assert [job["job"] for job in await listed(here)] == ["a", "c"]


async def test_jobs_need_their_level(here: Secured) -> None:
    here.worker.level.value = 9
    assert isinstance(here.worker.level, Level)
    assert await ordered(here, DELETE) == Code.UNSUPPORTED_VERSION
    assert await listed(here) == []


async def test_a_shard_that_leaves_ends_no_server(
    here: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, looks = here.worker.any_shard(), list[int]()

    def closed(*_: Any) -> Any:
        looks.append(1)
        raise RowsClosed

    monkeypatch.setattr(shard.kv, "scan", closed)
    monkeypatch.setattr(bulk_jobs, "_LOOK_S", 0.001)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(BulkJobs(here.worker).run)
        await until(lambda: len(looks) > 2)
        tasks.cancel_scope.cancel()


async def test_a_queue_of_more_partitions_than_a_lot_is_done_once(here: Secured) -> None:
    here.worker.catalogue.create("wide", 20)
    assert await ordered(here, {"do": "delete", "search": {"prefix": "w"}}) == 0
    await over(here.worker)
    (job,) = await listed(here)
    assert (job["done"], left(here)) == (1, NAMES)
