"""Workers that die or stall under load: others take over, and nobody is lied to."""

import signal
from pathlib import Path

from tests.harness import eventually
from tests.on_kafka.load import Load
from tests.real_kafka import Kafka
from tests.wire import Wire
from tests.workers import Workers

SESSION_S = 6
QUEUES = [f"queue-{i}" for i in range(12)]


def test_a_killed_workers_shards_are_taken_over(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, count=3, shards=12).running() as workers:
        with Load(workers.address, QUEUES) as load:
            load.wait_for(2000)
            before = workers.owners()
            workers.workers[0].kill()
            workers.wait_served(SESSION_S + 20)
            after = workers.owners()
            moved = {shard for shard in before if before[shard] != after[shard]}
            assert moved == {shard for shard, worker in before.items() if worker == 0}
            assert moved
            load.wait_for(2000)
        load.check()


def test_a_restarted_worker_gets_its_shards_back_from_its_own_disk(
    kafka: Kafka, tmp_path: Path
) -> None:
    patient = ("--session-ms", "30000")  # a busy machine takes its time to start a process
    with Workers(kafka, tmp_path, *patient, count=2, shards=8).running() as workers:
        with Load(workers.address, QUEUES) as load:
            load.wait_for(2000)
            before = workers.owners()
            workers.workers[1].kill()
            again = workers.again(1).wait_ready()
            workers.wait_served(60)
            assert workers.owners() == before
            assert not again.event("shard_rebuilt")
            load.wait_for(1000)
        load.check()


def test_a_stalled_worker_wakes_up_to_a_world_that_went_on(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, count=2, shards=8).running() as workers:
        with Load(workers.address, QUEUES) as load:
            load.wait_for(2000)
            stalled = workers.workers[0]
            its_own = stalled.served_shards()
            assert its_own
            stalled.process.send_signal(signal.SIGSTOP)
            eventually(lambda: its_own <= workers.workers[1].served_shards(), SESSION_S + 4)
            load.wait_for(2000)
            stalled.process.send_signal(signal.SIGCONT)
            load.wait_for(2000)
            eventually(
                lambda: stalled.served_shards().isdisjoint(workers.workers[1].served_shards()), 20
            )
            workers.wait_served(20)
            load.wait_for(1000)
        load.check()
        with Wire(workers.workers[1].host, workers.workers[1].port) as wire:
            leaders = {
                part.leader_id
                for topic in wire.metadata(*QUEUES, create=False).topics
                for part in topic.partitions
            }
        assert -1 not in leaders
