"""A queue's settings: what is given checked, and what is kept as values.

The fold reads no settings but those of its own log, and a queue's settings are in its home shard
only. A setting that the fold needs in another shard therefore travels in the envelope, as
`kproxy.commit.rewind` does in COMMIT.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kproxy.errors import Code, KafkaError
from kproxy.metadata.levels import COMPACTION_FROM, Level
from kproxy.metadata.setting import LONG_MAX, parts
from kproxy.metadata.topic_settings import SETTINGS, conflict
from kproxy.protocol.batch import CODECS

_PARSED_MAX = 1000
_CODECS = {name: number for number, name in enumerate(CODECS)} | {"uncompressed": 0}


def given(named: Iterable[Any]) -> dict[str, str | None]:
    """Settings as they are named, the last of each. Raises KafkaError (INVALID_CONFIG)."""
    found: dict[str, str | None] = {}
    for setting in named:
        if setting.name not in SETTINGS:
            raise _unknown(setting.name)
        found[setting.name] = setting.value
    return found


def _unknown(name: str) -> KafkaError:
    return KafkaError(Code.INVALID_CONFIG, f"Unknown topic config name: {name}")


VALUE_MAX = 1 << 17  # characters: what is longer is checked, and kept, for too long


def check(given: Mapping[str, str | None]) -> dict[str, str]:
    """The settings to keep, as they are shown, without those set to null.

    Raises KafkaError (INVALID_CONFIG).
    """
    kept = {}
    for name, value in given.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise _unknown(name)
        if value is None:
            continue
        if len(value) > VALUE_MAX:
            raise KafkaError(Code.INVALID_CONFIG, f"{name} is longer than {VALUE_MAX} characters")
        try:
            kept[name] = setting.read(value)
        except ValueError as fault:
            raise KafkaError(Code.INVALID_CONFIG, f"{name}={value}: {fault}") from None
    return kept


def check_together(values: Mapping[str, str], level: Level) -> None:
    """All settings of a queue, each sound by itself. Raises KafkaError (INVALID_CONFIG)."""
    fault = conflict(values)
    if "compact" in values.get("cleanup.policy", "") and not level.reaches(COMPACTION_FROM):
        fault = (
            f"cleanup.policy=compact needs level {COMPACTION_FROM}: once every worker runs this"
            " release, put it in force with `kproxy upgrade --finalize`"
        )
    if fault:
        raise KafkaError(Code.INVALID_CONFIG, fault)


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
    timestamp_before_max_ms: int
    log_append_time: bool
    rewind_denied: bool
    takes_dead_letters: bool
    """Whether share groups may have the queue as their dead-letter queue."""
    compacted: bool
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    dirty_ratio: float
    codec: int | None
    """What batches are packed with, an index into CODECS; None: as they come."""
    compression_level: int | None
    inspects: bool
    """Whether the records of a batch are looked at before it is taken."""
    route_lag_max: int | None = None
    """Of an entrance: records of a partition that may wait to be passed on. None: it is none."""
    route_queues_max: int = 10_000_000
    """Queues that its route may make."""
    route_keeps: bool = True
    """Whether records stay in it once they were passed on."""

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
    policies = parts(effective("cleanup.policy", values))
    deleted = "delete" in policies
    before_ms = int(effective("message.timestamp.before.max.ms", values))
    packed = effective("compression.type", values)
    codec = None if packed == "producer" else _CODECS[packed]
    level = SETTINGS.get(f"compression.{packed}.level")
    routes = bool(values.get("kproxy.route.to"))
    return QueueSettings(
        retention_ms=int(effective("retention.ms", values)) if deleted else -1,
        retention_bytes=int(effective("retention.bytes", values)) if deleted else -1,
        max_message_bytes=int(size) if size else None,
        timestamp_after_max_ms=int(effective("message.timestamp.after.max.ms", values)),
        timestamp_before_max_ms=before_ms,
        log_append_time=effective("message.timestamp.type", values) == "LogAppendTime",
        rewind_denied=effective("kproxy.commit.rewind", values) == "deny",
        takes_dead_letters=effective("errors.deadletterqueue.group.enable", values) == "true",
        compacted="compact" in policies,
        min_compaction_lag_ms=int(effective("min.compaction.lag.ms", values)),
        max_compaction_lag_ms=int(effective("max.compaction.lag.ms", values)),
        delete_retention_ms=int(effective("delete.retention.ms", values)),
        dirty_ratio=float(effective("min.cleanable.dirty.ratio", values)),
        codec=codec,
        compression_level=None if level is None else int(effective(level.name, values)),
        inspects="compact" in policies or codec is not None or before_ms < LONG_MAX,
        route_lag_max=int(values.get("kproxy.route.lag.max", 1_000_000)) if routes else None,
        route_queues_max=int(values.get("kproxy.route.queues.max", 10_000_000)),
        route_keeps=values.get("kproxy.route.keep", "true") == "true",
    )


def settings_of(configs: Mapping[str, str]) -> QueueSettings:
    """A queue's `configs` as values. Each combination is parsed once."""
    return _parsed(tuple(configs.items())) if configs else DEFAULTS


def effective(name: str, configs: Mapping[str, str]) -> str:
    """A setting as text, as DescribeConfigs shows it."""
    return configs[name] if name in configs else SETTINGS[name].default


DEFAULTS = _parsed(())
