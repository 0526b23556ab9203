"""The data source `kproxy` while servers stop, queues go and answers are late; without a Spark."""

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kproxy.tools.client import Client
from tests.harness import Served, free_port
from tests.spark import jobs
from tests.spark.test_source import done, plan

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")


class Clock:
    """The time of a task; a pause lets `then` happen first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: Any = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        then, self.then = self.then, None
        if then is not None:
            then()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    from kproxy.spark import options, planning, reading

    clock = Clock()
    for module in (options, planning, reading):
        fake = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep)
        monkeypatch.setattr(module, "time", fake)
    return clock


def fill(address: str, records: int, *queues: str) -> None:
    jobs.write(address, [(name, b"", b"%d" % i, None) for i in range(records) for name in queues])


def batches(options: Any, tasks: list[Any]) -> Iterator[Any]:
    from kproxy.spark import reading

    for task in tasks:
        yield from reading.read(options, task.spans(), lambda queue, found: [queue] * len(found))


def test_a_read_goes_on_once_its_server_is_there_again(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproxy.spark.columns._ROWS", 1)
    port = free_port()
    servers = [Served(tmp_path, port=port).wait_ready()]

    def stop() -> None:
        servers[-1].stop()
        clock.then = lambda: servers.append(Served(tmp_path, port=port).wait_ready())

    try:
        for _ in range(3):  # each its own batch and its own answer
            fill(servers[0].address, 1, "again")
        monkeypatch.setattr("kproxy.spark.reading._PARTITION_BYTES", 1)
        options, tasks = plan(servers[0].address, subscribe="again", partitions="1")
        stop()
        found = batches(options, tasks)  # an executor begins
        assert next(found).num_rows == 1
        clock.now += 1000  # Spark is slow to take what it was given
        stop()
        assert sum(batch.num_rows for batch in found) == 2
        stop()
        assert options.told(Client.cluster_id)  # the driver
        assert len(servers) == 4
    finally:
        for server in servers:
            server.kill()


def test_a_server_that_stays_away_is_said(clock: Clock) -> None:
    from kproxy.spark.options import SourceError, read_options
    from kproxy.spark.planning import Span, Spans, Task

    options = read_options(
        {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}", "subscribe": "q"}
    )
    spans = Spans()
    spans.add(Span("q", 0, 0, 1))
    with pytest.raises(SourceError, match="nothing serves at"):
        options.told(Client.cluster_id)
    with pytest.raises(SourceError, match="q has no leader that answers"):
        done(options, [Task(spans)])
    assert 120 < clock.now < 140


def test_a_trimmed_queue_that_moves_is_read_on(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server.address, 10, "moves")
    asked = {"subscribe": "moves", "partitions": "1", "failOnDataLoss": "false"}
    options, tasks = plan(server.address, **asked)
    trim = TopicPartition("moves", 0, 4)
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.delete_records([trim])[trim].result(30)
    asks, moved = Client.offsets, [{}]
    monkeypatch.setattr(
        Client, "offsets", lambda *given, **more: moved.pop() if moved else asks(*given, **more)
    )
    assert [offset for _, offset, _ in done(options, tasks)] == list(range(4, 10))
    assert not moved


def test_answers_over_a_quota_are_no_loss(
    server: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kproxy.spark import reading

    fill(server.address, 3, "quota")
    options, tasks = plan(server.address, subscribe="quota")
    asks, answers = reading._Task._asked, []

    def asked(*given: Any) -> Any:
        answer = asks(*given)
        answers.append(answer)
        if len(answers) > 20:
            return answer
        (topic,) = answer.responses
        (part,) = topic.partitions
        nothing = dataclasses.replace(part, records=b"")
        return dataclasses.replace(
            answer, throttle_time=timedelta(seconds=5),
            responses=(dataclasses.replace(topic, partitions=(nothing,)),),
        )  # fmt: skip

    monkeypatch.setattr(reading._Task, "_asked", asked)
    assert len(done(options, tasks)) == 3
    assert clock.now == 100  # the server takes nothing before


def test_great_keys_and_headers_make_small_batches_of_rows(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproxy.spark.columns._BYTES", 10_000)
    producer = Producer({"bootstrap.servers": server.address, "batch.num.messages": 1})
    for i in range(20):
        great = b"x" * 4000
        producer.produce("great", key=great if i % 2 else None,
                         headers=[] if i % 2 else [("h", great), ("h", None)])  # fmt: skip
    assert producer.flush(60) == 0
    found = list(batches(*plan(server.address, subscribe="great")))
    assert sum(batch.num_rows for batch in found) == 20
    assert max(batch.num_rows for batch in found) == 3


def test_a_queue_that_is_deleted_while_others_are_planned(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server.address, 2, "short-kept", "short-1", "short-2", "short-3")
    admin = AdminClient({"bootstrap.servers": server.address})
    asks, left = Client.offsets, ["short-1", "short-2", "short-3"]

    def offsets(*given: Any, **more: Any) -> Any:
        if left:
            admin.delete_topics([left[0]])[left.pop(0)].result(30)
        return asks(*given, **more)

    monkeypatch.setattr(Client, "offsets", offsets)
    asked = {"prefix": "short-", "startingTimestamp": "0"}
    assert [name for name, _, _ in done(*plan(server.address, **asked))] == ["short-kept"] * 2
    assert not left


def test_a_long_queue_is_cut_into_equal_tasks() -> None:
    from kproxy.spark.planning import Span, Spans, tasks

    spans = Spans()
    spans.add(Span("long", 0, 0, 1_000_000))
    costs = [task.spans().cost for task in tasks(spans, 1000)]
    assert max(costs) < 1.1 * 1_000_000 / 1000


def make_again(server: Served, queue: str, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.delete_topics([queue])[queue].result(30)
    fill(server.address, records, queue)


def test_a_queue_that_is_made_again_is_another(server: Served) -> None:
    from kproxy.spark.options import SourceError

    fill(server.address, 10, "anew")
    strict, tasks = plan(server.address, prefix="anew", partitions="2")
    loose, _ = plan(server.address, prefix="anew", failOnDataLoss="false")
    assert len(done(strict, tasks)) == 10
    make_again(server, "anew", 20)
    with pytest.raises(SourceError, match=r"anew has lost its records 0 to .* made again"):
        done(strict, tasks)
    assert done(loose, tasks) == []


def stream(server: Served, **options: str) -> Any:
    """Return a stream, as Spark makes one at each start of a query."""
    from kproxy.spark.source import KproxyDataSource

    asked = {"kafka.bootstrap.servers": server.address, **options}
    return KproxyDataSource(asked).streamReader(None)


def taken(reader: Any, start: Any, end: Any) -> list[tuple[str, int]]:
    """Return (queue, offset) of a stream's batch."""
    found = []
    for task in reader.partitions(start, end):
        for rows in map(pa.RecordBatch.to_pydict, reader.read(task)):
            found += zip(rows["topic"], rows["offset"], strict=True)
    return sorted(found)


def test_a_first_batch_that_is_done_again_is_the_same(server: Served) -> None:
    from kproxy.spark.options import SourceError

    names = ("cluster", "first")
    asked = {"subscribe": ",".join(names), "startingOffsets": '{"cluster": {"0": 1}}'}
    fill(server.address, 3, *names)
    reader = stream(server, **asked)
    end, start = reader.latestOffset(), reader.initialOffset()
    expected = [("cluster", 1), ("cluster", 2)]
    assert taken(reader, start, end) == expected
    fill(server.address, 2, *names)  # Spark has the end alone, and was killed
    reader = stream(server, **asked)
    assert taken(reader, reader.initialOffset(), end) == expected
    later = [(name, offset) for name in names for offset in (3, 4)]
    assert taken(reader, end, reader.latestOffset()) == later
    fewer = stream(server, subscribe="first")
    with pytest.raises(SourceError, match="the checkpoint is of a stream that reads cluster too"):
        fewer.partitions(end, fewer.latestOffset())
    fewer = stream(server, subscribe="first", failOnDataLoss="false")
    assert taken(fewer, end, fewer.latestOffset()) == later[2:]


def test_a_stream_of_a_queue_that_is_made_again(server: Served) -> None:
    from kproxy.spark.options import SourceError

    fill(server.address, 10, "renewed")
    strict, loose = (
        stream(server, subscribe="renewed", failOnDataLoss=fails) for fails in ("true", "false")
    )
    start = strict.latestOffset()
    make_again(server, "renewed", 20)
    end = strict.latestOffset()
    with pytest.raises(SourceError, match="renewed was deleted, and made again"):
        strict.partitions(start, end)
    assert len(taken(loose, start, end)) == 20
    before = {name: value for name, value in start.items() if name != "/made"}  # as it was
    assert len(taken(strict, before, end)) == 10
