"""Large requests and answers: off the loop, in parts, within the memory that there is."""

import threading
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode, encode_request, response_prefix
from kproxy.protocol.varint import Malformed
from kproxy.security.peer import Peer
from kproxy.server import dispatch, large_requests
from kproxy.server.dispatch import Accepted, accept, answer
from kproxy.server.rules import OPEN
from kproxy.virtual.commands.envelope import Kind
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker
from tests.generator import Repeated, request
from tests.present import present
from tests.wire import batch, fetch_values

MANY = 10_000


def given(accepted: Accepted, api: dispatch.Api) -> Accepted:
    """Return the same request, answered by another API."""
    accepted.api = api
    return accepted


def taken(worker: Worker, key: int, version: int, values: dict[str, Any]) -> Accepted:
    return accept(
        worker, encode_request(key, version, 1, values)[4:], Peer(host="here"), NextRequestSignal()
    )


def election_of(count: int) -> dict[str, Any]:
    """Return an ElectLeaders, of which each partition makes a part of the answer."""
    topics = [{"topic": "q", "partitions": tuple(range(count))}]
    return {"election_type": 0, "topic_partitions": topics, "timeout": 1000}


def threads_of(monkeypatch: pytest.MonkeyPatch, name: str) -> list[bool]:
    """Whether each call of a function of dispatch was on the loop's thread."""
    calls: list[bool] = []
    plain = getattr(dispatch, name)

    def noted(*arguments: Any) -> Any:
        calls.append(threading.current_thread() is threading.main_thread())
        return plain(*arguments)

    monkeypatch.setattr(dispatch, name, noted)
    return calls


@pytest.mark.parametrize(("count", "on_the_loop"), [(10, True), (MANY, False)])
async def test_a_large_request_is_decoded_off_the_loop(
    monkeypatch: pytest.MonkeyPatch, count: int, on_the_loop: bool
) -> None:
    calls = threads_of(monkeypatch, "admit_body"), threads_of(monkeypatch, "decode_admitted")
    encoded = threads_of(monkeypatch, "encode")

    worker = memory_worker()
    frame = await answer(worker, taken(worker, 43, 2, election_of(count)))
    assert isinstance(frame, bytes)
    parts = decode_response(43, 2, frame[4:])[1].replica_election_results[0].partition_result
    assert [part.partition_id for part in parts] == list(range(count))
    assert worker.decoded_memory.used == worker.answer_memory.used == 0
    assert calls == ([on_the_loop], [on_the_loop])
    assert encoded == [on_the_loop]


async def test_others_are_answered_while_a_large_request_is_decoded_and_answered() -> None:
    """It takes hundreds of turns of others, not one."""

    async def ask() -> int:
        worker = memory_worker()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            await answer(worker, taken(worker, 43, 2, election_of(100_000)))
            tasks.cancel_scope.cancel()
        return turns

    assert await ask() > 20


async def test_memory_of_a_large_request_is_counted_while_it_is_answered() -> None:
    async def ask() -> int:
        worker = memory_worker()
        used = 0

        async def handle(worker: Worker, request: Any) -> dict[str, Any]:
            nonlocal used
            used = worker.decoded_memory.used
            return {"error_code": 0, "replica_election_results": ()}

        api = dispatch.Api(key=43, low=0, high=2, handle=handle, rule=OPEN)
        await answer(worker, given(taken(worker, 43, 2, election_of(MANY)), api))
        assert worker.decoded_memory.used == 0
        return used

    assert await ask() > 100 * MANY


async def test_a_large_request_waits_for_memory_and_small_ones_do_not() -> None:
    async def ask(seconds: float) -> list[str]:
        worker = memory_worker(receive_stalled_ms_max=300, request_bytes_buffered_max=1000)
        done: list[str] = []

        async def one(name: str, count: int) -> None:
            await answer(worker, taken(worker, 43, 2, election_of(count)))
            done.append(name)

        worker.decoded_memory.take(2001)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "large", MANY)
            await anyio.sleep(0.01)
            await one("small", 10)
            await anyio.sleep(seconds)
            worker.decoded_memory.give_back(2001)
        return done

    assert await ask(0.0) == ["small", "large"]
    with pytest.raises(ExceptionGroup) as found:
        await ask(1.0)
    assert found.group_contains(Malformed, match="request_bytes_buffered_max")


async def test_memory_of_an_answer_is_counted_while_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []

    async def ask(**settings: Any) -> None:
        worker = memory_worker(**settings)

        def noted(*arguments: Any) -> bytes:
            used.append(worker.answer_memory.used)
            return encode(*arguments)

        monkeypatch.setattr(dispatch, "encode", noted)
        try:
            await answer(worker, taken(worker, 43, 2, election_of(MANY)))
        finally:
            assert worker.answer_memory.used == 0

    await ask()
    assert used[0] > 200 * MANY
    with pytest.raises(Malformed, match="answer_bytes_buffered_max"):
        await ask(answer_bytes_buffered_max=MANY * 100)
    assert len(used) == 1


async def test_an_answer_that_nobody_counted_is_counted_before_it_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_the_loop = threads_of(monkeypatch, "encode")
    parts = [{"partition_id": i, "error_code": 0, "error_message": "no"} for i in range(MANY)]
    result = {"topic": "q", "partition_result": parts}

    async def handle(worker: Worker, request: Any) -> dict[str, Any]:
        return {"error_code": 0, "replica_election_results": [result]}

    async def ask(**settings: Any) -> None:
        worker = memory_worker(**settings)
        api = dispatch.Api(key=43, low=0, high=2, handle=handle, rule=OPEN)
        await answer(worker, given(taken(worker, 43, 2, election_of(1)), api))

    await ask()
    assert on_the_loop == [False]
    with pytest.raises(Malformed, match="answer_bytes_buffered_max"):
        await ask(answer_bytes_buffered_max=MANY * 100)


def test_an_answer_larger_than_a_frame_can_be_is_not_begun() -> None:
    with pytest.raises(Malformed, match="larger than a frame"):
        response_prefix(3, 12, 1, 2**31 - 3)


def test_weight_is_counted_no_further_than_is_asked_for() -> None:
    assert large_requests.weight({"a": "é" * 10, "b": b"xy"}, 1000) == 300 + 40 + 2
    endless: list[Any] = []
    endless.append(endless)
    assert 1000 < large_requests.weight({"a": endless}, 1000) < 2000


# -- a Produce of very many parts


def produce_many(queues: int, partitions: int, acks: int = -1) -> bytes:
    parts = [{"index": i, "records": batch(b"v")} for i in range(partitions)]
    topics = [{"name": f"q{number}", "partition_data": parts} for number in range(queues)]
    values = {"transactional_id": None, "acks": acks, "timeout": 1, "topic_data": topics}
    return encode_request(ApiKey.PRODUCE, 9, 1, values)[4:]


@pytest.mark.parametrize(("queues", "partitions"), [(3000, 1), (1, 3000), (3, 1100)])
async def test_a_produce_of_very_many_parts_is_appended_in_parts(
    queues: int, partitions: int
) -> None:
    frame = produce_many(queues, partitions)

    worker = memory_worker(partitions_default=partitions)
    accepted = accept(worker, frame, Peer(), NextRequestSignal())
    assert accepted.call is None
    before = worker.catalogue.find("q0")
    assert before is None
    shard, sizes = worker.any_shard(), []
    append = shard.append

    def noted(envelopes: Any) -> Any:
        sizes.append(len(envelopes))
        return append(envelopes)

    shard.append = noted  # type: ignore[method-assign]
    response = await answer(worker, accepted)
    assert isinstance(response, bytes)
    assert max(sizes) <= 500
    topics = decode_response(0, 9, response[4:])[1].responses
    assert [topic.name for topic in topics] == [f"q{number}" for number in range(queues)]
    for topic in topics:
        assert [(p.index, p.error_code) for p in topic.partition_responses] == [
            (index, 0) for index in range(partitions)
        ]


async def test_a_produce_of_very_many_parts_with_acks_0_is_not_answered() -> None:
    async def ask() -> Any:
        worker = memory_worker()
        return await answer(
            worker, accept(worker, produce_many(3000, 1, acks=0), Peer(), NextRequestSignal())
        )

    assert await ask() == b""


async def test_a_produce_of_more_parts_than_any_request_may_have_is_refused() -> None:
    with pytest.raises(Malformed, match="more elements"):
        accept(
            memory_worker(request_elements_max=100),
            produce_many(101, 1),
            Peer(),
            NextRequestSignal(),
        )

    async def ask() -> Any:
        worker = memory_worker(request_elements_max=5000)
        return await answer(
            worker, accept(worker, produce_many(3000, 1), Peer(), NextRequestSignal())
        )

    with pytest.raises(Malformed, match="more elements"):
        await ask()


async def test_a_consumer_of_a_hundred_thousand_queues_names_them_in_one_fetch() -> None:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    values = fetch_values({}) | {
        "topics": Repeated({"topic": "no-such-queue", "partitions": [part]}, 100_000)
    }

    async def ask() -> Any:
        worker = memory_worker()
        return await answer(
            worker, accept(worker, request(ApiKey.FETCH, 12, values), Peer(), NextRequestSignal())
        )

    assert await ask() is not None


async def test_a_short_produce_takes_the_last_records_of_a_partition() -> None:
    worker = memory_worker(partitions_default=2)
    parts = [{"index": i % 2, "records": batch(b"%d" % i)} for i in range(400)]
    topics = [{"name": "q", "partition_data": some} for some in (parts[:7], parts[7:])]
    values = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": topics}
    frame = present(taken(worker, 0, 9, values).response())
    (topic,) = decode_response(0, 9, frame[4:])[1].responses
    found = [(part.index, part.base_offset) for part in topic.partition_responses]
    assert found == [(0, 0), (1, 0)]
    shard: Any = worker.any_shard()
    appended = [envelope.body for envelope in shard.log if envelope.kind == Kind.APPEND]
    assert appended == [batch(b"398"), batch(b"399")]
