"""The series of a worker: all are documented, and bounded; those of names that were asked for."""

import asyncio
import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kproxy.common.counters import Histogram
from kproxy.loop.pace import Pace
from kproxy.observe.health import Health
from kproxy.observe.loop_watch import STUCK_S, LoopWatch
from kproxy.observe.selected import Selected, bounds, group_lines
from kproxy.observe.series import DECLARED, WorkerSeries
from kproxy.virtual.commands.offsets import CommitOffsets, OffsetCommit
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.types import QueueId
from kproxy.worker.standing import PHASES, ShardStanding
from tests.fakes import memory_worker
from tests.harness import until


class Standing:
    """The state of a worker on Kafka with one shard in each phase."""

    assigned = True
    upstream_up = False

    def __init__(self, shard: Any) -> None:
        self.append_seconds = Histogram()
        self.disk_space: Any = SimpleNamespace(free_bytes_seen=7, free_bytes_min=3)
        self._shards = [
            ShardStanding(number, phase, shard if phase == "served" else None,
                          lag=number, rebuilt=0.25, published_s_ago=number * 100.0)
            for number, phase in enumerate(PHASES)
        ]  # fmt: skip

    def shards(self) -> list[ShardStanding]:
        return self._shards

    def upstream_errors(self) -> dict[str, int]:
        return {"_TRANSPORT": 2}


def seen(selected: Selected | None = None) -> tuple[WorkerSeries, Health]:
    worker = memory_worker()
    (shard,) = worker.routes.all()
    shard.retention_overdue_ms = 1500
    shard.log = SimpleNamespace(waiting=4)  # type: ignore[assignment]
    worker.standing = Standing(shard)  # type: ignore[assignment]
    health = Health(LoopWatch(Histogram()))
    health.worker = worker
    return WorkerSeries(health, selected), health


def names_in(page: str) -> set[str]:
    found = re.findall(r"^# TYPE (kproxy_\w+) ", page, re.MULTILINE)
    return {name.removesuffix("_total") for name in found}


def test_each_declared_series_is_on_the_page() -> None:
    series, _ = seen()
    declared = [f"kproxy_{one.name}" for one in DECLARED]
    assert len(declared) == len(set(declared))
    assert set(declared) == names_in(series.page().decode())


def test_page_has_these_series() -> None:
    series, health = seen()
    assert health.worker is not None
    health.worker.counters.answer(0, 0)
    health.worker.counters.answer(0, 87)
    health.worker.counters.failed[0, 30_000] += 1
    health.worker.counters.request_seconds[1].observe(0.003)
    page = series.page().decode()
    for line in (
        'kproxy_requests_total{api="Produce",code="NONE"} 1.0',
        'kproxy_requests_total{api="Produce",code="INVALID_RECORD"} 1.0',
        'kproxy_requests_total{api="Produce",code="OTHER"} 1.0',
        'kproxy_request_seconds_bucket{api="Fetch",le="0.0025"} 0.0',
        'kproxy_request_seconds_bucket{api="Fetch",le="0.005"} 1.0',
        'kproxy_request_seconds_bucket{api="Fetch",le="+Inf"} 1.0',
        'kproxy_shards{state="rebuilding"} 1.0',
        'kproxy_rebuild_ratio{shard="1"} 0.25',
        "kproxy_upstream_up 0.0",
        'kproxy_upstream_errors_total{code="_TRANSPORT"} 2.0',
        "kproxy_retention_overdue_seconds 1.5",
        "kproxy_appends_waiting 4.0",
        "kproxy_ready 0.0",
    ):
        assert line in page.splitlines(), line


def test_health_says_why() -> None:
    _, health = seen()
    assert health.worker is not None
    assert health.unready() == [
        "1 shards: opening",
        "1 shards: rebuilding",
        "1 shards: catching_up",
    ]
    report = health.report()
    assert (report["live"], report["ready"], report["upstream_up"]) == (True, False, False)
    health.worker.stopping = True
    assert "it is being stopped" in health.unready()
    health.worker = None
    assert health.unready() == ["it does not accept connections yet"]


async def test_a_loop_that_stands_is_seen_from_another_thread() -> None:
    now = 50.0
    lag = Histogram()
    watch = LoopWatch(lag, lambda: now)
    watch.start()
    assert not watch.stuck
    now += STUCK_S + 1
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(watch.stuck))
    other.start()
    other.join()
    assert found == [True]
    await until(lambda: not watch.stuck)
    watch.stop()
    assert sum(lag.counts) == 1


# -- queues and groups that were asked for


async def test_queues_that_match_have_series() -> None:
    worker = memory_worker()
    for name in ("seen-a", "seen-b", "other"):
        worker.catalogue.create(name)
        (shard,) = worker.routes.all()
    selected = Selected("seen-.*", None, 100)
    lines = await selected.gather(worker)
    assert {line.labels[0] for line in lines} == {"seen-a", "seen-b"}
    assert {line.name for line in lines} == {
        "queue_start_offset", "queue_end_offset", "queue_bytes"
    }  # fmt: skip
    assert shard is not None


async def test_series_are_bounded_and_counted_where_left_out() -> None:
    worker = memory_worker()
    for number in range(20):
        worker.catalogue.create(f"seen-{number:02}")
    selected = Selected("seen-.*", None, 10)
    lines = await selected.gather(worker)
    assert len(lines) == 10
    assert selected._left > 0


@pytest.mark.parametrize(
    ("regex", "first", "last"), [("orders-.*", "orders-", True), (".*", "", False)]
)
def test_only_names_that_may_match_are_looked_at(regex: str, first: str, last: bool) -> None:
    low, high = bounds(Selected(regex, None, 1)._queues)
    assert low == first
    if last:
        assert high is not None
        assert b"orders-zzz" < high < b"orders." + b"z"


def test_a_page_comes_in_time_where_the_loop_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproxy.observe.selected._WAIT_S", 0.2)
    selected = Selected(".*", ".*", 10)
    loop = asyncio.new_event_loop()  # nobody runs it
    selected.attach(loop)
    series, _ = seen(selected)
    began = time.monotonic()
    page = series.page().decode()
    assert time.monotonic() - began < 5
    assert "kproxy_selected_complete 0.0" in page
    assert "kproxy_loop_lag_seconds_count" in page
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


async def test_gathering_rests() -> None:
    """Ten thousand series are not one turn of the loop."""
    worker = memory_worker()
    for number in range(300):
        worker.catalogue.create(f"seen-{number:03}")
    selected, pace = Selected("seen-.*", None, 10_000), Pace()
    assert not pace.due
    turns = 0
    gathering = asyncio.ensure_future(selected.gather(worker))
    while not gathering.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(gathering.result()) == 900
    assert turns >= 1


async def test_gathering_rests_among_the_partitions_of_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kproxy.loop.pace.SLICE_S", 0)
    worker = memory_worker()
    _, ticket = worker.catalogue.create("seen", 50, {})
    await ticket.wait()
    turns = 0
    gathering = asyncio.ensure_future(Selected("seen", None, 10_000).gather(worker))
    while not gathering.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(gathering.result()) == 150
    assert turns >= 50


async def test_a_group_of_too_many_partitions_has_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproxy.observe.selected._LOT", 4)
    worker = memory_worker()
    (shard,) = worker.routes.all()
    for number in range(10):
        await shard.append([CreateQueue(_id(number), f"q{number}", 1, {}).envelope()]).wait()
        offset = OffsetCommit(_id(number), 0, 3, -1, "", False)
        await shard.append([CommitOffsets("g", "", -1, [offset], 1).envelope(1)]).wait()
    known = {line.name for line in await group_lines(worker, "g", Pace(), 100)}
    assert {"group_lag_sum", "group_lag_max", "group_members", "group_lag"} <= known
    few = await group_lines(worker, "g", Pace(), 5)
    assert "group_lag_sum" not in {line.name for line in few}
    assert sum(line.name == "group_committed_offset" for line in few) == 8


def _id(number: int) -> QueueId:
    return QueueId((number + 1).to_bytes(16, "big"))
