"""Settings of groups on a real Kafka: made at any worker, known to all, and there after a crash."""

import shutil
from pathlib import Path

from kproxy.virtual.partitioner import shard_of
from tests.harness import Served, eventually
from tests.kafka.groups.test_group_configs_like_kafka import (
    DELETE,
    LIMIT,
    LOCK,
    SET,
    alter,
    given,
    listed,
)
from tests.on_kafka.test_storage import EAGER, fill, log_trimmed_beyond, trim
from tests.real_kafka import Kafka
from tests.wire import Wire
from tests.workers import Workers

DONE = ("NONE", None)
GROUPS = [f"group-{number}" for number in range(8)]


def at(worker: Served) -> Wire:
    return Wire(worker.host, worker.port)


def test_a_change_at_one_worker_is_seen_by_the_others(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, count=2, shards=4).running() as workers:
        owners = workers.owners()
        assert {owners[shard_of(group, 4)] for group in GROUPS} == {0, 1}
        with at(workers.workers[0]) as one, at(workers.workers[1]) as other:
            for group in GROUPS:
                assert alter(one, group, (LOCK, SET, "20000")) == DONE
                assert given(one, group) == {LOCK: "20000"}  # at once, whoever has the group
                eventually(lambda g=group: given(other, g) == {LOCK: "20000"}, 20)
            for value in ("3", "4", "5"):
                assert alter(one, GROUPS[0], (LIMIT, SET, value)) == DONE
                assert alter(other, GROUPS[0], (LIMIT, SET, f"{int(value) + 1}")) == DONE
            kept = {LOCK: "20000", LIMIT: "6"}
            eventually(lambda: given(one, GROUPS[0]) == given(other, GROUPS[0]) == kept, 20)
            for group in GROUPS[1:]:
                assert alter(other, group, (LOCK, DELETE, None)) == DONE
                assert given(other, group) == {}
                eventually(lambda g=group: given(one, g) == {}, 20)
            eventually(lambda: listed(one, "group-", 32) == GROUPS[:1], 20)
            assert listed(other, "group-", 32) == GROUPS[:1]


def test_settings_outlive_a_kill_a_takeover_and_a_lost_disk(kafka: Kafka, tmp_path: Path) -> None:
    flags = (*EAGER, "--session-ms", "6000")
    with Workers(kafka, tmp_path, *flags, count=2, shards=2).running() as workers:
        group = next(g for g in GROUPS if workers.owner(g) is workers.workers[1])
        gone = next(g for g in GROUPS if workers.owner(g) is workers.workers[1] and g != group)
        queue = f"q-{group}"
        with at(workers.workers[1]) as wire:
            assert alter(wire, group, (LOCK, SET, "20000"), (LIMIT, SET, "3")) == DONE
            assert alter(wire, group, (LIMIT, DELETE, None)) == DONE
            assert alter(wire, gone, (LOCK, SET, "20000")) == DONE
            assert alter(wire, gone, (LOCK, DELETE, None)) == DONE
        workers.workers[1].kill()
        with at(workers.workers[0]) as wire:
            workers.wait_served(60)
            assert (given(wire, group), given(wire, gone)) == ({LOCK: "20000"}, {})
            assert alter(wire, group, (LOCK, SET, "21000")) == DONE
            index = next(i for i in range(99) if shard_of(f"{queue}{i}", 2) == shard_of(group, 2))
            fill(wire, f"{queue}{index}", 60)
            trim(wire, f"{queue}{index}", 55)
            log_trimmed_beyond(kafka, workers, shard_of(group, 2), 20)
        workers.workers[0].kill()
        for worker in workers.workers:
            shutil.rmtree(worker.data_dir)
        again = workers.again(0).wait_ready()
        workers.wait_served(60)
        assert again.event("shard_rebuilt")
        with at(again) as wire:
            assert (given(wire, group), given(wire, gone)) == ({LOCK: "21000"}, {})
            eventually(lambda: listed(wire, "group-", 32) == [group], 20)
