"""The leftovers of transactions in a shard: copied, swept, trimmed, and found again on disk."""

import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kproxy.metadata.catalogue import StateLookup
from kproxy.protocol.batch import LOG_OVERHEAD_BYTES, control_batch, read_header
from kproxy.shard import copier, housekeeper
from kproxy.shard.copier import Copier
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.retention import Retention
from kproxy.shard.shard import Shard
from kproxy.store.segments import DamagedLog
from kproxy.virtual.commands.envelope import COPY_BYTES, Envelope, Kind
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.transactions import Begin, Marker
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.types import PartitionKey
from tests.commands import command
from tests.present import present
from tests.shard.test_copier import turns_of
from tests.shard.test_damage import recovered
from tests.shard.test_shard import QUEUES, config, create, running
from tests.wire import batch

MARKER_BYTES = 78
numbers = count(1)


class Transactions:
    """A producer's transactions in a shard, one after another."""

    def __init__(self, shard: Shard, producer_id: int = 1000) -> None:
        self.shard = shard
        self.producer_id = producer_id
        self.epoch = -1
        self.number = 0
        self.sequences: dict[PartitionKey, int] = {}

    async def send(self, *envelopes: Envelope) -> list[Outcome]:
        outcomes = await self.shard.append(envelopes).wait()
        assert not any(outcome.code for outcome in outcomes), outcomes
        return outcomes

    async def begin(self, keys: Iterable[PartitionKey]) -> None:
        self.number, self.epoch, self.sequences = next(numbers), self.epoch + 1, {}
        named = [*keys]
        begun = Begin(self.producer_id, self.epoch, 2, self.number, b"tag of t", named, [], 1)
        await self.send(begun.envelope())

    async def put(self, keys: Iterable[PartitionKey], value: bytes = b"v") -> None:
        await self.send(*[self.record(key, value) for key in keys])

    def record(self, key: PartitionKey, value: bytes) -> Envelope:
        sequence = self.sequences.get(key, 0)
        self.sequences[key] = sequence + 1
        body = batch(
            value, producer_id=self.producer_id, epoch=self.epoch, sequence=sequence,
            attributes=0x10,
        )  # fmt: skip
        return Envelope(Kind.APPEND, *key, number=5, body=body)

    def marker(self, keys: Iterable[PartitionKey], *, commit: bool) -> Envelope:
        made = control_batch(self.producer_id, self.epoch + 1, commit=commit, time_ms=9)
        asked = Marker(made, self.producer_id, self.epoch, self.number, commit, [*keys], [], 9)
        return asked.envelope()

    async def end(self, keys: Iterable[PartitionKey], *, commit: bool = True) -> None:
        await self.send(self.marker(keys, commit=commit))

    async def whole(self, keys: Iterable[PartitionKey], *, commit: bool = True) -> None:
        keys = [*keys]
        await self.begin(keys)
        await self.put(keys)
        await self.end(keys, commit=commit)


def partition(shard: Shard, key: PartitionKey) -> Partition:
    return present(shard.state.partition(key))


def stored(shard: Shard, key: PartitionKey) -> dict[int, bytes]:
    """Return batches by base offset, as they lie on disk."""
    row, found = partition(shard, key), {}
    for last, entry in shard.state.batches(key, row.log_start, row.next_offset):
        data = bytearray(entry.length)
        shard.segments.read_into(memoryview(data), entry.segment, entry.position, wait=True)
        found[last - entry.last_delta] = bytes(data)
    return found


def keys_of(shard: Shard, kind: RowKind) -> list[bytes]:
    return [key for key, _ in shard.kv.scan(*kind.range())]


class Copied:
    """The envelopes that go to a shard's log."""

    def __init__(self, shard: Shard) -> None:
        self.of: list[PartitionKey] = []
        append = shard.append

        def noted(envelopes: Any) -> Any:
            self.of += [(e.queue_id, e.partition) for e in envelopes if e.kind == Kind.COPY]
            return append(envelopes)

        shard.append = noted  # type: ignore[method-assign]


# -- copying forward


@pytest.mark.parametrize("slice_", [1, 3, 1000])
async def test_a_marker_is_copied_for_each_partition_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_: int
) -> None:
    monkeypatch.setattr(copier, "_TURN_S", 0.0)
    monkeypatch.setattr(copier, "_LOOK_FRAMES", 1)
    monkeypatch.setattr(copier, "_COPY_ENVELOPES", slice_)
    a = [(QUEUES[0], index) for index in range(6)]
    b = [(QUEUES[1], index) for index in range(3)]
    async with running(tmp_path, sync="never") as shard:
        await create(shard, QUEUES[0], 6)
        await create(shard, QUEUES[1], 3)
        transactions = Transactions(shard)
        await transactions.whole([*a, *b], commit=False)  # markers at offset 1
        await transactions.whole(a, commit=True)  # at offset 3
        assert shard.state.live_bytes(0) >= 15 * (MARKER_BYTES + COPY_BYTES)
        await shard.log.roll()
        await transactions.send(
            Trim(*a[1], 1, 9).envelope(),  # its markers stay
            Trim(*a[2], 2, 9).envelope(),  # the second one does
            Trim(*a[3], 4, 9).envelope(),
            command(Kind.DELETE, QUEUES[1]),
        )
        before = {key: stored(shard, key) for key in a}
        # One that another worker has copied.
        last, found = next(shard.state.batches(a[4], 1, 2))
        await transactions.send(copier.copy_of(a[4], last, found, before[a[4]][1], 0))
        await Housekeeper(shard, config())._sweep()
        copied = Copied(shard)
        await Copier(shard, 0).run()
        wanted = [a[0]] * 4 + [a[1]] * 3 + [a[2]] * 2 + [a[4]] * 3 + [a[5]] * 4
        assert sorted(copied.of) == wanted
        assert shard.state.live_bytes(0) == 0
        await Housekeeper(shard, config()).flush()
        shard.segments.drop(0)
        assert {key: stored(shard, key) for key in a} == before
        for key in a:
            for data in before[key].values():
                assert read_header(data).length + LOG_OVERHEAD_BYTES == len(data)
    again = open_local(tmp_path, config())
    assert {key: stored(again, key) for key in a} == before
    again.close()


async def test_markers_of_many_partitions_hold_nobody_up(tmp_path: Path) -> None:
    keys = [(QUEUES[0], index) for index in range(500)]
    async with running(tmp_path, sync="never") as shard:
        await create(shard, QUEUES[0], 500)
        transactions = Transactions(shard)
        for _ in range(4):
            await transactions.whole(keys)
        await shard.log.roll()
        copying = Copier(shard, 0)
        turns, longest = await turns_of(copying.run)
        assert shard.state.live_bytes(0) == 0
        assert turns > 20
        assert longest < 0.25  # 50 ms, on a machine with nothing else to do


async def test_a_marker_that_is_damaged_is_told(tmp_path: Path) -> None:
    key = (QUEUES[0], 0)
    async with running(tmp_path, sync="never", queues=1) as shard:
        transactions = Transactions(shard)
        await transactions.whole([key])
        await shard.log.roll()
        path = shard.segments.path(0)
        _, found = next(shard.state.batches(key, 1, 2))
        data = bytearray(path.read_bytes())
        data[found.position + MARKER_BYTES + 3] ^= 1  # the name in it
        path.write_bytes(data)
        copied = Copied(shard)
        await Copier(shard, 0).run()
        assert copied.of == [key]  # the record
        assert shard.state.live_bytes(0) == MARKER_BYTES + COPY_BYTES


# -- sweeping


async def test_a_deleted_queue_leaves_nothing(tmp_path: Path) -> None:
    keys = [(QUEUES[0], index) for index in range(3)]
    kept = (QUEUES[1], 0)
    async with running(tmp_path, sync="never") as shard:
        await create(shard, QUEUES[0], 3)
        await create(shard, QUEUES[1])
        first, second = Transactions(shard), Transactions(shard, 2000)
        for transactions in (first, second):
            await transactions.whole([*keys, kept], commit=False)
        await first.begin([*keys, kept])
        await first.put([*keys, kept])  # still open
        await second.begin([*keys, kept])
        shard.state.unpublished = set()
        await first.send(command(Kind.DELETE, QUEUES[0]))
        shard.state.unpublished.clear()
        while await Housekeeper(shard, config())._sweep():
            pass
        left = [key for key, _ in shard.kv.scan(b"", b"\xff") if QUEUES[0] in key]
        swept = [key for key in left if RowKind.UNPUBLISHED.of(key)]
        # Index of retention: who looks finds that there is no such partition.
        due = [key for key in left if RowKind.RETENTION_DUE.of(key)]
        assert sorted(left) == sorted(swept + due)
        of_queue = {key for key in shard.state.unpublished if QUEUES[0] in key}
        assert {key[:1] for key in of_queue} == {b"f", b"l", b"A"}  # so it is published
        assert len(of_queue) == 6 + 3 + 6
        assert len(keys_of(shard, RowKind.ABORTED)) == 2
        assert len(keys_of(shard, RowKind.OPEN_TRANSACTION)) == 2
        for transactions in (first, second):
            await transactions.end([*keys, kept])
        assert keys_of(shard, RowKind.OPEN_TRANSACTION) == []
        assert partition(shard, kept).last_stable == partition(shard, kept).next_offset


async def test_a_trimmed_partition_loses_what_was_aborted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "_ROWS_AT_ONCE", 7)
    key, other = (QUEUES[0], 0), (QUEUES[0], 1)
    async with running(tmp_path, sync="never") as shard:
        await create(shard, QUEUES[0], 2)
        transactions = Transactions(shard)
        for _ in range(20):
            await transactions.whole([key, other], commit=False)  # markers at 1, 3, 5 ...
        shard.state.unpublished = set()
        keeper = Housekeeper(shard, config())
        for log_start, left in ((0, 20), (1, 20), (2, 19), (9, 16), (9, 16), (40, 0)):
            await transactions.send(Trim(*key, log_start, 9).envelope())
            await keeper._sweep()
            found = list(shard.kv.scan(*transaction_rows.aborted_range(key, 0)))
            assert [ABORTED.parts(key)[1] for key, _ in found] == [
                offset for offset in range(1, 40, 2) if offset >= log_start
            ]
            assert len(found) == left
        swept = [k for k in shard.state.unpublished if RowKind.ABORTED.of(k)]
        assert len(swept) == 20
        assert len(list(shard.kv.scan(*transaction_rows.aborted_range(other, 0)))) == 20
        assert partition(shard, key).any_aborted  # nobody looks for them in vain for long


async def test_very_many_are_swept_in_slices(tmp_path: Path) -> None:
    key = (QUEUES[0], 0)
    async with running(tmp_path, sync="never", queues=1) as shard:
        transactions = Transactions(shard)
        await transactions.whole([key], commit=False)
        aborted = ABORTED.encode(transaction_rows.Aborted(7, 0, 1))
        for start in range(0, 100_000, 10_000):
            offsets = range(start, start + 10_000)
            shard.commit({ABORTED.key(key, 10 + offset): aborted for offset in offsets})
        await transactions.send(command(Kind.DELETE, QUEUES[0]))
        turns, longest = await turns_of(Housekeeper(shard, config())._sweep)
        assert keys_of(shard, RowKind.ABORTED) == []
        assert turns > 100
        assert longest < 0.25


# -- trims


def retention(shard: Shard, now: int) -> Retention:
    settings = config(retention_check_ms=1000)
    return Retention(shard, settings, StateLookup(shard.state), lambda: now)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_partition_that_was_trimmed_to_its_end_is_marked_all_the_same(
    tmp_path: Path, commit: bool
) -> None:
    key = (QUEUES[0], 0)
    async with running(tmp_path, sync="never", queues=1) as shard:
        transactions = Transactions(shard)
        await transactions.begin([key])
        await transactions.put([key, key])
        await transactions.send(Trim(*key, -1, 9).envelope())
        row = partition(shard, key)
        assert (row.log_start, row.next_offset, row.last_stable) == (2, 2, 2)
        keeper = Housekeeper(shard, config())
        await keeper._sweep()
        looks = retention(shard, 10_000)
        while await looks.scan_once():
            pass
        assert keys_of(shard, RowKind.RETENTION_DUE) == []  # it is empty
        await transactions.end([key], commit=commit)
        row = partition(shard, key)
        assert (row.log_start, row.next_offset, row.last_stable) == (2, 3, 3)
        assert row.first_open == -1
        assert list(stored(shard, key)) == [2]
        assert keys_of(shard, RowKind.OPEN_FIRST) == []
        assert len(keys_of(shard, RowKind.ABORTED)) == (not commit)
        filed = [rows.retention_due_of(due)[1] for due in keys_of(shard, RowKind.RETENTION_DUE)]
        assert filed == [key]
        while await looks.scan_once():
            pass
        assert len(keys_of(shard, RowKind.RETENTION_DUE)) == 1  # it has a record, and is due later
        await shard.log.roll()
        await Copier(shard, 0).run()
        assert shard.state.live_bytes(0) == 0
        await transactions.whole([key])
        assert partition(shard, key).next_offset == 5
        await transactions.send(Trim(*key, -1, 9).envelope())
        await keeper._sweep()
        assert keys_of(shard, RowKind.ABORTED) == []
        assert not any(shard.state.live_bytes(segment) for segment in shard.segments.ids)
        await Housekeeper(shard, config()).flush()
        found = dict(shard.kv.scan(b"", b"\xff"))
    again = open_local(tmp_path, config())
    assert dict(again.kv.scan(b"", b"\xff")) == found
    again.close()


async def test_a_log_start_may_pass_what_is_open(tmp_path: Path) -> None:
    key = (QUEUES[0], 0)
    async with running(tmp_path, sync="never", queues=1) as shard:
        first, second = Transactions(shard), Transactions(shard, 2000)
        for transactions in (first, second):
            await transactions.begin([key])
            await transactions.put([key, key])  # offsets 0 and 1, 2 and 3
        ends = []
        for log_start in (1, 3):
            await first.send(Trim(*key, log_start, 9).envelope())
            ends.append(partition(shard, key).last_stable)
        await first.end([key], commit=False)  # at 4
        ends.append(partition(shard, key).last_stable)
        await first.send(Trim(*key, 4, 9).envelope())
        ends.append(partition(shard, key).last_stable)
        await second.end([key], commit=False)  # at 5
        ends.append(partition(shard, key).last_stable)
        assert ends == [1, 3, 3, 4, 6]
        found = list(shard.state.aborted(key, 4, 6))
        assert [(offset, one.first_offset) for offset, one in found] == [(4, 0), (5, 2)]


# -- the log itself


async def a_log(directory: Path) -> tuple[Path, list[int]]:
    """Make a log with MARKERs in it, one of them last; return where its frames begin, and end."""
    keys = [(QUEUES[0], index) for index in range(3)]
    async with running(directory) as shard:
        await create(shard, QUEUES[0], 3)
        transactions = Transactions(shard)
        starts = []
        for commit in (True, False):
            await transactions.begin(keys)
            await transactions.put(keys[:2])
            starts.append(shard.segments.end)
            await transactions.end(keys, commit=commit)
            starts.append(shard.segments.end)
        path = shard.segments.path(0)
    return path, starts


async def test_a_damaged_marker_is_refused_where_something_lies_behind_it(tmp_path: Path) -> None:
    path, (start, end, *_) = await a_log(tmp_path)
    shutil.rmtree(tmp_path / "rows")
    (tmp_path / "log" / "synced").unlink(missing_ok=True)
    whole = path.read_bytes()
    assert recovered(tmp_path) == 9
    for at in range(start, end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(DamagedLog):
            recovered(tmp_path)


async def test_a_marker_that_is_torn_is_cut_off(tmp_path: Path) -> None:
    path, (*_, start, end) = await a_log(tmp_path)
    shutil.rmtree(tmp_path / "rows")
    (tmp_path / "log" / "synced").unlink(missing_ok=True)
    whole = path.read_bytes()
    for at in range(start, end, 3):
        path.write_bytes(whole[:at])
        assert recovered(tmp_path) == 8
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        assert recovered(tmp_path) == 8
