"""Settings of groups: what is read, what is refused, and what it comes to.

`tests/kafka/groups/test_group_configs_like_kafka.py` holds each of them against a real Kafka.
"""

from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config, load
from kproxy.metadata.group_settings import SETTINGS, GroupRules, GroupSettings
from kproxy.metadata.group_values import AutoOffsetReset, OffsetReset
from kproxy.metadata.lane_settings import (
    IN_FLIGHT,
    LANE,
    LOOKAHEAD,
    ON_DEAD,
    PRIORITY,
    PRIORITY_SHARE,
    RATE,
    WEIGHTS,
    LaneRules,
)
from kproxy.metadata.levels import Level
from kproxy.virtual.levels import LANES_FROM
from kproxy.virtual.rows.group_settings import GroupConfigs

LOCK = "share.record.lock.duration.ms"
SESSION, HEARTBEAT = "share.session.timeout.ms", "share.heartbeat.interval.ms"
RESET = "share.auto.offset.reset"
DLQ = "errors.deadletterqueue.topic.name"
BACKOFF, TAGS = "kproxy.share.retry.backoff.ms", "streams.rack.aware.assignment.tags"


def rules(**flags: Any) -> GroupRules:
    return GroupRules(load(flags, None, {}).broker_values())


def settings(configs: dict[str, str], **flags: Any) -> GroupSettings:
    return rules(**flags).of_row(GroupConfigs(configs, 7).encode())


def refusal(configs: dict[str, str], kept: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(KafkaError) as refused:
        rules(**flags).check(configs, kept or {})
    assert refused.value.code == Code.INVALID_CONFIG
    return refused.value.message or ""


def test_defaults_are_sound_and_all_are_documented() -> None:
    assert list(SETTINGS) == sorted(SETTINGS)
    for setting in SETTINGS.values():
        default = rules().default(setting)
        assert rules().check({setting.name: default}, {}) == {setting.name: default}
        assert setting.documentation.endswith(".")


def test_a_group_that_says_nothing_has_what_the_worker_says() -> None:
    assert rules().defaults == GroupSettings() == settings({})
    found = rules(
        group_share_record_lock_duration_ms="20000", group_consumer_session_ms="1000"
    ).defaults
    assert (found.lock_duration_ms, found.consumer_session_timeout_ms) == (20_000, 1000)


def test_every_setting_becomes_a_value() -> None:
    configs = {
        "consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000",
        "consumer.assignment.interval.ms": "7", SESSION: "51000", HEARTBEAT: "6001",
        "share.assignment.interval.ms": "8", LOCK: "16000", "share.delivery.count.limit": "3",
        "share.partition.max.record.locks": "101", RESET: "by_duration:PT1M",
        "share.isolation.level": "read_committed", "share.renew.acknowledge.enable": "false",
        DLQ: "dlq.a", "errors.deadletterqueue.copy.record.enable": "true", BACKOFF: "1,20",
        LANE: "header:tenant", IN_FLIGHT: "1", LOOKAHEAD: "1000", WEIGHTS: "gold=4,a=b=2",
        RATE: "600/m", ON_DEAD: "hold", PRIORITY: "header:level", PRIORITY_SHARE: "0.1",
    }  # fmt: skip
    others = {name for name, one in SETTINGS.items()
              if name.startswith("streams.") or not one.has_effect}  # fmt: skip
    assert configs.keys() == SETTINGS.keys() - others
    assert settings(configs) == GroupSettings(
        consumer_session_timeout_ms=50_000, consumer_heartbeat_interval_ms=6000,
        consumer_assignment_interval_ms=7, share_session_timeout_ms=51_000,
        share_heartbeat_interval_ms=6001, assignment_interval_ms=8, lock_duration_ms=16_000,
        delivery_count_limit=3, record_locks_max=101,
        auto_offset_reset=AutoOffsetReset(OffsetReset.BY_DURATION, 60_000), read_committed=True,
        renew_enabled=False, dead_letter_queue="dlq.a", dead_letter_copies_record=True,
        retry_backoff_ms=(1, 20), lane="header:tenant", lane_in_flight=1, lane_lookahead=1000,
        lane_weights=(("gold", 4), ("a=b", 2)), lane_rate=(0.1, 2), lane_holds=True,
        priority="header:level", priority_share=0.1,
        lanes=LaneRules("tenant", False, 1, 1000, (("gold", 4), ("a=b", 2)), 0.1, 2, "level", 0.1,
                        True),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        (LOCK, " 25000\n", "25000"), (LOCK, "+15000", "15000"), (RESET, " earliest ", "earliest"),
        (RESET, "by_duration:pt1h ", "by_duration:pt1h"),
        ("share.renew.acknowledge.enable", " TRUE ", "true"),
        ("share.isolation.level", " read_committed ", "read_committed"),
        (DLQ, " dlq.a ", "dlq.a"), (DLQ, "", ""), (BACKOFF, "", ""),
        (BACKOFF, " 1000 , 5000,0", "1000,5000,0"),
        (BACKOFF, ",".join(["1"] * 20), "1," * 19 + "1"),
        (LANE, " key ", "key"), (WEIGHTS, " gold=04 , free=1", "gold=4,free=1"), (RATE, "", ""),
    ],
)  # fmt: skip
def test_read(name: str, given: str, read: str) -> None:
    assert rules().check({name: given}, {}) == {name: read}


@pytest.mark.parametrize(
    ("name", "given", "fault"),
    [
        (LOCK, "soon", "Not a number of type INT"), (LOCK, "", "Not a number of type INT"),
        (LOCK, str(2**31), "Not a number of type INT"), (LOCK, "999", "must be at least 1000"),
        (SESSION, "0", "Value must be at least 1"), (RESET, "LATEST", "must be either"),
        ("share.delivery.count.limit", "1", "must be at least 2"),
        ("share.partition.max.record.locks", "99", "must be at least 100"),
        ("share.assignment.interval.ms", "-1", "must be at least 0"),
        ("share.renew.acknowledge.enable", "yes", "either true or false"),
        ("share.isolation.level", "READ_COMMITTED", "must be one of"),
        (DLQ, "a b", "may hold only"),
        (DLQ, "x" * 250, "longer than 249"),
        (BACKOFF, "1,-1", "whole number"), (BACKOFF, "1,", "whole number"),
        (LANE, "keys", "none, key or header:NAME"), (LANE, "header:", "none, key or header:NAME"),
        (LANE, "header:a\nb", "all printable"), (LANE, "header:" + "x" * 201, "at most 200"),
        (IN_FLIGHT, "-1", "from 0 to"), (LOOKAHEAD, "999", "from 1000 to 10000000"),
        (WEIGHTS, "gold=many", "a number from 1 to 1000, not many"),
        (WEIGHTS, "gold=0", "a number from 1 to 1000"), (WEIGHTS, "gold", "LANE=NUMBER"),
        (WEIGHTS, "=1", "LANE=NUMBER"), (WEIGHTS, "a=1,a=2", "a has two weights"),
        (RATE, "10", "NUMBER/s, /m or /h"), (RATE, "0/s", "from 1 to"), (RATE, "1/d", "/s, /m or"),
        (ON_DEAD, "stop", "continue or hold"), (PRIORITY, "level", "header:NAME"),
        (PRIORITY_SHARE, "0.91", "from 0 to 0.9"), (PRIORITY_SHARE, "nan", "from 0 to 0.9"),
        (BACKOFF, ",".join(["1"] * 21), "at most 20"), (LOCK, "1" * 100_000, "longer than"),
    ],
)  # fmt: skip
def test_refused(name: str, given: str, fault: str) -> None:
    text = refusal({name: given})
    assert text.startswith(f"Invalid value {given[:1000]} for configuration {name}: ")
    assert fault in text
    assert len(text) < 2000  # an answer is cut off there


def test_some_faults_are_told_by_the_name_of_their_setting() -> None:
    text = "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"
    assert refusal({DLQ: "__secret"}) == text
    assert refusal({TAGS: "a,a"}) == f"{TAGS} must not contain duplicate tag keys."
    assert settings({TAGS: " a , b "}).streams_tags == ("a", "b")


def test_a_name_that_there_is_not() -> None:
    assert refusal({LOCK: "x", "no.such": "1"}) == "Unknown group config name: no.such"


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT0S", 0), ("PT1H", 3_600_000), ("pt1m1s", 61_000), ("P1D", 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500), ("PT1,25S", 1250), ("PT1.S", 1000), ("PT0.0000001S", 0),
        ("PT+1S", 1000), ("PT2H-1M", 7_140_000), ("+PT1S", 1000), ("-PT-1S", 1000),
        ("P-1DT25H", 3_600_000), ("PT2S", 2000), ("PT9223372036854775807S", (1 << 53) - 1),
        ("PT1H-0.5S", 3_599_500),
    ],
)  # fmt: skip
def test_durations(text: str, duration_ms: int) -> None:
    rules().check({RESET: f"by_duration:{text}"}, {})
    found = settings({RESET: f"by_duration:{text}"}).auto_offset_reset
    assert found == (OffsetReset.BY_DURATION, duration_ms)


@pytest.mark.parametrize(
    "text",
    [
        "", "P", "PT", "P1DT", "P1Y", "P1W", "1S", "PT1", "PT.5S", "PT1.5H", "PT1S1M", "PT1H1H",
        "-PT1S", "PT-1S", "PT-0.5S", " PT1S", "PT9223372036854775808S", "P106751991167301D",
        "PT9223372036854775807H", "PT1.0000000001S", "PT\u0661S",
    ],
)  # fmt: skip
def test_durations_that_are_none(text: str) -> None:
    assert "must be either" in refusal({RESET: f"by_duration:{text}"})
    assert "must be either" in refusal({RESET: "by_duration"})


def test_bounds_are_named_as_kafka_names_them() -> None:
    below, above = (
        "greater than or equal to group.share.min",
        "less than or equal to group.share.max",
    )
    rest = "record.lock.duration.ms"
    assert refusal({LOCK: "14999"}) == f"{LOCK} must be {below}.{rest}"
    assert refusal({LOCK: "60001"}) == f"{LOCK} must be {above}.{rest}"
    standby = "streams.num.standby.replicas"
    assert refusal({standby: "3"}).endswith(" group.streams.max.standby.replicas")
    assert rules().check({standby: "2"}, {}) == {standby: "2"}
    of_delay = {"streams.initial.rebalance.delay.ms": str(2**31 - 1)}
    assert rules().check(of_delay, {}) == of_delay


def test_a_worker_may_allow_more_and_less() -> None:
    assert rules(group_share_min_record_lock_duration_ms="100").check({LOCK: "100"}, {})
    assert "at least 100" in refusal({LOCK: "99"}, group_share_min_record_lock_duration_ms="100")
    assert refusal({LOCK: "31001"}, group_share_max_record_lock_duration_ms="31000")
    assert rules(group_share_max_delivery_count_limit="25").check(
        {"share.delivery.count.limit": "25"}, {}
    )
    # A worker's own default is never out of bounds.
    assert rules(group_share_heartbeat_interval_ms="10").check({HEARTBEAT: "10"}, {})


def test_a_session_is_longer_than_the_time_between_heartbeats() -> None:
    flags = {"group_share_max_heartbeat_interval_ms": "50000"}
    told = f"{SESSION} must be greater than {HEARTBEAT}"
    assert refusal({HEARTBEAT: "45000"}, **flags) == told
    assert refusal({SESSION: "45000"}, {HEARTBEAT: "45000"}, **flags) == told
    assert rules(**flags).check({SESSION: "45001"}, {HEARTBEAT: "45000"})
    # The worker's own settings are its operator's business.
    assert rules(group_share_session_timeout_ms="10").check({RESET: "earliest"}, {})


def test_bounds_that_came_later_hold() -> None:
    assert settings({LOCK: "60000"}, group_share_max_record_lock_duration_ms="31000") == (
        GroupSettings(lock_duration_ms=31_000)
    )
    assert settings({LOCK: "100"}).lock_duration_ms == 15_000


def test_a_row_is_parsed_once() -> None:
    found, row = rules(), GroupConfigs({LOCK: "16000"}, 7).encode()
    assert found.of_row(row) is found.of_row(bytes(bytearray(row)))
    assert found.of_row(GroupConfigs({LOCK: "17000"}, 7).encode()).lock_duration_ms == 17_000


def test_settings_of_a_worker_have_the_names_of_kafkas() -> None:
    named = Config().broker_settings()
    assert named["group.share.min.record.lock.duration.ms"][0] == 15_000
    assert named["group.consumer.session.timeout.ms"][0] == 45_000
    assert named["errors.deadletterqueue.topic.name.prefix"][0] == "dlq."
    assert named["errors.deadletterqueue.auto.create.topics.enable"][0] is False
    assert Config().broker_values().keys() == {n for n in named if n.startswith("group.")}


def test_lanes_need_a_level() -> None:
    before = Level(LANES_FROM - 1)
    with pytest.raises(KafkaError, match=f"needs level {LANES_FROM}.*upgrade --finalize"):
        rules().check_level({LANE: "key"}, before)
    rules().check_level({LANE: "key"}, Level())
    rules().check_level({BACKOFF: "1"}, before)


def test_priorities_alone_are_lanes_by_level() -> None:
    assert settings({PRIORITY: "header:level"}).lanes == LaneRules(by_level=True, priority="level")
    assert settings({IN_FLIGHT: "1", WEIGHTS: "a=2"}).lanes is None
