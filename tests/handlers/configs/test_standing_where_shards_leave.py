"""The standing of a queue or a group, told without shards that leave while it is told."""

import json
from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import ResponseBudget
from kproxy.handlers.configs import describe
from kproxy.protocol.api_keys import ApiKey
from kproxy.store.rocks import RowsClosed
from tests.handlers.test_handlers import Client


@pytest.mark.parametrize(
    ("kind", "name", "asked", "look"),
    [
        (32, "g", "kproxy.state.q", "standing"),
        (2, "q", "kproxy.state.routes", "standing_of"),
        (2, "q", "kproxy.state.delays", "waiting_for"),
    ],
)
async def test_a_shard_that_leaves_between_two_partitions_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, kind: int, name: str, asked: str, look: str
) -> None:
    """FAULT: others had their turn between a partition's place and the look at its rows."""
    client = Client()
    worker = client.worker
    await worker.catalogue.create("q", 3)[1].wait()
    shard, real, found = worker.any_shard(), worker.partition, list[int]()

    def partition(topic: str | bytes, index: int) -> Any:
        if not shard.serving:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        found.append(index)
        return real(topic, index)

    async def step(budget: ResponseBudget, size: int = 0) -> None:
        shard.serving = shard.serving and not found

    looked = getattr(describe, look)

    def at(*where: Any) -> Any:
        if not shard.serving:
            raise RowsClosed
        return looked(*where)

    monkeypatch.setattr(worker, "partition", partition)
    monkeypatch.setattr(ResponseBudget, "step", step)
    monkeypatch.setattr(describe, look, at)
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [asked]}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, 4, values)).results
    assert result.error_code == Code.NONE
    assert not json.loads(result.configs[0].value) or kind == 32
    assert found == [0]
