"""Topics of Kafka's own state: nobody writes to them, and who reads them is told that."""

from typing import Any, cast
from uuid import UUID

import pytest

from kproxy.common.errors import Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.types import QueueId
from tests.bodies import creation
from tests.handlers.test_handlers import Client

NAMES = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
INVALID = Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("auto_create", [True, False])
async def test_nothing_is_written_to_a_topic_of_kafkas_own(auto_create: bool) -> None:
    client = Client(auto_create=auto_create)
    for name in NAMES:
        assert (await client.produce(name, b"v")).error_code == INVALID
        assert client.worker.catalogue.find(name) is None


async def test_one_that_an_earlier_kproxy_made_takes_no_more() -> None:
    client, name, queue_id = Client(), "__consumer_offsets", QueueId(b"o" * 16)
    shard = cast(Any, client.worker.any_shard())
    shard.apply(CreateQueue(queue_id, name, 1, {}).envelope())
    assert (await client.produce(name, b"v")).error_code == INVALID
    by_id = await client.produce(UUID(bytes=bytes(queue_id)), b"v", version=13)
    assert by_id.error_code == INVALID
    await client.delete(name)


async def test_readers_and_makers_are_told() -> None:
    client = Client()
    for name in NAMES:
        (topic,) = (await client.metadata(name)).topics
        assert (topic.error_code, len(topic.partitions)) == (INVALID, 0)
        (made,) = (await client.call(ApiKey.CREATE_TOPICS, 7, creation(name))).topics
        assert made.error_code == INVALID
        assert name in made.error_message
        answer = await client.fetch({(name, 0): 0})
        assert answer.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
