"""The standing of lanes, for people, and the release of held ones."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.metadata.lane_settings import IN_FLIGHT, LANE, ON_DEAD
from tests.handlers.test_handlers import Client
from tests.shares.lanes.test_lanes import offsets, with_lanes
from tests.shares.test_polls import ACCEPT, GROUP, REJECT, Member

HOLDING = {LANE: "key", IN_FLIGHT: "1", ON_DEAD: "hold"}


async def standing(client: Client) -> Any:
    asked = [
        {"resource_type": 32, "resource_name": GROUP, "configuration_keys": ["kproxy.lanes.q"]}
    ]
    values = {"resources": asked, "include_synonyms": False, "include_documentation": False}
    answer = await client.call(32, 4, values)
    (config,) = answer.results[0].configs
    return json.loads(config.value)


async def release(client: Client, value: str) -> Code:
    change = {"name": "kproxy.lanes.q", "config_operation": 0, "value": value}
    asked = [{"resource_type": 32, "resource_name": GROUP, "configs": [change]}]
    answer = await client.call(44, 1, {"resources": asked, "validate_only": False})
    return Code(answer.responses[0].error_code)


async def test_the_largest_and_the_held_lanes_are_told() -> None:
    client = await with_lanes(HOLDING, b"a", b"b", *[b"c"] * 5)
    member = Member(client)
    assert offsets(await member.given()) == [0, 1, 2]
    await member.says((0, 0, (REJECT,)), (1, 1, (ACCEPT,)))
    told = (await standing(client))["0"]
    assert (told["lanes"], told["held"], told["looked_ahead"]) == (1, 1, 5)
    assert [(one["lane"], one["records"]) for one in told["largest"]] == [("c", 5)]
    assert [(one["lane"], one["held_at"]) for one in told["held_lanes"]] == [("a", 0)]


async def test_a_held_lane_is_released_by_its_hash_and_all_are_at_once() -> None:
    client = await with_lanes(HOLDING, b"a", b"b", b"a", b"b")
    member = Member(client)
    assert offsets(await member.given()) == [0, 1]
    await member.says((0, 1, (REJECT,)))
    held = {one["lane"]: one["hash"] for one in (await standing(client))["0"]["held_lanes"]}
    assert await member.given() == []
    assert await release(client, "gold") == Code.INVALID_CONFIG
    assert await release(client, held["b"]) == Code.NONE
    assert offsets(await member.given()) == [3]
    assert await release(client, "*") == Code.NONE
    assert offsets(await member.given()) == [2]


async def test_a_group_without_lanes_has_no_standing() -> None:
    client = await with_lanes({}, b"a")
    await Member(client).given()
    assert await standing(client) == {}


async def test_rows_of_held_lanes_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: all were in one go, when they were told of and when some were released."""
    client = await with_lanes(HOLDING, *[b"%d" % at for at in range(300)])
    member = Member(client)
    await member.given()
    await member.says((0, 299, (REJECT,)))
    kv: Any = client.worker.any_shard().state.kv
    walk, in_a_row = kv.walk, list[int]()

    def counted(*keys: bytes) -> Iterator[Any]:
        in_a_row.append(0)
        for row in walk(*keys):
            in_a_row[-1] += 1
            yield row

    monkeypatch.setattr(kv, "walk", counted)
    assert (await standing(client))["0"]["held"] == 300
    assert await release(client, "*") == Code.NONE
    assert (await standing(client))["0"]["held"] == 0
    assert max(in_a_row) < 300
