"""Routes asked for by CreateTopics, IncrementalAlterConfigs, AlterConfigs, CreatePartitions."""

import json
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.metadata.setting import SET_BY
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.levels import ROUTES_FROM
from kproxy.virtual.rows.routes import EPOCHS_MAX
from tests import bodies
from tests.handlers.test_handlers import Client
from tests.present import present

TOPIC = 2
SET, DELETE, APPEND = 0, 1, 2
TO, FROM, FILTER = "kproxy.route.to", "kproxy.route.from", "kproxy.route.filter"
UNROUTABLE, CONFIGS = "kproxy.route.unroutable", "kproxy.route.configs"
ENTRANCE = {TO: "d-{key}", UNROUTABLE: "lost"}
INVALID = Code.INVALID_CONFIG

Answer = tuple[Code, str | None]


class Queues(Client):
    async def create(
        self, name: str, configs: dict[str, str] | None = None, *, partitions: int = 1,
        dry: bool = False,
    ) -> Answer:  # fmt: skip
        values = bodies.creation(name, partitions=partitions, configs=configs, dry=dry)
        (one,) = (await self.call(ApiKey.CREATE_TOPICS, 7, values)).topics
        return Code(one.error_code), one.error_message

    async def change(self, name: str, *changes: Any, dry: bool = False) -> Answer:
        values = bodies.change(TOPIC, name, *changes, dry=dry)
        (one,) = (await self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)).responses
        return Code(one.error_code), one.error_message

    async def replace(self, name: str, configs: dict[str, str], *, dry: bool = False) -> Answer:
        values = bodies.replacement(TOPIC, name, configs, dry=dry)
        (one,) = (await self.call(ApiKey.ALTER_CONFIGS, 2, values)).responses
        return Code(one.error_code), one.error_message

    async def grow(self, name: str, count: int) -> Answer:
        values = bodies.growth(name, count=count)
        (one,) = (await self.call(ApiKey.CREATE_PARTITIONS, 3, values)).results
        return Code(one.error_code), one.error_message

    def configs(self, name: str) -> dict[str, str]:
        queue = present(self.worker.catalogue.find(name))
        return {name: value for name, value in queue.configs.items() if name != SET_BY}


OK: Answer = (Code.NONE, None)


def refused(answer: Answer, code: Code, *words: str) -> None:
    assert answer[0] == code
    said = answer[1] or ""
    assert all(word in said for word in words), said
    assert said.isprintable()
    assert len(said) < 800


async def test_an_entrance_is_made_changed_and_ended() -> None:
    client = Queues()
    assert await client.create("in", ENTRANCE, partitions=8, dry=True) == OK
    assert client.worker.catalogue.find("in") is None
    configs = ENTRANCE | {CONFIGS: "retention.ms: 5 "}
    assert await client.create("in", configs, partitions=8) == OK
    assert client.configs("in") == ENTRANCE | {CONFIGS: "retention.ms:5"}
    assert await client.change("in", (TO, SET, "e-{key}"), dry=True) == OK
    assert client.configs("in")[TO] == "d-{key}"
    assert await client.change("in", (TO, SET, "e-{key}")) == OK
    assert client.configs("in")[TO] == "e-{key}"
    assert await client.change("in", (TO, DELETE, None)) == OK
    assert client.configs("in") == {UNROUTABLE: "lost", CONFIGS: "retention.ms:5"}
    assert await client.change("in", ("retention.ms", SET, "7")) == OK
    assert await client.replace("in", ENTRANCE) == OK
    assert client.configs("in") == ENTRANCE
    assert await client.replace("in", {}) == OK
    assert client.configs("in") == {}


async def test_a_filter_is_made_changed_and_ended() -> None:
    client = Queues()
    assert await client.create("orders", partitions=3) == OK
    assert await client.create("red", {FROM: "orders", FILTER: "header:tag:red"}) == OK
    assert await client.change("red", (FILTER, SET, "header:tag:blue")) == OK
    assert await client.create("all", {FROM: "orders", "kproxy.route.from.start": "true"}) == OK
    assert await client.change("red", (FROM, DELETE, None), (FILTER, DELETE, None)) == OK
    assert client.configs("red") == {}


@pytest.mark.parametrize(
    ("configs", "partitions", "words"),
    [
        ({TO: "d-{key}"}, 1, (UNROUTABLE,)),
        (ENTRANCE | {UNROUTABLE: "made"}, 1, ("this queue itself",)),
        ({FROM: "made"}, 1, ("this queue itself",)),
        (ENTRANCE, 9, ("1 to 8 partitions, not 9",)),
        ({FROM: "orders"}, 2, ("has 1 partition, not 2",)),
        ({FROM: "none"}, 1, ("kproxy.route.from=none", "create it first")),
        ({FROM: "red"}, 1, ("not routed on", "name orders")),
        ({FROM: "orders", TO: "d-{key}", UNROUTABLE: "lost"}, 1, ("exclude each other",)),
        (ENTRANCE | {TO: "{key}\x1b[2J"}, 1, (r"kproxy.route.to={key}\x1b[2J: it must",)),
        (ENTRANCE | {CONFIGS: "retention.ms:x"}, 1, (CONFIGS, "retention.ms=x")),
        ({FROM: "orders", FILTER: "tag = 'red'"}, 1, (FILTER, "a condition must be")),
        ({FROM: "orders", FILTER: "(a+)+$" * 5_000}, 1, (FILTER, "not be longer")),
    ],
)
async def test_refused_wherever_it_is_set(
    configs: dict[str, str], partitions: int, words: tuple[str, ...]
) -> None:
    client = Queues()
    assert await client.create("orders") == OK
    assert await client.create("red", {FROM: "orders"}) == OK
    for dry in (True, False):
        refused(await client.create("made", configs, partitions=partitions, dry=dry), INVALID,
                *words)  # fmt: skip
    assert client.worker.catalogue.find("made") is None
    assert await client.create("made", partitions=partitions) == OK
    changes = [(name, SET, value) for name, value in configs.items()]
    for dry in (True, False):
        refused(await client.change("made", *changes, dry=dry), INVALID, *words)
        refused(await client.replace("made", configs, dry=dry), INVALID, *words)
    assert client.configs("made") == {}


async def test_an_end_alone_is_refused_where_it_leaves_nothing_sound() -> None:
    client = Queues()
    assert await client.create("in", ENTRANCE) == OK
    refused(await client.change("in", (UNROUTABLE, DELETE, None)), INVALID, UNROUTABLE)
    refused(await client.change("in", (UNROUTABLE, SET, "in")), INVALID, "this queue itself")
    refused(await client.change("in", (TO, APPEND, "x")), INVALID, "is not a list")
    refused(await client.change("in", (FROM, SET, "lost")), INVALID, "exclude each other")
    assert client.configs("in") == ENTRANCE


async def test_a_queue_whose_source_is_gone_can_be_changed() -> None:
    client = Queues()
    assert await client.create("orders") == OK
    assert await client.create("red", {FROM: "orders"}) == OK
    await client.delete("orders")
    assert await client.change("red", ("retention.ms", SET, "7")) == OK
    assert await client.replace("red", {FROM: "orders", "retention.ms": "8"}) == OK
    assert await client.change("red", (FROM, SET, "orders")) == OK
    refused(await client.change("red", (FROM, SET, "gone")), INVALID, "create it first")


async def test_partitions_are_added_as_far_as_a_route_allows() -> None:
    client = Queues()
    assert await client.create("in", ENTRANCE, partitions=2) == OK
    assert (await client.grow("in", 8))[0] == Code.NONE
    refused(await client.grow("in", 9), Code.INVALID_PARTITIONS, "1 to 8 partitions, not 9")
    assert await client.create("red", {FROM: "in"}) == OK
    refused(await client.grow("red", 2), Code.INVALID_PARTITIONS, "has 1 partition, not 2")
    assert await client.change("red", (FROM, DELETE, None)) == OK
    assert (await client.grow("red", 2))[0] == Code.NONE
    refused(await client.change("red", (FROM, SET, "in")), INVALID, "has 1 partition, not 2")


async def test_below_their_level_nothing_of_routes_is_taken() -> None:
    client = Queues()
    assert await client.create("orders") == OK
    client.worker.level.value = ROUTES_FROM - 1
    words = (f"needs level {ROUTES_FROM}", "kproxy upgrade --finalize")
    refused(await client.create("in", ENTRANCE), INVALID, *words)
    refused(await client.create("red", {FROM: "orders"}), INVALID, *words)
    refused(await client.change("orders", ("kproxy.route.keep", SET, "true")), INVALID, *words)


async def test_settings_are_shown_with_what_they_are_for() -> None:
    client = Queues()
    assert await client.create("in", ENTRANCE) == OK
    resource = {"resource_type": TOPIC, "resource_name": "in", "configuration_keys": None}
    values = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    answer = await client.call(ApiKey.DESCRIBE_CONFIGS, 4, values)
    found = {one.name: one for one in answer.results[0].configs if "kproxy.route" in one.name}
    assert {name: (one.value, one.config_source) for name, one in found.items()} == {
        CONFIGS: ("", 5), FILTER: ("", 5), FROM: ("", 5), "kproxy.route.from.start": ("false", 5),
        "kproxy.route.keep": ("true", 5), "kproxy.route.lag.max": ("1000000", 5),
        "kproxy.route.queues.max": ("10000000", 5), TO: ("d-{key}", 1), UNROUTABLE: ("lost", 1),
    }  # fmt: skip
    assert all(one.documentation and not one.read_only for one in found.values())


ROUTES = "kproxy.state.routes"


async def standing(client: Queues, name: str, *keys: str) -> Any:
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys or None}
    values = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    answer = await client.call(ApiKey.DESCRIBE_CONFIGS, 4, values)
    return {one.name: one for one in answer.results[0].configs}


async def told(client: Queues, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((await standing(client, name, ROUTES))[ROUTES].value)
    return sorted(found, key=lambda one: (one["queue"], one["partition"]))


async def test_how_routes_stand_is_told_who_asks_for_it() -> None:
    """Nobody passes anything on here: what is produced waits."""
    client = Queues()
    assert await client.create("in", ENTRANCE, partitions=2) == OK
    await client.produce("in", b"a", b"b")
    assert await client.create("red", {FROM: "in"}) == OK
    await client.produce("in", b"c")
    assert ROUTES not in await standing(client, "in")
    asked = await standing(client, "in", ROUTES, TO)
    assert set(asked) == {ROUTES, TO}
    assert asked[ROUTES].read_only
    own = {"queue": "in", "landed": 0, "made": 0, "waits": None}
    assert await told(client, "in") == [
        own | {"partition": 0, "end": 3, "lag": 3},
        own | {"partition": 1, "end": 0, "lag": 0},
        {"queue": "red", "partition": 0, "landed": 2, "end": 3, "lag": 1, "made": 0, "waits": None},
        {"queue": "red", "partition": 1, "landed": 0, "end": 0, "lag": 0, "made": 0, "waits": None},
    ]  # fmt: skip
    assert await told(client, "red") == []
    assert await client.change("in", (TO, DELETE, None)) == OK
    await client.produce("in", b"d")
    left = await told(client, "in")
    assert [(one["queue"], one["partition"], one["end"], one["lag"]) for one in left] == [
        ("in", 0, 3, 3), ("red", 0, 4, 2), ("red", 1, 0, 0),
    ]  # fmt: skip
    await client.delete("red")
    left = await told(client, "in")
    assert [(one["queue"], one["partition"], one["lag"]) for one in left] == [
        ("in", 0, 3), ("red", 0, 2),
    ]  # fmt: skip


async def test_queues_without_routes_have_nothing_to_tell() -> None:
    client = Queues()
    assert await client.create("plain", partitions=3) == OK
    assert await told(client, "plain") == []
    assert await standing(client, "absent", ROUTES) == {}


async def test_a_route_is_not_changed_while_very_many_changes_wait_for_their_records() -> None:
    """FAULT: the change took the place of the last one: older records went where it said."""
    client = Queues()
    assert await client.create("in", ENTRANCE) == OK

    async def change(number: int) -> Answer:
        await client.produce("in", b"v")
        return await client.change("in", (TO, SET, f"e{number}-{{key}}"))

    for number in range(1, EPOCHS_MAX):
        assert await change(number) == OK
    assert await client.change("in", ("retention.ms", SET, "9")) == OK
    refused(await change(EPOCHS_MAX), INVALID, str(EPOCHS_MAX), "in, partition 0", "LAG")
    ended = ((TO, DELETE, None), (UNROUTABLE, DELETE, None))
    refused(await client.change("in", *ended), INVALID, "LAG")
