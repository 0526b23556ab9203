"""Settings of groups: values, sources, synonyms, codes and texts as a real Kafka 4.3.1 has them.

Different on purpose: settings that Kafka 4.3 does not have, documentation, and an operation that
there is not, which a real Kafka calls UNKNOWN_SERVER_ERROR.
"""

from typing import Any

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import alike
from tests.kafka.cluster import name as name_of
from tests.wire import Wire

BROKER, GROUP = 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OURS = (
    "kproxy.", "errors.deadletterqueue.", "consumer.assignor.", "share.assignor.",
    "streams.assignor.name", "streams.rack.",
)  # fmt: skip
"""The beginnings of settings of kproxy's own, and of Kafka 4.4."""
LOCK, LIMIT = "share.record.lock.duration.ms", "share.delivery.count.limit"
RESET, RENEW = "share.auto.offset.reset", "share.renew.acknowledge.enable"
Change = tuple[str, int, str | None]
BOUNDS = {
    LOCK: (" 25000 ", "14999", "15000", "60000", "60001", "999", "0", "-1", "x", "", "99999999999"),
    LIMIT: ("1", "2", "10", "11", "0", "+3"),
    "share.partition.max.record.locks": ("99", "100", "4000", "4001", "0"),
    "share.session.timeout.ms": ("44999", "45000", "60000", "60001", "0"),
    "share.heartbeat.interval.ms": ("4999", "5000", "15000", "15001", "0"),
    "share.assignment.interval.ms": ("-1", "0", "15000", "15001"),
    "share.isolation.level": ("read_committed", " read_uncommitted", "READ_COMMITTED", ""),
    RENEW: ("false", "true", "yes", ""),
    "consumer.session.timeout.ms": ("44999", "45000", "60000", "60001", "0"),
    "consumer.heartbeat.interval.ms": ("4999", "5000", "15000", "15001", "0"),
    "consumer.assignment.interval.ms": ("-1", "0", "15000", "15001"),
    "streams.session.timeout.ms": ("44999", "45000", "60000", "60001", "0"),
    "streams.heartbeat.interval.ms": ("4999", "5000", "15000", "15001", "0"),
    "streams.assignment.interval.ms": ("-1", "0", "15000", "15001"),
    "streams.num.standby.replicas": ("-1", "0", "2", "3"),
    "streams.initial.rebalance.delay.ms": ("-1", "0", "2147483647"),
}
RESETS = (
    "latest", " earliest ", "LATEST", "none", "", "by_duration", "by_duration:", "by_duration:PT1H",
    "by_duration:pt1h", "by_duration:-PT1H", "by_duration:P1Y", "by_duration:P1DT2H3M4.5S",
    "BY_DURATION:PT1H", "by_duration:PT0S", "by_duration:PT-1S", "by_duration:PT1H ",
    "by_duration:P106751991167300DT15H30M7.999999999S", "by_duration:P106751991167301D",
    "by_duration:P1W", "by_duration:P", "by_duration:PT", "by_duration:P1D", "by_duration:PT1.5H",
    "by_duration:PT+1H", "by_duration:PT2H-1M", "by_duration:PT0.0000001S", "by_duration:PT1,5S",
    "by_duration:P1DT", "by_duration:PT1.S", "by_duration:PT.5S", "by_duration:PT-0.5S",
    "by_duration:PT1H1H", "by_duration:PT1S1M", "by_duration:+PT1H", "by_duration: PT1H",
    "by_duration:P-1DT25H", "by_duration:PT9223372036854775807S", "by_duration:-PT-1S",
    "by_duration:PT9223372036854775808S", "by_duration:PT9223372036854775807H",
    "by_duration:PT1H-0.5S", "by_duration:PT1.0000000001S",
)  # fmt: skip


def asked(group: str, names: tuple[str, ...] | None = None, kind: int = GROUP) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": group, "configuration_keys": names}


def described(wire: Wire, *resources: dict[str, Any], version: int = 4) -> Any:
    values = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    return wire.call(ApiKey.DESCRIBE_CONFIGS, version, values).results


def all_of_it(wire: Wire, group: str, names: tuple[str, ...] | None = None) -> list[Any]:
    """Return all settings that are described of a group."""
    (result,) = described(wire, asked(group, names))
    found = [
        (
            c.name, c.value, c.read_only, c.config_source, c.is_sensitive, c.config_type,
            bool(c.documentation), [(s.name, s.value, s.source) for s in c.synonyms],
        )
        for c in result.configs
        if not c.name.startswith(OURS)
    ]  # fmt: skip
    return [name_of(result.error_code), *sorted(found)]


def given(wire: Wire, group: str) -> dict[str, str]:
    """Return the settings that are set of a group."""
    configs = described(wire, asked(group))[0].configs
    return {c.name: c.value for c in configs if c.config_source == 8}


def alter(wire: Wire, group: str, *changes: Change, dry: bool = False) -> tuple[str, str | None]:
    configs = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    values = {"resources": [resource], "validate_only": dry}
    answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values).responses[0]
    return name_of(answer.error_code), answer.error_message


def replace(wire: Wire, group: str, configs: dict[str, str | None], **more: Any) -> Any:
    named = [{"name": n, "value": v} for n, v in configs.items()]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": named}
    values = {"resources": [resource], "validate_only": more.get("dry", False)}
    answer = wire.call(ApiKey.ALTER_CONFIGS, more.get("version", 2), values).responses[0]
    return name_of(answer.error_code), answer.error_message


def settled(wire: Wire, group: str, expected: dict[str, str]) -> list[Any]:
    """Return all settings once the set ones are there: a real Kafka's broker learns later."""
    eventually(lambda: given(wire, group) == expected, 20)
    return all_of_it(wire, group)


def listed(wire: Wire, prefix: str, *kinds: int) -> list[str]:
    answer = wire.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": kinds})
    assert answer.error_code == 0
    return sorted(
        r.resource_name
        for r in answer.config_resources
        if r.resource_type == GROUP and r.resource_name.startswith(prefix)
    )


@alike
def test_all_that_is_told_of_a_group(wire: Wire, group: str) -> list[Any]:
    steps: list[Any] = [all_of_it(wire, group), all_of_it(wire, "")]
    for names in ((), (LOCK,), (LOCK, "no.such", LOCK), ("no.such",)):
        steps.append(all_of_it(wire, group, names))
    changes: list[Change] = [
        (LOCK, SET, "20000"), (RESET, SET, "earliest"), (RENEW, SET, "FALSE"),
        ("consumer.assignment.interval.ms", SET, "500"),
        ("streams.num.standby.replicas", SET, "1"),
    ]  # fmt: skip
    steps.append(alter(wire, group, *changes))
    kept = {name: (value or "").lower() for name, _, value in changes}
    steps.append(settled(wire, group, kept))
    twice = described(wire, asked(group, (LOCK,)), asked(group, (LOCK,)))
    steps.append([(r.resource_name, name_of(r.error_code), len(r.configs)) for r in twice])
    for version in (1, 2, 3):
        (result,) = described(wire, asked(group, (LOCK,)), version=version)
        steps.append((result.configs[0].value, result.configs[0].config_source))
    steps.append(alter(wire, group, *((name, DELETE, None) for name in kept)))
    return [*steps, settled(wire, group, {})]


@alike
def test_each_value(wire: Wire, group: str) -> list[Any]:
    steps = []
    for name, values in {**BOUNDS, RESET: RESETS}.items():
        steps += [(name, value, alter(wire, group, (name, SET, value))) for value in values]
        taken = [value for _, value, (code, _) in steps[-len(values) :] if code == "NONE"]
        steps.append(settled(wire, group, {name: taken[-1].strip().lstrip("+")}))
        steps.append(alter(wire, group, (name, DELETE, None)))
    return [*steps, settled(wire, group, {})]


@alike
def test_wrong_values_are_refused(wire: Wire, group: str) -> list[Any]:
    session, heartbeat = "share.session.timeout.ms", "share.heartbeat.interval.ms"
    cases: list[list[Change]] = [
        [(LOCK, SET, None)], [(LOCK, APPEND, "1")], [(LOCK, SUBTRACT, "1")],
        [("no.such", SET, "1")], [("no.such", DELETE, None)], [("no.such", APPEND, "1")],
        [(LOCK, SET, "30000"), (LOCK, SET, "31000")], [(LOCK, DELETE, None), (LOCK, SET, "31000")],
        [(session, SET, "1"), (LIMIT, SET, "x"), ("no.such", SET, "1")],
        [(session, SET, "1"), (LIMIT, SET, "x")], [(session, SET, "1"), (LIMIT, SET, "100")],
        [(heartbeat, SET, "15000"), (LIMIT, SET, "11")], [],
    ]  # fmt: skip
    steps: list[Any] = [alter(wire, group, (LOCK, SET, "20000"))]
    for changes in cases:
        steps.append((changes, alter(wire, group, *changes)))
    steps.append(settled(wire, group, {LOCK: "20000"}))
    dry = [(LOCK, SET, "25000")], [(LOCK, SET, "1")], [(LOCK, DELETE, None)]
    steps += [alter(wire, group, *changes, dry=True) for changes in dry]
    steps.append(settled(wire, group, {LOCK: "20000"}))
    for changes in [(LOCK, SET, "20000")], [(LOCK, DELETE, None)], []:
        steps.append(alter(wire, "", *changes))
    return steps


@alike
def test_replaced_as_a_whole(wire: Wire, group: str) -> list[Any]:
    cases: list[tuple[dict[str, str | None], dict[str, str]]] = [
        ({LOCK: "20000", RENEW: "false"}, {LOCK: "20000", RENEW: "false"}),
        ({LIMIT: "3"}, {LIMIT: "3"}),
        ({LOCK: None}, {LIMIT: "3"}), ({LIMIT: "1"}, {LIMIT: "3"}),
        ({"no.such": "1"}, {LIMIT: "3"}), ({}, {}),
    ]  # fmt: skip
    steps: list[Any] = []
    for version in (0, 1, 2):
        for configs, kept in cases:
            steps.append(replace(wire, group, configs, version=version))
            steps.append(settled(wire, group, kept))
    steps.append(replace(wire, group, {LIMIT: "4"}, dry=True))
    steps.append(replace(wire, "", {LIMIT: "4"}))
    return [*steps, settled(wire, group, {})]


@alike
def test_several_groups_in_a_request(wire: Wire, group: str) -> list[Any]:
    def altered(*pairs: tuple[str, str]) -> list[Any]:
        resources = [
            {
                "resource_type": GROUP, "resource_name": name,
                "configs": [{"name": LOCK, "config_operation": SET, "value": value}],
            }
            for name, value in pairs
        ]  # fmt: skip
        values = {"resources": resources, "validate_only": False}
        found = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values).responses
        return sorted((r.resource_name, name_of(r.error_code)) for r in found)

    one, two, three = (f"{group}-{number}" for number in (1, 2, 3))
    steps = [altered((one, "20000"), (two, "1"), (three, "21000"))]
    steps.append(altered((one, "30000"), (one, "40000")))
    return [*steps, settled(wire, one, {LOCK: "20000"}), settled(wire, three, {LOCK: "21000"})]


@alike
def test_groups_that_have_settings_are_listed(wire: Wire, group: str) -> list[Any]:
    names = [f"{group}-{number}" for number in range(3)] + [f"{group} é/ü"]
    steps: list[Any] = [listed(wire, group, GROUP)]
    for name in names:
        steps.append(alter(wire, name, (LIMIT, SET, "3")))
        steps.append(settled(wire, name, {LIMIT: "3"}))
    steps += [listed(wire, group, *kinds) for kinds in ((GROUP,), (BROKER, GROUP), ())]
    steps.append(listed(wire, group, BROKER))
    for name in names[:2]:
        steps.append(alter(wire, name, (LIMIT, DELETE, None)))
        steps.append(settled(wire, name, {}))
    eventually(lambda: len(listed(wire, group, GROUP)) == 2, 20)
    return [*steps, listed(wire, group, GROUP)]


@alike
def test_a_broker_tells_the_same_defaults_and_bounds(wire: Wire, group: str) -> list[Any]:
    told = described(wire, asked("1", kind=BROKER))[0].configs
    return sorted(
        (c.name, c.value, c.config_type)
        for c in told
        if c.name.startswith(("group.share.", "group.consumer."))
        and ("interval" in c.name or "timeout" in c.name or ".lock" in c.name
             or "locks" in c.name or "delivery" in c.name)
    )  # fmt: skip
