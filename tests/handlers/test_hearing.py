"""Commands about queues that another worker has made or dropped a moment ago."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from kproxy.common.errors import Code
from kproxy.metadata.catalogue import QueueIds
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.types import ShardId
from tests.bodies import change, creation, growth, replacement
from tests.commands import command
from tests.handlers.test_handlers import Client
from tests.kafka.at_versions.asked import codes

ID = QueueIds(1).new(ShardId(0))

ASKED: dict[str, tuple[ApiKey, int, dict[str, Any]]] = {
    "alter": (ApiKey.ALTER_CONFIGS, 2, replacement(2, "q", {"retention.ms": "5"})),
    "incremental": (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, change(2, "q", ("retention.ms", 0, "5"))),
    "delete": (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "q", "topic_id": UUID(int=0)}]}),
    "delete by id": (
        ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": UUID(bytes=bytes(ID))}]},
    ),
    "grow": (ApiKey.CREATE_PARTITIONS, 3, growth("q", count=2)),
    "elect": (ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": [
        {"topic": "q", "partitions": (0,)}]}),
    "reassign": (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, {"topics": [
        {"name": "q", "partitions": [{"partition_index": 0, "replicas": None}]}]}),
}  # fmt: skip
UNKNOWN = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID}


@pytest.mark.parametrize("what", ASKED)
async def test_a_queue_made_elsewhere_is_known_to_a_command(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """FAULT: a worker that had not heard of it yet answered that there is none."""
    client = Client()
    shard: Any = client.worker.routes.serving(0)

    async def heard(names: Iterable[str | None]) -> None:
        assert list(names) == [None if what == "delete by id" else "q"]
        values = {"name": "q", "partitions": 1, "configs": {}}
        shard.apply(command(Kind.CREATE, ID, values=values))

    monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", heard)
    key, version, values = ASKED[what]
    answer = await client.call(key, version, values | {"validate_only": False, "timeout": 1000})
    assert client.worker.catalogue.find("q") is not None or what.startswith("delete")
    assert not codes(answer) & UNKNOWN


async def test_a_queue_dropped_elsewhere_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: a worker that had not heard of it yet answered that it is there."""
    client = Client()
    made = creation("q")
    assert codes(await client.call(ApiKey.CREATE_TOPICS, 7, made)) == {0}
    shard: Any = client.worker.routes.serving(0)

    async def heard(names: Iterable[str | None]) -> None:
        old = client.worker.catalogue.find("q")
        if list(names) and old is not None:
            shard.apply(command(Kind.DELETE, old.queue_id))

    monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", heard)
    assert codes(await client.call(ApiKey.CREATE_TOPICS, 7, made)) == {0}


async def test_a_source_made_elsewhere_is_known_to_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: a worker that had not heard of it yet refused the route: INVALID_CONFIG."""
    client = Client()
    shard: Any = client.worker.routes.serving(0)
    ids = QueueIds(1)
    made_elsewhere: list[str] = []

    async def heard(names: Iterable[str | None]) -> None:
        for name in names:
            if name in ("a", "b") and client.worker.catalogue.find(name) is None:
                made_elsewhere.append(name)
                values = {"name": name, "partitions": 1, "configs": {}}
                shard.apply(command(Kind.CREATE, ids.new(ShardId(0)), values=values))

    monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", heard)
    made = creation("q", configs={"kproxy.route.from": "a"})
    assert codes(await client.call(ApiKey.CREATE_TOPICS, 7, made)) == {0}
    altered = change(2, "q", ("kproxy.route.from", 0, "b"))
    assert codes(await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered)) == {0}
    assert made_elsewhere == ["a", "b"]


async def test_a_queue_made_elsewhere_is_known_to_a_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: a worker that had not heard of it yet answered that it can be made."""
    client = Client()
    shard: Any = client.worker.routes.serving(0)

    async def heard(names: Iterable[str | None]) -> None:
        if list(names) == ["q"]:
            values = {"name": "q", "partitions": 1, "configs": {}}
            shard.apply(command(Kind.CREATE, ID, values=values))

    monkeypatch.setattr(client.worker.routes, "wait_for_catalogue", heard)
    asked = creation("q", dry=True)
    assert codes(await client.call(ApiKey.CREATE_TOPICS, 7, asked)) == {
        0, Code.TOPIC_ALREADY_EXISTS,
    }  # fmt: skip
