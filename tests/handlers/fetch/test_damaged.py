"""Rows and batches that cannot be read: the answer says so of their partition, and of no other."""

from collections.abc import Iterator
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.store.rocks import RowsDamaged
from tests.handlers.test_handlers import Client
from tests.wire import batches


async def test_damaged_rows_of_a_partition_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: the connection ended, and with it the answer of all that the client follows."""
    client = Client()
    for name in "q", "r":
        await client.produce(name, b"0")
    kv: Any = client.worker.any_shard().state.kv
    damaged, walk = client.worker.partition("q", 0).key, kv.walk

    def walked(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if damaged[0] in start:
            raise RowsDamaged("block checksum mismatch")
        yield from walk(start, end)

    monkeypatch.setattr(kv, "walk", walked)
    answer = await client.fetch({("q", 0): 0, ("r", 0): 0})
    codes = {one.topic: one.partitions[0].error_code for one in answer.responses}
    found = {one.topic: one.partitions[0].records for one in answer.responses}
    assert codes == {"q": Code.KAFKA_STORAGE_ERROR, "r": Code.NONE}
    assert not found["q"]
    assert len(list(batches(found["r"]))) == 1


async def test_a_damaged_batch_fails_a_search_by_time_of_its_partition_alone() -> None:
    """FAULT: the connection ended."""
    client = Client()
    for name in "q", "r":
        await client.produce(name, b"0")
        if name == "q":
            segments: Any = client.worker.any_shard().segments
            segments.data[-1] ^= 1
    parts = [{"partition_index": 0, "timestamp": 0}]
    topics = [{"name": name, "partitions": parts} for name in ("q", "r")]
    values = {"replica_id": -1, "isolation_level": 0, "timeout": 1, "topics": topics}
    answer = await client.call(ApiKey.LIST_OFFSETS, 10, values)
    found = {one.name: one.partitions[0] for one in answer.topics}
    assert {name: one.error_code for name, one in found.items()} == {
        "q": Code.CORRUPT_MESSAGE,
        "r": Code.NONE,
    }
    assert found["r"].offset == 0
