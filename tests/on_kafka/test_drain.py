"""Workers that are drained, stopped and started again one after the other, under load."""

import signal
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.forked import run_kproxy
from tests.harness import Served, eventually, run_java
from tests.on_kafka.load import Load
from tests.real_kafka import Kafka
from tests.workers import Workers

QUEUES = [f"queue-{i}" for i in range(24)]
UNSERVED_S_MAX = 2.0
DRAINED = ("--drain-ms-max", "30000")
JAVA_RECORDS = 2000


def drain(worker: Served) -> None:
    done = run_kproxy("drain", "--data-dir", worker.data_dir)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "stopped\n"
    assert worker.process.wait(60) == 0


def terminate(worker: Served) -> None:
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0


class Java(threading.Thread):
    """Kafka's own producer and consumer, as they come."""

    def __init__(self, address: str, records: int, per_second: int) -> None:
        super().__init__()
        self.said: list[str] = []
        common = ("--bootstrap-server", address)
        self._commands = [
            ("org.apache.kafka.tools.ProducerPerformance", "--topic", "java", "--num-records",
             str(records), "--throughput", str(per_second), "--record-size", "100", *common),
            ("org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", "java", "--group",
             "java", "--max-messages", str(records), "--timeout-ms", "60000",
             "--command-property", "auto.offset.reset=earliest", *common),
        ]  # fmt: skip
        self.start()

    def run(self) -> None:
        threads = [threading.Thread(target=self._one, args=command) for command in self._commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, *command: str) -> None:
        done = run_java(*command, seconds=150)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("SSX")]
        self.said += [f"status {done.returncode}", *done.stderr.splitlines(), *lines]

    def check(self, records: int) -> None:
        said = "\n".join(self.said)
        assert self.said.count("status 0") == len(self._commands), said[-3000:]
        assert f"Processed a total of {records} messages" in said, said[-3000:]
        assert "xception" not in said, said[-3000:]
        assert f"\n{records} records sent" in said, said[-3000:]


def unserved_s(events: list[dict[str, object]], since: float) -> dict[int, float]:
    """Return the longest that nobody served each shard, in seconds."""
    serving: dict[int, int] = {}
    gone: dict[int, float] = {}
    longest: dict[int, float] = {}
    for event in sorted(events, key=lambda event: str(event["timestamp"])):
        shard = event.get("shard")
        if event["event"] not in ("shard_served", "shard_left") or not isinstance(shard, int):
            continue
        at = datetime.fromisoformat(str(event["timestamp"])).timestamp()
        serving[shard] = serving.get(shard, 0) + (1 if event["event"] == "shard_served" else -1)
        if not serving[shard]:
            gone[shard] = at
        elif shard in gone:
            if at > since:
                longest[shard] = max(longest.get(shard, 0.0), at - gone[shard])
            del gone[shard]
    assert not gone, gone
    return longest


def roll(workers: Workers, stop: object, rounds: int = 1) -> list[dict[str, object]]:
    """Stop and start each worker in turn; events of those that ended."""
    ended: list[dict[str, object]] = []
    for index in [*range(len(workers.workers))] * rounds:
        old = workers.workers[index]
        stop(old)  # type: ignore[operator]
        old._close()
        assert not old.faults(), old.faults()
        ended += old.events
        assert [e["left"] for e in old.events if e["event"] == "drained"] == [[]]
        workers.again(index).wait_ready(60)
        workers.wait_balanced(60)
    return ended


def _rolled(workers: Workers, how: object, rounds: int, java: Java | None) -> None:
    with Load(workers.address, QUEUES) as load:
        load.wait_for(1000)
        load.pauses_s.clear()
        began = time.time()
        ended = roll(workers, how, rounds)
        load.wait_for(1000)
    load.check()
    events = ended + [event for worker in workers.workers for event in worker.events]
    longest = unserved_s(events, began)
    assert not longest or max(longest.values()) < UNSERVED_S_MAX, longest
    assert not [e for e in events if e["event"] == "shard_failed"]
    if java is not None:
        java.join(120)


def test_a_rolling_restart_under_load_is_not_noticed(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, *DRAINED, count=3, shards=6).running() as workers:
        java = Java(workers.address, JAVA_RECORDS, 200)
        _rolled(workers, drain, 1, java)
        java.check(JAVA_RECORDS)
        _end_all(workers)


def _end_all(workers: Workers) -> None:
    """End all at once: nobody is left to hand anything to, and nobody waits for long."""
    for worker in workers.workers:
        worker.process.send_signal(signal.SIGTERM)
    for worker in workers.workers:
        assert worker.process.wait(20) == 0
        worker._close()
        (event,) = (e for e in worker.events if e["event"] == "drained")
        assert event["hint"] == "no other worker is there" or not event["left"]


@pytest.mark.long
@pytest.mark.parametrize("how", [drain, terminate])
def test_workers_are_rolled_for_minutes(kafka: Kafka, tmp_path: Path, how: object) -> None:
    with Workers(kafka, tmp_path, *DRAINED, count=3, shards=12).running() as workers:
        _rolled(workers, how, 6, None)


def test_sigint_and_a_second_sigterm_hand_nothing_over(kafka: Kafka, tmp_path: Path) -> None:
    """A restart within the session moves nothing: the shards wait for their worker."""
    flags = (*DRAINED, "--session-ms", "12000")
    with Workers(kafka, tmp_path, *flags, count=2, shards=4).running() as workers:
        before = workers.owners()
        refused = run_kproxy(
            "backup", "--data-dir", workers.workers[0].data_dir, "--to", tmp_path / "b"
        )
        assert (refused.returncode, "in its topics" in refused.stderr) == (1, True), refused
        workers.workers[1].process.send_signal(signal.SIGINT)
        assert workers.workers[1].process.wait(20) == 0
        workers.workers[1]._close()
        assert not workers.workers[1].event("draining")
        again = workers.again(1).wait_ready(60)
        workers.wait_served(60)
        assert workers.owners() == before
        again.process.send_signal(signal.SIGTERM)
        eventually(lambda: again.event("draining"))
        assert again.process.poll() is None
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(20) == 0
        again._close()
        workers.wait_served(60)
        assert set(workers.owners().values()) == {0}
