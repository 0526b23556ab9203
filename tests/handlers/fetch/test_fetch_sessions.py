"""A fetch session is its client's: who comes from elsewhere, or under another name, has none."""

from typing import Any

import pytest

from kproxy.fetching import poll, streamed_response
from kproxy.fetching.context import FetchPartition
from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.handlers.fetch import fetch
from kproxy.loop.pace import Pace
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.security.peer import Peer
from kproxy.server.dispatch import accept
from kproxy.server.dispatch import answer as respond
from kproxy.virtual.commands.queues import ConfigureQueue
from kproxy.worker.request import NextRequestSignal
from kproxy.worker.worker import Worker
from tests.fakes import chunks_of, memory_worker
from tests.handlers.test_handlers import Client
from tests.wire import batch, fetch_values, produce_values

NOT_FOUND = 70


async def fetched(
    worker: Worker, host: str, client_id: bytes = b"kproxy", offsets: Any = None, **more: Any
) -> Any:
    frame = encode_request(ApiKey.FETCH, 12, 1, fetch_values(offsets or {}, **more))[4:]
    frame = frame.replace(b"kproxy", client_id, 1)
    answer = await respond(worker, accept(worker, frame, Peer(host=host), NextRequestSignal()))
    assert isinstance(answer, StreamedResponse)
    return decode_response(1, 12, b"".join(await chunks_of(answer))[4:])[1]


def produce(worker: Worker, *values: bytes) -> None:
    for value in values:
        accept(
            worker,
            encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(value)))[4:],
            Peer(),
            NextRequestSignal(),
        )


async def test_a_session_is_its_clients() -> None:
    worker = memory_worker()
    produce(worker, b"v")
    first = await fetched(worker, "10.0.0.1", offsets={("q", 0): 0}, epoch=0)
    mine = first.session_id
    assert mine > 0
    for host, client_id in (("10.0.0.2", b"kproxy"), ("10.0.0.1", b"others")):
        for more in ({"epoch": 1}, {"epoch": 0}, {"epoch": -1}):
            answer = await fetched(worker, host, client_id, session_id=mine, **more)
            assert answer.error_code == (NOT_FOUND if more["epoch"] > 0 else 0)
            assert not answer.responses
    again = await fetched(worker, "10.0.0.1", session_id=mine, epoch=1)
    assert again.error_code == 0
    assert again.responses[0].partitions[0].records
    await fetched(worker, "10.0.0.1", session_id=mine, epoch=-1)
    gone = await fetched(worker, "10.0.0.1", session_id=mine, epoch=2)
    assert gone.error_code == NOT_FOUND


async def test_found_batches_count_until_they_are_sent() -> None:
    worker = memory_worker()
    produce(worker, *(b"v" for _ in range(100)))
    frame = encode_request(ApiKey.FETCH, 12, 1, fetch_values({("q", 0): 0}))[4:]
    answer = await respond(worker, accept(worker, frame, Peer(), NextRequestSignal()))
    assert isinstance(answer, StreamedResponse)
    with answer.pinned():
        assert worker.answer_memory.found.used > 100 * 100
        while await answer.read() is not None:
            pass
    assert worker.answer_memory.found.used == worker.answer_memory.used == 0


async def test_found_batches_stay_readable_while_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition looked at is followed by a turn for others, who may delete."""

    worker = memory_worker()
    worker.catalogue.create("q", 3)
    for index in range(3):
        frame = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(b"v"), index))[4:]
        accept(worker, frame, Peer(), NextRequestSignal())
    held: list[int] = []
    monkeypatch.setattr(Pace, "due", True)
    original = streamed_response.Pins.hold

    def hold(pins: streamed_response.Pins, stored: Any) -> None:
        some = list(stored)
        held.extend(len(piece.batches) for piece in some)
        original(pins, some)

    monkeypatch.setattr(fetch.Pins, "hold", hold)
    wanted: Any = {("q", index): 0 for index in range(3)}
    answer = await fetched(worker, "", offsets=wanted)
    assert all(part.records for part in answer.responses[0].partitions)
    assert held[:3] == [1, 1, 1]


async def test_a_session_of_no_bytes_gets_one_batch_each_time() -> None:
    """As in Kafka: the first batch is given whatever its size, in a session's later answers too."""
    worker = memory_worker()
    worker.catalogue.create("q", 2)
    produce(worker, b"first", b"second")
    first = await fetched(worker, "", offsets={("q", 0): 0, ("q", 1): 0}, epoch=0, max_bytes=0)
    mine: Any = {"session_id": first.session_id, "max_bytes": 0}
    (part,) = [part for part in first.responses[0].partitions if part.records]
    again = await fetched(worker, "", offsets={("q", 0): 1}, epoch=1, **mine)
    (topic,) = again.responses
    (part,) = topic.partitions
    assert b"second" in part.records


async def test_a_session_looks_again_where_its_queues_settings_have_changed() -> None:
    client: Any = Client()
    for name in ("q", "other"):
        await client.produce(name, b"v")
    answer = await client.fetch({("q", 0): 1, ("other", 0): 1}, epoch=0)
    looks: list[str | bytes] = []
    real = poll.plan_read

    def look(followed: FetchPartition, budget: Any) -> Any:
        looks.append(followed.ident[0])
        return real(followed, budget)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poll, "plan_read", look)
        await client.fetch({}, session_id=answer.session_id, epoch=1)
        queue_id = client.worker.catalogue.find("q").queue_id
        change = ConfigureQueue(queue_id, {"retention.ms": "5"}, [], False).envelope()
        assert not client.worker.any_shard().apply(change).code
        await client.fetch({}, session_id=answer.session_id, epoch=2)
    assert looks == ["q"]


async def test_client_without_read_rights_takes_no_session() -> None:
    """FAULT: a user without rights had all sessions."""
    worker = memory_worker(authorizer="acl")
    for _ in range(3):
        refused = await fetched(worker, "10.0.0.1", offsets={("q", 0): 0, ("r", 0): 0}, epoch=0)
        assert refused.session_id == 0
        codes = [topic.partitions[0].error_code for topic in refused.responses]
        assert codes == [29, 29]
    assert worker.sessions.count == 0
