"""Local copies lost, behind or ahead; logs trimmed, truncated, written to by others."""

import shutil
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.envelope import Kind, from_record
from kproxy.virtual.partitioner import shard_of
from tests.harness import Served, eventually
from tests.kafka.groups.members import commit, committed
from tests.real_kafka import Kafka
from tests.wire import Wire, batch, batches
from tests.workers import Workers

# Housekeeping at once, in small pieces.
EAGER = (
    "--publish-ms", "300", "--keeper-period-ms", "100", "--segment-bytes", "200000",
    "--rows-flush-ms-max", "500",
)  # fmt: skip


def log_bounds(kafka: Kafka, topic: str, partition: int) -> tuple[int, int]:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    found = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        asked = TopicPartition(topic, partition)
        found.append(admin.list_offsets({asked: spec})[asked].result().offset)
    return found[0], found[1]


def records(kafka: Kafka, topic: str, partition: int) -> list[Any]:
    """Return every record of a partition, as the real Kafka has it."""
    start, end = log_bounds(kafka, topic, partition)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "raw"})
    consumer.assign([TopicPartition(topic, partition, start)])
    found: list[Any] = []
    while not found or found[-1].offset() < end - 1:
        found += [m for m in consumer.consume(1000, 0.5) if m.error() is None]
    consumer.close()
    return found


def fill(wire: Wire, queue: str, count: int, size: int = 10_000) -> None:
    row = wire.list_offset(queue, -1)
    first = row.offset if row.error_code == 0 else 0
    for i in range(first, first + count):
        answer = wire.produce(queue, batch(b"%d " % i + bytes(size)))
        assert (answer.error_code, answer.base_offset) == (0, i)


def contents(wire: Wire, queue: str) -> list[tuple[int, bytes]]:
    """Return every batch of a queue from its start on that has records, without what kproxy writes
    into its header.
    """
    offset = wire.list_offset(queue, -2).offset
    found: list[tuple[int, bytes]] = []
    while True:
        part = wire.fetch(queue, offset)
        assert part.error_code == 0
        if not part.records:
            return found
        for base, data in batches(part.records):
            if any(data[57:61]):
                found.append((base, data[16:]))
            offset = base + 1 + int.from_bytes(data[23:27])


def trim(wire: Wire, queue: str, offset: int) -> None:
    part = {"partition_index": 0, "offset": offset}
    values = {"topics": [{"name": queue, "partitions": [part]}], "timeout": 5000}
    answer = wire.call(ApiKey.DELETE_RECORDS, 2, values).topics[0].partitions[0]
    assert answer.error_code == 0


def log_trimmed_beyond(kafka: Kafka, workers: Workers, shard: int, offset: int) -> int:
    topic = f"{workers.prefix}-data"
    return eventually(
        lambda: (start := log_bounds(kafka, topic, shard)[0]) > offset and start, 30, 0.3
    )


def test_a_lost_disk_is_made_again_from_rows_and_log(kafka: Kafka, tmp_path: Path) -> None:
    """The log trimmed, some queues empty, one kept alive by copying forward, producers known."""
    workers = Workers(kafka, tmp_path, *EAGER, count=1, shards=1)
    with workers.running():
        worker = workers.workers[0]
        with worker.wire("a") as wire:
            pid = wire.producer_id()
            kept = batch(b"kept", producer_id=pid, epoch=0, sequence=0)
            assert wire.produce("kept", kept).base_offset == 0
            fill(wire, "emptied", 30)
            fill(wire, "gone", 30)
            last = batch(b"last", producer_id=pid, epoch=0, sequence=7)
            assert wire.produce("emptied", last).base_offset == 30
            for other in range(8):  # more than the partition's row has room for
                data = batch(b"x", producer_id=pid + 1000 + other, epoch=0, sequence=0)
                assert wire.produce("emptied", data).base_offset == 31 + other
            trim(wire, "emptied", -1)
            wire.delete("gone")
            for i in range(3):
                fill(wire, f"busy-{i}", 60)
                trim(wire, f"busy-{i}", 55)
            assert commit(wire, "group", "kept", 1) == 0
            log_trimmed_beyond(kafka, workers, 0, 100)
            fill(wire, "busy-0", 5)
            before = {q: contents(wire, q) for q in ("kept", "emptied", "busy-0", "busy-1")}
        worker.kill()
        shutil.rmtree(worker.data_dir)
        again = workers.again(0).wait_ready()
        workers.wait_served()
        rebuilt = again.event("shard_rebuilt")
        assert rebuilt
        assert rebuilt["log_start"] > 100
        with again.wire("a") as wire:
            assert {q: contents(wire, q) for q in before} == before
            assert wire.fetch("gone", 0).error_code == 3
            assert wire.list_offset("emptied", -1).offset == 39  # not 0
            assert wire.list_offset("emptied", -2).offset == 39
            assert committed(wire, "group", "kept") == 1
            assert wire.produce("kept", kept).base_offset == 0  # a repetition still
            assert wire.list_offset("kept", -1).offset == 1
            assert wire.produce("emptied", last).base_offset == 30
            late = wire.produce("emptied", batch(b"x", producer_id=pid, epoch=0, sequence=9))
            assert late.error_code == 45


def test_killed_while_a_lost_disk_is_made_again(kafka: Kafka, tmp_path: Path) -> None:
    """Rows go to disk as they come: what a kill leaves of them is no copy of the shard."""
    flags = ("--publish-ms", "300", "--rows-flush-bytes", "100KiB", "--log-level", "debug")
    workers = Workers(kafka, tmp_path, *flags, count=1, shards=1)
    queues = 12_000
    with workers.running():
        worker = workers.workers[0]
        data = batch(b"x" * 100)
        with worker.wire("a") as wire:
            for first in range(0, queues, 1000):
                parts = [{"index": 0, "records": data}]
                topics = [
                    {"name": f"q-{number}", "partition_data": parts}
                    for number in range(first, first + 1000)
                ]
                values = {"transactional_id": None, "acks": -1, "timeout": 30000}
                answer = wire.call(ApiKey.PRODUCE, 9, values | {"topic_data": topics})
                assert not any(t.partition_responses[0].error_code for t in answer.responses)

        def published() -> bool:
            told = [e["as_of"] for e in worker.events if e["event"] == "rows_published"]
            return bool(told) and told[-1] >= 2 * queues

        eventually(published, 30)
        worker.kill()
        shutil.rmtree(worker.data_dir)
        half = workers.again(0)
        rows = half.data_dir / "shard-0/rows"  # a second file: the first one is part of the rows
        eventually(lambda: len(list(rows.glob("*.sst"))) > 1, 30, 0.001)
        half.kill()
        assert half.event("shard_rebuilt") is None
        again = workers.again(0).wait_ready()
        workers.wait_served()
        assert again.event("local_copy_unfinished")
        assert again.event("shard_rebuilt")
        with again.wire("a") as wire:
            for number in (0, 1, queues // 2, queues - 1):
                assert wire.list_offset(f"q-{number}", -1).offset == 1
                assert len(contents(wire, f"q-{number}")) == 1
            assert wire.list_offset(f"q-{queues}", -1).error_code == 3


def test_a_log_trimmed_while_a_worker_was_down(kafka: Kafka, tmp_path: Path) -> None:
    workers = Workers(kafka, tmp_path, *EAGER, count=2, shards=2)
    with workers.running():
        first = workers.owner("q")
        index = workers.workers.index(first)
        with first.wire("q") as wire:
            fill(wire, "q", 30, 40_000)
        first.kill()
        workers.wait_served(12)
        with workers.wire("q") as wire:
            fill(wire, "q", 60, 40_000)
            trim(wire, "q", 35)
            log_trimmed_beyond(kafka, workers, shard_of("q", 2), 5)
            trim(wire, "q", 85)
            log_trimmed_beyond(kafka, workers, shard_of("q", 2), 40)
        other = workers.workers[1 - index]
        other.kill()
        again = workers.again(index).wait_ready()
        workers.wait_served(20)
        assert again.event("local_copy_discarded")
        with again.wire("q") as wire:
            assert [base for base, _ in contents(wire, "q")] == list(range(85, 90))
            assert wire.list_offset("q", -2).offset == 85
            assert wire.produce("q", batch(b"next")).base_offset == 90


def test_a_log_truncated_behind_a_local_copy(kafka: Kafka, tmp_path: Path) -> None:
    """As after an unclean leader election: the log's end is gone, and others wrote on."""
    workers = Workers(kafka, tmp_path, "--publish-ms", "600000", count=1, shards=1)
    with workers.running():
        worker = workers.workers[0]
        with worker.wire("q") as wire:
            for i in range(10):
                wire.produce("q", batch(b"%d" % i))
        worker.kill()
        truncate(kafka, workers, keep=6)
        again = workers.again(0).wait_ready()
        workers.wait_served(20)
        assert again.event("local_copy_discarded")
        with again.wire("q") as wire:
            left = b"".join(data[-2:-1] for _, data in contents(wire, "q"))
            assert left == b"01236789"
            assert wire.produce("q", batch(b"on")).base_offset == 10


def truncate(kafka: Kafka, workers: Workers, keep: int) -> None:
    """Make the data topic anew with its first records, and then its last ones, in other places."""
    topic = f"{workers.prefix}-data"
    kept = [(m.key(), m.value()) for m in records(kafka, topic, 0)]
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_topics([topic])[topic].result()
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics)
    configs = {"retention.ms": "-1", "max.message.bytes": "10485760", "segment.bytes": "134217728"}
    made = NewTopic(topic, 1, 1, config={**configs, "unclean.leader.election.enable": "false"})
    eventually(lambda: admin.create_topics([made])[topic].exception() is None, period=0.5)
    producer = Producer({"bootstrap.servers": kafka.address})
    appends = [r for r in kept if from_record(*r).kind == Kind.APPEND]
    for key, value in [*kept[:keep], *appends[-4:]]:
        producer.produce(topic, value, key=key, partition=0)
        producer.flush()


def test_records_of_others_are_skipped(kafka: Kafka, tmp_path: Path) -> None:
    workers = Workers(kafka, tmp_path, count=1, shards=1)
    topic = f"{workers.prefix}-data"
    with workers.running():
        worker = workers.workers[0]
        with worker.wire("q") as wire:
            assert wire.produce("q", batch(b"0")).base_offset == 0
            stranger = Producer({"bootstrap.servers": kafka.address})
            ours = records(kafka, topic, 0)[-1]
            altered = (ours.key(), ours.value() + b"!")
            for key, value in ((None, b"hello"), (b"k", None), (bytes(62), b"v"), altered):
                stranger.produce(topic, value, key=key, partition=0)
            stranger.flush()
            other = Producer({"bootstrap.servers": kafka.address, "transactional.id": "stranger"})
            other.init_transactions()
            for finish in (other.commit_transaction, other.abort_transaction):
                other.begin_transaction()
                other.produce(topic, b"in a transaction", partition=0)
                finish()
            assert wire.produce("q", batch(b"1")).base_offset == 1
            eventually(lambda: skipped(worker) >= 6)
        worker.kill()
        shutil.rmtree(worker.data_dir)
        again = workers.again(0).wait_ready()
        workers.wait_served()
        with again.wire("q") as wire:
            assert len(contents(wire, "q")) == 2
            assert wire.produce("q", batch(b"2")).base_offset == 2


def skipped(worker: Served) -> int:
    counts = [e["records"] for e in worker.events if e["event"] == "foreign_records_skipped"]
    return max(counts, default=0)


def test_a_queue_over_idle_shards_is_made_at_once(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, count=2, shards=12).running() as workers:
        admin = AdminClient({"bootstrap.servers": workers.address})
        admin.list_topics(timeout=10)
        took = []
        for name in ("wide", "wider", "widest"):
            began = time.monotonic()
            admin.create_topics([NewTopic(name, 12, 1)])[name].result(10)
            took.append(time.monotonic() - began)
        assert min(took) < 1
        for index in range(12):
            with workers.wire("wide", index) as wire:
                assert wire.produce("wide", batch(b"v"), partition=index).base_offset == 0
        admin.delete_topics(["wide"])["wide"].result(10)
        with workers.wire("wide", 5) as wire:
            eventually(lambda: wire.produce("wide", batch(b"v"), partition=5).error_code == 3)
