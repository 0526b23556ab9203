"""An answer counts what it has, however long that is: else one request would take all memory."""

from typing import Any

import anyio
import pytest

from kproxy.handlers.configs import describe
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.varint import Malformed
from tests.bodies import creation
from tests.handlers.test_handlers import Client
from tests.kafka.groups.streams import part, topic

LIMIT = 1 << 20
LONG = "x" * 30_000
TIMES = 150
WITHOUT = {"include_authorized_operations": False}
DESCRIBED = {"group_ids": ["g"] * TIMES} | WITHOUT


async def streams_member(client: Client, **more: Any) -> int:
    """Let a member join; return its epoch."""
    values = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "endpoint_information_epoch": 0,
        "instance_id": None, "rack_id": None, "rebalance_timeout": 5000,
        "topology": {"epoch": 0, "subtopologies": (part("0", "q"),)}, "active_tasks": (),
        "standby_tasks": (), "warmup_tasks": (), "process_id": "p", "user_endpoint": None,
        "client_tags": (), "task_offsets": None, "task_end_offsets": None,
        "shutdown_application": False,
    }  # fmt: skip
    answer = await client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, values | more)
    assert not answer.error_code
    return int(answer.member_epoch)


async def a_process(client: Client) -> Any:
    await streams_member(client, process_id=LONG)
    return ApiKey.STREAMS_GROUP_DESCRIBE, 0, DESCRIBED


async def settings_of_internal_topics(client: Client) -> Any:
    parts = (part("0", "q", state_changelog_topics=(topic("c", retention_ms=LONG),)),)
    await streams_member(client, topology={"epoch": 0, "subtopologies": parts})
    return ApiKey.STREAMS_GROUP_DESCRIBE, 0, DESCRIBED


async def endpoints(client: Client) -> Any:
    epoch = await streams_member(client)
    for number in range(TIMES):
        await streams_member(
            client, member_id=f"m{number}", user_endpoint={"host": LONG, "port": 1},
            endpoint_information_epoch=number + 1,
        )  # fmt: skip
    return ApiKey.STREAMS_GROUP_HEARTBEAT, 0, {
        "group_id": "g", "member_id": "m", "member_epoch": epoch, "endpoint_information_epoch": -1,
        "instance_id": None, "rack_id": None, "rebalance_timeout": -1, "topology": None,
        "active_tasks": None, "standby_tasks": None, "warmup_tasks": None, "process_id": None,
        "user_endpoint": None, "client_tags": None, "task_offsets": None, "task_end_offsets": None,
        "shutdown_application": False,
    }  # fmt: skip


async def topics_of_a_member(client: Client) -> Any:
    values = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 5000, "server_assignor": None,
        "subscribed_topic_names": [f"{number:0200}" for number in range(150)],
        "subscribed_topic_regex": None, "topic_partitions": (),
    }  # fmt: skip
    assert not (await client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, values)).error_code
    return ApiKey.CONSUMER_GROUP_DESCRIBE, 0, DESCRIBED


async def a_rack_of_a_share_member(client: Client) -> Any:
    values = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "rack_id": LONG,
        "subscribed_topic_names": ["q"],
    }  # fmt: skip
    assert not (await client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, values)).error_code
    return ApiKey.SHARE_GROUP_DESCRIBE, 1, DESCRIBED


async def an_instance_of_a_classic_member(client: Client) -> Any:
    values = {
        "group_id": "g", "member_id": "", "group_instance_id": LONG, "protocol_type": "consumer",
        "session_timeout": 6000, "rebalance_timeout": 6000, "reason": None,
        "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    assert not (await client.call(ApiKey.JOIN_GROUP, 9, values)).error_code
    return ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"] * TIMES} | WITHOUT


async def metadata_of_offsets(client: Client) -> Any:
    place = {"partition_index": 0, "committed_offset": 0, "committed_metadata": LONG[:4096]}
    await client.call(ApiKey.OFFSET_COMMIT, 8, {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": [{"name": "q", "partitions": [place]}],
    })  # fmt: skip
    asked = {"group_id": "g", "member_id": None, "member_epoch": -1}
    topics = [{"name": "q", "partition_indexes": [0] * 1000}]
    values = {"groups": [asked | {"topics": topics}], "require_stable": False}
    return ApiKey.OFFSET_FETCH, 9, values


async def all_metadata_of_offsets(client: Client) -> Any:
    values = (await metadata_of_offsets(client))[2]
    values["groups"] = [values["groups"][0] | {"topics": None}] * 1000
    return ApiKey.OFFSET_FETCH, 9, values


async def a_standing(client: Client) -> Any:
    name = {"resource_type": 2, "resource_name": "q", "configuration_keys": [describe.DELAYS]}
    asked = {"resources": [name] * TIMES, "include_synonyms": False}
    return ApiKey.DESCRIBE_CONFIGS, 4, asked | {"include_documentation": False}


REQUESTS = (
    a_process, settings_of_internal_topics, endpoints, topics_of_a_member,
    a_rack_of_a_share_member, an_instance_of_a_classic_member, metadata_of_offsets,
    all_metadata_of_offsets, a_standing,
)  # fmt: skip


@pytest.mark.parametrize("prepared", REQUESTS)
async def test_an_answer_of_long_texts_takes_no_more_memory_than_any(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: each part of it counted as much, however long, and a small request took gigabytes."""
    monkeypatch.setattr(describe, "waiting_for", lambda *_: {"next": LONG})
    client = Client(answer_bytes_buffered_max=LIMIT, group_initial_rebalance_delay_ms=0)
    await client.call(ApiKey.CREATE_TOPICS, 7, creation("q"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.worker.groups.run)
        with anyio.fail_after(60):
            request = await prepared(client)
            with pytest.raises(Malformed, match="answer_bytes_buffered_max"):
                await client.call(*request)
        tasks.cancel_scope.cancel()
    assert client.worker.answer_memory.used == 0
