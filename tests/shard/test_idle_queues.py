"""Queues that go once nobody has used them for as long as their setting says."""

from typing import Any, cast

import anyio
import pytest

from kproxy.common.counters import Counters
from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.shard.expiry.idle_queues import IdleExpiry
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import CommitOffsets, OffsetCommit
from kproxy.virtual.commands.queues import ConfigureQueue, CreateQueue, ExpireQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shares import Cause
from kproxy.virtual.commands.transactions import Begin
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.reindex import Reindex
from kproxy.virtual.rows.idle import IDLE_DUE, IDLE_MS, WITH_RECORDS
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import DEAD_LETTERS, SHARE_PARTITIONS, Owed, SharePartition
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import DictKv, MemoryShard
from tests.virtual.commands.delay_cases import later, waiting
from tests.wire import batch

KEY: PartitionKey = (QueueId(bytes(16)), 0)
MINUTE, DAY = 60_000, 24 * 3600 * 1000


class Stage:
    """A shard with a queue that goes after a minute, and its looker, at a time of its own."""

    def __init__(self, **configs: str) -> None:
        self.shard, self.now_ms, self.counters = MemoryShard(), 1_000_000, Counters()
        self.shard.apply(CreateQueue(KEY[0], "q", 1, {IDLE_MS: "60000"} | configs).envelope())
        self.looker = IdleExpiry(
            cast(Any, self.shard), Config(), lambda: self.now_ms, self.counters
        )

    async def look(self, after_ms: int = 0) -> bool:
        """Look as often as the looker does meanwhile; whether the queue is there."""
        for _ in range(max(1, after_ms // 5000)):
            self.now_ms += 5000 if after_ms else 0
            while await self.looker.scan_once():
                pass
        return self.shard.state.queue("q") is not None

    def append(self) -> None:
        assert not self.shard.apply(Envelope(Kind.APPEND, *KEY, body=batch(b"v"))).code


@pytest.mark.anyio
async def test_a_queue_goes_after_its_idle_time_and_not_before() -> None:
    stage = Stage()
    assert await stage.look()
    assert await stage.look(MINUTE - 5000)
    assert not await stage.look(5000)
    assert stage.counters.queues_expired == 1
    await stage.look(10 * MINUTE)
    left = {key[:1] for key in stage.shard.kv.rows}
    assert not left & {RowKind.IDLE_DUE.letter, RowKind.PARTITION.letter, RowKind.QUEUE.letter}


@pytest.mark.anyio
async def test_a_queue_with_records_stays_until_they_are_gone() -> None:
    stage = Stage()
    stage.append()
    assert await stage.look(10 * MINUTE)
    stage.shard.apply(Trim(*KEY, -1).envelope())
    assert not await stage.look(MINUTE // 2)


@pytest.mark.anyio
async def test_a_queue_goes_with_its_records_where_it_says_so() -> None:
    stage = Stage(**{WITH_RECORDS: "true"})
    await stage.look(MINUTE // 2)
    stage.append()
    assert await stage.look(MINUTE)
    assert not await stage.look(MINUTE)


@pytest.mark.anyio
async def test_a_read_keeps_a_queue() -> None:
    stage = Stage()
    for _ in range(10):
        assert await stage.look(MINUTE // 2)
        stage.shard.used.add(KEY)
    assert await stage.look(MINUTE // 2)
    assert not await stage.look(MINUTE)
    assert not stage.shard.used


@pytest.mark.anyio
async def test_a_reader_that_waits_keeps_a_queue_and_one_that_is_gone_does_not() -> None:
    stage = Stage()

    class Reader:
        polled_until = anyio.current_time() + 1e9

        def changed(self, key: PartitionKey) -> None: ...

    reader = Reader()
    stage.shard.watchers.add(KEY, reader)
    assert await stage.look(10 * MINUTE)
    reader.polled_until = anyio.current_time() - MINUTE
    assert not await stage.look(2 * MINUTE)


@pytest.mark.anyio
async def test_without_the_setting_nothing_is_filed_and_a_change_counts_at_once() -> None:
    stage = Stage(**{IDLE_MS: "-1"})
    assert await stage.look(10 * MINUTE)
    assert not any(RowKind.IDLE_DUE.of(key) or RowKind.IDLE.of(key) for key in stage.shard.kv.rows)
    stage.shard.apply(ConfigureQueue(KEY[0], {IDLE_MS: "60000"}, [], False).envelope())
    assert await stage.look(MINUTE - 5000)
    stage.shard.apply(ConfigureQueue(KEY[0], {}, [IDLE_MS], False).envelope())
    assert await stage.look(10 * MINUTE)


@pytest.mark.anyio
async def test_a_takeover_begins_anew() -> None:
    stage = Stage()
    assert await stage.look(MINUTE - 5000)
    stage.shard.claim_offset = 77
    assert await stage.look(MINUTE - 5000)
    assert not await stage.look(MINUTE)


@pytest.mark.anyio
async def test_a_queue_with_a_long_idle_time_is_looked_at_once_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: with more than four days it was taken for one that a clock ahead of time had filed,
    looked at in each second, and written each time."""
    stage = Stage(**{IDLE_MS: str(30 * DAY)})
    looks = 0

    def noted(*given: Any) -> None:
        nonlocal looks
        looks += 1
        look_at(*given)

    look_at = stage.looker._look_at
    monkeypatch.setattr(stage.looker, "_look_at", noted)
    assert await stage.look(MINUTE)
    assert looks == 1
    stage.now_ms += DAY
    assert await stage.look(MINUTE)
    assert looks == 2


@pytest.mark.anyio
async def test_a_clock_that_jumps_deletes_no_queue() -> None:
    """FAULT: a queue that had been used a minute ago went with its records."""
    stage = Stage(**{WITH_RECORDS: "true"})
    stage.append()
    stage.now_ms = 100 * DAY
    assert await stage.look(MINUTE // 2)
    for jump in (DAY, -DAY, -DAY, 2 * DAY, -DAY):
        stage.now_ms += jump
        assert await stage.look(MINUTE - 5000)
    assert not await stage.look(MINUTE)


@pytest.mark.anyio
async def test_a_setting_that_changes_during_a_look_counts_at_once() -> None:
    stage = Stage(**{IDLE_MS: str(DAY)})
    other = QueueId(b"o" * 16)
    stage.shard.apply(CreateQueue(other, "other", 1, {IDLE_MS: "60000"}).envelope())
    assert await stage.look(MINUTE)
    append = stage.shard.append

    def late(some: Any) -> Any:
        stage.shard.apply(ConfigureQueue(KEY[0], {IDLE_MS: "60000"}, [], False).envelope())
        return append(some)

    stage.shard.apply(ConfigureQueue(KEY[0], {IDLE_MS: str(2 * DAY)}, [], False).envelope())
    stage.shard.append = late  # type: ignore[method-assign]
    await stage.look(5000)
    assert stage.counters.queues_expired == 1
    assert not await stage.look(MINUTE)


# -- what the fold refuses: it came between the look and the command


def expire(stage: Stage, end: int = 0, time_ms: int = 100 * MINUTE) -> Code:
    return stage.shard.apply(ExpireQueue(KEY[0], end, time_ms).envelope()).code


def test_an_append_before_the_command_keeps_the_queue_and_its_record() -> None:
    stage = Stage(**{WITH_RECORDS: "true"})
    stage.append()
    assert expire(stage, 0) == Code.POLICY_VIOLATION
    assert expire(stage, 1) == Code.NONE
    assert expire(stage, 1) == Code.UNKNOWN_TOPIC_ID
    assert stage.shard.apply(Envelope(Kind.APPEND, *KEY, body=batch(b"v"))).code


def test_a_commit_since_keeps_the_queue() -> None:
    stage = Stage()
    for at_ms, kept in ((100 * MINUTE, True), (99 * MINUTE, False)):
        commit = CommitOffsets("g", "", -1, [OffsetCommit(*KEY, 0, -1, "", False)], at_ms)
        stage.shard.apply(commit.envelope(NEWEST))
        assert (expire(stage) == Code.POLICY_VIOLATION) == kept


def test_a_record_that_waits_keeps_the_queue() -> None:
    stage = Stage()
    stage.shard.apply(later(KEY, waiting(50)))
    assert expire(stage) == Code.POLICY_VIOLATION


def test_an_open_transaction_keeps_the_queue() -> None:
    stage = Stage()
    stage.shard.apply(Begin(7, 0, 1, 9, b"tag of t", [KEY], [], 6).envelope())
    body = batch(b"v", producer_id=7, epoch=0, sequence=0, attributes=0x10)
    assert not stage.shard.apply(Envelope(Kind.APPEND, *KEY, body=body)).code
    stage.shard.apply(Trim(*KEY, -1).envelope())
    assert expire(stage, 1) == Code.POLICY_VIOLATION


def test_a_dead_letter_that_is_owed_keeps_the_queue() -> None:
    """FAULT: the queue went with the record that the dead-letter queue was to have."""
    stage = Stage(**{WITH_RECORDS: "true"})
    stage.append()
    row = Owed(KEY, 0, 1, 1, Cause.REJECTED, "g")
    share = SHARE_PARTITIONS.encode(SharePartition(1, 1, 0, 0, 0, -1))
    stage.shard.commit({SHARE_PARTITIONS.key(KEY, "g"): share})
    stage.shard.commit({DEAD_LETTERS.key(5, 0): DEAD_LETTERS.encode(row)})
    assert expire(stage, 1) == Code.POLICY_VIOLATION
    stage.shard.commit({DEAD_LETTERS.key(5, 0): None})
    assert expire(stage, 1) == Code.NONE


def test_a_rebuild_files_queues_again() -> None:
    stage, state = Stage(), State(DictKv())
    stage.shard.apply(CreateQueue(QueueId(b"o" * 16), "other", 1, {"retention.ms": "5"}).envelope())
    for key, value in stage.shard.kv.scan(*RowKind.QUEUE.range()):
        state.put(key, value)
    state.kv.write(state.drain())
    for _ in Reindex(state, 0, 1).finish():
        state.kv.write(state.drain())
    state.kv.write(state.drain())
    filed = [IDLE_DUE.parts(key) for key, _ in state.kv.scan(*RowKind.IDLE_DUE.range())]
    assert filed == [(0, KEY)]
