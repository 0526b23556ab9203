"""Routes over a log on disk, embedded: what waits for them, and what they take up again."""

import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.handlers.produce import produce
from kproxy.log.base import Ticket
from kproxy.metadata.queue_settings import settings_of
from kproxy.protocol.batch import read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, content_of_body
from kproxy.protocol.produce_request import ProduceRequest, Topic
from kproxy.protocol.records import bodies, unpacked
from kproxy.routes import cutting, passage, passages, reading, services
from kproxy.routes.passages import Passages
from kproxy.security.acls import Binding, Effect, Op, Pattern, Resource
from kproxy.security.quotas import MUTATED
from kproxy.shard.compaction_plan import NotDue, plan
from kproxy.shard.shard import Shard
from kproxy.store.rocks import RowsClosed
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.queues import ConfigureQueue, DeleteQueue
from kproxy.virtual.commands.routes import Cut, Ship
from kproxy.virtual.commands.shares import (
    DEAD_LETTERS,
    ChangeShares,
    Forward,
    Run,
    SetShares,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.rows.access import quota_name
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.routes import ROUTE_PARTS, ROUTES, route_in
from kproxy.virtual.rows.shares import FORWARDED, Position
from kproxy.worker.embedded import embedded
from kproxy.worker.worker import Worker
from tests.harness import patient, until
from tests.present import present
from tests.virtual.commands.share_cases import ARCHIVED_3, LOST
from tests.wire import TODAY_MS, batch, keyed

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_lane")]
TO = {"kproxy.route.to": "to-{key}", "kproxy.route.unroutable": "lost"}


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[Worker]:
    config = Config(data_dir=directory, sync="never", keeper_period_ms=10, **settings)
    async with embedded(config, ("127.0.0.1", 1)) as worker:
        yield worker


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass nothing on."""

    async def nothing(self: Passages) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Passages, "run", nothing)


async def create(worker: Worker, name: str, configs: dict[str, str]) -> Queue:
    queue, ticket = worker.catalogue.create(name, 1, configs)
    await ticket.wait()
    return queue


async def put(worker: Worker, queue: Queue, *records: tuple[bytes | None, bytes]) -> None:
    shard = worker.any_shard()
    made = keyed(*records)
    ticket = shard.append([Envelope(Kind.APPEND, queue.queue_id, 0, body=made)])
    (outcome,) = await ticket.wait()
    assert outcome.code == Code.NONE


def read(worker: Worker, name: str) -> list[bytes | None]:
    """Return the values of a queue's records."""
    return [content.value for content in contents(worker, name)]


def keys(worker: Worker, name: str) -> list[bytes | None]:
    return [content.key for content in contents(worker, name)]


def contents(worker: Worker, name: str) -> list[Content]:
    queue, shard = worker.catalogue.find(name), worker.any_shard()
    if queue is None:
        return []
    found: list[Content] = []
    row = present(shard.state.partition((queue.queue_id, 0)))
    for _, stored in shard.state.batches((queue.queue_id, 0), row.log_start, row.next_offset):
        data = bytearray(stored.length)
        shard.segments.read_into(memoryview(data), stored.segment, stored.position, True)
        head = read_header(bytes(data))
        for _, _, _, body, _ in bodies(head, unpacked(bytes(data)), headers=False):
            found.append(content_of_body(body))
    return found


async def produced(worker: Worker, records: bytes) -> tuple[int, int]:
    """Return the code of a client's Produce to the queue `in`, and for how many ms it is to
    wait.
    """
    request = ProduceRequest(None, -1, [Topic("in", [(0, memoryview(records))])])
    call = present(produce.append(worker, 9, request))
    done = anyio.Event()
    call.add_done_callback(done.set)
    await done.wait()
    call.body()
    return call.code, call._throttle_ms


def landed(worker: Worker, queue: Queue) -> int | None:
    return worker.any_shard().state.passed_on((queue.queue_id, 0))


async def test_all_plain_records_of_an_entrance_are_cut_by_the_lane_that_serves(
    tmp_path: Path, each_lane: str
) -> None:
    """A lane that is not entered costs more than none."""
    async with serving(tmp_path) as worker:
        queue = await create(worker, "in", TO)
        for first in (0, 300):
            await put(worker, queue, *[(b"%d" % n, b"v") for n in range(first, first + 300)])
        await until(lambda: worker.counters.routed == 600)
        natively = 600 if each_lane == "native" else 0
        assert (worker.lane.name, worker.counters.routed_natively) == (each_lane, natively)
        await put(worker, queue, (b"a b", b"v"))
        await until(lambda: worker.counters.unroutable == 1)
        assert (worker.counters.routed_natively, keys(worker, "lost")) == (natively, [b"a b"])


async def test_records_kept_for_the_next_cut_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "CUT_TARGETS", 2)
    monkeypatch.setattr(services, "KEPT_RECORDS_MAX", 5)
    sizes = []
    gather = reading.gather

    def noted(*of: Any) -> None:
        gather(*of)
        sizes.append(of[3].size)

    monkeypatch.setattr(passage, "gather", noted)
    async with serving(tmp_path, native="off") as worker:  # the other keeps none
        queue = await create(worker, "in", TO)
        for count in (5, 6):
            sizes.clear()
            await put(worker, queue, *[(b"%d" % n, b"v%d" % n) for n in range(count)])
            row = present(worker.any_shard().state.partition((queue.queue_id, 0)))
            await until(lambda row=row: landed(worker, queue) == row.next_offset)
            assert max(sizes) == (5 if count == 5 else 0)
        for n in range(6):
            assert read(worker, f"to-{n}") == [b"v%d" % n] * (2 if n < 5 else 1)


async def test_cuts_are_smaller_where_other_passages_hold_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "GATHERED_BYTES_MAX", 4 << 20)
    async with serving(tmp_path) as worker:
        shared = worker.passages._shared
        alone, held = shared.held_max, []
        for _ in range(20):
            gathered = cutting.Gathered(4, 0, 1 << 20, shared.held_max)
            shared.gathers(gathered)
            while gathered.add("a", (bytes(1000), 0, 0), limited=True):
                pass
            held.append(gathered)
        assert alone == 1 << 20
        assert shared.held_max == 256 << 10
        assert sum(one.held for one in held) < (4 << 20) + 20 * (256 << 10)
        del gathered
        held.clear()
        assert shared.held_max == alone


async def test_records_are_passed_on_and_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO)
        await put(worker, entrance, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"4"))
        await until(lambda: landed(worker, entrance) == 4)
        assert read(worker, "to-a") == [b"1", b"3"]
        assert read(worker, "to-b") == [b"2"]
        assert read(worker, "lost") == [b"4"]
        assert read(worker, "in") == [b"1", b"2", b"3", b"4"]
        assert (worker.counters.routed, worker.counters.unroutable) == (4, 1)


async def test_an_entrance_that_keeps_nothing_begins_where_all_is_passed_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO | {"kproxy.route.keep": "false"})
        await put(worker, entrance, (b"a", b"1"), (b"b", b"2"))
        await until(lambda: read(worker, "to-b") == [b"2"])
        await until(lambda: read(worker, "in") == [])
        assert read(worker, "to-a") == [b"1"]


@pytest.mark.usefixtures("held")
async def test_shipment_is_made_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut may be of 200,000 queues at many shards: it held the loop for a quarter of a second."""
    where = set()

    def made(*args: Any, **more: Any) -> Envelope:
        where.add(threading.get_ident())
        return ship(*args, **more)

    ship = Ship.envelope
    monkeypatch.setattr(Ship, "envelope", staticmethod(made))
    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO)
        await put(worker, entrance, (b"a", b"1"))
        source, shard = (entrance.queue_id, 0), worker.any_shard()
        one = passage.Passage(shard, source, entrance.queue_id, worker.passages._shared)
        assert (await one._step())[0] is passage.Step.DONE
    assert where
    assert threading.get_ident() not in where


@pytest.mark.usefixtures("held")
async def test_cut_of_another_owner_is_not_noted_as_landed(tmp_path: Path) -> None:
    """It was: an owner that was deposed while it waited, and took the shard up again."""
    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO)
        source, shard = (entrance.queue_id, 0), worker.any_shard()
        await put(worker, entrance, (b"a", b"1"))
        one = passage.Passage(shard, source, entrance.queue_id, worker.passages._shared)
        assert (await one._step())[0] is passage.Step.DONE
        await put(worker, entrance, (b"a", b"2"))
        await shard.append([Cut(source, entrance.queue_id, 1, 2, 1).envelope()]).wait()
        assert not await one._note_landed()
        assert landed(worker, entrance) == 1
        assert (await one._step())[0] is passage.Step.DONE
        assert read(worker, "to-a") == [b"1", b"2"]
        assert await one._note_landed()
        assert landed(worker, entrance) == 2


async def test_cut_is_shipped_by_the_next_owner_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut is on disk, a part has landed or not: kill -9 at each of these lines."""
    with monkeypatch.context() as patch:
        patch.setattr(Passages, "run", lambda self: anyio.sleep_forever())
        async with serving(tmp_path) as worker:
            entrance = await create(worker, "in", TO)
            await put(worker, entrance, *[(b"%d" % (n % 7), b"%d" % n) for n in range(40)])
            source, shard = (entrance.queue_id, 0), worker.any_shard()
            cut = Cut(source, entrance.queue_id, 0, 25, 3)
            (outcome,) = await shard.append([cut.envelope()]).wait()
            assert outcome.code == Code.NONE
            one = passage.Passage(shard, source, entrance.queue_id, worker.passages._shared)
            send = one._send

            async def only_some(
                ships: list[tuple[int, Envelope]], gathered: cutting.Gathered
            ) -> list[tuple[int, Envelope]]:
                return await send(ships[:1], gathered) + ships[1:]

            one._send = only_some  # type: ignore[method-assign]
            patch.setattr(passage, "_SHIP_S", 0.01)
            assert (await one._step())[0] is passage.Step.WAIT
    async with serving(tmp_path) as worker:
        await until(lambda: landed(worker, entrance) == 40)
        for key in range(7):
            assert read(worker, f"to-{key}") == [b"%d" % n for n in range(40) if n % 7 == key]


@pytest.mark.usefixtures("held")
async def test_retention_and_compaction_wait_for_what_is_not_passed_on(tmp_path: Path) -> None:
    async with serving(tmp_path, retention_check_ms=1) as worker:
        configs = TO | {"retention.ms": "1", "cleanup.policy": "compact,delete"}
        entrance = await create(worker, "in", configs)
        plain = await create(worker, "plain", {"retention.ms": "1"})
        for queue in (entrance, plain):
            await put(worker, queue, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
        shard, key = worker.any_shard(), (entrance.queue_id, 0)
        await until(lambda: read(worker, "plain") == [])
        assert present(shard.state.partition(key)).log_start == 0
        found = plan(shard.state, key, settings_of(configs), worker.now_ms() + 10**6)
        assert isinstance(found, NotDue)
        for after, through in ((0, 3), (3, 3)):
            cut = Cut(key, entrance.queue_id, after, through, 1)
            assert not (await shard.append([cut.envelope()]).wait())[0].code
        await until(lambda: read(worker, "in") == [])


async def test_an_entrance_at_its_bound_of_queues_is_held_back_and_goes_on_once_it_is_raised(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as worker:
        most = {"kproxy.route.queues.max": "2"}
        entrance = await create(worker, "in", TO | most)
        for key in (b"a", b"b", b"c"):
            await put(worker, entrance, (key, b"1"))
            await anyio.sleep(0.05)
        await until(lambda: worker.counters.routes_held_back > 2)
        assert read(worker, "to-c") == []
        more = ConfigureQueue(entrance.queue_id, {"kproxy.route.queues.max": "3"}, [], False)
        await worker.any_shard().append([more.envelope()]).wait()
        await until(lambda: read(worker, "to-c") == [b"1"])


async def test_a_compacted_queue_that_a_route_brings_records_is_compacted(tmp_path: Path) -> None:
    """It was looked at once a day: only what producers had sent was noted."""
    compact = "cleanup.policy:compact;min.cleanable.dirty.ratio:0.01"
    async with serving(tmp_path, compaction_check_ms=10) as worker:
        entrance = await create(worker, "in", TO | {"kproxy.route.configs": compact})
        taken = {"kproxy.route.from": "in"} | dict(s.split(":") for s in compact.split(";"))
        await create(worker, "all", taken)
        for n in range(20):
            await put(worker, entrance, (b"a", b"%d" % n))
        await until(lambda: read(worker, "to-a") == [b"19"])
        await until(lambda: read(worker, "all") == [b"19"])
        assert len(read(worker, "in")) == 20


async def test_the_queue_of_those_without_a_target_has_no_settings_of_the_others(
    tmp_path: Path,
) -> None:
    """It was compacted like them, which drops what has no key."""
    compact = {"kproxy.route.configs": "cleanup.policy:compact;min.cleanable.dirty.ratio:0.01"}
    async with serving(tmp_path, compaction_check_ms=10) as worker:
        entrance = await create(worker, "in", TO | compact)
        for n in range(10):
            await put(worker, entrance, (None, b"%d" % n), (b"a", b"%d" % n))
        await until(lambda: read(worker, "to-a") == [b"9"])
        lost, target = worker.catalogue.find("lost"), worker.catalogue.find("to-a")
        assert lost is not None
        assert target is not None
        assert lost.configs == {}
        assert target.configs["cleanup.policy"] == "compact"
        await until(lambda: read(worker, "lost") == [b"%d" % n for n in range(10)])


async def test_routes_that_only_wait_for_news_give_up_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They kept it for a second: where thousands were looked at, none went on for minutes."""
    monkeypatch.setattr(passages, "_AT_ONCE", 2)
    monkeypatch.setattr(passage, "_IDLE_S", 1000.0)
    async with serving(tmp_path) as worker:
        for n in range(6):
            await create(worker, f"in{n}", TO | {"kproxy.route.to": f"to{n}-{{key}}"})
        for turn in (1, 2):
            for n in range(6):
                queue = present(worker.catalogue.find(f"in{n}"))
                await put(worker, queue, (b"a", b"1"))
                await until(lambda n=n, t=turn: read(worker, f"to{n}-a") == [b"1"] * t)
    async with serving(tmp_path) as worker:
        queue = present(worker.catalogue.find("in5"))
        await put(worker, queue, (b"a", b"1"))
        await until(lambda: read(worker, "to5-a") == [b"1"] * 3)


@pytest.mark.usefixtures("held")
async def test_an_entrance_that_lags_throttles_and_then_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        await create(worker, "in", TO | {"kproxy.route.lag.max": "10"})
        codes, throttled = [], []
        for _ in range(5):
            code, throttle_ms = await produced(worker, keyed(*[(b"a", b"1")] * 3))
            codes.append(code)
            throttled.append(throttle_ms > 0)
        assert codes == [0, 0, 0, 0, Code.NOT_ENOUGH_REPLICAS]
        assert throttled == [False, False, True, True, True]


@pytest.mark.usefixtures("held")
async def test_no_batch_is_taken_before_an_earlier_one_that_was_refused_for_lag(
    tmp_path: Path,
) -> None:
    """A partition that does not know a producer takes any sequence: librdkafka would count the
    refused batch as written."""

    def sent(sequence: int) -> bytes:
        return keyed((b"a", b"1"), producer_id=7, epoch=0, sequence=sequence)

    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO | {"kproxy.route.lag.max": "2"})
        await put(worker, entrance, (b"a", b"0"), (b"a", b"0"))
        lags, not_yet = Code.NOT_ENOUGH_REPLICAS, Code.NOT_LEADER_OR_FOLLOWER
        assert (await produced(worker, sent(0)))[0] == lags
        more = ConfigureQueue(entrance.queue_id, {"kproxy.route.lag.max": "9"}, [], False)
        await worker.any_shard().append([more.envelope()]).wait()
        assert [(await produced(worker, sent(n)))[0] for n in (1, 0, 1)] == [not_yet, 0, 0]


async def test_a_route_that_has_ended_goes_and_one_that_changes_holds_from_then_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO)
        source, shard = (entrance.queue_id, 0), worker.any_shard()
        await put(worker, entrance, (b"a", b"1"))
        change = ConfigureQueue(entrance.queue_id, {"kproxy.route.to": "x-{key}"}, [], False)
        await shard.append([change.envelope()]).wait()
        await put(worker, entrance, (b"a", b"2"))
        end = ConfigureQueue(entrance.queue_id, {}, ["kproxy.route.to"], False)
        await shard.append([end.envelope()]).wait()
        await put(worker, entrance, (b"a", b"3"))
        await until(lambda: route_in(shard.state.get, source, entrance.queue_id) is None)
        assert (read(worker, "to-a"), read(worker, "x-a")) == ([b"1"], [b"2"])
        assert not present(shard.state.partition(source)).any_routes
        again = ConfigureQueue(entrance.queue_id, {"kproxy.route.to": "y-{key}"}, [], False)
        await shard.append([again.envelope()]).wait()
        await put(worker, entrance, (b"a", b"4"))
        await until(lambda: read(worker, "y-a") == [b"4"])


async def test_routed_record_is_not_passed_on_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        one = await create(worker, "one", TO | {"kproxy.route.to": "tw{key}"})
        two = await create(worker, "two", TO | {"kproxy.route.to": "on{key}"})
        await put(worker, one, (b"o", b"1"))
        await put(worker, two, (b"e", b"2"))
        await until(lambda: read(worker, "two") == [b"2", b"1"] or len(read(worker, "two")) == 2)
        await until(lambda: landed(worker, one) == 2 and landed(worker, two) == 2)
        assert sorted(read(worker, "one")) == sorted(read(worker, "two")) == [b"1", b"2"]


async def test_a_queue_with_a_filter_takes_from_when_it_was_made_or_from_the_start(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as worker:
        orders = await create(worker, "orders", {})
        await put(worker, orders, (b"red-1", b"1"), (b"blue-1", b"2"))
        takes = {"kproxy.route.from": "orders", "kproxy.route.filter": "key:red"}
        await create(worker, "late", takes)
        await create(worker, "early", takes | {"kproxy.route.from.start": "true"})
        await put(worker, orders, (b"red-2", b"3"), (b"blue-2", b"4"))
        await until(lambda: read(worker, "early") == [b"1", b"3"])
        await until(lambda: read(worker, "late") == [b"3"])


async def test_landed_offsets_of_a_source_are_forgotten_a_day_after_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as worker:
        entrance, other = await create(worker, "in", TO), await create(worker, "other", TO)
        for queue in (entrance, other):
            await put(worker, queue, (b"a", b"1"))
        await until(lambda: len(read(worker, "to-a")) == 2)
        shard = worker.any_shard()
        await shard.append([DeleteQueue(entrance.queue_id).envelope()]).wait()

        def known() -> list[bytes]:
            rows = shard.kv.scan(*RowKind.ROUTE_LANDED.range())
            return [ROUTE_PARTS.parts(key)[0] for key, _ in rows]

        await worker.passages.forget(shard)
        assert sorted(known()) == sorted([entrance.queue_id, other.queue_id])
        monkeypatch.setattr("kproxy.routes.passages._FORGET_MS", -1)
        await worker.passages.forget(shard)
        assert known() == [other.queue_id]


async def test_landed_offsets_of_deleted_filters_are_forgotten_though_their_source_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproxy.routes.passages._FORGET_MS", -1)
    async with serving(tmp_path) as worker:
        source, shard = await create(worker, "in", {}), worker.any_shard()
        for n in range(3):
            one = await create(worker, f"red-{n}", {"kproxy.route.from": "in"})
            await put(worker, source, (b"a", b"%d" % n))
            await until(lambda n=n: read(worker, f"red-{n}") == [b"%d" % n])
            if n < 2:
                await shard.append([DeleteQueue(one.queue_id).envelope()]).wait()
        await worker.passages.forget(shard)
        rows = shard.kv.scan(*RowKind.ROUTE_LANDED.range())
        assert [ROUTE_PARTS.parts(key)[0] for key, _ in rows] == [one.queue_id]
        assert len(routes_of(worker, source)) == 1


async def test_any_key_names_a_queue_and_stays_as_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        to = {"kproxy.route.to": "to-{key:%}", "kproxy.route.unroutable": "lost"}
        entrance = await create(worker, "in", to)
        await put(worker, entrance, (b"ann@example.com", b"1"), (b"\xff", b"2"), (None, b"3"))
        await until(lambda: landed(worker, entrance) == 3)
        assert read(worker, "to-ann_40example.com") == [b"1"]
        assert read(worker, "to-_FF") == [b"2"]
        assert read(worker, "lost") == [b"3"]


async def test_dead_letters_are_passed_on_from_their_queue_once(tmp_path: Path) -> None:
    """A filter said that it had passed them on, and got nothing."""
    async with serving(tmp_path) as worker:
        source, shard = await create(worker, "in", {}), worker.any_shard()
        letters = await create(worker, "dlq.in", {"errors.deadletterqueue.group.enable": "true"})
        await create(worker, "red", {"kproxy.route.from": "dlq.in", "kproxy.route.filter": "key:r"})
        wanted = {"errors.deadletterqueue.topic.name": "dlq.in",
                  "errors.deadletterqueue.copy.record.enable": "true"}  # fmt: skip
        await shard.append([ConfigureGroup("g", wanted, []).envelope()]).wait()
        await put(worker, source, *[(b"red" if n % 2 else b"blue", b"%d" % n) for n in range(20)])
        key = source.queue_id, 0
        change = ShareChange(key, ShareAction.INITIALISE, 1, 0)
        await shard.append([SetShares("g", [change], worker.now_ms()).envelope()]).wait()
        for n in range(20):
            run = Run(n, 1, ARCHIVED_3, LOST)
            share = ChangeShares("g", [ShareRuns(key, 1, [run])], worker.now_ms())
            (outcome,) = await shard.append([share.envelope()]).wait()
            assert outcome.code == Code.NONE
        await until(lambda: landed(worker, letters) == 20)
        assert read(worker, "red") == [b"%d" % n for n in range(1, 20, 2)]


async def test_forwarded_offsets_of_deleted_sources_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row stayed in the dead-letter queue's shard for each source and group there ever was."""
    async with serving(tmp_path) as worker:
        source, other = await create(worker, "in", {}), await create(worker, "other", {})
        letters, shard = await create(worker, "dlq.in", {}), worker.any_shard()
        at = Position(1, 0, 0)
        for queue in (source, other):
            made = Forward(
                (letters.queue_id, 0), DEAD_LETTERS, (queue.queue_id, 0), "g", at, at,
                keyed((b"a", b"1")),
            )  # fmt: skip
            await shard.append([made.envelope()]).wait()
        await shard.append([DeleteQueue(source.queue_id).envelope()]).wait()

        def known() -> list[bytes]:
            rows = shard.kv.scan(*RowKind.FORWARDED.range())
            return [FORWARDED.parts(key)[2][0] for key, _ in rows]

        await worker.passages.forget(shard)
        assert len(known()) == 2  # the source has just gone
        monkeypatch.setattr("kproxy.routes.passages._FORGET_MS", -1)
        await worker.passages.forget(shard)
        assert known() == [other.queue_id]


async def test_a_shard_that_leaves_while_its_old_rows_are_looked_at_ends_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the look ran beside all shards, and its error ended the worker."""
    monkeypatch.setattr("kproxy.routes.passages._FORGET_LOOK_S", 0.0)
    looks = 0
    looked = anyio.Event()

    async def forget(self: Passages, shard: Shard) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            looked.set()
        raise RowsClosed

    monkeypatch.setattr(Passages, "forget", forget)
    async with serving(tmp_path):
        with anyio.fail_after(patient(10)):
            await looked.wait()


async def test_filter_gets_what_matches_of_a_batch_of_very_many_records(tmp_path: Path) -> None:
    """It got nothing of more than 200,000 records, and its lag was said to be 0."""
    body = body_of(Content(b"a", b"v"), ())
    other = body_of(Content(b"b", b"v"), ())
    records = batch_of_bodies([(other, TODAY_MS)] * 200_000 + [(body, TODAY_MS)], 4)
    async with serving(tmp_path) as worker:
        source = await create(worker, "in", {})
        await create(worker, "a", {"kproxy.route.from": "in", "kproxy.route.filter": "key:a"})
        append = Envelope(Kind.APPEND, source.queue_id, 0, body=records)
        await worker.any_shard().append([append]).wait()
        await until(lambda: landed(worker, source) == 200_001)
        assert read(worker, "a") == [b"v"]
        assert worker.counters.route_passed_over == 0


async def test_filter_counts_what_it_cannot_look_at(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        source = await create(worker, "in", {})
        await create(worker, "a", {"kproxy.route.from": "in", "kproxy.route.filter": "key:a"})
        torn = batch(b"", b"", packed=b"\x7f")
        append = Envelope(Kind.APPEND, source.queue_id, 0, body=torn)
        await worker.any_shard().append([append]).wait()
        await put(worker, source, (b"a", b"1"))
        await until(lambda: read(worker, "a") == [b"1"])
        assert worker.counters.route_passed_over == 2


async def test_a_compacted_queue_takes_nothing_without_a_key_from_a_route(tmp_path: Path) -> None:
    """FAULT: it came, and vanished with the next compaction; the unroutable ones did, too."""
    compacted = {"cleanup.policy": "compact"}
    async with serving(tmp_path) as worker:
        entrance = await create(worker, "in", TO)
        await create(worker, "lost", compacted)
        await create(worker, "all", compacted | {"kproxy.route.from": "in"})
        await put(worker, entrance, (None, b"1"), (b"a", b"2"), (None, b"3"))
        await until(lambda: read(worker, "all") == [b"2"])
        await until(lambda: read(worker, "lost") == [b"1", b"3"])
        assert worker.counters.route_passed_over == 2
        assert keys(worker, "lost") == [b"in/0/0", b"in/0/2"]


async def test_record_that_no_log_takes_does_not_stop_its_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shipped again and again, and its source kept all behind it."""
    async with serving(tmp_path) as worker:
        source = await create(worker, "in", {})
        await create(worker, "a", {"kproxy.route.from": "in", "kproxy.route.filter": "key:a"})
        ask = worker.passages._shared.asks.ask

        def refusing(index: int, envelope: Envelope) -> Ticket:
            if envelope.kind == Kind.SHIP and len(envelope.body) > 20_000:
                ticket = Ticket([envelope])
                ticket.set_error(KafkaError(Code.MESSAGE_TOO_LARGE, "too large"))
                return ticket
            return ask(index, envelope)

        monkeypatch.setattr(worker.passages._shared.asks, "ask", refusing)
        await put(worker, source, (b"a", bytes(1_000_000)))
        await put(worker, source, (b"a", b"1"))
        await until(lambda: landed(worker, source) == 2)
        assert read(worker, "a") == [b"1"]
        assert worker.counters.route_passed_over == 1


async def test_a_route_waits_while_who_has_set_it_may_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path, authorizer="acl") as worker:
        await create(worker, "in", {})
        by = {"kproxy.set.by": "10.0.0.1 User:alice"}
        out = await create(worker, "out", {"kproxy.route.from": "in", **by})
        await put(worker, present(worker.catalogue.find("in")), (b"k", b"secret"))
        await until(lambda: worker.counters.routes_held_back > 2)
        assert not read(worker, "out")
        rule = Binding(
            Resource.TOPIC, "in", Pattern.LITERAL, "User:alice", "*", Op.READ, Effect.ALLOW
        )
        worker.security.acls.add(rule)
        worker.security.generation += 1
        await until(lambda: read(worker, "out") == [b"secret"])
        assert out.name == "out"


def quota(worker: Worker, user: str, rate: float | None) -> None:
    row = quota_name((("user", user),), MUTATED)
    worker.security.quotas.setdefault((("user", user),), {})
    if rate is None:
        worker.security.quotas[("user", user),].pop(MUTATED)
    else:
        worker.security.quotas[("user", user),][MUTATED] = rate
    for told in worker.security.on_change:
        told(row, None if rate is None else {"value": rate})


async def test_queues_that_a_route_makes_count_for_who_has_set_it(tmp_path: Path) -> None:
    """FAULT: no handler made them, and so `controller_mutation_rate` did not hold for them."""
    async with serving(tmp_path) as worker:
        quota(worker, "alice", 0.1)
        entrance = await create(worker, "in", TO | {"kproxy.set.by": "-10.0.0.1 User:alice"})
        others = await create(worker, "in2", TO | {"kproxy.set.by": "-10.0.0.1 User:bob"})
        await put(worker, entrance, *[(b"a%d" % number, b"1") for number in range(50)])
        await until(lambda: worker.counters.routes_held_back > 2)
        made = [n for n in range(50) if worker.catalogue.find(f"to-a{n}") is not None]
        assert 1 <= len(made) <= 4
        await put(worker, others, *[(b"b%d" % number, b"1") for number in range(20)])
        await until(lambda: read(worker, "to-b19") == [b"1"])
        quota(worker, "alice", None)
        await until(lambda: read(worker, "to-a49") == [b"1"])


async def test_filter_that_is_set_again_after_very_many_others_passes_nothing_on_twice(
    tmp_path: Path,
) -> None:
    """Its mark was forgotten, and a cut lay across what it had taken: 100 of 250 came twice."""
    taking = {"kproxy.route.from": "in", "kproxy.route.from.start": "true"}
    async with serving(tmp_path) as worker:
        source = await create(worker, "in", {})
        one = await create(worker, "a", taking)
        values = [b"%d" % n for n in range(250)]
        await put(worker, source, *[(b"k", value) for value in values[:100]])
        await until(lambda: len(read(worker, "a")) == 100)
        await configure(worker, one, removed=taking)
        await put(worker, source, *[(b"k", value) for value in values[100:]])
        for n in range(102):
            other = await create(worker, f"other-{n}", {"kproxy.route.from": "in"})
            await worker.any_shard().append([DeleteQueue(other.queue_id).envelope()]).wait()
        await until(lambda: not routes_of(worker, source))
        await configure(worker, one, taking)
        await until(lambda: len(read(worker, "a")) >= 250 and landed(worker, source) == 250)
        assert read(worker, "a") == values


async def configure(
    worker: Worker, queue: Queue, configs: dict[str, str] | None = None,
    removed: Iterable[str] = (),
) -> None:  # fmt: skip
    change = ConfigureQueue(queue.queue_id, configs or {}, list(removed), False)
    (outcome,) = await worker.any_shard().append([change.envelope()]).wait()
    assert outcome.code == Code.NONE, outcome


def routes_of(worker: Worker, queue: Queue) -> list[Any]:
    return list(worker.any_shard().state.kv.scan(*ROUTES.range((queue.queue_id, 0))))
