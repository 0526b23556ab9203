"""Committed offsets by name, at a coordinator that is behind."""

from collections.abc import Iterable
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common import committing, hearing
from kproxy.metadata.catalogue import QueueIds
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.offsets import OffsetCommit
from kproxy.virtual.types import QueueId, ShardId
from tests import bodies
from tests.commands import command
from tests.handlers.test_handlers import Client
from tests.present import present

TOPICS = [{"name": "q", "partition_indexes": [0]}]
ASKED = {"groups": [{"group_id": "g", "topics": TOPICS}], "require_stable": False}


async def committed(client: Client) -> Any:
    answer = await client.call(ApiKey.OFFSET_FETCH, 8, ASKED)
    return answer.groups[0]


async def with_an_offset() -> Client:
    client = Client()
    await client.produce("q", b"v")
    answer = await client.call(ApiKey.OFFSET_COMMIT, 8, bodies.commit("g", "q", 1))
    assert answer.topics[0].partitions[0].error_code == Code.NONE
    return client


async def test_a_queue_made_again_has_no_offsets_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: a coordinator that had not heard of it answered with the old queue's."""

    client = await with_an_offset()
    assert (await committed(client)).topics[0].partitions[0].committed_offset == 1
    shard: Any = client.worker.routes.serving(0)
    old = present(client.worker.catalogue.find("q"))

    async def settled(names: Iterable[str]) -> None:
        """Have it hear of what has happened elsewhere."""
        assert list(names) == ["q"]
        values = {"name": "q", "partitions": 1, "configs": {}}
        shard.apply(command(Kind.DELETE, old.queue_id))
        shard.apply(command(Kind.CREATE, QueueIds(1).new(ShardId(0)), values=values))

    monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", settled)
    assert (await committed(client)).topics[0].partitions[0].committed_offset == -1


async def test_known_offsets_serve_while_the_cluster_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: an error that is no coordinator's; aiokafka took it for "nothing is committed"."""

    client = await with_an_offset()

    async def away(names: Iterable[str]) -> None:
        raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the cluster does not answer")

    async def slow(names: Iterable[str]) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(hearing, "_KNOWN_S", 0.01)
    for settled in (away, slow):
        monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", settled)
        group = await committed(client)
        assert group.error_code == Code.NONE
        assert group.topics[0].partitions[0].committed_offset == 1
    monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", away)
    values = {
        "group_id": "g",
        "topics": [{"name": "q", "partitions": [{"partition_index": 0}]}],
    }
    answer = await client.call(ApiKey.OFFSET_DELETE, 0, values)
    assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(1, 8))
async def test_the_first_version_says_in_each_partition_what_is_wrong_with_the_group(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: who asked a worker that is no coordinator any more heard of no offsets."""

    client = await with_an_offset()
    monkeypatch.setattr(client.worker.routes, "serving", lambda index: None)
    answer = await client.call(ApiKey.OFFSET_FETCH, version, {"group_id": "g", "topics": TOPICS})
    if version == 1:
        (part,) = answer.topics[0].partitions
        assert (part.committed_offset, part.error_code) == (-1, Code.NOT_COORDINATOR)
    else:
        assert (answer.error_code, answer.topics) == (Code.NOT_COORDINATOR, ())


async def test_member_that_joins_during_the_wait_for_the_catalogue_keeps_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: OffsetDelete looked at the group, and then waited."""

    async def test() -> None:
        client = await with_an_offset()
        waited = False

        async def settled(names: Iterable[str]) -> None:
            nonlocal waited
            waited = True

        async def load(group: str, **_: Any) -> Any:
            assert waited
            return None

        coordinator = client.worker.groups.of(client.worker.routes.all()[0])
        monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", settled)
        monkeypatch.setattr(coordinator, "load", load)
        values = {
            "group_id": "g",
            "topics": [{"name": "q", "partitions": [{"partition_index": 0}]}],
        }
        answer = await client.call(ApiKey.OFFSET_DELETE, 0, values)
        assert answer.topics[0].partitions[0].error_code == Code.NONE

    await test()


@pytest.mark.parametrize(
    ("metadata", "sizes"), [([""] * 7, [3, 3, 1]), (["m" * 6] * 3, [1, 1, 1]), (["m" * 99], [1])]
)
def test_offsets_of_one_command_are_bounded(
    metadata: list[str], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "OFFSETS_AT_ONCE", 3)
    monkeypatch.setattr(committing, "_METADATA_AT_ONCE", 10)
    wanted: list[committing.Wanted] = [
        ({}, OffsetCommit(QueueId(bytes(16)), index, 1, -1, text, False))
        for index, text in enumerate(metadata)
    ]
    lots = list(committing.lots(wanted))
    assert [len(lot) for lot in lots] == sizes
    assert [one for lot in lots for one in lot] == wanted
