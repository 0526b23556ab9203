"""The batches that a producer sent before it knew of a refusal, while a shard is taken."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.handlers.produce import produce
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.batch import read_header
from kproxy.virtual.types import QueueId
from kproxy.worker.refused_batches import RefusedBatches
from tests.fakes import refused_append
from tests.handlers.test_handlers import Client
from tests.wire import batch, produce_values

KEY = (QueueId(b"q" * 16), 0)
NOT_LEADER = Code.NOT_LEADER_OR_FOLLOWER


class Taking(Client):
    """The state of a worker that may not serve its shard yet."""

    def __init__(self) -> None:
        super().__init__()
        routes: Any = self.worker.routes
        self._serving = routes.serving

    def serve(self, served: bool = True) -> None:
        routes: Any = self.worker.routes
        routes.serving = self._serving if served else lambda index: None

    async def send(self, sequence: int, *, producer_id: int = 7, epoch: int = 0) -> Any:
        """Send a batch; return the code and the base offset."""
        sent = batch(b"v", b"w", producer_id=producer_id, epoch=epoch, sequence=sequence)
        answer = await self.call(ApiKey.PRODUCE, 9, produce_values("q", sent))
        part = answer.responses[0].partition_responses[0]
        return Code(part.error_code), part.base_offset


async def taking() -> Taking:
    client = Taking()
    await client.produce("q", b"x")
    client.serve(False)
    return client


async def test_no_batch_is_taken_before_an_earlier_one_that_was_refused() -> None:
    """FAULT: it was, and its client took the earlier one for written: librdkafka does."""
    client = await taking()
    for sequence in (0, 2, 0):
        assert await client.send(sequence) == (NOT_LEADER, -1)
    client.serve()
    for sequence in (2, 4):
        assert await client.send(sequence) == (NOT_LEADER, -1)
    for number, sequence in enumerate((0, 2, 4, 6)):
        assert await client.send(sequence) == (Code.NONE, 1 + 2 * number)


async def test_none_is_taken_before_one_that_the_disk_refused() -> None:
    """FAULT: it was, once there was room; its client took the earlier one for written."""
    client = await taking()
    client.serve()
    shard: Any = client.worker.any_shard()
    append = shard.append

    shard.append, shard.refused_some = refused_append, True
    assert await client.send(0) == (Code.KAFKA_STORAGE_ERROR, -1)
    shard.append = append
    for sequence in (2, 4):
        assert await client.send(sequence) == (NOT_LEADER, -1)
    for number, sequence in enumerate((0, 2, 4)):
        assert await client.send(sequence) == (Code.NONE, 1 + 2 * number)


async def test_after_a_refusal_who_is_known_and_who_begins_are_taken() -> None:
    client = await taking()
    client.serve()
    shard: Any = client.worker.any_shard()
    assert await client.send(0) == (Code.NONE, 1)
    shard.refused_some = True
    assert await client.send(2) == (Code.NONE, 3)
    assert await client.send(2, producer_id=8) == (NOT_LEADER, -1)
    assert await client.send(0, producer_id=8) == (Code.NONE, 5)
    assert await client.send(2, producer_id=8) == (Code.NONE, 7)
    assert await client.send(6, producer_id=-1) == (Code.NONE, 9)
    client.worker.refused_batches.shards[shard.shard] -= 31  # seconds
    assert await client.send(4, producer_id=9) == (Code.NONE, 11)
    assert not client.worker.refused_batches.shards


async def test_none_is_taken_before_one_whose_settings_changed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: it was: the first had been refused without a word of it."""
    client = await taking()
    client.serve()
    real, changed = produce.inspect, True

    async def inspect(*of: Any) -> Any:
        return {} if changed else await real(*of)

    _, made = client.worker.catalogue.create("c", 1, {"compression.type": "gzip"})
    await made.wait()
    monkeypatch.setattr(produce, "inspect", inspect)

    async def send(sequence: int) -> Code:
        sent = batch(b"v", producer_id=7, epoch=0, sequence=sequence)
        answer = await client.call(ApiKey.PRODUCE, 9, produce_values("c", sent))
        return Code(answer.responses[0].partition_responses[0].error_code)

    assert await send(0) == NOT_LEADER
    changed = False
    assert [await send(sequence) for sequence in (1, 0, 1)] == [NOT_LEADER, Code.NONE, Code.NONE]


async def test_others_are_taken() -> None:
    client = await taking()
    assert await client.send(4) == (NOT_LEADER, -1)
    client.serve()
    assert await client.send(6) == (NOT_LEADER, -1)
    assert await client.send(6, producer_id=8) == (Code.NONE, 1)
    assert await client.send(6, producer_id=-1) == (Code.NONE, 3)
    assert await client.send(6, epoch=1) == (Code.NONE, 5)


async def test_a_producer_that_is_known_is_judged_by_what_is_known() -> None:
    client = await taking()
    client.serve()
    assert await client.send(0) == (Code.NONE, 1)
    client.serve(False)
    assert await client.send(2) == (NOT_LEADER, -1)
    client.serve()
    assert (await client.send(4))[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await client.send(2) == (Code.NONE, 3)


def header(sequence: int, producer_id: int = 7) -> Any:
    return read_header(batch(b"v", producer_id=producer_id, epoch=0, sequence=sequence))


@pytest.mark.parametrize(("first", "later"), [(5, 6), (0x7FFFFFFF, 0)])
def test_refused_batches_are_forgotten(first: int, later: int) -> None:
    """Else a producer whose state has expired would be refused for ever."""
    refused = RefusedBatches()
    refused.note(KEY, header(first), 10.0)
    refused.note(KEY, header(later), 39.0)
    assert refused.holds_back(KEY, header(later), 40.0)
    assert not refused.holds_back(KEY, header(later), 40.1)
    assert not refused.refused


def test_not_all_are_remembered() -> None:
    refused = RefusedBatches()
    for producer_id in range(10_002):
        refused.note(KEY, header(0, producer_id), 1.0)
    assert len(refused.refused) == 10_000
    assert not refused.holds_back(KEY, header(1, 1), 1.0)
    assert refused.holds_back(KEY, header(1, 2), 1.0)
