"""Compaction against a model: whatever happens in between, what Kafka would keep is there.

Random keys, values, tombstones, codecs, times, trims, copies forward, restarts, and passes that end
half-way. `MISTAKES` are planted to show that the model sees them.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from kproxy.common.counters import Counters
from kproxy.common.errors import Code
from kproxy.handlers.produce.call import ProduceCall
from kproxy.log.base import Ticket
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.cluster_view import SingleNode
from kproxy.protocol import records
from kproxy.protocol.batch import check, read_header
from kproxy.protocol.produce_request import ProduceRequest, Topic
from kproxy.protocol.records import keyed_records, repacked, unpacked
from kproxy.protocol.responses import Broker
from kproxy.shard import compaction_keys, compaction_pass, compaction_plan, compactor
from kproxy.shard.compactor import Compactor
from kproxy.shard.copier import Copier
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.retention import Retention
from kproxy.shard.shard import Shard
from kproxy.virtual import fold
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import ConfigureQueue, CreateQueue
from kproxy.virtual.commands.records import Replace, Trim
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.types import PartitionKey
from kproxy.worker.shards import OneShard
from kproxy.worker.worker import Worker
from tests.present import present
from tests.shard.test_shard import QUEUES, config, read, running
from tests.simulation.seeds import see
from tests.wire import batch, keyed

QUEUE = QUEUES[0]
KEY: PartitionKey = (QUEUE, 0)
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
START_MS = 1_000_000


class Kept(NamedTuple):
    """A record as it was acknowledged."""

    offset: int
    key: bytes
    value: bytes | None
    time_ms: int


class Stage:
    """A partition, its compactor, and what was put into it."""

    def __init__(self, shard: Shard, said: list[Kept], now: int) -> None:
        self.shard = shard
        self.said = said
        self.now = now
        self.late: list[Envelope] = []
        self.gone: set[int] = set()
        self.counters = Counters()
        self.compactor = Compactor(
            shard, config(), StateLookup(shard.state), lambda: self.now, counters=self.counters
        )

    async def create(self, **settings: str) -> None:
        configs = COMPACTED | {name.replace("_", "."): value for name, value in settings.items()}
        await self.send(CreateQueue(QUEUE, "q", 1, configs).envelope())

    async def send(self, envelope: Envelope) -> int:
        outcome = (await self.shard.append([envelope]).wait())[0]
        assert not outcome.code
        return outcome.number

    async def put(self, *pairs: tuple[bytes, bytes | None], codec: int = 0) -> None:
        body = keyed(*pairs, time_ms=self.now, codec=codec)
        base = await self.send(Envelope(Kind.APPEND, QUEUE, 0, number=self.now, body=body))
        self.said += [Kept(base + i, *pair, self.now) for i, pair in enumerate(pairs)]

    async def compact(self) -> None:
        self.shard.note_uncompacted(KEY)
        await self.compactor.round()

    def there(self) -> list[Kept]:
        """Return the records that a reader finds now."""
        found = []
        row = present(self.shard.state.partition(KEY))
        for base, data in read(self.shard, QUEUE).items():
            header = read_header(data)
            if header.record_count == header.last_offset_delta + 1:
                check(data, 1 << 30, 9)
            for record in keyed_records(header, unpacked(data)):
                assert record.key is not None
                value = _value(record.data, record.has_value)
                kept = Kept(base + record.offset_delta, record.key, value, record.time_ms)
                if kept.offset >= row.log_start:
                    found.append(kept)
        return found


@asynccontextmanager
async def staged(directory: Path, **settings: str) -> AsyncIterator[Stage]:
    async with running(directory) as shard:
        stage = Stage(shard, [], START_MS)
        await stage.create(**settings)
        yield stage


def _value(data: bytes, has_value: bool) -> bytes | None:
    return b"=" + data[:-1].rpartition(b"=")[2] if has_value else None


async def test_the_last_record_of_each_key_stays(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for i in range(30):
            await stage.put((b"%d" % (i % 3), b"=%d" % i), (b"long" * 9, b"=%d" % i), codec=i % 5)
        await stage.compact()
        assert [(r.offset, r.key, r.value) for r in stage.there()] == [
            (54, b"0", b"=27"), (56, b"1", b"=28"), (58, b"2", b"=29"), (59, b"long" * 9, b"=29"),
        ]  # fmt: skip
        before = stage.shard.segments.end
        await stage.compact()
        assert stage.shard.segments.end == before  # nothing is new, so nothing is done


async def test_a_shard_that_comes_back_has_not_forgotten_what_to_compact(tmp_path: Path) -> None:
    """A round that the shard left dropped the partitions that it had not come to."""
    async with staged(tmp_path) as stage:
        for value in (b"=1", b"=2"):
            await stage.put((b"k", value))
        stage.shard.serving = False
        await stage.compact()
        stage.shard.serving = True
        await stage.compactor.round()
        assert len(stage.there()) == 1


async def test_a_round_before_a_record_has_landed_does_not_lose_it(tmp_path: Path) -> None:
    """FAULT: a Produce told the compactor before the log had the record; a round in between
    found nothing, and the partition was looked at a day later."""
    async with staged(tmp_path) as stage:
        await stage.put((b"k", b"=1"))
        cluster = SingleNode(cluster_id="c", me=Broker(1, "host", 1))
        worker = Worker(
            config=config(), cluster=cluster, routes=OneShard(stage.shard),
            lookup=StateLookup(stage.shard.state),
        )  # fmt: skip
        sent = memoryview(keyed((b"k", b"=2"), time_ms=START_MS))
        call = ProduceCall(worker, 9, ProduceRequest(None, -1, []), inspected={KEY: sent})
        call.take(Topic("q", [(0, sent)]))
        call.send()
        await stage.compactor.round()
        landed = anyio.Event()
        call.add_done_callback(landed.set)
        await landed.wait()
        await stage.compactor.round()
        assert [record.value for record in stage.there()] == [b"=2"]


async def test_record_held_back_by_a_route_is_compacted_once_it_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: a round that came before the route dropped it until the next day."""
    async with staged(tmp_path) as stage:
        for value in (b"=1", b"=2"):
            await stage.put((b"k", value))
        passed_on = 0
        monkeypatch.setattr(stage.shard.state, "passed_on", lambda key: passed_on)
        await stage.compact()
        assert len(stage.there()) == 2
        passed_on = 2
        await stage.compactor.round()
        assert len(stage.there()) == 1


async def test_a_partition_waits_for_the_word_of_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: one whose queue was not announced here yet was dropped until the next day."""
    async with staged(tmp_path) as stage:
        for value in (b"=1", b"=2"):
            await stage.put((b"k", value))
        with monkeypatch.context() as unknown:
            unknown.setattr(StateLookup, "find_id", lambda self, queue_id: None)
            await stage.compact()
        await stage.compactor.round()
        assert len(stage.there()) == 1


async def test_a_tombstone_stays_for_its_time_and_then_goes(tmp_path: Path) -> None:
    async with staged(tmp_path, delete_retention_ms="1000") as stage:
        await stage.put((b"a", b"=1"), (b"a", None), (b"b", b"=2"))
        await stage.compact()
        assert [r.offset for r in stage.there()] == [1, 2]
        stage.now += 999
        await stage.compact()
        assert [r.offset for r in stage.there()] == [1, 2]
        stage.now += 1
        await stage.compact()
        assert [r.offset for r in stage.there()] == [2]


async def test_the_last_record_stays_even_as_a_tombstone(tmp_path: Path) -> None:
    async with staged(tmp_path, delete_retention_ms="0") as stage:
        await stage.put((b"a", b"=1"), (b"a", None))
        for _ in range(3):
            stage.now += 10
            await stage.compact()
        assert [r.offset for r in stage.there()] == [1]
        before = stage.shard.segments.end
        stage.now += 10
        await stage.compact()
        assert stage.shard.segments.end == before  # there is nothing to come back for
        await stage.put((b"b", b"=2"))
        for _ in range(2):
            stage.now += 10
            await stage.compact()
        assert [r.offset for r in stage.there()] == [2]


async def test_more_keys_than_memory_is_given_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_pass, "KEYS_MAX", 50)
    async with staged(tmp_path) as stage:
        for value in range(2):
            for i in range(0, 200, 10):
                await stage.put(*[(b"%d" % (i + j), b"=%d" % value) for j in range(10)])
        for _ in range(20):
            await stage.compact()
        assert [r.offset for r in stage.there()] == list(range(200, 400))


async def test_too_young_is_left(tmp_path: Path) -> None:
    async with staged(tmp_path, min_compaction_lag_ms="100") as stage:
        await stage.put((b"a", b"=1"), (b"a", b"=2"))
        stage.now += 50
        await stage.put((b"a", b"=3"))
        await stage.compact()
        assert len(stage.there()) == 3
        stage.now += 50
        await stage.compact()  # the first batch is old enough, what follows it is not
        assert [r.offset for r in stage.there()] == [1, 2]


async def test_not_before_enough_is_new_or_it_is_too_old(tmp_path: Path) -> None:
    async with staged(
        tmp_path, min_cleanable_dirty_ratio="0.5", max_compaction_lag_ms="1000"
    ) as stage:
        await stage.put(*[(b"%d" % i, b"=x") for i in range(20)])
        await stage.compact()
        await stage.put((b"1", b"=y"))
        await stage.compact()
        assert len(stage.there()) == 21
        stage.now += 1000
        await stage.compact()
        assert len(stage.there()) == 20


async def test_an_unreadable_batch_leaves_its_partition_as_it_is(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.put((b"a", b"=1"), (b"a", b"=2"))
        noise = batch(b"", packed=b"\x7f" * 20)
        await stage.send(Envelope(Kind.APPEND, QUEUE, 0, number=1, body=noise))
        before = read(stage.shard, QUEUE)
        for _ in range(2):
            await stage.compact()
        assert read(stage.shard, QUEUE) == before
        assert stage.counters.not_compacted == 1


async def test_a_damaged_batch_is_not_written_again(tmp_path: Path) -> None:
    """FAULT: what was left of it got a new CRC: the damage was in sound batches from then on."""
    async with staged(tmp_path) as stage:
        await stage.put((b"a", b"=1"), (b"b", b"=1"))
        await stage.put((b"a", b"=2"))
        _, found = next(stage.shard.state.batches((QUEUE, 0), 0, 9))
        with stage.shard.segments.path(found.segment).open("r+b") as file:
            file.seek(found.position + found.length - 2)  # the last value
            file.write(b"!")
        before = read(stage.shard, QUEUE)
        for _ in range(2):
            await stage.compact()
        assert read(stage.shard, QUEUE) == before
        assert stage.counters.not_compacted == 1


async def test_batch_that_grows_when_packed_again_is_packed_harder(tmp_path: Path) -> None:
    """Its partition was not compacted any more: the log refused each pass."""
    words = [b"%x" % random.Random(n).getrandbits(40) for n in range(300)]
    random_ = random.Random(1)
    values = [b"=" + b" ".join(random_.choices(words, k=700)) for _ in range(20)]
    async with staged(tmp_path) as stage:
        data = keyed(*[(b"%d" % n, value) for n, value in enumerate(values)], time_ms=START_MS)
        body = repacked(read_header(data), unpacked(data), 4, 19)
        await stage.send(Envelope(Kind.APPEND, QUEUE, 0, number=START_MS, body=body))
        await stage.put((b"0", b"=last"))
        stage.compactor._batch_bytes_max = 1
        await stage.compact()
        left = stage.there()
        assert [one.offset for one in left] == list(range(1, 21))
        assert max(map(len, read(stage.shard, QUEUE).values())) <= len(body)
        assert stage.counters.batches_not_compacted == 0


@pytest.mark.parametrize("why", ["too large for the log", "more than is looked at"])
async def test_batch_that_cannot_be_written_again_stays_and_the_rest_is_compacted(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does each tombstone: there may be older records of its key in that batch."""
    async with staged(tmp_path, delete_retention_ms="0") as stage:
        await stage.put(*[(b"a%d" % n, b"=1") for n in range(6)])
        await stage.put((b"b", b"=1"))
        await stage.put((b"a0", None), (b"b", b"=2"), (b"c", b"=1"))
        if why.startswith("more"):
            monkeypatch.setattr(records, "INSPECTED_RECORDS_MAX", 5)
        append = stage.shard.append

        def refusing(envelopes: Any) -> Any:
            large = [one for one in envelopes if one.kind == Kind.REPLACE]
            ticket = append([one for one in envelopes if one not in large])
            if large:
                made = Ticket(list(envelopes))
                taken = iter(ticket.envelopes and [Outcome()] * len(ticket.envelopes))
                refused = Outcome(Code.MESSAGE_TOO_LARGE, message="too large")
                made.set_outcomes([refused if e in large else next(taken) for e in envelopes])
                return made
            return ticket

        monkeypatch.setattr(stage.shard, "append", refusing)
        for _ in range(3):
            stage.now += 10
            await stage.compact()
        monkeypatch.undo()
        assert [one.offset for one in stage.there()] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
        assert stage.counters.batches_not_compacted >= 1


async def test_a_late_pass_of_another_worker_brings_nothing_back(tmp_path: Path) -> None:
    """Its REPLACE was made from what is not there any more."""
    async with staged(tmp_path) as stage:
        await stage.put((b"a", b"=1"), (b"b", b"=1"), (b"c", b"=1"))
        await stage.put((b"a", b"=2"))
        sent: list[Envelope] = []
        append = stage.shard.append

        def noted(envelopes: Any) -> Any:
            sent.extend(envelopes)
            return append(envelopes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage.shard, "append", noted)
            await stage.compact()
        (late,) = [envelope for envelope in sent if envelope.kind == Kind.REPLACE]
        await stage.put((b"b", b"=2"))
        await stage.compact()
        there = stage.there()
        assert [r.offset for r in there] == [2, 3, 4]
        outcome = (await stage.shard.append([late]).wait())[0]
        assert outcome.code
        assert stage.there() == there


async def test_a_size_is_of_what_is_left(tmp_path: Path) -> None:
    """`retention.bytes` of a queue that is compacted as well takes nothing that still fits."""
    async with staged(tmp_path, cleanup_policy="compact,delete", retention_ms="-1") as stage:
        for i in range(40):
            await stage.put((b"%d" % (i % 4), b"=%d" % i))
        await stage.compact()
        size = sum(map(len, read(stage.shard, QUEUE).values()))
        assert stage.shard.state.live_size(KEY) == size
        looks = Retention(
            stage.shard,
            config(retention_check_ms=1),
            StateLookup(stage.shard.state),
            lambda: stage.now,
        )
        for most, left in ((size + 1, 4), (size // 2, 2), (size // 2, 2)):
            change = {"retention.bytes": str(most)}
            await stage.send(ConfigureQueue(QUEUE, change, [], False).envelope())
            while await looks.scan_once():
                pass
            assert len(stage.there()) == left


async def test_compacted_records_count_for_nothing_later(tmp_path: Path) -> None:
    """The policy becomes `delete`; a part is trimmed: sizes are of what is there."""
    async with staged(tmp_path) as stage:
        await stage.put((b"cold", b"=0"))
        for i in range(40):
            await stage.put((b"hot", b"=%d" % i * 100))
        await stage.compact()
        size = sum(map(len, read(stage.shard, QUEUE).values()))
        looks = Retention(
            stage.shard,
            config(retention_check_ms=1),
            StateLookup(stage.shard.state),
            lambda: stage.now,
        )
        change = {"cleanup.policy": "delete", "retention.bytes": str(size + 1)}
        await stage.send(ConfigureQueue(QUEUE, change, [], False).envelope())
        while await looks.scan_once():
            pass
        assert [record.key for record in stage.there()] == [b"cold", b"hot"]
        await stage.send(Trim(QUEUE, 0, 1, stage.now).envelope())
        assert (
            stage.shard.state.live_size(KEY)
            == sum(map(len, read(stage.shard, QUEUE).values()))
            < size
        )


async def test_the_dirty_ratio_is_of_what_is_there(tmp_path: Path) -> None:
    async with staged(tmp_path, min_cleanable_dirty_ratio="0.5") as stage:
        for i in range(50):
            await stage.put((b"%d" % i, b"=" * 200))
        await stage.compact()
        await stage.send(Trim(QUEUE, 0, 50, stage.now).envelope())
        for i in range(10):
            await stage.put((b"one", b"=%d" % i))
        await stage.compact()
        assert [record.value for record in stage.there()] == [b"=9"]


# -- the model


def faults(stage: Stage, ever: dict[str, int]) -> Iterator[str]:
    """Yield the faults of the present records. `ever`: bounds that held since the beginning."""
    row = present(stage.shard.state.partition(KEY))
    there = stage.there()
    said = {record.offset: record for record in stage.said}
    offsets = [record.offset for record in there]
    if offsets != sorted(set(offsets)):
        yield f"offsets out of order: {offsets}"
    for record in there:
        if said.get(record.offset) != record:
            yield f"{record} was said as {said.get(record.offset)}"
    if back := stage.gone.intersection(offsets):
        yield f"{back} have come back"
    stage.gone = said.keys() - set(offsets)
    live = [record for record in stage.said if record.offset >= row.log_start]
    if live and live[-1].offset not in offsets:
        yield "the partition's last record is gone"
    last = {record.key: record for record in live}
    for key, record in last.items():
        if record.offset in offsets:
            continue
        if record.value is not None:
            yield f"the last record of {key!r} is gone"
        elif stage.now - record.time_ms < ever["delete"]:
            yield f"the tombstone of {key!r} went after {stage.now - record.time_ms} ms"
        elif any(other.key == key for other in there):
            yield f"an older value of {key!r} has come back"
    for record in live:
        if stage.now - record.time_ms < ever["lag"] and record.offset not in offsets:
            yield f"{record} went too early"


async def act(stage: Stage, dice: random.Random, ever: dict[str, int]) -> None:
    choice = dice.random()
    if choice < 0.5:
        pairs = [
            (b"k%d" % dice.randrange(6) * dice.choice((1, 9)),
             None if dice.random() < 0.25 else b"=%d" % dice.randrange(1000))
            for _ in range(dice.randint(1, 5))
        ]  # fmt: skip
        await stage.put(*pairs, codec=dice.randrange(5))
    else:
        await upkeep(stage, dice, ever, choice, (0.75, 0.78, 0.85, 0.9, 0.95))


async def upkeep(
    stage: Stage, dice: random.Random, ever: dict[str, int], choice: float, bounds: Sequence[float]
) -> None:
    """Do one of six things: `bounds` are the choices below which each is done."""
    which = sum(choice >= bound for bound in bounds)
    if which == 0:
        with cut_short(stage, dice.choice((None, None, 0, 1, 2))):
            await stage.compact()
    elif which == 1:
        if stage.late:  # another worker's, that stalled in the middle of a pass
            await stage.shard.append(stage.late).wait()
            stage.late = []
    elif which == 2:
        stage.now += dice.choice((1, 10, 40, 100))
    elif which == 3:
        row = present(stage.shard.state.partition(KEY))
        await stage.send(Trim(*KEY, dice.randint(row.log_start, row.next_offset)).envelope())
    elif which == 4:
        await stage.shard.log.roll()
        await Housekeeper(stage.shard, config())._sweep()
        for segment in stage.shard.segments.ids[:-1]:
            await Copier(stage.shard, segment).run()
    else:
        ever["delete"] = min(ever["delete"], delete := dice.choice((20, 60)))
        ever["lag"] = min(ever["lag"], lag := dice.choice((0, 10, 30)))
        values = {"delete.retention.ms": str(delete), "min.compaction.lag.ms": str(lag)}
        await stage.send(ConfigureQueue(QUEUE, values, [], False).envelope())


@contextmanager
def cut_short(stage: Stage, appends: int | None) -> Iterator[None]:
    """End a pass after so many appends, as if the process had; the next one comes late."""
    left = appends
    append = stage.shard.append

    def counted(envelopes: Any) -> Any:
        nonlocal left
        if left is not None:
            if not left:
                stage.late = list(envelopes)
                raise compaction_pass.Stopped("cut short")
            left -= 1
        return append(envelopes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.shard, "append", counted)
        yield


async def story(directory: Path, seed: int, steps: int) -> list[str]:
    """Return the faults found."""
    dice, said, now = random.Random(seed), [], START_MS
    ever = {"delete": 60, "lag": 30}
    made = False
    for _ in range(2):  # as it is closed, or killed, and opened again
        async with running(directory, segment_bytes=2000, sync="never") as shard:
            stage = Stage(shard, said, now)
            if not made:
                await stage.create(delete_retention_ms="60", min_compaction_lag_ms="30")
                await stage.put((b"k0", b"=0"))
                made = True
            for _ in range(steps):
                await act(stage, dice, ever)
                if found := list(faults(stage, ever)):
                    return found
            now = stage.now
    return []


def run(directory: Path, seed: int, steps: int = 60) -> None:
    assert not asyncio.run(story(directory, seed, steps))


@pytest.mark.parametrize("seed", range(20))
def test_records_that_kafka_keeps_are_kept(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_records_that_kafka_keeps_are_kept_for_long(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, steps=200)


def _older_stays(self: Any, record: Any, base_offset: int, plan: Any) -> bool:
    offset = base_offset + record.offset_delta
    return bool(self._last.get(compaction_keys._id(record.key), -1) >= offset)


def _everything_settled(plan: Callable[..., Any]) -> Callable[..., Any]:
    def planned(*arguments: Any) -> Any:
        found = plan(*arguments)
        if isinstance(found, compaction_plan.Plan):
            return replace(found, settled_end=found.end)
        return found

    return planned


def _no_lag(state: Any, key: Any, row: Any, settings: Any, now_ms: int) -> tuple[int, int, int]:
    return row.next_offset, row.size, 1 << 62


def _done_at_once(original: Any) -> Any:
    """Return a pass that says that it is over before it has dropped anything."""

    async def run(self: Any) -> None:
        progress = compaction_pass.Compaction(
            clean_end=self._plan.end, size_through=self._plan.size_through, clean_bytes=1,
            pending_end=self._plan.end, pending_ms=self._plan.pending_ms,
            settled_end=self._plan.settled_end, log_start=self._plan.log_start,
        )  # fmt: skip
        await self._shard.append(
            [compaction_pass.Compact(*self._key, [], progress).envelope()]
        ).wait()
        await original(self)

    return run


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "the last record of a key goes, older ones stay": (compaction_pass.Keys, "kept", _older_stays),
    "tombstones go at once": (compactor, "plan", _everything_settled(compactor.plan)),
    "the lag is not kept": (compaction_plan, "_old_enough", _no_lag),
    "a pass is done before it is": (
        compaction_pass.Pass,
        "run",
        _done_at_once(compaction_pass.Pass.run),
    ),
    "a generation is not looked at": (Batch, "generation", 0),
    "a batch is counted as it was": (fold, "copied_batch", lambda batch, *rest: batch),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    see(lambda seed: run(tmp_path / str(seed), seed), range(60), Exception)


def test_generations_are_in_the_time_of_an_envelope() -> None:
    assert Replace.generations(Envelope(Kind.REPLACE, time_ms=3 << 8 | 4)) == (3, 4)
    assert Replace.generations(Envelope(Kind.COPY)) == (0, 0)
