"""An EndTxn that arrives late must not end a later transaction (KAFKA-17754).

A connection dies, its EndTxn is still on the way, and the client sends it again over another one
and goes on. librdkafka's transactions are of version 1: the epoch stays, and the late request looks
just as the end of whatever is open now. On a real Kafka it ends that; the last test shows that it
does, so that the others are known to stage what they say.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.clients.calls import WAIT_S, create
from tests.clients.transactions.calls import (
    UNCOMMITTED,
    commit,
    ends,
    settle,
    transactional,
    values,
    write,
)
from tests.harness import eventually, free_port, served
from tests.real_kafka import Kafka
from tests.workers import Workers

END_TXN = 26


class Proxy:
    """Passes everything on, but may hold an EndTxn back and cut off who sent it."""

    def __init__(self) -> None:
        self.port, self.server_port = free_port(), 0
        self._hold = False
        self._held: tuple[bytes, asyncio.StreamWriter] | None = None
        self.answer: bytes | None = None  # to what was held; empty: the connection was closed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._started = threading.Event()
        self._thread.start()
        assert self._started.wait(60)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Hold the next EndTxn."""
        self._hold, self.answer = True, None

    def holds(self) -> bool:
        return self._held is not None

    def release(self) -> bytes:
        """Deliver what was held, over the connection that it was sent over; the answer."""
        assert self._held
        data, writer = self._held
        self._held = None
        self._loop.call_soon_threadsafe(writer.write, data)
        eventually(lambda: self.answer is not None, WAIT_S)
        assert self.answer is not None
        return self.answer

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._client, "127.0.0.1", self.port)
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                upstream = await asyncio.open_connection("127.0.0.1", self.server_port)
                await self._between(reader, writer, *upstream)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _between(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader, server: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        back = asyncio.create_task(self._back(answers, writer))
        try:
            while True:
                size = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(size))
                if self._hold and int.from_bytes(body[:2]) == END_TXN:
                    self._hold, self._held = False, (size + body, server)
                    back.cancel()
                    await asyncio.wait([back])
                    self.answer = await self._answer(answers, body[4:8])
                    return
                server.write(size + body)
                await server.drain()
        finally:
            back.cancel()
            server.close()

    async def _back(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await answers.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _answer(self, answers: asyncio.StreamReader, correlation: bytes) -> bytes:
        try:
            while True:
                size = int.from_bytes(await answers.readexactly(4))
                body = await answers.readexactly(size)
                if body[:4] == correlation:
                    return body
        except (OSError, asyncio.IncompleteReadError):
            return b""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    between = Proxy()
    try:
        yield between
    finally:
        between.close()


@pytest.fixture(params=["embedded", "kafka"])
def behind(request: pytest.FixtureRequest, proxy: Proxy, tmp_path: Path) -> Iterator[Proxy]:
    """Yield the proxy, before a kproxy that tells its clients to connect to it."""
    flags = ("--advertise", proxy.address)
    if request.param == "embedded":
        with served(tmp_path / "data", *flags) as server:
            proxy.server_port = server.port
            yield proxy
    else:
        kafka = request.getfixturevalue("kafka")
        with Workers(kafka, tmp_path, *flags, count=1).running() as workers:
            proxy.server_port = workers.workers[0].port
            yield proxy


def stage(proxy: Proxy, queue: str, first: Callable[[Producer], Any]) -> Producer:
    """Stage a transaction whose end came late, when a later one, still open, had records."""
    create(proxy.address, queue)
    producer = transactional(proxy.address, queue)
    commit(producer, [(queue, b"1")])
    producer.begin_transaction()
    write(producer, [(queue, b"2")])
    proxy.hold()
    first(producer)
    assert proxy.holds()
    producer.begin_transaction()
    write(producer, [(queue, b"3")])
    proxy.release()
    return producer


def commit_it(producer: Producer) -> None:
    producer.commit_transaction(WAIT_S)


def abort_it(producer: Producer) -> None:
    producer.abort_transaction(WAIT_S)


@pytest.mark.parametrize("first", [commit_it, abort_it])
@pytest.mark.parametrize("then", [commit_it, abort_it])
def test_a_late_end_ends_nothing(
    behind: Proxy, first: Callable[[Producer], Any], then: Callable[[Producer], Any]
) -> None:
    queue = "late"
    producer = stage(behind, queue, first)
    kept = [b"1", b"2"] if first is commit_it else [b"1"]
    assert values(behind.address, queue) == kept
    assert ends(behind.address, [queue]) != ends(behind.address, [queue], UNCOMMITTED)
    write(producer, [(queue, b"4")])
    then(producer)
    settle(behind.address, [queue])
    kept += [b"3", b"4"] if then is commit_it else []
    assert values(behind.address, queue) == kept
    commit(producer, [(queue, b"5")])
    settle(behind.address, [queue])
    assert values(behind.address, queue) == [*kept, b"5"]


def test_a_real_kafka_ends_the_later_transaction(proxy: Proxy, tmp_path: Path) -> None:
    """Kafka has the fault that this stages."""
    kafka = Kafka(tmp_path, advertise=proxy.port)
    try:
        proxy.server_port = kafka.port
        kafka.wait_ready()
        queue = "late"
        producer = stage(proxy, queue, commit_it)
        settle(proxy.address, [queue])  # its producer has not ended it
        assert values(proxy.address, queue) == [b"1", b"2", b"3"]
        with pytest.raises(KafkaException):
            producer.abort_transaction(WAIT_S)
    finally:
        kafka.stop()
