"""Committed offsets by name, at a coordinator that is behind."""

from collections.abc import Iterable
from typing import Any

import anyio
import pytest

from kproxy.errors import Code, KafkaError
from kproxy.metadata.catalogue import new_queue_id
from kproxy.virtual.envelope import Kind, command
from kproxy.virtual.types import ShardId
from tests.handlers.test_handlers import Client

TOPICS = [{"name": "q", "partition_indexes": [0]}]
ASKED = {"groups": [{"group_id": "g", "topics": TOPICS}], "require_stable": False}


async def committed(client: Client) -> Any:
    answer = await client.call(9, 8, ASKED)
    return answer.groups[0]


async def with_an_offset() -> Client:
    client = Client()
    await client.produce("q", b"v")
    part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
            "committed_metadata": ""}  # fmt: skip
    values = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "q", "partitions": [part]}],
    }
    answer = await client.call(8, 8, values)
    assert answer.topics[0].partitions[0].error_code == Code.NONE
    return client


def test_a_queue_made_again_has_no_offsets_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: a coordinator that had not heard of it answered with the old queue's."""

    async def test() -> None:
        client = await with_an_offset()
        assert (await committed(client)).topics[0].partitions[0].committed_offset == 1
        shard: Any = client.worker.routes.serving(0)
        old = client.worker.catalogue.find("q")
        assert old is not None

        async def settled(names: Iterable[str]) -> None:
            """It hears of what has happened elsewhere."""
            assert list(names) == ["q"]
            values = {"name": "q", "partitions": 1, "configs": {}}
            shard.apply(command(Kind.DELETE, old.queue_id))
            shard.apply(command(Kind.CREATE, new_queue_id(ShardId(0), 1), values=values))

        monkeypatch.setattr(client.worker.routes, "settled", settled)
        assert (await committed(client)).topics[0].partitions[0].committed_offset == -1

    anyio.run(test)


def test_a_coordinator_that_cannot_know_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = await with_an_offset()

        async def settled(names: Iterable[str]) -> None:
            raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS, "the catalogue is being read")

        monkeypatch.setattr(client.worker.routes, "settled", settled)
        group = await committed(client)
        assert group.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        assert not group.topics

    anyio.run(test)
