"""Groups whose coordinator goes away, and workers that lose their disks."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.partitioner import shard_of
from tests.clients.calls import alter, bounds, create
from tests.clients.groups.members import KINDS, Member
from tests.clients.groups.test_groups import Load, everything, spread
from tests.clients.topics.test_retention import write
from tests.harness import Served, eventually, served
from tests.kafka.groups.members import Classic, Modern, commit, committed, delete_groups
from tests.on_kafka.test_storage import EAGER, contents, fill, log_trimmed_beyond, trim
from tests.real_kafka import Kafka
from tests.wire import Wire
from tests.workers import Workers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUICK = ("--group-initial-rebalance-delay-ms", "200", "--group-consumer-heartbeat-ms", "300")


def group_of_worker(workers: Workers, index: int, like: str) -> str:
    """Return a group id whose coordinator is this worker."""
    owners = workers.wait_balanced()
    names = (f"{like}-{i}" for i in range(1000))
    return next(n for n in names if owners[shard_of(n, workers.shards)] == index)


@pytest.mark.parametrize("kind", ["librdkafka", "librdkafka-consumer", "java", "java-consumer"])
def test_the_coordinator_is_killed_in_the_middle_of_a_rebalance(
    kafka: Kafka, tmp_path: Path, kind: str
) -> None:
    with Workers(kafka, tmp_path, *QUICK, count=2, shards=4).running() as workers:
        create(workers.address, "work", partitions=4)
        group = group_of_worker(workers, 0, kind)
        load = Load(workers.address, "work", 4)
        load.start()
        make = KINDS[kind]
        members: list[Member] = [make(workers.address, group, ["work"]).start()]
        try:
            eventually(lambda: spread(members, 4), 40)
            eventually(lambda: len(members[0].seen) > 200, 20)
            members.append(make(workers.address, group, ["work"]).start())
            if kind.startswith("java"):
                time.sleep(1.0)  # its start
            time.sleep(0.5)  # it is joining now, or about to
            workers.workers[0].kill()
            workers.wait_served(20)
            eventually(lambda: spread(members, 4), 90)
            workers.again(0).wait_ready()
            before = [len(member.seen) for member in members]
            eventually(
                lambda: all(len(m.seen) > n for m, n in zip(members, before, strict=True)), 60
            )
            members[0].stop()
            eventually(lambda: spread(members[1:], 4), 90)
            written = load.end()
            eventually(lambda: written <= everything(members), 60)
            members[1].stop()
        finally:
            load.stopping = True
            for member in members:
                member.stopping = True
        assert everything(members) == written


def test_members_go_on_with_a_new_coordinator(kafka: Kafka, tmp_path: Path) -> None:
    """No rebalance: the generation, the assignment and the epochs were logged."""
    with Workers(kafka, tmp_path, *QUICK, count=2, shards=4).running() as workers:
        group = group_of_worker(workers, 0, "classic")
        modern = group_of_worker(workers, 0, "modern")
        create(workers.address, "work", partitions=2)
        with workers.workers[0].wire("work") as wire:
            old = Classic(wire, group, ("work",))
            old.join()
            old.sync({old.id: b"all of it"})
            new = Modern(wire, modern, "member", "work")
            eventually(lambda: new.beat().error_code == 0 and new.parts() == [[0, 1]])
            epoch = new.epoch
        workers.workers[0].kill()
        workers.wait_served(20)
        left = workers.workers[1]
        old.close()
        new.close()
        old.wire, new.wire = left.wire("work"), left.wire("work")
        assert old.beat() == 0
        assert old.sync().assignment == b"all of it"
        assert old.commit("work", 3) == 0
        answer = new.beat(topic_partitions=new.owned())
        assert (answer.error_code, answer.member_epoch) == (0, epoch)
        assert commit(new.wire, modern, "work", 4, "member", epoch) == 0
        old.generation += 1
        assert old.beat() == 22
        eventually(lambda: described(old.wire, group) == 0, 20, 0.5)  # never heard of again
        for member in (old, new):
            member.close()
        workers.again(0).wait_ready()


def described(wire: Wire, group: str) -> int:
    values = {"groups": (group,), "include_authorized_operations": False}
    return len(wire.call(ApiKey.DESCRIBE_GROUPS, 5, values).groups[0].members)


def test_an_embedded_restart_keeps_groups(tmp_path: Path) -> None:
    flags = (*QUICK, "--group-session-ms-min", "1000")
    server = Served(tmp_path / "data", *flags).wait_ready()
    port = server.port
    with server.wire("work") as wire:
        wire.create("work", 2)
        old = Classic(wire, "classic", ("work",))
        old.session_ms = 3000
        old.join()
        old.sync({old.id: b"all of it"})
        new = Modern(wire, "modern", "member", "work")
        eventually(lambda: new.beat().error_code == 0 and new.parts() == [[0, 1]])
    server.kill()
    with served(tmp_path / "data", *flags, port=port) as again:
        old.close()
        new.close()
        old.wire, new.wire = again.wire("work"), again.wire("work")
        assert old.beat() == 0
        assert old.sync().assignment == b"all of it"
        assert new.beat().member_epoch == new.epoch
        eventually(lambda: described(old.wire, "classic") == 0, 10)
        old.close()
        new.close()


def everything_said(wire: Wire, queues: list[str], groups: list[str]) -> list[Any]:
    """Return answers about queues and groups, byte for byte but for leader epochs."""
    said: list[Any] = []
    for queue in queues:
        said.append((queue, wire.list_offset(queue, -2).offset, wire.list_offset(queue, -1).offset))
        said.append(contents(wire, queue))
        topic = wire.metadata(queue, create=False).topics[0]
        said.append((topic.topic_id, len(topic.partitions)))
        resource = {"resource_type": 2, "resource_name": queue, "configuration_keys": None}
        values = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
        said.append(wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values).results)
    for group in groups:
        asked = {"group_id": group, "topics": None}
        answer = wire.call(
            ApiKey.OFFSET_FETCH, 8, {"groups": [asked], "require_stable": True}
        ).groups[0]
        said.append(sorted(answer.topics, key=lambda t: str(t.name)))
        values = {"groups": (group,), "include_authorized_operations": False}
        said.append(wire.call(ApiKey.DESCRIBE_GROUPS, 5, values).groups)
        values = {"group_ids": (group,), "include_authorized_operations": False}
        said.append(wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, values).groups)
    listed = wire.call(ApiKey.LIST_GROUPS, 5, {"states_filter": (), "types_filter": ()}).groups
    said.append(sorted((g.group_id, g.group_type, g.group_state) for g in listed))
    return said


def test_a_wiped_worker_is_rebuilt_to_the_same_answers(kafka: Kafka, tmp_path: Path) -> None:
    flags = (*EAGER, *QUICK, "--retention-check-ms", "200")
    workers = Workers(kafka, tmp_path, *flags, count=1, shards=1)
    with workers.running():
        worker = workers.workers[0]
        queues = ["kept", "expired", "limited", "plain"]
        groups = ["classic", "modern", "offsets", "emptied"]
        create(workers.address, "kept", partitions=1)
        create(workers.address, "expired", retention_ms="60000")
        create(workers.address, "limited", retention_bytes="40000")
        with worker.wire("plain") as wire:
            for queue in ("kept", "plain"):
                fill(wire, queue, 10)
            write(workers, "expired", [300] * 20, size=10_000)
            eventually(lambda: bounds(workers.address, "expired") == (20, 20))
            fill(wire, "limited", 60)
            eventually(lambda: wire.list_offset("limited", -2).offset > 50)
            alter(workers.address, "plain", retention_ms=99999999, kproxy_commit_rewind="deny")
            old = Classic(wire, "classic", ("kept",))
            old.session_ms = 60_000
            old.join()
            old.sync({old.id: b"mine"})
            assert old.commit("kept", 4) == 0
            new = Modern(wire, "modern", "member", "kept", "plain")
            eventually(lambda: new.beat().error_code == 0 and len(new.has) == 2)
            for group, offset in (("offsets", 3), ("emptied", 5)):
                commit(wire, group, "plain", offset)
            delete_groups(wire, "emptied")
            for i in range(3):
                fill(wire, f"busy-{i}", 60)
                trim(wire, f"busy-{i}", -1)
            log_trimmed_beyond(kafka, workers, 0, 100)
            time.sleep(1.5)  # nothing changes for as long as a publication takes: all rows are out
            before = everything_said(wire, queues, groups)
        worker.kill()
        shutil.rmtree(worker.data_dir)
        again = workers.again(0).wait_ready()
        workers.wait_served()
        assert again.event("shard_rebuilt")
        with again.wire("plain") as wire:
            after = everything_said(wire, queues, groups)
            for was, now in zip(before, after, strict=True):
                assert now == was
            assert wire.list_offset("expired", -1).offset == 20  # not 0
            old.close()
            new.close()
            old.wire, new.wire = wire, wire
            assert old.beat() == 0
            assert new.beat(topic_partitions=new.owned()).error_code == 0
            assert commit(wire, "offsets", "plain", 2) == 44
            assert committed(wire, "offsets", "plain") == 3


def test_retention_gives_the_real_log_back(kafka: Kafka, tmp_path: Path) -> None:
    flags = (*EAGER, "--retention-check-ms", "200")
    workers = Workers(kafka, tmp_path, *flags, count=1, shards=1)
    with workers.running():
        create(workers.address, "short", retention_ms="3000")
        with workers.wire("short") as wire:
            fill(wire, "long", 1)
            write(workers, "short", [0] * 150, size=10_000)
            log_trimmed_beyond(kafka, workers, 0, 140)
            assert len(contents(wire, "long")) == 1  # copied forward, and pins nothing
            assert wire.list_offset("short", -2).offset == 150


def test_commits_on_a_deleted_queue_go_in_every_shard(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, *EAGER, count=2, shards=8).running() as workers:
        create(workers.address, "doomed", "other")
        groups = [f"g{i}" for i in range(16)]
        for group in groups:
            with workers.wire(group) as wire:
                for queue in ("doomed", "other"):
                    eventually(lambda w=wire, g=group, q=queue: commit(w, g, q, 5) == 0)
        with workers.wire("doomed") as wire:
            wire.delete("doomed")
        create(workers.address, "doomed")
        for group in groups:
            with workers.wire(group) as wire:
                assert committed(wire, group, "doomed") == -1
                assert committed(wire, group, "other") == 5
        time.sleep(2.5)  # swept by now
        owners = workers.owners()
        for worker in workers.workers:
            worker.stop()
        assert kept_offsets(workers, owners) == {"other"}
        for index in range(2):
            workers.again(index).wait_ready()


def kept_offsets(workers: Workers, owners: dict[int, int]) -> set[str]:
    """Return names of queues with some group's offset left on a disk, '' for an absent queue."""
    from kproxy.store.rocks import RocksKv
    from kproxy.virtual.rows.offsets import partition_of_offset

    names, found = {}, set()
    for shard, worker in owners.items():
        kv = RocksKv(workers.directory / f"worker-{worker}" / f"shard-{shard}" / "rows", 1 << 20)
        for key, name in kv.scan(b"i", b"j"):
            names[key[1:]] = name.decode()
        found |= {partition_of_offset(key)[0] for key, _ in kv.scan(b"o", b"p")}
        kv.close()
    return {names.get(queue_id, "") for queue_id in found}


def test_a_commit_just_after_a_queue_is_made_again_is_filed_under_the_new_one(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The other worker files it, which has only just heard of the queue, if it has."""
    with Workers(kafka, tmp_path, count=2, shards=8).running() as workers:
        group = group_of_worker(workers, 0, "group")
        owners = workers.wait_balanced()
        names = (f"again-{i}" for i in range(1000))
        queue = next(n for n in names if owners[shard_of(n, 8)] == 1)
        with workers.wire(queue) as home, workers.wire(group) as other:
            home.create(queue)
            for i in range(1, 60):
                home.delete(queue)
                home.create(queue)
                while code := commit(other, group, queue, i):
                    assert code == 3  # it has not heard of the new one yet
                time.sleep(0.03)
                assert committed(other, group, queue) == i
