"""Settings of topics: what is read, and what is refused with a line that says what it must be.

`tests/kafka/topics/test_topic_settings_like_kafka.py` holds each of them against a real Kafka.
"""

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata import queue_settings
from kproxy.metadata.levels import Level
from kproxy.metadata.setting import DOUBLE, INT, LIST, LONG
from kproxy.metadata.topic_settings import SETTINGS


def test_defaults_are_sound_and_all_are_documented() -> None:
    for setting in SETTINGS.values():
        assert setting.read(setting.default) == setting.default
        assert setting.documentation.endswith(".")
        assert setting.has_effect != ("without effect" in setting.documentation)
    assert list(SETTINGS) == sorted(SETTINGS)


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("retention.ms", " +5000\n", "5000"),
        ("retention.ms", "-1", "-1"),
        ("min.cleanable.dirty.ratio", ".25", "0.25"),
        ("min.cleanable.dirty.ratio", "1e-1f", "0.1"),
        ("preallocate", " TRUE ", "true"),
        ("cleanup.policy", " delete ", "delete"),
        ("leader.replication.throttled.replicas", "0:1 , 1:2", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.zstd.level", "-131072", "-131072"),
    ],
)
def test_read(name: str, given: str, read: str) -> None:
    assert queue_settings.check({name: given}) == {name: read}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("retention.ms", "-2"), ("retention.ms", "1_000"), ("retention.ms", "9" * 100),
        ("retention.ms", str(2**63)), ("max.message.bytes", str(2**31)), ("flush.ms", ""),
        ("min.cleanable.dirty.ratio", "1.1"), ("min.cleanable.dirty.ratio", "NaN"),
        ("min.cleanable.dirty.ratio", "half"), ("preallocate", "yes"),
        ("compression.gzip.level", "0"), ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "0-1"), ("remote.storage.enable", "true"),
    ],
)  # fmt: skip
def test_refused(name: str, given: str) -> None:
    with pytest.raises(KafkaError) as refused:
        queue_settings.check({name: given})
    assert refused.value.code == Code.INVALID_CONFIG
    assert name in str(refused.value)
    assert "must be" in str(refused.value) or "have no" in str(refused.value)


def test_lags_that_contradict_each_other() -> None:
    with pytest.raises(KafkaError, match=r"min.compaction.lag.ms=9 is above"):
        queue_settings.check_together(
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, Level()
        )
    queue_settings.check_together({"min.compaction.lag.ms": "9"}, Level())


def test_compaction_waits_for_its_level() -> None:
    with pytest.raises(KafkaError, match="kproxy upgrade --finalize"):
        queue_settings.check_together({"cleanup.policy": "delete,compact"}, Level(2))
    queue_settings.check_together({"cleanup.policy": "compact"}, Level(3))


def test_kinds() -> None:
    kinds = {"retention.ms": LONG, "segment.bytes": INT, "cleanup.policy": LIST}
    kinds["min.cleanable.dirty.ratio"] = DOUBLE
    assert {name: SETTINGS[name].kind for name in kinds} == kinds
