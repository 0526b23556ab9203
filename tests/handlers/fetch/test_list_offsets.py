"""Looking for a time inside a batch: bounded in threads, memory and time."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import zstandard

from kproxy.handlers.common import by_time
from kproxy.loop.pace import Pace
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.protocol.varint import uvarint
from kproxy.security.peer import Peer
from kproxy.server.dispatch import accept
from kproxy.server.dispatch import answer as respond
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.rows import batches as batch_rows
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker
from tests.harness import patient
from tests.present import present
from tests.wire import batch, produce_values, record

ZSTD = 4


def varlong(value: int) -> bytes:
    return uvarint(value << 1 ^ value >> 127)


def produce(worker: Worker, data: bytes) -> int:
    accepted = accept(
        worker,
        encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", data))[4:],
        Peer(),
        NextRequestSignal(),
    )
    answer = decode_response(0, 9, present(accepted.response())[4:])[1]
    return int(answer.responses[0].partition_responses[0].error_code)


async def offset_at(worker: Worker, timestamp: int) -> tuple[int, int]:
    part = {"partition_index": 0, "timestamp": timestamp}
    topics = [{"name": "q", "partitions": [part]}]
    values = {"replica_id": -1, "isolation_level": 0, "timeout": 1, "topics": topics}
    frame = encode_request(ApiKey.LIST_OFFSETS, 10, 1, values)[4:]
    answer: Any = await respond(worker, accept(worker, frame, Peer(), NextRequestSignal()))
    found = decode_response(2, 10, bytes(answer[4:]))[1].topics[0].partitions[0]
    return found.offset, found.timestamp


def of_records(count: int, same: bool = False) -> bytes:
    """Return a batch whose records' times count up, or that repeats one record."""
    plain = b"".join(record(i, b"", time_delta=i) for i in range(1 if same else count))
    if same:
        plain *= count
    times = tuple(range(1000, 1000 + count))
    packed = zstandard.compress(plain)
    return batch(*[b""] * count, times=times, attributes=ZSTD, packed=packed)


async def test_more_records_than_the_bytes_can_hold_are_refused() -> None:
    worker = memory_worker()
    assert produce(worker, of_records(100_000, same=True)) == 87
    assert produce(worker, of_records(100_000)) == 0
    assert produce(worker, of_records(1)) == 0


async def test_a_record_is_found_in_a_packed_batch() -> None:
    worker = memory_worker()
    produce(worker, of_records(3000))
    assert await offset_at(worker, 3456) == (2456, 3456)
    assert await offset_at(worker, -3) == (2999, 3999)
    assert worker.answer_memory.used == 0


async def test_first_of_too_many_records_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = memory_worker()
    produce(worker, of_records(3000))
    monkeypatch.setattr(by_time, "_RECORDS_MAX", 1000)
    assert await offset_at(worker, 1500) == (500, 1500)
    assert await offset_at(worker, 3900) == (0, 3999)


def endless(_: bytes) -> Iterator[tuple[int, int]]:
    while True:
        yield 0, 0
        time.sleep(0.0001)


async def test_few_look_at_a_time_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = memory_worker()
    produce(worker, of_records(10))
    looking, most, used = 0, 0, 0
    lock = threading.Lock()

    def slow(_: bytes) -> Iterator[tuple[int, int]]:
        nonlocal looking, most, used
        with lock:
            looking += 1
            most, used = max(most, looking), max(used, worker.answer_memory.used)
        time.sleep(0.02)
        yield 5, 1005
        with lock:
            looking -= 1

    def counted(data: bytes) -> Iterator[tuple[int, int]]:
        yield from list(slow(data))

    monkeypatch.setattr(by_time, "record_times", counted)
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(offset_at, worker, 1005)
    assert (most, worker.answer_memory.used) == (2, 0)
    assert used > 0


async def test_neither_a_client_that_leaves_nor_a_stop_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = memory_worker()
    produce(worker, of_records(10))
    monkeypatch.setattr(by_time, "record_times", endless)
    monkeypatch.setattr(by_time, "_RECORDS_S", 30.0)
    monkeypatch.setattr(by_time, "_RECORDS_MAX", 1 << 60)
    with anyio.fail_after(patient(10)):
        with anyio.move_on_after(0.05):
            await offset_at(worker, 1005)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offset_at, worker, 1005)
            await anyio.sleep(0.05)
            worker.stop()
    assert worker.answer_memory.used == 0


async def test_a_queue_deleted_meanwhile_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the batches looked at first is late enough; the others go while it rests."""

    worker = memory_worker()
    monkeypatch.setattr(by_time, "_ROWS_AT_ONCE", 1)
    for time_ms in (5000, *[1000] * 10):
        assert produce(worker, batch(b"v", times=(time_ms,))) == 0
    shard: Any = worker.any_shard()
    key = (present(worker.catalogue.find("q")).queue_id, 0)
    shard.state.put(batch_rows.batch_key(*key, 0), None)
    row = shard.state.partition(key)
    row.log_start = 1

    async def rest(pace: Pace) -> None:
        for offset in range(3, 11):
            shard.state.put(batch_rows.batch_key(*key, offset), None)
        shard.state.drain()
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(Pace, "rest", rest)
    with anyio.fail_after(5):
        assert await offset_at(worker, 3000) == (-1, -1)


@pytest.mark.parametrize("name", ["offset", "time"])
async def test_records_that_lie_outside_their_batch_are_not_believed(name: str) -> None:
    far = varlong(1 << 40) if name == "offset" else varlong(0)
    head = b"\0" + (varlong(1 << 66) if name == "time" else varlong(0)) + far
    body = head + varlong(-1) + varlong(1) + b"v" + varlong(0)
    data = batch(times=(1000,), packed=varlong(len(body)) + body, count=1, last_delta=0)

    worker = memory_worker()
    assert produce(worker, data) == 0
    assert await offset_at(worker, 500) == (0, 1000)


async def test_a_record_that_comes_during_the_search_lies_behind_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: a share group that begins at a time began behind it, and never had it."""
    worker = memory_worker()
    for time_ms in (5000, 1000):
        assert produce(worker, batch(b"v", times=(time_ms,))) == 0
    shard: Any = worker.any_shard()
    queue = present(worker.catalogue.find("q"))
    shard.append([Trim(queue.queue_id, 0, 1, 0).envelope()])  # the largest time is gone

    async def rest(pace: Pace) -> None:
        assert produce(worker, batch(b"v", times=(4000,))) == 0

    monkeypatch.setattr(Pace, "rest", rest)
    key = queue.queue_id, 0
    assert await by_time.offset_by_time(worker, Pace(), shard, key, 3000) == 2
