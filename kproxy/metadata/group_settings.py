"""The settings of a group: all of Kafka 4.4's (`GroupConfig`), and kproxy's own.

The worker has a default for each setting that a group does not set (`config_of_groups`). Checks and
their texts follow Kafka's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.group_values import (
    FROM_LATEST,
    AutoOffsetReset,
    WholeFault,
    assignor,
    at_least,
    backoffs,
    dead_letter_queue,
    isolation,
    offset_reset,
    reset_of,
    tag_keys,
    true_or_false,
)
from kproxy.metadata.lane_settings import LANE_SETTINGS, LaneRules, rules_of
from kproxy.metadata.levels import Level
from kproxy.metadata.setting import (
    BOOLEAN,
    COPIES_BY,
    INT,
    INT_MAX,
    LIST,
    SET_BY,
    STRING,
    Setting,
    is_true,
    parts,
    shown,
)
from kproxy.virtual.levels import KAFKA_44_FROM
from kproxy.virtual.rows.group_settings import decode_group_configs

DEAD_LETTERS = "errors.deadletterqueue.topic.name"
COPIES_RECORD = "errors.deadletterqueue.copy.record.enable"
ASSIGNOR, TAGS = "streams.assignor.name", "streams.rack.aware.assignment.tags"
RETRY_BACKOFF = "kproxy.share.retry.backoff.ms"
_PARSED_MAX = 10_000
_VALUE_MAX = 10_000  # characters
_SHOWN_MAX = 1000  # characters of them, in an error: it is cut off at 2,000

# -- the settings


def _number(name: str, least: int | None, documentation: str, field: str = "") -> Setting:
    read = at_least(least)
    return Setting(name, INT, "", read, documentation, f"group.{name}", field=field, value=int)


def _without_effect(setting: Setting) -> Setting:
    """Return a setting of Kafka 4.4 that says how its coordinators share threads."""
    text = f"{setting.documentation} Kept, and without effect: assignments are made in slices."
    return replace(setting, documentation=text, has_effect=False, level=KAFKA_44_FROM)


_ORDERED = (
    _number("consumer.heartbeat.interval.ms", 1,
            "Time between heartbeats of a consumer group's members; milliseconds.",
            "consumer_heartbeat_interval_ms"),
    _number("consumer.session.timeout.ms", 1,
            "Silence after which a member of a consumer group is gone; milliseconds.",
            "consumer_session_timeout_ms"),
    _number("consumer.assignment.interval.ms", 0,
            "The least time between two assignments of a consumer group; milliseconds.",
            "consumer_assignment_interval_ms"),
    _number("share.heartbeat.interval.ms", 1,
            "Time between heartbeats of a share group's members; milliseconds.",
            "share_heartbeat_interval_ms"),
    _number("share.session.timeout.ms", 1,
            "Silence after which a member of a share group is gone; milliseconds.",
            "share_session_timeout_ms"),
    _number("share.record.lock.duration.ms", None,
            "How long a member holds a record before others may have it; milliseconds.",
            "lock_duration_ms"),
    _number("share.delivery.count.limit", None, "How often a record is given, at most.",
            "delivery_count_limit"),
    _number("share.partition.max.record.locks", None,
            "Records of a partition, from the first one that is not done, that may be given.",
            "record_locks_max"),
    _number("share.assignment.interval.ms", 0,
            "The least time between two assignments of a share group; milliseconds.",
            "assignment_interval_ms"),
    _number("streams.heartbeat.interval.ms", 1,
            "Time between heartbeats of a streams group's members; milliseconds.",
            "streams_heartbeat_interval_ms"),
    _number("streams.session.timeout.ms", 1,
            "Silence after which a member of a streams group is gone; milliseconds.",
            "streams_session_timeout_ms"),
    _number("streams.num.standby.replicas", 0,
            "Standby tasks of a streams group for each task that has state.",
            "streams_num_standby_replicas"),
    _number("streams.assignment.interval.ms", 0,
            "The least time between two assignments of a streams group; milliseconds.",
            "streams_assignment_interval_ms"),
    _number("streams.initial.rebalance.delay.ms", 0,
            "Wait for more members before the first assignment of a streams group; milliseconds.",
            "streams_initial_rebalance_delay_ms"),
    Setting("share.auto.offset.reset", STRING, "latest", offset_reset,
            "Where a share group begins in a partition: earliest, latest, or by_duration: and how"
            " long before now, as in by_duration:PT1H.",
            field="auto_offset_reset", value=reset_of),
    Setting("share.isolation.level", STRING, "read_uncommitted", isolation,
            "read_committed: a share group is not given records of open or aborted transactions.",
            field="read_committed",
            value=lambda text: text == "read_committed"),
    Setting("share.renew.acknowledge.enable", BOOLEAN, "true", true_or_false,
            "Whether members of a share group may hold a record for longer.",
            field="renew_enabled", value=is_true),
    Setting(DEAD_LETTERS, STRING, "", dead_letter_queue,
            "The queue that gets what a share group rejects or was given too often; empty: none.",
            field="dead_letter_queue"),
    _without_effect(Setting(
        "consumer.assignor.offload.enable", BOOLEAN, "true", true_or_false,
        "Whether a consumer group's assignment is made beside the coordinator.")),
    _without_effect(Setting(
        "share.assignor.offload.enable", BOOLEAN, "true", true_or_false,
        "Whether a share group's assignment is made beside the coordinator.")),
    Setting(ASSIGNOR, STRING, "sticky", assignor(ASSIGNOR, "sticky"),
            "The assignor of a streams group; there is one.", level=KAFKA_44_FROM),
    Setting(TAGS, LIST, "", tag_keys(TAGS),
            "The keys of client tags that members of a streams group are to have; one that lacks"
            " some is told so. The assignor does not look at tags, as Kafka's does not.",
            field="streams_tags", value=lambda text: tuple(parts(text)), level=KAFKA_44_FROM),
    Setting(COPIES_RECORD, BOOLEAN, "false", true_or_false,
            "Whether it gets the record's key, value and headers, too, or only where it is from.",
            field="dead_letter_copies_record", value=is_true),
    Setting(RETRY_BACKOFF, STRING, "", backoffs,
            "How long a released record waits before it is given again: after the first, second, …"
            " delivery, the last for all further ones; milliseconds, with commas between.",
            field="retry_backoff_ms",
            value=lambda text: tuple(int(part) for part in parts(text))),
    *LANE_SETTINGS,
)  # fmt: skip
"""The settings in the order in which Kafka checks their bounds."""
SETTINGS = {setting.name: setting for setting in sorted(_ORDERED, key=lambda one: one.name)}
"""The settings by name, in the order of names."""
_FIELDS = [one for one in _ORDERED if one.field]
_LEAST = {
    "share.record.lock.duration.ms": 1000,
    "share.delivery.count.limit": 2,
    "share.partition.max.record.locks": 100,
}
"""The least values, as Kafka has them, if the worker does not allow less."""
_SESSIONS = ("consumer", "share", "streams")


class Bounds(NamedTuple):
    """The bounds of a number, and the names of the broker settings that say so."""

    least: int
    least_name: str
    most: int
    most_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """A group's settings as values; the defaults are Kafka's."""

    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5000
    consumer_assignment_interval_ms: int = 1000
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5000
    assignment_interval_ms: int = 1000
    """The interval between assignments of a share group, in ms."""
    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    record_locks_max: int = 2000
    streams_session_timeout_ms: int = 45_000
    streams_heartbeat_interval_ms: int = 5000
    streams_num_standby_replicas: int = 0
    streams_assignment_interval_ms: int = 1000
    streams_initial_rebalance_delay_ms: int = 3000
    streams_tags: tuple[str, ...] = ()
    auto_offset_reset: AutoOffsetReset = FROM_LATEST
    read_committed: bool = False
    renew_enabled: bool = True
    dead_letter_queue: str = ""
    """Its name; empty: there is none."""
    dead_letter_copies_record: bool = False
    dead_letters_set_by: str | None = None
    """The last user to set either of both: what that user may read is copied."""
    dead_letters_copied_by: str | None = None
    """The user who said that they are copies: what that user may not read is not copied either."""
    retry_backoff_ms: tuple[int, ...] = ()
    """The times before the second, third, … delivery; the last for further ones. Empty: none."""
    lane: str = "none"
    lane_in_flight: int = 0
    lane_lookahead: int = 100_000
    lane_weights: tuple[tuple[str, int], ...] = ()
    lane_rate: tuple[float, int] = (0.0, 1)
    lane_holds: bool = False
    priority: str = ""
    priority_share: float = 0.0
    lanes: LaneRules | None = None
    """The rules that these come to; None: there are neither lanes nor priorities."""


Configs = Mapping[str, str]


class GroupRules:
    """The rules for groups' settings on a worker, and the values that these come to there."""

    def __init__(self, broker_values: Mapping[str, int]) -> None:
        """Set up; `broker_values`: by the names of Kafka's broker settings."""
        self._values = broker_values
        self.of_row: Callable[[bytes], GroupSettings] = lru_cache(_PARSED_MAX)(self._of_row)
        """The settings of a group, from its row: each is parsed once."""
        self.defaults = self._settings({})

    def default(self, setting: Setting) -> str:
        """Return the value for groups that do not set it."""
        if setting.broker_name is None:
            return setting.default
        return str(self._values[setting.broker_name])

    def bounds(self, setting: Setting) -> Bounds | None:
        """Return the bounds of a number; a worker's default is within them in any case."""
        if setting.broker_name is None:
            return None
        _, kind, rest = setting.broker_name.split(".", 2)
        least_name = f"group.{kind}.min.{rest.removeprefix('num.')}"
        most_name = f"group.{kind}.max.{rest.removeprefix('num.')}"
        default = self._values[setting.broker_name]
        return Bounds(
            min(self._values.get(least_name, 0), default), least_name,
            max(self._values.get(most_name, INT_MAX), default), most_name,
        )  # fmt: skip

    # -- checking

    def check(self, given: Configs, kept: Configs) -> dict[str, str]:
        """Return what is given, as it is kept. `kept`: what is set beside it.

        Raise KafkaError (INVALID_CONFIG).
        """
        read: dict[str, str] = {}
        for name in given:
            if name not in SETTINGS:
                raise KafkaError(Code.INVALID_CONFIG, f"Unknown group config name: {name}")
        for name, value in given.items():
            try:
                if len(value) > _VALUE_MAX:
                    raise ValueError(f"it is longer than {_VALUE_MAX} characters")
                read[name] = SETTINGS[name].read(value)
                self._check_least(name, read[name])
            except WholeFault as fault:
                raise KafkaError(Code.INVALID_CONFIG, str(fault)) from None
            except ValueError as fault:
                text = f"Invalid value {value[:_SHOWN_MAX]} for configuration {name}: {fault}"
                raise KafkaError(Code.INVALID_CONFIG, text) from None
        self._check_together({**kept, **read})
        return read

    @staticmethod
    def check_level(given: Configs, level: Level) -> None:
        """Check that all workers obey what is set. Raise KafkaError (INVALID_CONFIG)."""
        for name, value in given.items():
            needed = SETTINGS[name].needs(value)
            if not level.reaches(needed):
                text = (
                    f"{name}={shown(value)} needs level {needed}: once every worker runs this"
                    " release, put it in force with `kproxy upgrade --finalize`"
                )
                raise KafkaError(Code.INVALID_CONFIG, text)

    def _check_least(self, name: str, value: str) -> None:
        bounds = self.bounds(SETTINGS[name])
        if bounds is not None and int(value) < (least := min(_LEAST.get(name, 0), bounds.least)):
            raise ValueError(f"Value must be at least {least}")

    def _check_together(self, configs: Configs) -> None:
        """Check that numbers are within bounds, and sessions longer than heartbeat intervals."""
        for setting in _ORDERED:
            bounds = self.bounds(setting)
            if bounds is None or setting.name not in configs:
                continue
            number = int(configs[setting.name])
            wrong = None
            if number < bounds.least:
                wrong = f"greater than or equal to {bounds.least_name}"
            elif number > bounds.most:
                wrong = f"less than or equal to {bounds.most_name}"
            if wrong is not None:
                raise KafkaError(Code.INVALID_CONFIG, f"{setting.name} must be {wrong}")
        for kind in _SESSIONS:
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if (session in configs or heartbeat in configs) and (
                int(self.effective(session, configs)) <= int(self.effective(heartbeat, configs))
            ):
                raise KafkaError(Code.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")

    # -- reading

    def effective(self, name: str, configs: Configs) -> str:
        """Return a setting as text, as DescribeConfigs shows it."""
        return configs[name] if name in configs else self.default(SETTINGS[name])

    def _number(self, name: str, configs: Configs) -> int:
        """Return a number within its bounds: they may be others than when it was set."""
        number = int(self.effective(name, configs))
        bounds = self.bounds(SETTINGS[name])
        assert bounds is not None
        return min(max(number, bounds.least), bounds.most)

    def _of_row(self, row: bytes) -> GroupSettings:
        return self._settings(decode_group_configs(row).configs)

    def _settings(self, configs: Configs) -> GroupSettings:
        told: dict[str, Any] = {}
        for one in _FIELDS:
            bounded = one.broker_name is not None
            told[one.field] = (
                self._number(one.name, configs) if bounded
                else one.value(self.effective(one.name, configs))
            )  # fmt: skip
        lanes = rules_of(
            told["lane"], told["priority"], told["lane_in_flight"], told["lane_lookahead"],
            told["lane_weights"], told["lane_rate"], told["priority_share"], told["lane_holds"],
        )  # fmt: skip
        return GroupSettings(
            **told, lanes=lanes, dead_letters_set_by=configs.get(SET_BY),
            dead_letters_copied_by=configs.get(COPIES_BY),
        )  # fmt: skip
