"""Changing a queue's settings: answers as a real Kafka 4.3.1 gives them.

Left out: settings that only one of the two knows, and compaction, which kproxy refuses.
An operation that there is not: Kafka says UNKNOWN_SERVER_ERROR.
"""

from itertools import count
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.harness import Served, eventually
from tests.kafka.alike import alike, made
from tests.kafka.canonical import unheard
from tests.wire import Wire

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def change(wire: Wire, name: str, *changes: tuple[str, int, str | None], **more: Any) -> int:
    configs = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
    resource = {"resource_type": more.get("type", TOPIC), "resource_name": name, "configs": configs}
    values = {
        "resources": [resource] * more.get("times", 1),
        "validate_only": more.get("dry", False),
    }
    return int(wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values).responses[0].error_code)


def replace(wire: Wire, name: str, configs: dict[str, str | None], version: int = 2) -> int:
    resource = {
        "resource_type": TOPIC, "resource_name": name,
        "configs": [{"name": n, "value": v} for n, v in configs.items()],
    }  # fmt: skip
    values = {"resources": [resource], "validate_only": False}
    return int(wire.call(ApiKey.ALTER_CONFIGS, version, values).responses[0].error_code)


def begin(wire: Wire, queue: str, **configs: str) -> None:
    """Make a queue, and one beside it to mark changes."""
    made(wire, queue, **configs)
    made(wire, f"{queue}-marker")


def settings(wire: Wire, name: str) -> list[Any]:
    """Return the settings of now: a real Kafka's broker hears of changes one by one."""
    with unheard():
        marker = ("retention.ms", str(next(_markers)), 1)
        change(wire, f"{name}-marker", ("retention.ms", SET, marker[1]))
        eventually(lambda: marker in _settings(wire, f"{name}-marker"), period=0.01)
    return _settings(wire, name)


_markers = count(1)


def _settings(wire: Wire, name: str) -> list[Any]:
    keys = ("retention.ms", "retention.bytes", "max.message.bytes", "cleanup.policy",
            "message.timestamp.type")  # fmt: skip
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    found = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values).results[0].configs
    return sorted((c.name, c.value, c.config_source) for c in found if c.config_source == 1)


@alike
def test_lists(wire: Wire, queue: str) -> list[Any]:
    throttled = "follower.replication.throttled.replicas"
    begin(wire, queue, cleanup_policy="compact,compact")
    steps: list[Any] = [settings(wire, queue)]
    for changes in (
        [("cleanup.policy", APPEND, "compact,compact")],
        [("cleanup.policy", APPEND, "")],
        [("cleanup.policy", APPEND, "delete,delete")],
        [(throttled, SET, "0:1,0:1")],
        [("min.cleanable.dirty.ratio", SET, "\u0660")],
    ):
        steps += [change(wire, queue, *changes), settings(wire, queue)]
    return [*steps, change(wire, "", ("retention.ms", SET, "1000"))]


def test_a_list_of_very_many_parts_is_refused_at_once(server: Served) -> None:
    many = ",".join(f"{number}:1" for number in range(60_000))[:32_766]  # the longest text
    with Wire(server.host, server.port) as wire:
        made(wire, "very-long")
        name = "follower.replication.throttled.replicas"
        codes = [change(wire, "very-long", (name, kind, many)) for kind in (SET, APPEND)]
        assert codes == [40, 40]


@alike
def test_settings_of_nobody(wire: Wire, queue: str) -> list[Any]:
    steps: list[Any] = []
    for kind in (8, 16, 32):
        resource = {"resource_type": kind, "resource_name": "", "configuration_keys": None}
        values = {
            "resources": [resource], "include_synonyms": False, "include_documentation": False,
        }  # fmt: skip
        steps.append(wire.call(ApiKey.DESCRIBE_CONFIGS, 4, values).results[0].error_code)
    users = {"users": [{"name": "one"}, {"name": "two"}, {"name": "one"}]}
    found = wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users).results
    return [*steps, sorted((one.user, one.error_code) for one in found)]


@alike
def test_resources_by_type(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps = []
    for kinds in ((), (BROKER,), (8,), (99,), (BROKER, 8)):
        found = wire.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": kinds})
        types = {one.resource_type for one in found.config_resources}
        steps.append((found.error_code, types - {16, 32}))
    return steps


@alike
def test_incremental_changes(wire: Wire, queue: str) -> list[Any]:
    begin(wire, queue, retention_ms="5000")
    steps: list[Any] = [settings(wire, queue)]
    for changes in (
        [("retention.ms", SET, "1000")],
        [("retention.bytes", SET, "99"), ("max.message.bytes", SET, "2000")],
        [("retention.ms", DELETE, None)],
        [("retention.ms", DELETE, "")],
        [("retention.ms", SET, None)],
        [("retention.ms", SET, "soon")],
        [("retention.ms", SET, "-2")],
        [("no.such.setting", SET, "1")],
        [("retention.bytes", SET, "5"), ("retention.bytes", SET, "6")],
        [("retention.bytes", APPEND, "5")],
        [("cleanup.policy", APPEND, "delete")],
        [("cleanup.policy", SET, "shred")],
        [("message.timestamp.type", SET, "LogAppendTime")],
        [],
    ):
        steps.append((str(changes), change(wire, queue, *changes), settings(wire, queue)))
    one = ("retention.ms", SET, "77")
    steps.append((change(wire, queue, one, dry=True), settings(wire, queue)))
    steps.append(change(wire, queue, one, times=2))
    steps.append(change(wire, queue + "-no", one))
    steps.append(change(wire, "bad name", one))
    return steps


@alike
def test_replaced_as_a_whole(wire: Wire, queue: str) -> list[Any]:
    begin(wire, queue, retention_ms="5000")
    steps: list[Any] = []
    cases: tuple[dict[str, str | None], ...] = (
        {"retention.bytes": "99"}, {"retention.ms": None}, {"retention.ms": "soon"},
        {"no.such.setting": "1"}, {},
    )  # fmt: skip
    for version in (0, 1, 2):
        for configs in cases:
            code = replace(wire, queue, configs, version)
            steps.append((version, str(configs), code, settings(wire, queue)))
    return steps
