"""Records that are older than their queue keeps them: by their own time, or by their arrival."""

from typing import Any

import pytest
import structlog

from kproxy.common.errors import KafkaError
from kproxy.metadata import queue_settings
from kproxy.metadata.levels import Level
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.levels import ARRIVAL_FROM
from kproxy.virtual.rows.kinds import RowKind
from tests.commands import command
from tests.groups.test_offset_expiry import Stage, retain, start
from tests.handlers.test_handlers import Client
from tests.wire import batch, produce_values

HOUR, MINUTE = 3_600_000, 60_000


class Queue(Stage):
    """A stage with a queue of one hour's retention; records come with times of their own."""

    def __init__(self, **settings: str) -> None:
        super().__init__(retention_check_ms=MINUTE)
        self.create("old", retention_ms=str(HOUR), **settings)

    def come(self, age_ms: int) -> None:
        body = batch(b"v", times=(self.now - age_ms,))
        look_ms = self.now + MINUTE
        self.shard.apply(Envelope(Kind.APPEND, self.ids["old"], 0, number=look_ms, body=body))

    async def pass_(self, ms: int) -> None:
        for _ in range(0, ms, MINUTE):
            self.now += MINUTE
            await retain(self)

    def marks(self) -> int:
        return len(list(self.shard.kv.scan(*RowKind.RETENTION_MARKS.range())))


async def test_a_record_that_is_old_when_it_comes_goes_at_the_next_look() -> None:
    queue = Queue()
    queue.come(2 * HOUR)
    await queue.pass_(2 * MINUTE)
    assert start(queue, "old") == 1
    assert queue.marks() == 0


async def test_by_arrival_it_stays_for_as_long_as_others() -> None:
    queue = Queue(kproxy_retention_from="arrival")
    queue.come(2 * HOUR)
    await queue.pass_(HOUR)
    queue.come(2 * HOUR)
    assert start(queue, "old") == 0
    await queue.pass_(10 * MINUTE)
    assert start(queue, "old") == 1
    await queue.pass_(HOUR - 11 * MINUTE)
    assert start(queue, "old") == 1
    await queue.pass_(20 * MINUTE)
    assert start(queue, "old") == 2
    assert queue.marks() == 0


async def test_a_clock_that_is_behind_for_a_while_ages_no_record() -> None:
    """FAULT: marks were set back with the clock, and once it was right all they said was old."""
    queue = Queue(kproxy_retention_from="arrival")
    queue.come(0)
    await queue.pass_(2 * MINUTE)
    queue.now -= 1000 * HOUR
    await queue.pass_(2 * MINUTE)
    queue.come(0)
    await queue.pass_(2 * MINUTE)
    queue.now += 1000 * HOUR
    await queue.pass_(10 * MINUTE)
    assert start(queue, "old") == 0
    await queue.pass_(HOUR)
    assert start(queue, "old") == 2


async def test_a_clock_that_was_ahead_keeps_records_no_longer_than_those_behind() -> None:
    queue = Queue(kproxy_retention_from="arrival")
    queue.now += 1000 * HOUR
    queue.come(0)
    await queue.pass_(2 * MINUTE)
    queue.now -= 1000 * HOUR
    queue.come(0)
    await queue.pass_(HOUR)
    assert start(queue, "old") == 0
    await queue.pass_(10 * MINUTE)
    assert start(queue, "old") == 2


async def test_arrivals_leave_few_marks() -> None:
    queue = Queue(kproxy_retention_from="arrival")
    for _ in range(100):
        queue.come(0)
        await queue.pass_(2 * MINUTE)
    ((_, data),) = queue.shard.kv.scan(*RowKind.RETENTION_MARKS.range())
    assert len(data) <= 12 * 16
    assert start(queue, "old") > 50


def test_retention_by_arrival_waits_for_its_level() -> None:
    values = {"kproxy.retention.from": "arrival"}
    with pytest.raises(KafkaError, match=f"level {ARRIVAL_FROM}"):
        queue_settings.check_together(values, Level(ARRIVAL_FROM - 1))
    queue_settings.check_together(values, Level(ARRIVAL_FROM))


@pytest.mark.parametrize(("setting", "counted"), [("record", 2), ("arrival", 0)])
async def test_records_that_expire_at_once_are_counted_and_logged(
    setting: str, counted: int
) -> None:
    client: Any = Client()
    stage_ms = client.worker.now_ms() - 2 * HOUR
    configs = {"retention.ms": str(HOUR), "kproxy.retention.from": setting}
    values: Any = {"name": "q", "partitions": 1, "configs": configs}
    client.worker.any_shard().apply(command(Kind.CREATE, b"q" * 16, values=values))

    async def produce(time_ms: int) -> None:
        body = batch(b"v", b"w", times=(time_ms, time_ms))
        await client.call(0, 9, produce_values("q", body))

    with structlog.testing.capture_logs() as logs:
        await produce(stage_ms)
        await produce(client.worker.now_ms())
        await produce(stage_ms)  # behind one that is kept it is kept, too
    assert client.worker.counters.expired_at_once == counted
    events = [one for one in logs if one["event"] == "records_expire_at_once"]
    assert [(one["queue"], one["records"]) for one in events] == [("q", 2)] * bool(counted)
