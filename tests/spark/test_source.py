"""The data source `kproxy`: the rows of Spark's own source, from many queues in few tasks."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import Served, served
from tests.spark import jobs
from tests.workers import Site

BEGAN_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    from kproxy.spark import register

    register(spark)
    return spark


def write(address: str, prefix: str, queues: int, records: int) -> None:
    """Write records of all shapes, in each compression."""
    for number, codec in enumerate(CODECS):
        settings = {"bootstrap.servers": address, "linger.ms": 20, "compression.type": codec}
        producer = Producer(settings)
        for i in range(records):
            for queue in range(number, queues, len(CODECS)):
                producer.produce(
                    f"{prefix}{queue}", None if i % 5 == 4 else b"v%d" % i * (1 + i % 3 * 100),
                    key=None if i % 3 == 2 else b"k%d" % i, timestamp=BEGAN_MS + i * 1000 - queue,
                    headers=[("a", b"%d" % i), ("a", None), ("ü", b"")] if i % 2 else [],
                )  # fmt: skip
        assert producer.flush(60) == 0


def load(reader: Any, address: str, **options: object) -> Any:
    reader = reader.format("kproxy").option("kafka.bootstrap.servers", address)
    return reader.options(**options).load()


def rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_rows_are_those_of_sparks_own_source(session: Any, site: Site) -> None:
    write(site.address, "alike-", 40, 12)
    asked = {"subscribePattern": "alike-.*", "includeHeaders": "true"}
    own = jobs.load(session.read, site.address, **asked)
    ours = load(session.read, site.address, prefix="alike-", partitions=3)
    assert ours.rdd.getNumPartitions() == 3
    assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in own.schema]
    expected = rows(own)
    assert len(expected) == 480
    assert rows(ours) == expected
    assert load(session.read, site.address, prefix="alike-").select("offset").count() == 480


def test_bounds_are_those_of_sparks_own_source(session: Any, server: Served) -> None:
    write(server.address, "bound-", 10, 12)
    for asked in (
        {"startingOffsets": '{"bound-1": {"0": 5}}', "endingOffsets": '{"bound-1": {"0": 9}}'},
        {"startingTimestamp": str(BEGAN_MS + 4000), "endingTimestamp": str(BEGAN_MS + 8000)},
    ):
        own = jobs.load(
            session.read, server.address, subscribe="bound-1", includeHeaders="true", **asked
        )
        assert rows(load(session.read, server.address, subscribe="bound-1", **asked)) == rows(own)
    frame = load(session.read, server.address, prefix="bound-", startingOffsets=10)
    assert [row.offset for row in rows(frame)] == [10, 11] * 10
    frame = load(session.read, server.address, subscribePattern="bound-[12]", endingOffsets=1)
    assert [row.topic for row in rows(frame)] == ["bound-1", "bound-2"]
    assert load(session.read, server.address, prefix="nobody-").count() == 0


def test_transactions_that_are_aborted_are_left_out(server: Served) -> None:
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": "source"})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("tx", b"%d" % number)
        producer.flush(30)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(30)
    producer.begin_transaction()
    producer.produce("tx", b"open")
    producer.flush(30)
    assert taken(server.address, subscribe="tx") == [b"0", b"2", b"4"]
    everything = {"kafka.isolation.level": "read_uncommitted"}
    found = taken(server.address, subscribe="tx", **everything)
    assert found == [b"%d" % number for number in range(6)] + [b"open"]
    producer.abort_transaction(30)


def plan(address: str, **options: str) -> tuple[Any, list[Any]]:
    """Return options and tasks, as the driver makes them."""
    from kproxy.spark import planning
    from kproxy.spark.options import read_options

    read = read_options({"kafka.bootstrap.servers": address, **options})
    with read.client() as client:
        return read, list(planning.batch(client, read))


def done(options: Any, tasks: list[Any]) -> list[tuple[str, int, bytes]]:
    """Return what the tasks read."""
    from kproxy.spark import reading

    def names(queue: str, records: list[Any]) -> list[str]:
        return [queue] * len(records)

    found = []
    for task in tasks:
        for batch in reading.read(options, task.spans(), names):
            columns = batch.to_pydict()
            found += zip(columns["topic"], columns["offset"], columns["value"], strict=True)
    return found


def taken(address: str, **options: str) -> list[bytes]:
    return [value for _, _, value in done(*plan(address, **options))]


def test_a_queue_that_is_trimmed_or_deleted_while_it_is_read(server: Served) -> None:
    from kproxy.spark.options import SourceError

    names = ("gone-kept", "gone-trimmed", "gone-deleted")
    jobs.write(server.address, [(name, b"", b"%d" % i, None) for i in range(10) for name in names])
    asked = {"prefix": "gone-", "partitions": "1"}
    _, alone = plan(server.address, subscribe="gone-deleted")
    strict, tasks = plan(server.address, **asked)
    loose, _ = plan(server.address, **asked, failOnDataLoss="false")
    assert len(done(strict, tasks)) == 30
    admin = AdminClient({"bootstrap.servers": server.address})
    trim = TopicPartition("gone-trimmed", 0, 4)
    admin.delete_records([trim])[trim].result(30)
    with pytest.raises(SourceError, match="gone-trimmed has lost its records 0 to 3 "):
        done(strict, tasks)
    admin.delete_topics([names[2]])[names[2]].result(30)
    with pytest.raises(SourceError, match="gone-deleted has lost its records 0 to 9 "):
        done(strict, tasks)
    assert done(loose, alone) == []
    found = done(loose, tasks)
    assert [(name, offset) for name, offset, _ in found] == [
        *(("gone-kept", i) for i in range(10)), *(("gone-trimmed", i) for i in range(4, 10)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give one of prefix, subscribe, subscribePattern, entrance"),
        ({"prefix": "a", "subscribe": "b"}, "give one of prefix"),
        ({"prefix": "a", "preifx": "b"}, "there is no option preifx"),
        ({"prefix": "a", "partitions": "0"}, "partitions is a number from 1 to 100000"),
        ({"prefix": "a", "startingOffsets": "first"}, "startingOffsets is earliest, latest"),
        ({"prefix": "a", "endingOffsets": "[]"}, "endingOffsets is earliest, latest"),
        ({"subscribePattern": "("}, "subscribePattern: missing"),
        ({"prefix": "a", "kafka.security.protocol": "SASL"}, "security.protocol is one of"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, str], said: str) -> None:
    from kproxy.spark.options import SourceError, read_options

    with pytest.raises(SourceError, match=said) as refused:
        read_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **options})
    assert "\n" not in str(refused.value)


def test_a_queue_that_is_not_there_is_one_line(session: Any, server: Served) -> None:
    with pytest.raises(Exception, match="SourceError: queue nowhere cannot be read") as refused:
        load(session.read, server.address, subscribe="nowhere").count()
    said = jobs.module("pipeline").one_line(refused.value)
    assert said.startswith("queue nowhere cannot be read: UNKNOWN_TOPIC_OR_PARTITION")


def test_tasks_cut_long_queues_and_gather_short_ones() -> None:
    from kproxy.spark.planning import Span, Spans, tasks

    spans = Spans()
    expected: dict[str, set[int]] = {}
    for number in range(1000):
        name, length = f"short-{number}", 3 if number != 500 else 50_000
        spans.add(Span(name, 0, 7, 7 + length))
        expected[name] = set(range(7, 7 + length))
    found = tasks(spans, 4)
    assert len(found) == 4
    costs = [task.spans().cost for task in found]
    assert max(costs) - min(costs) < 200
    for task in found:
        for queue, _, start, end, _ in task.spans():
            assert expected[queue].issuperset(range(start, end))
            expected[queue] -= set(range(start, end))
    assert not any(expected.values())
    assert tasks(Spans(), 4) == []


def test_a_plan_of_a_million_queues_takes_little_memory() -> None:
    from kproxy.spark.planning import Span, Spans, tasks

    spans = Spans()
    tracemalloc.start()
    for number in range(1_000_000):
        spans.add(Span(f"customer-{number}", 0, 0, 10))
    found = tasks(spans, 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 8
    assert peak < 120 << 20


def stream(session: Any, address: str, checkpoint: Path, **options: str) -> list[tuple[str, str]]:
    """Return (queue, value) of all that a stream takes now."""
    found: list[tuple[str, str]] = []

    def take(batch: Any, _: int) -> None:
        found.extend((row.topic, bytes(row.value).decode()) for row in batch.collect())

    frame = load(session.readStream, address, **options)
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return sorted(found)


@pytest.fixture
def entrance(server: Served) -> str:
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {"kproxy.route.to": "of-{key}", "kproxy.route.unroutable": "of.none"}
    admin.create_topics([NewTopic("into", 2, config=config)])["into"].result(30)
    return "into"


def test_a_stream_over_an_entrance_takes_each_record_once(
    session: Any, server: Served, entrance: str, tmp_path: Path
) -> None:
    asked = {"entrance": entrance, "startingOffsets": "earliest"}
    records = [(entrance, b"k%d" % (i % 30), b"%d" % i, None) for i in range(200)]
    jobs.write(server.address, [*records[:100], (entrance, b"", b"none", None)])
    expected = [(f"of-{key.decode()}", value.decode()) for _, key, value, _ in records]
    found = stream(session, server.address, tmp_path / "checkpoint", **asked)
    assert found == sorted([*expected[:100], ("of.none", "none")])
    jobs.write(server.address, records[100:])
    found = stream(session, server.address, tmp_path / "checkpoint", **asked)
    assert found == sorted(expected[100:])
    offsets = [path.read_text() for path in (tmp_path / "checkpoint" / "offsets").glob("[01]")]
    assert max(map(len, offsets)) < 1500
    with served(tmp_path / "other") as other:
        admin = AdminClient({"bootstrap.servers": other.address})
        config = {"kproxy.route.to": "of-{key}", "kproxy.route.unroutable": "of.none"}
        admin.create_topics([NewTopic(entrance, 2, config=config)])[entrance].result(30)
        with pytest.raises(Exception, match="SourceError: the checkpoint is of the cluster "):
            stream(session, other.address, tmp_path / "checkpoint", **asked)
    for refused, said in (
        ({"prefix": "of-"}, "a stream does not read by prefix"),
        ({"subscribe": "of-1", "endingOffsets": "5"}, "a stream has no end: leave endingoffsets"),
    ):
        with pytest.raises(Exception, match=f"SourceError: {said}"):
            stream(session, server.address, tmp_path / "none", **refused)
