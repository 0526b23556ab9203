"""Settings of groups, asked for and changed: over a shard in memory.

`tests/kafka/groups/test_group_configs_like_kafka.py` compares all of it with a real Kafka.
"""

from datetime import timedelta
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.levels import SHARES_FROM
from tests import bodies
from tests.handlers.test_handlers import Client

TOPIC, GROUP = 2, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
LOCK, LIMIT = "share.record.lock.duration.ms", "share.delivery.count.limit"


class Groups(Client):
    async def change(self, group: str, *changes: Any, dry: bool = False) -> Code:
        values = bodies.change(GROUP, group, *changes, dry=dry)
        answer = await self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values)
        return Code(answer.responses[0].error_code)

    async def replace(self, group: str, **configs: str | None) -> Code:
        values = bodies.replacement(GROUP, group, configs)
        answer = await self.call(ApiKey.ALTER_CONFIGS, 2, values)
        return Code(answer.responses[0].error_code)

    async def shown(self, group: str, *names: str) -> dict[str, Any]:
        resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": names}
        values = {
            "resources": [resource], "include_synonyms": True, "include_documentation": True,
        }  # fmt: skip
        answer = await self.call(ApiKey.DESCRIBE_CONFIGS, 4, values)
        return {config.name: config for config in answer.results[0].configs}

    async def listed(self) -> list[str]:
        values = {"resource_types": (GROUP,)}
        answer = await self.call(ApiKey.LIST_CONFIG_RESOURCES, 1, values)
        return [one.resource_name for one in answer.config_resources]

    @property
    def logged(self) -> int:
        shard: Any = self.worker.any_shard()
        return sum(envelope.kind == Kind.CONFIGURE_GROUP for envelope in shard.log)


async def test_a_setting_is_set_shown_obeyed_and_taken_back() -> None:
    client = Groups()
    assert client.worker.group_settings("g").lock_duration_ms == 30_000
    assert await client.change("g", (LOCK, SET, " 20000 ")) == Code.NONE
    assert await client.change("g", (LIMIT, SET, "3")) == Code.NONE
    found = (await client.shown("g"))[LOCK]
    assert (found.value, found.config_source, found.read_only) == ("20000", 8, False)
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [
        (LOCK, "20000", 8), (f"group.{LOCK}", "30000", 5),
    ]  # fmt: skip
    assert found.documentation
    settings = client.worker.group_settings("g")
    assert (settings.lock_duration_ms, settings.delivery_count_limit) == (20_000, 3)
    assert client.worker.group_settings("other").lock_duration_ms == 30_000
    assert await client.listed() == ["g"]
    assert await client.change("g", (LOCK, DELETE, None)) == Code.NONE
    assert client.worker.group_settings("g").lock_duration_ms == 30_000
    assert await client.replace("g") == Code.NONE
    assert await client.listed() == []
    assert client.worker.group_settings("g") == client.worker.group_rules.defaults


async def test_settings_replaced_as_a_whole() -> None:
    client = Groups()
    await client.change("g", (LIMIT, SET, "3"))
    assert await client.replace("g", share_record_lock_duration_ms="20000") == Code.NONE
    assert {name for name, c in (await client.shown("g")).items() if c.config_source == 8} == {LOCK}
    assert await client.replace("g", share_isolation_level=None) == Code.INVALID_REQUEST
    assert await client.replace("g", no_such="1") == Code.INVALID_CONFIG
    assert client.logged == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([(LOCK, SET, "1")], Code.INVALID_CONFIG), ([(LOCK, SET, None)], Code.INVALID_REQUEST),
        ([(LOCK, APPEND, "1")], Code.INVALID_CONFIG), ([("no.such", SET, "")], Code.INVALID_CONFIG),
        ([("kproxy.share.retry.backoff.ms", APPEND, "1")], Code.INVALID_CONFIG),
        ([(LOCK, SUBTRACT, "1")], Code.INVALID_CONFIG), ([(LOCK, 9, "1")], Code.INVALID_REQUEST),
        ([(LOCK, SET, "20000"), (LOCK, DELETE, None)], Code.INVALID_REQUEST),
        ([(LOCK, SET, "20000"), (LIMIT, SET, "x")], Code.INVALID_CONFIG),
        ([("errors.deadletterqueue.topic.name", SET, "__x")], Code.INVALID_CONFIG),
    ],
)  # fmt: skip
async def test_refused(changes: list[Any], code: Code) -> None:
    client = Groups()
    assert await client.change("g", *changes) == code
    assert (client.logged, await client.listed()) == (0, [])


async def test_names_of_groups() -> None:
    client = Groups()
    assert await client.change("", (LOCK, SET, "20000")) == Code.INVALID_REQUEST
    for group in ("a b/é", "g" * 32_767):
        assert await client.change(group, (LOCK, SET, "20000")) == Code.NONE
    assert len(await client.listed()) == 2


async def test_a_trial_changes_nothing() -> None:
    client = Groups()
    assert await client.change("g", (LOCK, SET, "20000"), dry=True) == Code.NONE
    assert await client.change("g", (LOCK, SET, "1"), dry=True) == Code.INVALID_CONFIG
    assert (client.logged, await client.listed()) == (0, [])


async def test_names_that_are_no_settings_are_not_logged() -> None:
    client = Groups()
    assert await client.change("g", *(("x" * 1000 + str(i), DELETE, None) for i in range(100))) == 0
    shard: Any = client.worker.any_shard()
    assert len(shard.log[-1].body) < 200


async def test_groups_have_settings_from_their_level_on() -> None:
    client = Groups()
    client.worker.level.value = SHARES_FROM - 1
    assert await client.change("g", (LOCK, SET, "20000")) == Code.INVALID_CONFIG
    assert await client.replace("g", share_isolation_level="read_committed") == Code.INVALID_CONFIG
    assert client.logged == 0
    assert (await client.shown("g", LOCK))[LOCK].value == "30000"
    client.worker.level.value = SHARES_FROM
    assert await client.change("g", (LOCK, SET, "20000")) == Code.NONE


async def test_the_version_of_share_groups_comes_with_the_level() -> None:
    client = Groups()

    async def asked(version: int, level: int) -> int:
        client.worker.level.value = level
        update = {
            "feature": "share.version", "max_version_level": version,
            "allow_downgrade": False, "upgrade_type": 1,
        }  # fmt: skip
        values = {"timeout_ms": 1000, "timeout": 1000, "feature_updates": (update,)}
        return int((await client.call(ApiKey.UPDATE_FEATURES, 1, values)).error_code)

    assert await asked(2, SHARES_FROM) == 0
    assert await asked(1, SHARES_FROM) == Code.INVALID_UPDATE_VERSION
    assert await asked(2, SHARES_FROM - 1) == Code.INVALID_UPDATE_VERSION


async def test_a_consumer_group_obeys_its_settings() -> None:
    client = Groups()
    client.worker.catalogue.create("q")
    values = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": timedelta(seconds=60), "subscribed_topic_names": ("q",),
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
    }  # fmt: skip

    async def beat(epoch: int) -> Any:
        answer = await client.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, values | {"member_epoch": epoch}
        )
        assert answer.error_code == 0
        return answer

    def session_s() -> float:
        group: Any = client.worker.groups.of(client.worker.coordinated("g")).find("g")
        return float(group.members["m"].deadline - anyio.current_time())

    answer = await beat(0)
    assert answer.heartbeat_interval == timedelta(seconds=5)
    assert session_s() <= 45
    changes = ("consumer.session.timeout.ms", "60000"), ("consumer.heartbeat.interval.ms", "6000")
    assert await client.change("g", *((name, SET, value) for name, value in changes)) == 0
    answer = await beat(answer.member_epoch)
    assert answer.heartbeat_interval == timedelta(seconds=6)
    assert 45 < session_s() <= 60
    await client.change("g", ("consumer.assignment.interval.ms", SET, "15000"))
    coordinator = client.worker.groups.of(client.worker.coordinated("g"))
    assert coordinator.settings_of("g").consumer_assignment_interval_ms == 15_000
    assert coordinator.settings_of("other").consumer_assignment_interval_ms == 1000
