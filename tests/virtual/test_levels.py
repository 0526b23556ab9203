"""Levels of kinds of envelopes and rows: nothing above the one in force is written."""

from typing import Any

from kproxy.common.errors import KafkaError
from kproxy.metadata import queue_settings
from kproxy.metadata.levels import Level
from kproxy.virtual import levels
from kproxy.virtual.commands.delays import Later
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import AssignPartitions, ConfigureQueue, CreateQueue
from kproxy.virtual.commands.shares import ChangeShares
from kproxy.virtual.commands.traits import TRAITS
from kproxy.virtual.levels import (
    LANES_FROM,
    LIFE_FROM,
    NEWEST,
    OLDEST,
    PRODUCERS_FROM,
    RELEASED,
    ROUTES_FROM,
)
from kproxy.virtual.rows.kinds import RowKind
from tests.fakes import MemoryShard
from tests.virtual.commands.test_commands import story


def may_be_written(envelope: Envelope, level: int) -> bool:
    """Return whether this may be written at a level: its kind, its settings and its fields."""
    if not Level(level).admits([envelope]):
        return False
    if envelope.kind == Kind.APPEND and envelope.time_ms:
        return level >= PRODUCERS_FROM
    if envelope.kind == Kind.LATER and Later.decode(envelope).gone is not None:
        return level >= LIFE_FROM
    if envelope.kind == Kind.ASSIGN_PARTITIONS and AssignPartitions.decode(envelope).routes:
        return level >= ROUTES_FROM
    if envelope.kind == Kind.SHARE and ChangeShares.decode(envelope).holds:
        return level >= LANES_FROM
    given: dict[str, str] = {}
    if envelope.kind == Kind.CREATE:
        given = CreateQueue.decode(envelope).configs
    elif envelope.kind == Kind.CONFIGURE:
        given = ConfigureQueue.decode(envelope).given
    try:
        queue_settings.check_together(given, Level(level))
    except KafkaError:
        return False
    return True


def test_levels_of_kinds_are_among_those_there_are() -> None:
    levels = {traits.level for traits in TRAITS.values()} | {kind.level for kind in RowKind}
    assert levels <= set(range(OLDEST, NEWEST + 1))


def test_an_envelope_is_admitted_from_the_level_of_its_kind_on() -> None:
    for kind, traits in TRAITS.items():
        admitting = [
            level for level in range(OLDEST, NEWEST + 1) if Level(level).admits([Envelope(kind)])
        ]
        assert admitting == list(range(traits.level, NEWEST + 1)), kind.name


def test_no_row_is_of_a_later_level_than_the_one_in_force() -> None:
    for level in range(OLDEST, NEWEST + 1):
        shard = MemoryShard(0, 2, shared=True)
        shard.level.value = level
        seen: set[bytes] = set()
        write = shard.kv.write

        def noted(changes: dict[bytes, bytes | None], seen: Any = seen, write: Any = write) -> None:
            seen.update(key[:1] for key in changes)
            write(changes)

        setattr(shard.kv, "write", noted)  # noqa: B010
        for envelope in story():
            if may_be_written(envelope, level):
                shard.append([envelope])
        above = {kind.name for kind in map(RowKind, seen) if kind.level > level}
        assert not above, f"level {level}"


def test_released_levels_are_closed() -> None:
    """A release reads its own levels: a name that is added to one of them would break it."""
    released = {name for name, level in vars(levels).items()
                if name.endswith("_FROM") and level <= RELEASED}  # fmt: skip
    assert released == {
        "ARRIVAL_FROM", "BINARY_FROM", "CALLS_FROM", "COMPACTION_FROM", "DELAYS_FROM",
        "ENCODINGS_FROM", "FORGETS_FROM", "LANES_FROM", "LETTERS_FROM", "LIFE_FROM", "ONCE_FROM",
        "ORDERED_FROM", "PRODUCERS_FROM", "RESTORES_FROM", "ROUTES_FROM", "SECURITY_FROM",
        "SHARES_FROM", "SHIPS_FROM", "SPARES_FROM", "STREAMS_FROM", "TRANSACTIONS_FROM",
        "UNASKED_FROM", "WAITS_FROM",
    }  # fmt: skip
    assert NEWEST <= RELEASED + 1
