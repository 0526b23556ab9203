"""Each call of the client library fails once: callers see one exception, and threads go on."""

import ast
import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import to_thread
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException, TopicPartition

from kproxy.common.errors import CannotStart, Code, KafkaError
from kproxy.config.server import Config
from kproxy.loop.threads import Stop
from kproxy.metadata.levels import Level
from kproxy.upstream import (
    boundary,
    link,
    log_reader,
    membership,
    producer,
    read_topic,
    rows_writer,
    topic_tailer,
)  # fmt: skip
from kproxy.upstream.boundary import admin_client
from kproxy.upstream.link import DataLink
from kproxy.upstream.log_reader import LogReader, Records
from kproxy.upstream.membership import Membership, live_members
from kproxy.upstream.read_topic import read_to_end
from kproxy.upstream.rows_writer import NotPublished, RowsWriter
from kproxy.upstream.topic_tailer import Record, TopicTailer
from kproxy.upstream.topics import Topics
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.levels import NEWEST
from tests.harness import patient
from tests.upstream.consumers import FakeConsumer
from tests.upstream.test_topics import BYTES, UPSTREAM, Cluster, done

EXPECTED = (KafkaError, NotPublished, CannotStart)
CLIENTS = {"_consumer", "consumer", "_admin", "admin", "_producer"}
"""The names that the modules of `kproxy.upstream` give to the library's clients."""


class Library:
    """Counts the calls of the library, and fails one of them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fails: tuple[str, int] | None = None
        self.failed = False

    def call(self, name: str) -> None:
        self.calls[name] += 1
        if self.fails == (name, self.calls[name]):
            self.failed = True
            raise KafkaException(UpstreamError(UpstreamError._TRANSPORT))

    def client(self, made: Callable[..., Any]) -> Callable[..., Any]:
        def make(settings: dict[str, Any]) -> Any:
            self.call(made.__name__)
            return _Faulty(self, made(settings))

        return make


class _Faulty:
    def __init__(self, library: Library, inner: Any) -> None:
        self._library, self._inner = library, inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self._library.call(name)
            found = getattr(self._inner, name)(*args, **more)
            if isinstance(found, dict):
                return {key: _Promise(self._library, name, value) for key, value in found.items()}
            return found

        return call


class _Promise:
    def __init__(self, library: Library, name: str, future: Future[Any]) -> None:
        self._library, self._name, self._future = library, name, future

    def result(self) -> Any:
        self._library.call(f"{self._name}().result")
        return self._future.result()


class _Consumer(FakeConsumer):
    """Ends, and says so; a member of a group that has one shard."""

    _handlers: dict[str, Any] | None = None

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        if any(one.partition in self._at for one in partitions):
            raise KafkaException(UpstreamError(UpstreamError._CONFLICT))
        super().incremental_assign(partitions)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        if any(one.partition not in self._at for one in partitions):
            raise KafkaException(UpstreamError(UpstreamError._INVALID_ARG))
        super().incremental_unassign(partitions)

    def consume(self, count: int, seconds: float) -> list[Any]:
        found: list[Any] = super().consume(count, seconds)
        if not found and seconds and self._at:
            error = SimpleNamespace(code=lambda: UpstreamError._PARTITION_EOF)
            partition = next(iter(self._at))
            found.append(SimpleNamespace(
                topic=lambda: "t", partition=lambda: partition, error=lambda: error,
                offset=lambda: self._at[partition],
            ))  # fmt: skip
        return found

    def subscribe(self, topics: list[str], **handlers: Any) -> None:
        self._handlers = handlers

    def poll(self, seconds: float) -> None:
        handlers, self._handlers = self._handlers, None
        if handlers is not None:
            shard = [TopicPartition("t-data", 0, 0)]
            handlers["on_assign"](self, shard)
            handlers["on_revoke"](self, shard)
            handlers["on_assign"](self, shard)
            handlers["on_lost"](self, shard)
        threading.Event().wait(0.001)

    def unsubscribe(self) -> None:
        pass


class _Producer:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._line: list[Any] = []

    def __len__(self) -> int:
        return len(self._line)

    def init_transactions(self, seconds: float) -> None:
        pass

    begin_transaction = abort_transaction = purge = flush = lambda self, *_: None

    def commit_transaction(self, seconds: float) -> None:
        pass

    def produce(self, topic: str, value: Any, on_delivery: Any = None, **_: Any) -> None:
        if on_delivery is not None:
            self._line.append(on_delivery)

    def poll(self, seconds: float) -> None:
        while self._line:
            self._line.pop()(None, SimpleNamespace(offset=lambda: 5))
        threading.Event().wait(0.001)


class _AdminClient(Cluster):
    """A client of a cluster without topics, until they are made."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(shown_after=0)
        self._there = False

    def list_topics(self, timeout: float) -> Any:
        found = super().list_topics(timeout)
        return found if self._there else SimpleNamespace(topics={}, brokers={1: None})

    def create_topics(self, new: Any, operation_timeout: float) -> dict[str, Future[None]]:
        self._there = True
        return {topic.topic: done() for topic in new}

    def list_offsets(self, asked: Any, **_: Any) -> dict[Any, Future[Any]]:
        told = SimpleNamespace(offset=7, leader_epoch=None)
        return {partition: done(told) for partition in asked}

    def delete_records(self, asked: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {partition: done(SimpleNamespace(low_watermark=7)) for partition in asked}

    def describe_consumer_groups(self, groups: Any, **_: Any) -> dict[str, Future[Any]]:
        member = SimpleNamespace(client_id="here:1")
        return {group: done(SimpleNamespace(members=[member])) for group in groups}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    for module in (read_topic, topic_tailer, log_reader, membership):
        monkeypatch.setattr(module, "Consumer", library.client(_Consumer))
    for module in (rows_writer, producer):
        monkeypatch.setattr(module, "Producer", library.client(_Producer))
    monkeypatch.setattr(boundary, "AdminClient", library.client(_AdminClient))
    monkeypatch.setattr(producer, "library", lambda: None)
    for module, name in (
        (boundary, "_REST_S"), (log_reader, "_RETRY_S"), (topic_tailer, "_RETRY_S"),
        (producer, "_FLUSH_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.0)
    return library


async def eventually(done: Callable[[], object]) -> None:
    with anyio.fail_after(patient(10)):
        while not done():
            await anyio.sleep(0.001)


# -- what is called, from the outside


async def reads_a_topic() -> None:
    rows = [row for chunk in read_to_end(UPSTREAM, "t") for row in chunk]
    assert len(rows) == FakeConsumer.records


async def prepares_topics() -> None:
    Topics(
        admin_client(UPSTREAM), UPSTREAM, shards=2, message_bytes_max=BYTES, create=True,
        single_replica=True,
    ).prepare()  # fmt: skip


async def follows_a_topic() -> None:
    taken: list[int] = []

    async def deliver(records: list[Record]) -> None:
        taken.extend(record.offset for record in records)

    tailer = TopicTailer(UPSTREAM, {"t": 0}, deliver, lambda topic: None, pytest.fail)
    try:
        tailer.start()
        await eventually(tailer.caught_up.is_set)
        assert taken == list(range(FakeConsumer.records))
        await tailer.again("t", taken.clear)
        await eventually(lambda: taken == list(range(FakeConsumer.records)))
    finally:
        await to_thread.run_sync(tailer.close)


async def reads_logs() -> None:
    found: dict[int, list[tuple[int, Kind]]] = {0: [], 1: []}
    held = anyio.Event()

    async def deliver(partition: int, reader: object, records: Records) -> None:
        found[partition] += [(offset, envelope.kind) for offset, envelope in records]
        if partition == 1:
            await held.wait()

    reader = LogReader(UPSTREAM, deliver, lambda *lost: pytest.fail(str(lost)))
    whole = [(offset, Kind.APPEND) for offset in range(FakeConsumer.records)]
    try:
        reader.read(1, 0, FakeConsumer.records, "one")
        reader.read(0, 0, FakeConsumer.records, "other")
        await eventually(lambda: found[0] == whole and found[1])
        held.set()
        await eventually(lambda: found[1] == whole)
    finally:
        held.set()
        await to_thread.run_sync(reader.close)


async def is_a_member() -> None:
    told: list[Any] = []
    member = Membership(UPSTREAM, "here:1", 6000, told.append, told.append)
    await eventually(lambda: told)
    member.leave()
    await anyio.sleep(0.005)
    await to_thread.run_sync(member.close)
    assert told[0] == {0} or "cannot join" in told[0]
    assert await live_members(UPSTREAM) == ["here:1"]


async def publishes_rows() -> None:
    writer = RowsWriter(UPSTREAM, 0, BYTES)
    writer.fence(Stop())
    try:
        writer.write(iter([(b"k", b"v")]), 7, Stop())
    finally:
        writer.close()


@asynccontextmanager
async def a_link() -> AsyncIterator[DataLink]:
    made = DataLink(UPSTREAM, Config(bootstrap_servers="nowhere"), Level(NEWEST))
    try:
        yield made
    finally:
        await made.close()


async def asks_where_logs_end() -> None:
    async with a_link() as made:
        assert await made.end(0) == await made.start(0) == await made.queues_end() == 7
        assert await made.rows_settled(0)
        assert await made.trim(0, 7) == 7


async def appends() -> None:
    async with a_link() as made:
        outcomes = await made.land(0, [Envelope(Kind.CLAIM), Envelope(Kind.CLAIM)]).wait()
        taken = [outcome for outcome in outcomes if not outcome.code]
        assert len(taken) >= len(outcomes) - 1
        said = anyio.Event()
        made.publish_queue(b"k", b"v", said.set)
        await eventually(said.is_set)


async def fails_and_begins_anew() -> None:
    async with a_link() as made:
        made._appender._on_error(UpstreamError(UpstreamError._FATAL, "fatal", True))
        await anyio.sleep(0.01)
        await asyncio.sleep(0)
        assert (await made.land(0, [Envelope(Kind.CLAIM)]).wait())[0].code in (
            Code.NONE, Code.REQUEST_TIMED_OUT,
        )  # fmt: skip


SCENARIOS: list[Callable[[], Awaitable[None]]] = [
    reads_a_topic, prepares_topics, follows_a_topic, reads_logs, is_a_member, publishes_rows,
    asks_where_logs_end, appends, fails_and_begins_anew,
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_callers_see_no_exception_of_the_client_library(
    library: Library, scenario: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await scenario()
    calls = dict(library.calls)
    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    asyncio.get_running_loop().set_exception_handler(lambda _, about: ended.append(about))
    for name, times in calls.items():
        for turn in range(1, min(times, 2) + 1):
            library.calls.clear()
            library.fails, library.failed = (name, turn), False
            try:
                await scenario()
            except EXPECTED:
                pass
            except BaseException as error:
                raise AssertionError(f"{name}, call {turn}: {error!r}") from error
            assert library.failed or turn > 1, name
            assert not ended, (name, turn, ended)


async def test_each_call_of_the_client_library_is_made_to_fail(library: Library) -> None:
    for scenario in SCENARIOS:
        await scenario()
    library.fails = ("commit_transaction", library.calls["commit_transaction"] + 1)
    with pytest.raises(NotPublished):
        await publishes_rows()  # and takes it back
    reached = {name.removesuffix("().result") for name in library.calls}
    assert set(called()) <= reached


def called() -> Iterator[str]:
    """Yield the methods of the library's clients that `kproxy.upstream` calls."""
    for path in Path(link.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                name = getattr(owner, "attr", getattr(owner, "id", None))
                if name in CLIENTS:
                    yield node.func.attr
