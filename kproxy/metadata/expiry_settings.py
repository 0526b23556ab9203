"""The settings of queues and records that go by themselves."""

from collections.abc import Mapping

from kproxy.metadata.setting import (
    BOOLEAN,
    LONG,
    LONG_MAX,
    STRING,
    Setting,
    boolean,
    is_true,
    one_of,
    whole,
)
from kproxy.virtual.levels import LIFE_FROM, OLDEST
from kproxy.virtual.rows.idle import IDLE_MS, WITH_RECORDS, idle_ms_of

RECORDS = "kproxy.retention.records"
IDLE_MS_LEAST = 60_000


def _idle(value: str) -> str:
    """Check a time, or -1."""
    read = whole(LONG, -1, LONG_MAX >> 1)(value)
    if -1 < int(read) < IDLE_MS_LEAST:
        raise ValueError(f"it must be -1 (never), or {IDLE_MS_LEAST} at least")
    return read


def _records(value: str) -> str:
    """Check a number of records, or -1."""
    read = whole(LONG, -1)(value)
    if read == "0":
        raise ValueError("it must be -1 (any number), or 1 at least")
    return read


EXPIRY_SETTINGS = (
    Setting(IDLE_MS, LONG, "-1", _idle,
            "How long an empty queue may be idle before it is deleted: nothing is produced, fetched"
            " or committed, and nobody waits for records; milliseconds, a minute at least, -1:"
            " for ever.",
            field="expires_idle_ms", value=int, level=LIFE_FROM),
    Setting(WITH_RECORDS, BOOLEAN, "false", boolean,
            "Whether kproxy.expire.idle.ms deletes a queue that has records, too.",
            field="expires_with_records", value=is_true, level=LIFE_FROM),
    Setting(RECORDS, LONG, "-1", _records,
            "How many records of a partition are kept, the last ones; -1: any number.",
            level=lambda text: OLDEST if text == "-1" else LIFE_FROM),
    Setting("kproxy.ttl", STRING, "none", one_of("none", "header"),
            "Whether a record may say in a header when share groups are not given it any more:"
            " kproxy.expires-at (milliseconds since 1970) or kproxy.ttl-ms.",
            field="expires_by_header", value=lambda text: text == "header",
            level=lambda text: LIFE_FROM if text == "header" else OLDEST),
)  # fmt: skip


def expiry_conflict(values: Mapping[str, str]) -> str | None:
    """Return what is wrong with settings of expiry, of which each by itself is sound."""
    if values.get(WITH_RECORDS) == "true" and idle_ms_of(values) < 0:
        return f"{WITH_RECORDS} has no effect without {IDLE_MS}: set both, or neither"
    return None


def expiring_partitions_conflict(values: Mapping[str, str], partitions: int) -> str | None:
    """Return why a queue with these settings has too many partitions, or None."""
    if idle_ms_of(values) >= 0 and partitions != 1:
        return (
            f"a queue with {IDLE_MS} has 1 partition, not {partitions}: one worker decides that"
            " nobody uses it"
        )
    return None
