"""Records that come again and again, by an interval or a cron line."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kproxy.delays.delivery import make, plan
from kproxy.delays.schedules import Schedule, schedule_in
from kproxy.delays.splitting import split
from kproxy.metadata.delay_settings import DelaySettings
from kproxy.protocol.batch import BadBatch, read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.protocol.records import unpacked
from kproxy.virtual.commands.delays import Later
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.rows.delays import WAITING_BATCHES, waiting_in, waiting_range
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard

KEY: PartitionKey = (QueueId(bytes(16)), 0)
NOW = 1_000_000
BY_KEY = DelaySettings(0, True, 1 << 40, 1 << 40, True)


def saying(value: bytes | None = b"v", key: bytes = b"k", **said: str) -> bytes:
    headers = [header(f"kproxy.{name.replace('_', '-')}", text) for name, text in said.items()]
    return batch_of_bodies([(body_of(Content(key, value), headers), 1)])


class Stage:
    def __init__(self) -> None:
        self.shard: Any = MemoryShard()
        self.shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())

    def put(self, data: bytes, now_ms: int = NOW, delay: DelaySettings = BY_KEY) -> Any:
        made = split(read_header(data), data, unpacked(data), delay, now_ms, 1 << 20)
        assert made is not None
        return self.shard.apply(
            Later.envelope(KEY, made.later, now=made.now, split=made.header_bytes, time_ms=now_ms,
                           look_ms=2, gone=made.gone)
        )  # fmt: skip

    def due(self) -> list[int]:
        found = self.shard.kv.scan(*waiting_range(KEY))
        assert waiting_in(self.shard.state.get, KEY).records == len(list(found))
        found = self.shard.kv.scan(*waiting_range(KEY))
        return [WAITING_BATCHES.parts(key)[1] for key, _ in found]

    def delivery(self, now_ms: int) -> Envelope:
        (made,) = make(
            self.shard.segments, [plan(self.shard, KEY, 0, now_ms)], now_ms, [0], 1 << 20
        )
        assert isinstance(made, Envelope)
        return made

    @property
    def appended(self) -> int:
        return int(self.shard.state.partition(KEY).next_offset)


def test_a_record_arms_itself_again_in_the_step_that_appends_it() -> None:
    stage = Stage()
    assert not stage.put(saying(every="5000")).code
    assert stage.due() == [NOW + 5000]
    for time in (1, 2, 3):
        sent = stage.delivery(NOW + 5000 * time)
        assert stage.shard.apply(sent).number == 1
        assert stage.shard.apply(sent).number == -1  # twice does nothing
        assert (stage.appended, stage.due()) == (time, [NOW + 5000 * (time + 1)])
    stage.shard.apply(stage.delivery(NOW + 99_999))  # nobody could deliver for a while
    assert (stage.appended, stage.due()) == (4, [NOW + 100_000])


def test_a_tombstone_ends_a_schedule_and_a_later_record_replaces_it() -> None:
    stage = Stage()
    stage.put(saying(every="5000"))
    stage.put(saying(every="7000", delay_ms="100"))
    assert stage.due() == [NOW + 100]
    delivery = stage.delivery(NOW + 100)
    assert not stage.put(saying(None)).code
    assert stage.shard.apply(delivery).number == -1  # cancelled as it was due
    assert (stage.appended, stage.due()) == (0, [])
    assert stage.put(saying(None)).code


def test_a_schedule_of_a_queue_with_a_fixed_delay_says_nothing() -> None:
    stage, fixed = Stage(), DelaySettings(100, False, 1 << 40, 1 << 40, True)
    stage.put(saying(every="5000"), delay=fixed)
    stage.shard.apply(stage.delivery(NOW + 100))
    assert (stage.appended, stage.due()) == (1, [])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"every": "999"}, "1000 at least"),
        ({"every": "x"}, "1000 at least"),
        ({"every": "0"}, "1000 at least"),
        ({"every": "5000", "delay_ms": "x"}, "whole number"),
        ({"delay_ms": "5", "every": "1"}, "1000 at least"),
    ],
)
def test_a_wrong_interval_is_told(said: dict[str, str], told: str) -> None:
    with pytest.raises(BadBatch, match=told):
        Stage().put(saying(**said))


def test_a_schedule_needs_keys_and_its_next_time_is_bounded() -> None:
    with pytest.raises(BadBatch, match=r"needs kproxy\.delay\.replace=key"):
        Stage().put(saying(every="5000"), delay=BY_KEY._replace(by_key=False))
    with pytest.raises(BadBatch, match="more than 4000 ms ahead"):
        Stage().put(saying(every="5000"), delay=BY_KEY._replace(max_ms=4000))
    large = saying(b"v" * (300 << 10), every="5000")
    with pytest.raises(BadBatch, match="262144 bytes at most"):
        Stage().put(large)


def local(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_cron_lines_keep_to_a_zones_clock_over_daylight_saving() -> None:
    pytest.importorskip("cronsim")
    nightly = Schedule(0, "30 2 * * *", "Europe/Berlin")
    at, found = local("2026-03-27T12:00+01:00"), []
    for _ in range(3):
        at = nightly.after(at, at) or 0
        found.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%d %H:%M"))
    assert found == ["28 01:30", "29 01:00", "30 00:30"]  # 2:30 is not there on the 29th
    at, found = local("2026-10-24T12:00+02:00"), []
    for _ in range(2):
        at = nightly.after(at, at) or 0
        found.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%d %H:%M"))
    assert found == ["25 00:30", "26 01:30"]  # it is there twice on the 25th, and comes once


@pytest.mark.parametrize(
    ("line", "zone", "told"),
    [
        ("x", "UTC", "no cron line"),
        ("61 * * * *", "UTC", "no cron line"),
        ("* * * * *", "Mars/Base", "no such time zone"),
        ("* * * * *", "../../etc/passwd", "must be a time zone"),
        ("0 0 31 2 *", "UTC", "never fires|no cron line"),
    ],
)
def test_a_wrong_line_or_zone_is_told(line: str, zone: str, told: str) -> None:
    pytest.importorskip("cronsim")
    headers: dict[bytes, bytes | None] = {
        b"kproxy.cron": line.encode(),
        b"kproxy.tz": zone.encode(),
    }
    with pytest.raises(ValueError, match=told):
        schedule_in(headers)


@pytest.mark.parametrize(
    ("line", "day", "minute"),
    [("30 2 * * *", 26, 150), ("30 * * * *", 25, 150), ("15,45 2,3 * * *", 25, 195)],
)
def test_the_next_time_lies_ahead_in_an_hour_that_comes_twice(
    line: str, day: int, minute: int
) -> None:
    """FAULT: a record that was set or delivered in the second one was due at once, again and
    again, until the time of its line had come a second time."""
    zone = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 10, 25, 2, 10, tzinfo=zone, fold=1)
    now_ms = int(now.timestamp() * 1000)
    due_ms = int(datetime(2026, 10, 25, 2, tzinfo=zone).timestamp() * 1000)
    found_ms = Schedule(0, line, "Europe/Berlin").after(due_ms, now_ms)
    assert found_ms is not None
    assert found_ms > now_ms
    found = datetime.fromtimestamp(found_ms / 1000, zone)
    assert (found.day, 60 * found.hour + found.minute) == (day, minute)
