"""The settings of a topic: all of Kafka 4.4's (`TopicConfig`, `LogConfig`), and kproxy's own.

Some say how Kafka cuts a partition's log into files and copies it between brokers. Queues have no
such files or copies: these settings are checked, kept and shown, and have no effect.
"""

from collections.abc import Mapping
from dataclasses import replace

from kproxy.metadata.delay_settings import DELAY_SETTINGS
from kproxy.metadata.expiry_settings import EXPIRY_SETTINGS
from kproxy.metadata.redrive_settings import REDRIVE_SETTINGS
from kproxy.metadata.route_settings import ROUTE_SETTINGS
from kproxy.metadata.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Setting,
    boolean,
    decimal,
    is_true,
    list_of,
    number,
    one_of,
    parts,
    whole,
)
from kproxy.virtual.levels import (
    ARRIVAL_FROM,
    COMPACTION_FROM,
    KAFKA_44_FROM,
    LIFE_FROM,
    OLDEST,
)

TWO_WEEKS_MS = 14 * 24 * 3600 * 1000
_DAY_MS, _WEEK_MS = 24 * 3600 * 1000, 7 * 24 * 3600 * 1000
_GIB = 1 << 30
UNPACKED_MOST = 2**31 - 9  # the longest array of Java's


def _gzip_level(value: str) -> str:
    level = whole(INT)(value)
    if level != "-1" and not 1 <= int(level) <= 9:
        raise ValueError("it must be a whole number from 1 to 9, or -1")
    return level


def _throttled(value: str) -> str:
    """Check `*`, or partition:broker pairs."""
    found = parts(value)
    pairs = (part.split(":") for part in found)
    if found != ["*"] and not all(
        len(pair) == 2 and all(word.isascii() and word.isdecimal() for word in pair)
        for pair in pairs
    ):
        raise ValueError("it must be * or a list of partition:broker")
    return ",".join(found)


def _not_remote(value: str) -> str:
    if boolean(value) == "true":
        raise ValueError("queues have no remote storage")
    return "false"


_EFFECTIVE = (
    Setting("cleanup.policy", LIST, "delete", list_of("compact", "delete"),
            "What happens to old records: delete removes those that retention lets go, compact"
            " keeps the last one of each key.",
            "log.cleanup.policy",
            level=lambda text: COMPACTION_FROM if "compact" in text else OLDEST),
    Setting("compression.type", STRING, "producer",
            one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            "How batches are compressed: producer keeps them as they come.", "compression.type"),
    Setting("compression.gzip.level", INT, "-1", _gzip_level,
            "How hard gzip tries; -1: its own default.", "compression.gzip.level"),
    number("compression.lz4.level", INT, 9, 1, "How hard lz4 tries.", "compression.lz4.level",
           most=17),
    number("compression.zstd.level", INT, 3, -131072, "How hard zstd tries.",
           "compression.zstd.level", most=22),
    number("delete.retention.ms", LONG, _DAY_MS, 0,
           "How long a record without a value stays, at least, once compaction has met it;"
           " milliseconds.", "log.cleaner.delete.retention.ms", field="delete_retention_ms"),
    Setting("errors.deadletterqueue.group.enable", BOOLEAN, "false", boolean,
            "Whether share groups may have this queue as their dead-letter queue.",
            field="takes_dead_letters", value=is_true),
    Setting("kproxy.append.if", STRING, "none", one_of("none", "header"),
            "Whether a record may say in the header kproxy.if-end-offset where the partition must"
            " end before it; else it is not appended.",
            field="conditional", value=lambda text: text == "header", level=LIFE_FROM),
    Setting("kproxy.commit.rewind", STRING, "allow", one_of("allow", "deny"),
            "Whether a group may commit an offset below the one it has committed.",
            field="rewind_denied", value=lambda text: text == "deny"),
    Setting("kproxy.retention.from", STRING, "record", one_of("record", "arrival"),
            "From when retention.ms counts: the time that a record itself has, as in Kafka, or its"
            " arrival here.",
            field="retained_from_arrival", value=lambda text: text == "arrival",
            level=lambda text: ARRIVAL_FROM if text == "arrival" else OLDEST),
    number("max.compaction.lag.ms", LONG, LONG_MAX, 1,
           "How long a record may stay out of compaction, at most; milliseconds.",
           "log.cleaner.max.compaction.lag.ms", field="max_compaction_lag_ms"),
    number("max.decompressed.message.bytes", INT, UNPACKED_MOST, 1,
           "The largest record of a compressed batch that is taken, unpacked; bytes, from 32 MiB on"
           " any.", "max.decompressed.message.bytes", most=UNPACKED_MOST,
           field="unpacked_record_max", level=KAFKA_44_FROM),
    number("max.message.bytes", INT, 1048588, 0,
           "The largest record batch that is taken, as it is stored; bytes.", "message.max.bytes"),
    number("message.timestamp.after.max.ms", LONG, 3_600_000, 0,
           "How far a producer's timestamp may lie in the future; milliseconds.",
           "log.message.timestamp.after.max.ms"),
    number("message.timestamp.before.max.ms", LONG, LONG_MAX, 0,
           "How far a producer's timestamp may lie in the past; milliseconds.",
           "log.message.timestamp.before.max.ms"),
    Setting("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
            "Whether a record's timestamp is the producer's or the server's.",
            "log.message.timestamp.type"),
    Setting("min.cleanable.dirty.ratio", DOUBLE, "0.5", decimal(0, 1),
            "The part of a partition that is new since its last compaction, at which the next"
            " begins.", "log.cleaner.min.cleanable.ratio", field="dirty_ratio", value=float),
    number("min.compaction.lag.ms", LONG, 0, 0,
           "How long a record stays out of compaction, at least; milliseconds.",
           "log.cleaner.min.compaction.lag.ms", field="min_compaction_lag_ms"),
    number("retention.bytes", LONG, -1, None,
           "How large a partition may grow before its oldest records go; -1: any size.",
           "log.retention.bytes"),
    number("retention.ms", LONG, TWO_WEEKS_MS, -1,
           "How long records are kept; milliseconds, -1: for ever."),
)  # fmt: skip
_FILES = (
    number("file.delete.delay.ms", LONG, 60_000, 0, "When a deleted file leaves the disk.",
           "log.segment.delete.delay.ms"),
    number("flush.messages", LONG, LONG_MAX, 1, "Records between two flushes.",
           "log.flush.interval.messages"),
    number("flush.ms", LONG, LONG_MAX, 0, "Milliseconds between two flushes."),
    number("index.interval.bytes", INT, 4096, 0, "Bytes between two entries of an index.",
           "log.index.interval.bytes"),
    Setting("preallocate", BOOLEAN, "false", boolean, "Whether files are made at full size.",
            "log.preallocate"),
    number("segment.bytes", INT, _GIB, 1 << 20, "The size of a file.", "log.segment.bytes"),
    number("segment.index.bytes", INT, 10 << 20, 4, "The size of an index.",
           "log.index.size.max.bytes"),
    number("segment.jitter.ms", LONG, 0, 0, "How much earlier a file may be closed."),
    number("segment.ms", LONG, _WEEK_MS, 1, "When a file is closed."),
)  # fmt: skip
_REPLICAS = (
    Setting("follower.replication.throttled.replicas", LIST, "", _throttled,
            "Replicas that are throttled where they follow."),
    Setting("leader.replication.throttled.replicas", LIST, "", _throttled,
            "Replicas that are throttled where they lead."),
    number("min.insync.replicas", INT, 1, 1, "Replicas that must have a record.",
           "min.insync.replicas"),
    Setting("unclean.leader.election.enable", BOOLEAN, "false", boolean,
            "Whether a replica that lacks records may lead.", "unclean.leader.election.enable"),
)  # fmt: skip
_REMOTE = (
    number("local.retention.bytes", LONG, -2, -2, "How much of what is remote stays here.",
           "log.local.retention.bytes"),
    number("local.retention.ms", LONG, -2, -2, "How long it stays here.",
           "log.local.retention.ms"),
    number("remote.copy.lag.bytes", LONG, -1, -1,
           "How much may come behind a file before it is copied.", "log.remote.copy.lag.bytes",
           level=KAFKA_44_FROM),
    number("remote.copy.lag.ms", LONG, 0, -1, "How old it may be before it is copied.",
           "log.remote.copy.lag.ms", level=KAFKA_44_FROM),
    Setting("remote.log.copy.disable", BOOLEAN, "false", boolean,
            "Whether nothing more is copied."),
    Setting("remote.log.delete.on.disable", BOOLEAN, "false", boolean,
            "Whether the remote copy goes with the setting."),
    Setting("remote.storage.enable", BOOLEAN, "false", _not_remote,
            "Whether records are stored remotely."),
)  # fmt: skip
_WITHOUT_EFFECT = (
    (_FILES, "all queues of a shard share its files"),
    (_REPLICAS, "the cluster's own topics have replicas, queues have none"),
    (_REMOTE, "queues have no remote storage"),
)


def _all() -> dict[str, Setting]:
    found = [*_EFFECTIVE, *ROUTE_SETTINGS, *REDRIVE_SETTINGS, *DELAY_SETTINGS, *EXPIRY_SETTINGS]
    for settings, why in _WITHOUT_EFFECT:
        found += [
            replace(
                setting, has_effect=False,
                documentation=f"{setting.documentation} Kept, and without effect: {why}.",
            )
            for setting in settings
        ]  # fmt: skip
    return {setting.name: setting for setting in sorted(found, key=lambda setting: setting.name)}


SETTINGS = _all()
"""The settings by name, in the order of names."""


def conflict(values: Mapping[str, str]) -> str | None:
    """Return what is wrong with settings together, of which each by itself is sound."""
    least, most = (values.get(name, SETTINGS[name].default) for name in _LAGS)
    if int(least) > int(most):
        return f"min.compaction.lag.ms={least} is above max.compaction.lag.ms={most}"
    return None


_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
