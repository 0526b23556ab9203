"""A connection and its transport: what depends on the order within one turn of the loop."""

import asyncio
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.protocol.frames import FrameAssembler
from kproxy.server import connection
from kproxy.transactions.coordinator import TransactionCoordinator
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker
from tests.present import present
from tests.wire import batch, produce_values


class Limiter:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.admitted = asyncio.Event()

    def register(self, one: connection.Connection) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(one.run()))
        self.admitted.set()

    def unregister(self, one: connection.Connection) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def received(one: connection.Connection, data: bytes) -> None:
    """Do as if the loop had read this."""
    one.get_buffer(-1)[: len(data)] = data
    one.buffer_updated(len(data))


async def leaving(
    in_that_turn: Callable[[connection.Connection], None],
    asked: asyncio.Event | None = None,
    request: bytes = b"",
) -> None:
    """Have a client connect, ask, and leave in the turn in which something else happens."""
    limiter, made = Limiter(), []

    def make() -> connection.Connection:
        made.append(connection.Connection(memory_worker(), limiter))
        return made[0]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(request)
    await (asked or limiter.admitted).wait()
    await asyncio.sleep(0)  # `run` waits
    made[0].abort()
    in_that_turn(made[0])
    await asyncio.wait_for(limiter.tasks[0], 5)
    writer.close()
    server.close()


@pytest.mark.parametrize("size", [10, 5 << 20])
async def test_an_answer_is_ready_in_the_turn_the_client_leaves(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Its answer goes nowhere, and that is no fault. Seen as consumers of many queues left."""
    asked, answered = asyncio.Event(), asyncio.Event()

    async def answer(*_: object) -> bytes:
        asked.set()
        await answered.wait()
        return bytes(size)

    monkeypatch.setattr(connection, "answer", answer)
    request = encode_request(ApiKey.API_VERSIONS, 0, 1, {})
    with capture_logs() as lines:
        await leaving(lambda _: answered.set(), asked, request)
    assert not lines


async def test_a_request_has_its_turn_in_the_turn_the_client_leaves() -> None:
    """It is not answered: the connection is closed by then."""
    request = encode_request(ApiKey.API_VERSIONS, 0, 1, {})
    with capture_logs() as lines:
        await leaving(lambda one: received(one, request))
    assert not lines


async def said(request: bytes, worker: Worker | None = None, *, end: bool = False) -> bytes:
    """Return all that a connection answers to these bytes, up to its end, which `end` asks for."""
    limiter, served = Limiter(), worker or memory_worker()
    server = await asyncio.get_running_loop().create_server(
        lambda: connection.Connection(served, limiter), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(request)
    if end:
        writer.write_eof()
    answers = await asyncio.wait_for(reader.read(), 5)
    await asyncio.wait_for(limiter.tasks[0], 5)
    writer.close()
    server.close()
    return answers


@pytest.mark.parametrize("last", ["acks-0", "no-request"])
async def test_done_requests_are_answered_before_a_fault_ends_the_connection(last: str) -> None:
    """All of it within one turn of the loop."""
    fault = {
        "acks-0": encode_request(
            ApiKey.PRODUCE, 9, 9, produce_values("q", batch(b"v", crc=1), acks=0)
        ),
        "no-request": bytes([0, 0, 0, 10]) + bytes([0, 99]) + bytes(8),
    }[last]
    sound = b"".join(
        encode_request(ApiKey.PRODUCE, 9, number, produce_values("q", batch(b"v")))
        for number in range(3)
    )
    answers = await said(sound + fault)
    found = FrameAssembler(1 << 20).feed(answers)
    assert [int.from_bytes(frame[:4], "big") for frame in found] == [0, 1, 2]


async def test_large_and_small_requests_in_one_stream() -> None:
    """Large ones are read into memory of their own, past what is read for all."""
    worker = memory_worker()
    values = [b"x" * size for size in (100, 300_000, 9, 40_000, 700_000, 1)]
    requests = b"".join(
        encode_request(ApiKey.PRODUCE, 9, number, produce_values("q", batch(value)))
        for number, value in enumerate(values)
    )
    found = FrameAssembler(1 << 20).feed(await said(requests, worker, end=True))
    assert [int.from_bytes(frame[:4], "big") for frame in found] == list(range(len(values)))
    queue = present(worker.catalogue.find("q"))
    row = present(worker.shard("q", 0).state.partition((queue.queue_id, 0)))
    assert row.next_offset == len(values)  # each was sound
    assert worker.request_memory.used == 0


async def test_a_client_that_does_not_read_its_last_answers_is_disconnected() -> None:
    limiter, made = Limiter(), []

    def make() -> connection.Connection:
        made.append(connection.Connection(memory_worker(), limiter))
        return made[0]

    with capture_logs() as lines:
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await limiter.admitted.wait()
        one = made[0]
        one._transport.write(bytes(60_000))
        received(one, bytes(4))  # no request
        one._monotonic = lambda: time.monotonic() + 1000
        one.expire()
        await asyncio.wait_for(limiter.tasks[0], 5)
        writer.close()
        server.close()
    assert [line["event"] for line in lines] == ["request_refused", "client_does_not_read"]


async def test_a_client_that_recovers_is_no_news_to_be_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: each recovery of Flink was a warning, as a request that is malformed."""
    monkeypatch.setattr(TransactionCoordinator, "is_late", lambda *of: True)
    worker = memory_worker()
    asked = {
        "v3_and_below_transactional_id": "t", "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": "q", "partitions": [0]}],
    }  # fmt: skip
    made = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(b"v")))
    with capture_logs() as lines:
        await said(made + encode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 3, 2, asked), worker)
    (line,) = [line for line in lines if "request" in line["event"]]
    assert (line["event"], line["log_level"]) == ("request_superseded", "info")
    assert worker.counters.connections_ended == {"request_superseded": 1}
