"""The changes of one request are durable together, not item by item."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from kproxy.log.base import Ticket
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.envelope import Envelope
from tests.bodies import creation, growth
from tests.handlers.test_handlers import Client

COUNT = 120
NAMES = [f"n{i}" for i in range(COUNT)]
QUIET_TURNS = 20


class Commits:
    """A shard's log that commits what is in line once nobody puts more there."""

    def __init__(self, shard: Any) -> None:
        self.count = self.most = 0
        self._shard, self._line = shard, list[Ticket]()
        shard.append = self.append

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        self._line.append(ticket)
        if len(self._line) == 1:
            self._wait(QUIET_TURNS, 1)
        return ticket

    def _wait(self, turns: int, seen: int) -> None:
        turns = turns - 1 if len(self._line) == seen else QUIET_TURNS
        if turns:
            asyncio.get_running_loop().call_soon(self._wait, turns, len(self._line))
            return
        line, self._line = self._line, []
        self.count += 1
        self.most = max(self.most, len(line))
        for ticket in line:
            ticket.set_outcomes([self._shard.apply(one) for one in ticket.envelopes])


async def commit(client: Client, group: str, names: list[str]) -> None:
    part = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1,
            "committed_metadata": ""}  # fmt: skip
    values = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": name, "partitions": [part]} for name in names],
    }  # fmt: skip
    await client.call(ApiKey.OFFSET_COMMIT, 8, values)


REQUESTS: dict[str, tuple[ApiKey, int, dict[str, Any]]] = {
    "DeleteGroups": (ApiKey.DELETE_GROUPS, 2, {"groups_names": tuple(NAMES)}),
    "DeleteTopics": (
        ApiKey.DELETE_TOPICS, 6,
        {"topics": [{"name": name, "topic_id": UUID(int=0)} for name in NAMES], "timeout": 1},
    ),
    "DeleteRecords": (
        ApiKey.DELETE_RECORDS, 2,
        {"timeout": 1, "topics": [
            {"name": name, "partitions": [{"partition_index": 0, "offset": -1}]} for name in NAMES
        ]},
    ),
    "CreatePartitions": (
        ApiKey.CREATE_PARTITIONS, 3,
        growth(*NAMES, count=2),
    ),
    "IncrementalAlterConfigs": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1,
        {"validate_only": False, "resources": [
            {"resource_type": 2, "resource_name": name,
             "configs": [{"name": "retention.ms", "config_operation": 0, "value": "5"}]}
            for name in NAMES
        ]},
    ),
    "OffsetDelete": (
        ApiKey.OFFSET_DELETE, 0,
        {"group_id": "many",
         "topics": [{"name": name, "partitions": [{"partition_index": 0}]} for name in NAMES]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", REQUESTS)
async def test_a_request_is_durable_in_few_commits(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproxy.handlers.common.committing.OFFSETS_AT_ONCE", 10)
    client = Client()
    await client.metadata(*NAMES)
    for name in NAMES:
        await commit(client, name, NAMES[:1])
    await commit(client, "many", NAMES)
    commits = Commits(cast(Any, client.worker.any_shard()))
    key, version, values = REQUESTS[api]
    answer = await client.call(key, version, values)
    assert "error_code=<ErrorCode" not in str(answer).replace("error_code=<ErrorCode.none", "")
    assert 1 <= commits.count <= 5, "of 120 items"


async def test_creating_many_queues_is_durable_in_few_commits() -> None:
    client = Client()
    commits = Commits(cast(Any, client.worker.any_shard()))
    answer = await client.call(ApiKey.CREATE_TOPICS, 7, creation(*NAMES))
    assert {topic.error_code for topic in answer.topics} == {0}
    assert commits.count <= 5


async def test_next_queues_go_in_line_while_the_log_deletes_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20,000 queues in one request waited for forty commits; others' requests still go between."""
    monkeypatch.setattr("kproxy.handlers.topics.topics._DELETED_AT_ONCE", 10)
    client = Client()
    await client.metadata(*NAMES)
    commits = Commits(cast(Any, client.worker.any_shard()))
    named = [*NAMES[:60], "absent", *NAMES[60:]]
    topics = [{"name": name, "topic_id": UUID(int=0)} for name in named]
    answer = await client.call(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 1})
    assert [one.name for one in answer.responses] == named
    assert [one.name for one in answer.responses if one.error_code] == ["absent"]
    assert not any(map(client.worker.catalogue.find, NAMES))
    assert commits.most <= 20
    assert commits.count <= 7, "of twelve lots"
