"""A queue's settings: what is given checked, and what is kept as values.

The fold reads no settings but those of its own log, and a queue's settings are in its home shard
only. A setting that the fold needs in another shard therefore travels in the envelope, as
`kproxy.commit.rewind` does in COMMIT.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata import delay_settings
from kproxy.metadata.delay_settings import MODE, DelaySettings, delays_conflict
from kproxy.metadata.demands import Demands
from kproxy.metadata.expiry_settings import RECORDS, expiry_conflict
from kproxy.metadata.levels import Level
from kproxy.metadata.redrive_settings import redrive_conflict
from kproxy.metadata.route_settings import LAG_MAX, PREFIX, routes_conflict
from kproxy.metadata.routing import read_configs
from kproxy.metadata.setting import LONG_MAX, parts, shown
from kproxy.metadata.topic_settings import SETTINGS, conflict
from kproxy.protocol.batch import CODECS
from kproxy.virtual.folds.route_definitions import CONFIGS, TO

SIZE, CONDITION = "max.message.bytes", "kproxy.append.if"
_MARKED_AT_LEAST = 8
"""Retention by arrival notes where a partition ends so many times in `retention.ms`, if it can."""
_PARSED_MAX = 1000
_CODECS = {name: number for number, name in enumerate(CODECS)} | {"uncompressed": 0}


def given(named: Iterable[Any]) -> dict[str, str | None]:
    """Return settings as they are named, the last of each. Raise KafkaError (INVALID_CONFIG)."""
    found: dict[str, str | None] = {}
    for setting in named:
        if setting.name not in SETTINGS:
            raise _unknown(setting.name)
        found[setting.name] = setting.value
    return found


def _unknown(name: str) -> KafkaError:
    return KafkaError(Code.INVALID_CONFIG, f"Unknown topic config name: {shown(name)}")


VALUE_MAX = 1 << 17  # characters: what is longer is checked, and kept, for too long


def check(given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the settings to keep, as they are shown, without those set to null.

    Raise KafkaError (INVALID_CONFIG).
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
            raise KafkaError(Code.INVALID_CONFIG, f"{name}={shown(value)}: {fault}") from None
    if kept.get(CONFIGS):
        kept[CONFIGS] = _checked_configs(kept[CONFIGS])
    return kept


def _checked_configs(text: str) -> str:
    """Return settings of queues that a route makes, as they are kept. Raise KafkaError."""
    try:
        kept = check(_of_made_queues(text))
        fault = conflict(kept)
    except KafkaError as error:
        fault = error.message
    if fault:
        raise KafkaError(Code.INVALID_CONFIG, f"{CONFIGS}: {fault}")
    return ";".join(f"{name}:{value}" for name, value in kept.items())


def _of_made_queues(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = dict(read_configs(text))
    for name in found:
        if name.startswith(PREFIX):
            what = f"{shown(name)} must not be in it: queues that a route makes have no routes"
            raise KafkaError(Code.INVALID_CONFIG, what)
    return found


def check_together(
    values: Mapping[str, str], level: Level, given: Collection[str] | None = None
) -> None:
    """Check all settings of a queue, each sound by itself. Raise KafkaError (INVALID_CONFIG).

    `given`: the names of those that are set now; None: all.
    """
    named = values if given is None else given
    fault = conflict(values) or routes_conflict(values, named) or redrive_conflict(values, named)
    fault = fault or delays_conflict(values) or _condition_conflict(values)
    fault = fault or expiry_conflict(values)
    made = read_configs(values.get(CONFIGS, ""))  # settings that its route gives
    needed, name, value = max(
        ((SETTINGS[name].needs(value), name, value)
         for name, value in (*values.items(), *made.items()) if name in SETTINGS),
        default=(0, "", ""),
    )  # fmt: skip
    if not level.reaches(needed):
        fault = (
            f"{name}={shown(value)} needs level {needed}: once every worker runs this release, put"
            " it in force with `kproxy upgrade --finalize`"
        )
    if fault:
        raise KafkaError(Code.INVALID_CONFIG, fault)


def _condition_conflict(values: Mapping[str, str]) -> str | None:
    """Return why records that say where their partition must end do not go with other settings."""
    if values.get(CONDITION, "none") != "none" and _delay(values) is not None:
        return f"{CONDITION} and {MODE} exclude each other: a record that waits has no place yet"
    return None


_LATE_BY, _LATE_MS_MAX = 4, 3_600_000
"""The part of a silence that retention by size may be late behind it, and the most."""
LOOK_AGAIN_MS = 24 * 3600 * 1000
"""A partition with records is looked at for retention this often at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """A queue's settings as values. A setting that the queue does not set has its default."""

    retention_ms: int
    """-1: records are kept for ever."""
    retained_from_arrival: bool
    """Whether that counts from the arrival of records, not from their own times."""
    expires_after_ms: int
    """Retention takes records at its next look whose times are older than this."""
    retention_bytes: int
    """-1: of any size."""
    retention_records: int
    """-1: any number of records."""
    demands: Demands
    """The demands on whatever is appended."""
    rewind_denied: bool
    expires_idle_ms: int
    """-1: it is not deleted, however long nobody uses it."""
    expires_with_records: bool
    expires_by_header: bool
    """Whether records say when share groups are not given them any more."""
    conditional: bool
    """Whether a record may say where its partition must end."""
    takes_dead_letters: bool
    """Whether share groups may have the queue as their dead-letter queue."""
    compacted: bool
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    dirty_ratio: float
    inspects: bool
    """Whether the records of a batch are looked at before it is taken."""
    route_lag_max: int | None
    """The records of an entrance's partition that may wait to be passed on. None: it is none."""
    route_queues_max: int
    """Queues that each of its partitions may make."""
    route_keeps: bool
    """Whether records stay in it once they were passed on."""
    redrive_paused: bool
    redrive_every_s: float
    """The seconds between two records that a redrive passes on; 0: as fast as it goes."""
    delay: DelaySettings | None
    """None: no record waits."""

    @property
    def retained_by_size(self) -> bool:
        """Whether each record that comes may be one too many, or one batch of too many bytes."""
        return self.retention_bytes >= 0 or self.retention_records >= 0

    def look_at_ms(self, oldest_ms: int, now_ms: int, check_ms: int, idle_ms: int = 0) -> int:
        """Return when retention checks a partition next whose records begin at `oldest_ms`.

        As Kafka's checks, not before `check_ms` have passed, however old the records are. A
        partition that may have too many is looked at the rarer, the longer nothing has come to it
        (`idle_ms`).
        """
        soonest_ms, again_ms = now_ms + check_ms, now_ms + LOOK_AGAIN_MS
        if self.retained_by_size:
            again_ms = now_ms + min(idle_ms // _LATE_BY, _LATE_MS_MAX)
        if self.retained_from_arrival and self.retention_ms >= 0:
            return max(soonest_ms, min(again_ms, now_ms + self.retention_ms // _MARKED_AT_LEAST))
        if self.retention_ms >= 0 and oldest_ms >= 0:
            expired_ms = oldest_ms + self.retention_ms + 1
            if expired_ms < again_ms:
                again_ms = expired_ms
        return again_ms if again_ms > soonest_ms else soonest_ms


_FIELDS = [one for one in SETTINGS.values() if one.field]


@lru_cache(_PARSED_MAX)
def _parsed(configs: tuple[tuple[str, str], ...]) -> QueueSettings:
    values = dict(configs)
    size = values.get(SIZE)
    policies = parts(effective("cleanup.policy", values))
    deleted = "delete" in policies
    packed = effective("compression.type", values)
    codec = None if packed == "producer" else _CODECS[packed]
    level = SETTINGS.get(f"compression.{packed}.level")
    delay = _delay(values)
    demands = Demands(
        keyed="compact" in policies,
        bytes_max=int(size) if size else None,
        log_append_time=effective("message.timestamp.type", values) == "LogAppendTime",
        before_max_ms=int(effective("message.timestamp.before.max.ms", values)),
        after_max_ms=int(effective("message.timestamp.after.max.ms", values)),
        codec=codec,
        compression_level=None if level is None else int(effective(level.name, values)),
    )
    retention_ms = int(effective("retention.ms", values)) if deleted else -1
    told = {one.field: one.value(effective(one.name, values)) for one in _FIELDS}
    forever = retention_ms < 0 or told["retained_from_arrival"]
    return QueueSettings(
        retention_ms=retention_ms,
        expires_after_ms=LONG_MAX if forever else retention_ms,
        retention_bytes=int(effective("retention.bytes", values)) if deleted else -1,
        retention_records=int(effective(RECORDS, values)) if deleted else -1,
        demands=demands,
        compacted="compact" in policies,
        inspects=demands.of_records
        or told["conditional"]
        or (delay is not None and (delay.by_header or delay.by_key)),
        route_lag_max=int(effective(LAG_MAX, values)) if values.get(TO) else None,
        delay=delay,
        **told,
    )


def _delay(values: Mapping[str, str]) -> DelaySettings | None:
    found = DelaySettings(
        int(effective(delay_settings.FIXED, values)),
        effective(delay_settings.MODE, values) == "header",
        int(effective(delay_settings.MOST, values)),
        int(effective(delay_settings.RECORDS_MAX, values)),
        effective(delay_settings.REPLACE, values) == "key",
    )
    return found if found.fixed_ms or found.by_header else None


def settings_of(configs: Mapping[str, str]) -> QueueSettings:
    """Return a queue's `configs` as values. Each combination is parsed once."""
    return _parsed(tuple(configs.items())) if configs else DEFAULTS


def effective(name: str, configs: Mapping[str, str]) -> str:
    """Return a setting as text, as DescribeConfigs shows it."""
    return configs[name] if name in configs else SETTINGS[name].default


DEFAULTS = _parsed(())
