"""Looks at retention, and what comes in between a look and its TRIM."""

from pathlib import Path
from typing import Any

import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.log.shared import UNKNOWN_FATE
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.queue_settings import LOOK_AGAIN_MS
from kproxy.shard.retention import Retention
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows import queues as rows
from tests.commands import command
from tests.present import present
from tests.shard.test_shard import QUEUES, config, create, running
from tests.wire import batch

CHECK_MS = 1000
KEEP_MS = 5000
YEAR_MS = 365 * 24 * 3600 * 1000


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def retention(shard: Shard, clock: Clock) -> Retention:
    settings = config(retention_check_ms=CHECK_MS)
    return Retention(shard, settings, StateLookup(shard.state), clock)


def record(clock: Clock) -> Envelope:
    body = batch(b"v", times=(clock.now,))
    return Envelope(Kind.APPEND, QUEUES[0], 0, number=clock.now + KEEP_MS, body=body)


def keep_for(ms: int) -> Envelope:
    values = {"set": {"retention.ms": str(ms)}, "drop": [], "all": False}
    return command(Kind.CONFIGURE, QUEUES[0], values=values)


def filed(shard: Shard) -> list[int]:
    return [rows.retention_due_of(key)[0] for key, _ in shard.kv.scan(b"c", b"d")]


def held(shard: Shard) -> int:
    row = present(shard.state.partition((QUEUES[0], 0)))
    return row.next_offset - row.log_start


class Between:
    """Something that comes into the line before the TRIMs of one look, or while it waits."""

    def __init__(self, shard: Shard, patch: pytest.MonkeyPatch) -> None:
        self.before: list[Envelope] = []
        append = shard.append

        def slipped(envelopes: Any) -> Any:
            if self.before:
                append(self.before)
                self.before = []
            return append(envelopes)

        patch.setattr(shard, "append", slipped)


async def all_looks(looks: Retention) -> None:
    while await looks.scan_once():
        pass


async def test_a_record_in_line_before_the_trim_is_found_later(tmp_path: Path) -> None:
    clock = Clock()
    async with running(tmp_path, sync="never") as shard:
        with pytest.MonkeyPatch.context() as patch:
            between = Between(shard, patch)
            looks = retention(shard, clock)
            await create(shard, QUEUES[0])
            await shard.append([keep_for(KEEP_MS)]).wait()
            await shard.append([record(clock)]).wait()
            clock.now += 2 * KEEP_MS
            between.before = [record(clock)]
            await all_looks(looks)
            assert held(shard) == 1
            assert filed(shard)
            clock.now += 2 * KEEP_MS
            await all_looks(looks)
            assert held(shard) == 0
            clock.now += 2 * KEEP_MS
            await all_looks(looks)
            assert filed(shard) == []  # until it has records again
            await shard.append([record(clock)]).wait()
            clock.now += 2 * KEEP_MS
            await all_looks(looks)
            assert held(shard) == 0


async def test_a_setting_that_changes_during_a_look_is_looked_at(tmp_path: Path) -> None:
    clock = Clock()
    async with running(tmp_path, sync="never") as shard:
        with pytest.MonkeyPatch.context() as patch:
            between = Between(shard, patch)
            looks = retention(shard, clock)
            await create(shard, QUEUES[0])
            await shard.append([keep_for(100 * KEEP_MS)]).wait()
            old = record(clock)
            clock.now += 50 * KEEP_MS
            for envelope in (old, record(clock), keep_for(20 * KEEP_MS)):
                await shard.append([envelope]).wait()
            between.before = [keep_for(KEEP_MS)]
            await looks.scan_once()  # by the setting before
            assert held(shard) == 1
            assert 0 in filed(shard)


async def test_a_refused_trim_is_tried_again(tmp_path: Path) -> None:
    clock = Clock()
    async with running(tmp_path, sync="never") as shard:
        looks = retention(shard, clock)
        await create(shard, QUEUES[0])
        await shard.append([record(clock)]).wait()
        clock.now += 2 * KEEP_MS
        await shard.append([keep_for(KEEP_MS)]).wait()
        before = filed(shard)
        assert 0 in before

        def refuse(envelopes: Any) -> Any:
            raise KafkaError(Code.KAFKA_STORAGE_ERROR, "no")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard, "append", refuse)
            assert not await looks.scan_once()
        assert filed(shard) == before
        await all_looks(looks)
        assert held(shard) == 0


async def test_a_trim_whose_fate_is_not_known_is_tried_again(tmp_path: Path) -> None:
    """FAULT: it counted as done, and the partition was not looked at for a day."""

    clock = Clock()
    gone = rows.retention_due_key(1, QUEUES[1], rows.TOMBSTONE_INDEX)
    async with running(tmp_path, sync="never") as shard:
        looks = retention(shard, clock)
        await create(shard, QUEUES[0])
        await shard.append([record(clock), keep_for(KEEP_MS)]).wait()
        shard.commit({gone: b""})
        clock.now += 2 * KEEP_MS

        def lost(envelopes: Any) -> Ticket:
            ticket = Ticket(list(envelopes))
            ticket.set_outcomes([UNKNOWN_FATE] * len(envelopes))
            return ticket

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard, "append", lost)
            await all_looks(looks)
        assert held(shard) == 1
        assert set(filed(shard)) == {clock.now + CHECK_MS}
        later = rows.retention_due_key(clock.now + CHECK_MS, QUEUES[1], rows.TOMBSTONE_INDEX)
        assert later in dict(shard.kv.scan(b"c", b"d"))
        clock.now += CHECK_MS
        await all_looks(looks)
        assert held(shard) == 0


async def test_a_clock_that_was_ahead_for_a_moment_puts_no_look_off(tmp_path: Path) -> None:
    """FAULT: what was first written then was kept till the clock was there again."""

    clock = Clock()
    gone = rows.retention_due_key(0, QUEUES[1], rows.TOMBSTONE_INDEX)
    async with running(tmp_path, sync="never") as shard:
        looks = retention(shard, clock)
        await create(shard, QUEUES[0])
        await shard.append([keep_for(KEEP_MS)]).wait()
        await all_looks(looks)
        right = clock.now
        clock.now += YEAR_MS
        await shard.append([record(clock)]).wait()
        ahead = rows.retention_due_key(
            clock.now + rows.TOMBSTONE_KEPT_MS, QUEUES[1], rows.TOMBSTONE_INDEX
        )
        shard.commit({ahead: b""})
        await all_looks(looks)
        clock.now = right + 1
        old = Clock()
        old.now = right
        await shard.append([record(old)]).wait()
        await all_looks(looks)
        assert max(filed(shard)) <= clock.now + LOOK_AGAIN_MS
        # A deleted queue's note is kept as long as one of now.
        later = rows.retention_due_key(
            clock.now + rows.TOMBSTONE_KEPT_MS, QUEUES[1], rows.TOMBSTONE_INDEX
        )
        assert [key for key, _ in shard.kv.scan(b"c", b"d") if key[9:] == gone[9:]] == [later]
        clock.now += YEAR_MS + 2 * KEEP_MS
        await all_looks(looks)
        assert held(shard) == 0


async def test_records_that_a_route_held_back_are_looked_at_at_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were deleted when the first record behind them expired: up to a day late."""
    clock = Clock()
    async with running(tmp_path, sync="never", queues=1) as shard:
        await shard.append([keep_for(KEEP_MS)]).wait()
        for _ in range(2):
            await shard.append([record(clock)]).wait()
        clock.now += KEEP_MS + 1
        await shard.append([record(clock)]).wait()
        looks = retention(shard, clock)
        passed_on = 0
        monkeypatch.setattr(shard.state, "passed_on", lambda key: passed_on)
        clock.now += 1
        await all_looks(looks)
        assert held(shard) == 3
        passed_on = 3
        clock.now += CHECK_MS
        await all_looks(looks)
        assert held(shard) == 1


async def test_a_filter_that_begins_before_the_trim_has_what_it_would_take(tmp_path: Path) -> None:
    """FAULT: of a filter from the start, records that it had to pass on went."""
    clock = Clock()
    async with running(tmp_path, sync="never") as shard:
        with pytest.MonkeyPatch.context() as patch:
            between = Between(shard, patch)
            looks = retention(shard, clock)
            await create(shard, QUEUES[0])
            await shard.append([keep_for(KEEP_MS)]).wait()
            await shard.append([record(clock)]).wait()
            clock.now += 2 * KEEP_MS
            source = present(shard.state.queue_by_id(QUEUES[0]))
            configs = {"kproxy.route.from": source.name, "kproxy.route.from.start": "true"}
            values = {"name": "f", "partitions": 1, "configs": configs}
            between.before = [command(Kind.CREATE, QUEUES[1], values=values)]
            await all_looks(looks)
            assert held(shard) == 1
            assert shard.state.passed_on((QUEUES[0], 0)) == 0
            assert filed(shard)


async def test_the_last_records_are_kept_however_they_came(tmp_path: Path) -> None:
    clock = Clock()
    async with running(tmp_path, sync="never") as shard:
        looks = retention(shard, clock)
        await create(shard, QUEUES[0])
        values = {"set": {"kproxy.retention.records": "4"}, "drop": [], "all": False}
        await shard.append([command(Kind.CONFIGURE, QUEUES[0], values=values)]).wait()
        body = batch(b"a", b"b", b"c", times=(clock.now,) * 3)
        for held_then in (3, 4, 4):
            await shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)]).wait()
            clock.now += CHECK_MS
            await all_looks(looks)
            assert held(shard) == held_then
        row = present(shard.state.partition((QUEUES[0], 0)))
        assert (row.log_start, row.next_offset) == (5, 9)


@pytest.mark.parametrize("setting", ["kproxy.retention.records", "retention.bytes"])
async def test_a_partition_to_which_nothing_comes_is_looked_at_rarely(
    tmp_path: Path, setting: str
) -> None:
    """FAULT: a million quiet partitions were looked at in each check, for ever."""
    clock, hour = Clock(), 3_600_000
    async with running(tmp_path, sync="never") as shard:
        looks = retention(shard, clock)
        await create(shard, QUEUES[0])
        values = {"set": {setting: "1", "retention.ms": "-1"}, "drop": [], "all": False}
        await shard.append([command(Kind.CONFIGURE, QUEUES[0], values=values)]).wait()
        body = batch(b"a", times=(clock.now,))
        came = clock.now
        await shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)]).wait()
        times = []
        while clock.now < came + 24 * hour:
            await all_looks(looks)
            (again,) = filed(shard)
            assert again - clock.now <= max(CHECK_MS, min((clock.now - came) // 4, hour))
            times.append(again)
            assert len(times) < 80, "of 86,400 checks"
            clock.now = again
        await shard.append([Envelope(Kind.APPEND, QUEUES[0], 0, body=body)] * 2).wait()
        await all_looks(looks)
        assert held(shard) == 1
        assert filed(shard) == [clock.now + CHECK_MS], "as often as ever, while more comes"
