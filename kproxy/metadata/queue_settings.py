"""A queue's settings: names, allowed values, defaults.

Names, defaults and documentation follow Kafka's `TopicConfig`. Unknown names are refused.

The fold reads no settings but those of its own log, and a queue's settings are in its home shard
only. A setting that the fold needs in another shard therefore travels in the envelope, as
`kproxy.commit.rewind` does in COMMIT.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kproxy.errors import Code, KafkaError

TOPIC, BROKER = 2, 4  # ConfigResource's types
BOOLEAN, STRING, INT, LONG, LIST = 1, 2, 3, 5, 7  # DescribeConfigs' ConfigType


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    default: str
    kind: int
    documentation: str
    fault: Callable[[str], str | None]


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    return lambda value: None if value in allowed else f"it must be {' or '.join(allowed)}"


_WHOLE = re.compile(r"\s{0,20}[+-]?\d{1,20}\s{0,20}")


def _number(least: int, most: int) -> Callable[[str], str | None]:
    def fault(value: str) -> str | None:
        fits = _WHOLE.fullmatch(value) is not None and least <= int(value) <= most
        return None if fits else f"it must be a whole number from {least} to {most}"

    return fault


def _policy_fault(value: str) -> str | None:
    policies = {part.strip() for part in value.split(",")}
    if policies == {"delete"}:
        return None
    compact = "compact" in policies
    return "queues are not compacted yet: it must be delete" if compact else "it must be delete"


_PARSED_MAX = 1000
TWO_WEEKS_MS = 14 * 24 * 3600 * 1000
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            name="cleanup.policy", default="delete", kind=LIST, fault=_policy_fault,
            documentation="What happens to old records. Only delete is supported.",
        ),
        Setting(
            name="compression.type", default="producer", kind=STRING, fault=_one_of("producer"),
            documentation="Batches are kept as the producer compressed them.",
        ),
        Setting(
            name="kproxy.commit.rewind", default="allow", kind=STRING,
            fault=_one_of("allow", "deny"),
            documentation="Whether a group may commit an offset below the one it has committed.",
        ),
        Setting(
            name="max.message.bytes", default="1048588", kind=INT, fault=_number(0, 2**31 - 1),
            documentation="The largest record batch accepted, after compression, in bytes.",
        ),
        Setting(
            name="message.timestamp.after.max.ms", default="3600000", kind=LONG,
            fault=_number(0, 2**63 - 1),
            documentation="How far a producer's timestamp may lie in the future, in milliseconds.",
        ),
        Setting(
            name="message.timestamp.type", default="CreateTime", kind=STRING,
            fault=_one_of("CreateTime", "LogAppendTime"),
            documentation="Whether a record's timestamp is the producer's or the server's.",
        ),
        Setting(
            name="retention.bytes", default="-1", kind=LONG, fault=_number(-1, 2**63 - 1),
            documentation="How large a partition may grow before its oldest records go; -1: any.",
        ),
        Setting(
            name="retention.ms", default=str(TWO_WEEKS_MS), kind=LONG, fault=_number(-1, 2**63 - 1),
            documentation="How long records are kept, in milliseconds; -1: for ever.",
        ),
    )
}  # fmt: skip


def given(named: Iterable[Any]) -> dict[str, str | None]:
    """Settings as they are named, the last of each. Raises KafkaError (INVALID_CONFIG)."""
    found: dict[str, str | None] = {}
    for setting in named:
        if setting.name not in SETTINGS:
            raise _unknown(setting.name)
        found[setting.name] = setting.value
    return found


def _unknown(name: str) -> KafkaError:
    known = ", ".join(sorted(SETTINGS))
    return KafkaError(Code.INVALID_CONFIG, f"{name} is not a queue setting; there are: {known}")


def check(given: Mapping[str, str | None]) -> dict[str, str]:
    """The settings to keep, without those set to null. Raises KafkaError (INVALID_CONFIG)."""
    kept = {}
    for name, value in given.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise _unknown(name)
        if value is None:
            continue
        fault = setting.fault(value)
        if fault:
            raise KafkaError(Code.INVALID_CONFIG, f"{name}={value}: {fault}")
        kept[name] = value
    return kept


LOOK_AGAIN_MS = 24 * 3600 * 1000
"""A partition with records is looked at for retention this often at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """A queue's settings as values. What the queue does not set has its default."""

    retention_ms: int
    """-1: records are kept for ever."""
    retention_bytes: int
    """-1: of any size."""
    max_message_bytes: int | None
    """None: the worker's default, `batch_bytes_max`."""
    timestamp_after_max_ms: int
    log_append_time: bool
    rewind_denied: bool

    def look_at_ms(self, oldest_ms: int, now_ms: int, check_ms: int) -> int:
        """When retention checks a partition next whose records begin at `oldest_ms`.

        As Kafka's checks, not before `check_ms` have passed, however old the records are.
        """
        soonest_ms, again_ms = now_ms + check_ms, now_ms + LOOK_AGAIN_MS
        if self.retention_bytes >= 0:
            return soonest_ms
        if self.retention_ms >= 0 and oldest_ms >= 0:
            expired_ms = oldest_ms + self.retention_ms + 1
            if expired_ms < again_ms:
                again_ms = expired_ms
        return again_ms if again_ms > soonest_ms else soonest_ms


@lru_cache(_PARSED_MAX)
def _parsed(configs: tuple[tuple[str, str], ...]) -> QueueSettings:
    values = dict(configs)
    size = values.get("max.message.bytes")
    return QueueSettings(
        retention_ms=int(effective("retention.ms", values)),
        retention_bytes=int(effective("retention.bytes", values)),
        max_message_bytes=int(size) if size else None,
        timestamp_after_max_ms=int(effective("message.timestamp.after.max.ms", values)),
        log_append_time=effective("message.timestamp.type", values) == "LogAppendTime",
        rewind_denied=effective("kproxy.commit.rewind", values) == "deny",
    )


def settings_of(configs: Mapping[str, str]) -> QueueSettings:
    """A queue's `configs` as values. Each combination is parsed once."""
    return _parsed(tuple(configs.items())) if configs else DEFAULTS


def effective(name: str, configs: Mapping[str, str]) -> str:
    """A setting as text, as DescribeConfigs shows it."""
    return configs.get(name) or SETTINGS[name].default


DEFAULTS = _parsed(())
