"""Compaction of what transactions have written, against a model.

A reader of committed records, by the algorithm that clients use, finds what Kafka would keep: no
record of an aborted transaction counts, and nothing is compacted that is not decided.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kproxy.protocol.batch import control_batch, read_header
from kproxy.protocol.codecs import pack
from kproxy.protocol.records import keyed_records, unpacked
from kproxy.shard import compaction_keys, compaction_pass, compaction_plan, compactor
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.transactions import Begin, Marker
from kproxy.virtual.folds.participants import ParticipantFold
from kproxy.virtual.rows.kinds import RowKind
from tests.present import present
from tests.shard.test_compactor import KEY, QUEUE, START_MS, Kept, Stage, _value, upkeep
from tests.shard.test_shard import read, running
from tests.simulation.seeds import see
from tests.wire import batch, record

TRANSACTIONAL = 0x10
COMMIT = b"\0\0\0\1"
Pair = tuple[bytes, bytes | None]


@dataclass
class Producer:
    producer_id: int
    epoch: int = 0
    sequence: int = 0
    version: int = 1
    number: int = -1  # the number of its open transaction


@dataclass
class History:
    """The history of the writes, whatever the shard has made of it."""

    said: list[Kept] = field(default_factory=list)
    now: int = START_MS
    producers: list[Producer] = field(default_factory=lambda: [Producer(1000 + i) for i in (0, 1)])
    numbers: int = 0
    transaction_of: dict[int, int] = field(default_factory=dict)  # by offset
    commits: dict[int, bool] = field(default_factory=dict)  # transactions that ended, by number

    def is_open(self, offset: int) -> bool:
        number = self.transaction_of.get(offset)
        return number is not None and number not in self.commits

    def is_aborted(self, offset: int) -> bool:
        return self.commits.get(self.transaction_of.get(offset, -1)) is False


class Transactional(Stage):
    def __init__(self, shard: Shard, history: History) -> None:
        super().__init__(shard, history.said, history.now)
        self.history = history

    async def begin(self, producer: Producer, version: int) -> None:
        self.history.numbers += 1
        producer.number, producer.version = self.history.numbers, version
        numbers = producer.producer_id, producer.epoch, version, producer.number
        await self.send(Begin(*numbers, b"tag of t", [KEY], [], self.now).envelope())

    async def put_in(self, producer: Producer, *pairs: Pair, codec: int = 0) -> None:
        data = b"".join(record(i, value, key) for i, (key, value) in enumerate(pairs))
        body = batch(
            *[b""] * len(pairs), times=(self.now,) * len(pairs), attributes=codec | TRANSACTIONAL,
            packed=pack(data, codec), producer_id=producer.producer_id, epoch=producer.epoch,
            sequence=producer.sequence,
        )  # fmt: skip
        producer.sequence += len(pairs)
        base = await self.send(Envelope(Kind.APPEND, QUEUE, 0, number=self.now, body=body))
        self.said += [Kept(base + i, *pair, self.now) for i, pair in enumerate(pairs)]
        self.history.transaction_of |= dict.fromkeys(
            range(base, base + len(pairs)), producer.number
        )

    async def end(self, producer: Producer, *, commit: bool) -> None:
        bumps = producer.version == 2
        epoch, number = producer.epoch, producer.number
        made = control_batch(producer.producer_id, epoch + bumps, commit=commit, time_ms=self.now)
        marker = Marker(made, producer.producer_id, epoch, number, commit, [KEY], [], self.now)
        await self.send(marker.envelope())
        self.history.commits[number] = commit
        producer.number = -1
        if bumps:
            producer.epoch, producer.sequence = epoch + 1, 0

    def batches(self) -> Iterator[tuple[int, bytes]]:
        yield from read(self.shard, QUEUE).items()

    def there(self) -> list[Kept]:
        row = present(self.shard.state.partition(KEY))
        found = []
        for base, data in self.batches():
            header = read_header(data)
            for one in keyed_records(header, unpacked(data)):
                offset = base + one.offset_delta
                if header.is_control or offset < row.log_start:
                    continue
                assert one.key is not None
                value = _value(one.data, one.has_value)
                found.append(Kept(offset, one.key, value, one.time_ms))
        return found

    def markers(self) -> dict[int, bool]:
        """Return control batches by offset: whether they commit."""
        return {
            base: next(keyed_records(header, unpacked(data))).key == COMMIT
            for base, data in self.batches()
            if (header := read_header(data)).is_control
        }

    def committed(self, start: int) -> list[int]:
        """Return offsets of records as a read_committed consumer shows them (`CompletedFetch`)."""
        end = present(self.shard.state.partition(KEY)).last_stable
        rows = sorted(
            (aborted.first_offset, aborted.producer_id)
            for _, aborted in self.shard.state.aborted(KEY, start, end)
        )
        dropped: set[int] = set()
        shown = []
        for base, data in self.batches():
            header = read_header(data)
            last = base + header.last_offset_delta
            if not start <= last < end:
                continue
            while rows and rows[0][0] <= last:
                dropped.add(rows.pop(0)[1])
            if header.is_control:
                if next(keyed_records(header, unpacked(data))).key != COMMIT:
                    dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                records = keyed_records(header, unpacked(data))
                shown += [base + one.offset_delta for one in records]
        return [offset for offset in shown if offset >= start]


def faults(stage: Transactional, ever: dict[str, int], dice: random.Random) -> Iterator[str]:
    """Yield the faults of the present records. `ever`: bounds that held since the beginning."""
    state, history = stage.shard.state, stage.history
    row = present(state.partition(KEY))
    there, clean_end, markers = stage.there(), state.compaction(KEY).clean_end, stage.markers()
    said = {one.offset: one for one in stage.said}
    offsets = [one.offset for one in there]
    for one in there:
        if said.get(one.offset) != one:
            yield f"{one} was said as {said.get(one.offset)}"
    if offsets != sorted(set(offsets)):
        yield f"offsets out of order: {offsets}"
    if back := stage.gone.intersection(offsets):
        yield f"{back} have come back"
    stage.gone = said.keys() - set(offsets)
    if row.next_offset > row.log_start and row.next_offset - 1 not in {*offsets, *markers}:
        yield "the partition's last record is gone"
    live = [one for one in stage.said if one.offset >= row.log_start]
    for one in live:
        if one.offset in offsets:
            if history.is_aborted(one.offset) and one.offset < clean_end:
                yield f"{one} was aborted, and is there below {clean_end}"
            continue
        if one.offset >= row.last_stable:
            yield f"{one} is gone, and lies behind the last stable offset"
        if stage.now - one.time_ms < ever["lag"]:
            yield f"{one} went too early"
    decided = [
        one
        for one in live
        if not history.is_open(one.offset) and not history.is_aborted(one.offset)
    ]
    last = {one.key: one for one in decided}
    kept = {one.offset for one in there}.intersection(one.offset for one in decided)
    for key, one in last.items():
        if one.offset in offsets:
            continue
        if one.value is not None:
            yield f"the last record of {key!r} is gone"
        elif stage.now - one.time_ms < ever["delete"]:
            yield f"the tombstone of {key!r} went after {stage.now - one.time_ms} ms"
        elif any(said[offset].key == key for offset in kept):
            yield f"an older value of {key!r} has come back"
    for offset, commit in markers.items():
        if commit and row.log_start <= offset < clean_end - 1:  # it may have been the last record
            yield f"a commit's marker at {offset} is there below {clean_end}"
    for start in (row.log_start, dice.randint(row.log_start, row.next_offset)):
        wanted = sorted(o for o in kept if start <= o < row.last_stable)
        if (shown := stage.committed(start)) != wanted:
            yield f"a reader from {start} on is shown {shown}, not {wanted}"


async def act(stage: Transactional, dice: random.Random, ever: dict[str, int]) -> None:
    def pairs() -> list[Pair]:
        return [
            (b"k%d" % dice.randrange(6) * dice.choice((1, 9)),
             None if dice.random() < 0.25 else b"=%d" % dice.randrange(1000))
            for _ in range(dice.randint(1, 4))
        ]  # fmt: skip

    choice = dice.random()
    producer = dice.choice(stage.history.producers)
    if choice < 0.2:
        await stage.put(*pairs(), codec=dice.randrange(5))
    elif choice < 0.6:
        if producer.number < 0:
            await stage.begin(producer, dice.choice((1, 2)))
        elif dice.random() < 0.4:
            await stage.end(producer, commit=dice.random() < 0.5)
        else:
            await stage.put_in(producer, *pairs(), codec=dice.randrange(5))
    else:
        await upkeep(stage, dice, ever, choice, (0.8, 0.82, 0.88, 0.91, 0.96))


async def story(directory: Path, seed: int, steps: int) -> list[str]:
    """Return the faults found."""
    dice, history = random.Random(seed), History()
    ever = {"delete": 60, "lag": 30 if seed % 2 else 0}
    made = False
    for _ in range(2):  # as it is closed, or killed, and opened again
        async with running(directory, segment_bytes=2000, sync="never") as shard:
            stage = Transactional(shard, history)
            if not made:
                settings = {"delete_retention_ms": "60", "min_compaction_lag_ms": str(ever["lag"])}
                await stage.create(**settings)
                made = True
            for _ in range(steps):
                await act(stage, dice, ever)
                if found := list(faults(stage, ever, dice)):
                    return found
            history.now = stage.now
    return []


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read some batches, and some rows of aborted transactions, at a time."""
    monkeypatch.setattr(compaction_pass, "_READ_BATCHES", 3)
    monkeypatch.setattr(compaction_keys, "_ABORTED_AT_ONCE", 2)


def run(directory: Path, seed: int, steps: int = 70) -> None:
    assert not asyncio.run(story(directory, seed, steps))


@pytest.mark.parametrize("seed", range(20))
def test_records_that_kafka_keeps_are_kept(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_records_that_kafka_keeps_are_kept_for_long(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, steps=200)


def _aborted_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction_pass.Aborted, "has", lambda self, producer_id, offset: False)


def _aborted_are_noted(patch: pytest.MonkeyPatch) -> None:
    note = compaction_pass.Pass._note

    def noted(self: Any, found: list[Any]) -> int:
        records = compaction_pass._What.RECORDS
        aborted = compaction_pass._What.ABORTED
        return note(self, [one._replace(what=records) if one.what == aborted else one
                           for one in found])  # fmt: skip

    patch.setattr(compaction_pass.Pass, "_note", noted)


def _undecided_are_compacted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction_plan, "_decided", lambda state, key, row: (1 << 62, row.size))


def _rows_of_aborts_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParticipantFold, "forget_marker", lambda *_: None)


def _markers_of_commits_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction_pass, "_COMMIT_KEY", b"")


def _the_last_marker_goes(patch: pytest.MonkeyPatch) -> None:
    plan = compactor.plan

    def planned(*arguments: Any) -> Any:
        found = plan(*arguments)
        if isinstance(found, compaction_plan.Plan):
            return replace(found, last_offset=-1)
        return found

    patch.setattr(compactor, "plan", planned)


def _rows_that_began_early_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Pass over rows of transactions that began early, as if they could not matter."""
    note = compaction_pass.Aborted._note

    def noted(self: Any, marker_offset: int, value: bytes, start: int) -> None:
        note(self, marker_offset, value, start)
        self._through = max(self._through, marker_offset)

    patch.setattr(compaction_pass.Aborted, "_note", noted)


MISTAKES = [
    _aborted_are_kept, _aborted_are_noted, _undecided_are_compacted, _rows_of_aborts_stay,
    _markers_of_commits_stay, _the_last_marker_goes, _rows_that_began_early_are_passed_over,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any
) -> None:
    mistake(monkeypatch)
    see(lambda seed: run(tmp_path / str(seed), seed), range(80))


async def test_transaction_that_ends_later_is_compacted_then(tmp_path: Path) -> None:
    """Nothing is written to the partition but a marker: it is looked at all the same."""
    async with running(tmp_path) as shard:
        stage = Transactional(shard, History())
        await stage.create()
        producer = stage.history.producers[0]
        await stage.put((b"a", b"=1"))
        await stage.begin(producer, 2)
        await stage.put_in(producer, (b"a", b"=2"))
        await stage.put((b"a", b"=3"))
        await stage.compact()
        assert [one.offset for one in stage.there()] == [0, 1, 2]
        await stage.end(producer, commit=False)
        await stage.compactor.round()
        assert [one.offset for one in stage.there()] == [2]
        assert stage.markers() == {3: False}
        assert stage.committed(0) == [2]
        assert not shard.uncompacted


async def test_the_one_record_of_an_aborted_transaction_goes(tmp_path: Path) -> None:
    async with running(tmp_path) as shard:
        stage = Transactional(shard, History())
        await stage.create()
        producer = stage.history.producers[0]
        await stage.begin(producer, 2)
        await stage.put_in(producer, (b"a", b"=2"))
        await stage.compact()
        await stage.end(producer, commit=False)
        await stage.compactor.round()
        assert stage.there() == []
        assert stage.markers() == {1: False}


async def test_the_marker_of_an_aborted_transaction_goes_with_the_next_pass(tmp_path: Path) -> None:
    """FAULT: they stayed for ever, and so did their rows."""
    async with running(tmp_path) as shard:
        stage = Transactional(shard, History())
        await stage.create()
        producer = stage.history.producers[0]
        for number in range(3):
            await stage.begin(producer, 2)
            await stage.put_in(producer, (b"a", b"=%d" % number))
            await stage.end(producer, commit=False)
            await stage.compact()
        assert list(stage.markers()) == [5], "the last one of the partition stays"
        rows = [key for key, _ in shard.kv.scan(*RowKind.ABORTED.range())]
        assert len(rows) == 1


async def test_very_many_aborted_transactions_are_read_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are held only as long as they matter."""
    async with running(tmp_path, sync="never") as shard:
        stage = Transactional(shard, History())
        await stage.create()
        for number in range(300):
            producer = Producer(2000 + number)
            await stage.begin(producer, 2)
            await stage.put_in(producer, (b"a", b"=%d" % number))
            await stage.end(producer, commit=False)
        most = 0
        read_rows = compaction_pass.Aborted.read

        async def counted(self: Any, start: int, end: int) -> None:
            nonlocal most
            await read_rows(self, start, end)
            most = max(most, sum(map(len, self._by_producer.values())))

        monkeypatch.setattr(compaction_pass.Aborted, "read", counted)
        await stage.compact()
        assert stage.there() == []
        assert most < 20
        rows = list(shard.kv.scan(*RowKind.ABORTED.range()))
        assert len(rows) == len(stage.markers()) == 300
