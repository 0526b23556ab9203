"""Requests at the wrong worker are refused, so that clients go to the right one."""

import time
from collections.abc import Iterator

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.upstream.link import _ENDS_PERIOD_S, _OFTEN_S
from kproxy.virtual.partitioner import shard_of
from tests.harness import Served, eventually
from tests.kafka.groups.members import commit, committed
from tests.real_kafka import Kafka
from tests.wire import Wire, batch, fetch_values
from tests.workers import Workers

NOT_LEADER, NOT_COORDINATOR = 6, 16


@pytest.fixture(scope="module")
def workers(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(kafka, tmp_path_factory.mktemp("routing"), count=2, shards=8).running() as running:
        eventually(lambda: len(set(running.owners().values())) == 2, 30)
        yield running


def other(workers: Workers, name: str) -> Served:
    """Return a worker that does not serve this queue or group."""
    owner = workers.owner(name)
    return next(worker for worker in workers.workers if worker is not owner)


def test_records_are_refused_by_who_does_not_lead(workers: Workers) -> None:
    wrong = other(workers, "routed")
    with workers.wire("routed") as right, Wire(wrong.host, wrong.port) as wire:
        assert right.produce("routed", batch(b"v")).base_offset == 0
        eventually(lambda: wire.metadata("routed", create=False).topics[0].error_code == 0, 2)
        assert wire.produce("routed", batch(b"v")).error_code == NOT_LEADER
        assert wire.fetch("routed", 0).error_code == NOT_LEADER
        assert wire.list_offset("routed", -1).error_code == NOT_LEADER
        part = {"partition_index": 0, "offset": 1}
        values = {"topics": [{"name": "routed", "partitions": [part]}], "timeout": 5000}
        trimmed = wire.call(ApiKey.DELETE_RECORDS, 2, values).topics[0].partitions[0]
        assert trimmed.error_code == NOT_LEADER
        assert right.list_offset("routed", -1).offset == 1


def test_groups_are_refused_by_who_does_not_coordinate(workers: Workers) -> None:
    group = "some-group"
    wrong, owner = other(workers, group), workers.owner(group)
    with Wire(owner.host, owner.port) as right, Wire(wrong.host, wrong.port) as wire:
        right.metadata("grouped")
        eventually(lambda: wire.metadata("grouped", create=False).topics[0].error_code == 0, 2)
        assert commit(right, group, "grouped", 5) == 0
        assert committed(right, group, "grouped") == 5
        assert commit(wire, group, "grouped", 9) == NOT_COORDINATOR
        asked = {"group_id": group, "topics": [{"name": "grouped", "partition_indexes": [0]}]}
        assert wire.call(ApiKey.OFFSET_FETCH, 5, asked).error_code == NOT_COORDINATOR
        for client in (right, wire):
            found = client.call(
                ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]}
            )
            assert found.coordinators[0].port == owner.port
        assert committed(right, group, "grouped") == 5


def test_any_worker_creates_grows_and_deletes_any_queue(workers: Workers) -> None:
    for name in ("made-a", "made-b", "made-c", "made-d"):
        wrong = other(workers, name)
        with Wire(wrong.host, wrong.port) as wire, workers.wire(name) as right:
            assert wire.create(name, 3, retention_ms="5000").error_code == 0
            assert wire.create(name, 3).error_code == 36
            found = right.metadata(name, create=False).topics[0]
            leaders = [part.leader_id for part in found.partitions]
            assert len(leaders) == 3
            grow = {"topics": [{"name": name, "count": 6, "assignments": None}],
                    "timeout": 5000, "validate_only": False}  # fmt: skip
            assert wire.call(ApiKey.CREATE_PARTITIONS, 3, grow).results[0].error_code == 0
            assert wire.call(ApiKey.CREATE_PARTITIONS, 3, grow).results[0].error_code == 37
            for index in range(6):
                with workers.wire(name, index) as leader:
                    assert leader.produce(name, batch(b"v"), partition=index).base_offset == 0
            assert wire.delete(name).error_code == 0
            assert right.metadata(name, create=False).topics[0].error_code == 3
            assert wire.delete(name).error_code == 3


def test_metadata_creates_a_queue_wherever_its_home_is(workers: Workers) -> None:
    for i in range(6):
        name = f"auto-{i}"
        wrong = other(workers, name)
        with Wire(wrong.host, wrong.port) as wire, workers.wire(name) as right:
            topic = wire.metadata(name).topics[0]
            assert topic.error_code == 0
            assert topic.partitions[0].leader_id > 0
            assert right.produce(name, batch(b"v")).base_offset == 0


def test_a_waiting_fetch_learns_that_its_shard_has_gone(workers: Workers) -> None:
    """Both kinds: with a session and without."""
    name = "moving"
    owner = workers.owner(name)
    index = workers.workers.index(owner)
    with owner.wire(name) as wire, owner.wire(name) as again:
        wire.metadata(name)
        opened = wire.call(ApiKey.FETCH, 12, fetch_values({(name, 0): 0}, epoch=0))
        assert opened.error_code == 0
        values = fetch_values({}, session_id=opened.session_id, epoch=1, wait_ms=20_000)
        wire.send(ApiKey.FETCH, 12, values)
        again.send(ApiKey.FETCH, 12, fetch_values({(name, 0): 0}, wait_ms=20_000))
        from kproxy.virtual.commands.envelope import Envelope, Kind
        from tests.on_kafka.test_two_writers import write_raw

        write_raw(workers.kafka, workers, shard_of(name, 8), Envelope(Kind.CLAIM))
        for client in (wire, again):
            _, answer = client.receive(1, 12)
            assert answer.responses[0].partitions[0].error_code == NOT_LEADER
    workers.wait_served()
    assert workers.owners()[shard_of(name, 8)] == index


def test_an_owner_is_called_for_what_another_worker_appended(workers: Workers) -> None:
    """It looks at the ends of quiet logs once a second only: 20 creations would take so many."""
    time.sleep(_OFTEN_S)  # after a claim it looks often
    names = [f"called-{number}" for number in range(200)]
    asked = workers.workers[0]
    elsewhere = [name for name in names if workers.owner(name) is not asked][:20]
    began = time.monotonic()
    with Wire(asked.host, asked.port) as wire:
        for name in elsewhere:
            assert wire.metadata(name).topics[0].error_code == 0
    assert time.monotonic() - began < 20 * _ENDS_PERIOD_S / 3
