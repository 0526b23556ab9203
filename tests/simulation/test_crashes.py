"""Seeded: random work on a shard, housekeeping in between, crashes at any point, then the truth.

After each crash the shard is opened again from what is on disk, and every queue must hold exactly
the acknowledged records, byte for byte; repetitions of the last batches are answered as before.
"""

import asyncio
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.protocol.batch import read_header
from kproxy.shard import copier
from kproxy.shard import housekeeper as keeper_module
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.store import rocks as rocks_module
from kproxy.virtual import producers
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.producers import ForgetProducers
from kproxy.virtual.commands.records import AppendIf
from kproxy.virtual.counts import counted
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.producers import producer_id_of, used_ms_of, with_time
from kproxy.virtual.rows.queues import partition_of
from kproxy.virtual.types import PartitionKey, QueueId
from tests.commands import command
from tests.present import present
from tests.simulation.seeds import see, seeds, sums
from tests.virtual.model import Model
from tests.wire import batch

pytestmark = pytest.mark.usefixtures("one_producer_inline")

LIVES = 4
STEPS = 120


class Simulation:
    """One seed: a model beside a shard that crashes."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.model = Model()
        self.ids = 0
        self.sequences: dict[tuple[tuple[bytes, int], int], int] = {}
        self.last: dict[tuple[bytes, int], bytes] = {}
        self.now_ms = 0
        self.by_time_from = self.rng.randrange(150)  # a level is put in force
        self.idle: list[tuple[PartitionKey, int, int, object]] = []
        self.done: Counter[str] = Counter()
        self.config = Config(
            disk_free_bytes_min=1, segment_bytes=40_000, rows_cached_max=8, sync="never"
        )

    async def live(self) -> None:
        """Open, check, work, crash."""
        shard = open_local(self.directory, self.config)
        self.check(shard)
        before = set(shard.segments.ids)
        # Now and then the disk has no room for a flush.
        shard.disk_space.fits = self.has_room  # type: ignore[method-assign]
        keeper = Housekeeper(shard, self.config)
        with anyio.CancelScope() as crash:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shard.log.run)
                for _ in range(STEPS):
                    await self.step(shard, keeper)
                self.check(shard)
                self.done["segments freed"] += len(before - set(shard.segments.ids))
                crash.cancel()
        # RocksDB flushes at a close: what a kill leaves is a copy of the files as they are now.
        active = shard.segments.path(shard.segments.active).name
        survived = self.directory.with_name(f"{self.directory.name}-")
        shutil.copytree(self.directory, survived)
        shard.kv.close()
        shard.segments.close()
        self.directory = survived
        if self.rng.random() < 0.5:  # a commit that was under way
            self.done["a commit cut off"] += 1
            with (survived / "log" / active).open("ab") as file:
                file.write(self.rng.randbytes(self.rng.randrange(1, 80)))

    def has_room(self, wanted: int) -> bool:
        found = self.rng.random() < 0.6
        self.done["room for a flush" if found else "no room for a flush"] += 1
        return found

    async def step(self, shard: Shard, keeper: Housekeeper) -> None:
        dice = self.rng.random()
        if dice < 0.08:
            await self.housekeep(keeper)
            return
        if dice < 0.12:
            await self.forget(shard)
            return
        envelopes = [self.envelope() for _ in range(self.rng.choice((1, 1, 2, 8)))]
        outcomes = await shard.append(envelopes).wait()
        for envelope, outcome in zip(envelopes, outcomes, strict=True):
            code, number = self.model.apply(envelope)
            assert outcome.code == code, envelope
            self.done[f"{Kind(envelope.kind).name}: {Code(outcome.code).name}"] += 1
            if number is not None and envelope.kind != Kind.PRODUCER_ID:
                assert outcome.number == number, envelope

    async def forget(self, shard: Shard) -> None:
        """Forget producers that were seen a while ago, but for those that came again since."""
        for key, producer_id, used_ms, sent in self.idle:
            named = ForgetProducers(key, [(producer_id, used_ms)])
            outcome = (await shard.append([named.envelope()]).wait())[0]
            if outcome.number == 1:
                part = self.model.partitions[key[0]][key[1]]
                assert part.sent[producer_id] == sent, "it was used since"
                self.model.forget(*key, producer_id)
                self.done["forgotten"] += 1
        self.idle = []
        for found, data in shard.kv.scan(*RowKind.PRODUCER.range()):
            key, producer_id = partition_of(found), producer_id_of(data)
            row = shard.state.partition(key)
            if row is not None and row.by_time and self.rng.random() < 0.3:
                part = self.model.partitions[key[0]][key[1]]
                epoch, batches = part.sent[producer_id]
                self.idle.append((key, producer_id, used_ms_of(data), (epoch, [*batches])))

    async def housekeep(self, keeper: Housekeeper) -> None:
        match self.rng.randrange(4):
            case 0:
                await keeper.flush()
            case 1:
                await keeper._sweep()
            case 2:
                await keeper._copy_forward()
            case _:
                await keeper.round()

    def envelope(self) -> Envelope:
        known = list(self.model.partitions)
        dice = self.rng.random()
        if not known or dice < 0.04:
            self.ids += 1
            queue = QueueId(self.ids.to_bytes(16, "big"))
            values = {"name": f"q{self.ids}", "partitions": self.rng.randrange(1, 3), "configs": {}}
            return command(Kind.CREATE, queue, values=values)
        queue = QueueId(self.rng.choice(known))
        index = self.rng.randrange(len(self.model.partitions[queue]))
        if dice < 0.07:
            return command(Kind.DELETE, queue)
        if dice < 0.12:
            end = self.model.partitions[queue][index].end
            return command(Kind.TRIM, queue, index, number=self.rng.randrange(end + 1))
        if dice < 0.16:
            offsets = [[queue.hex(), index, self.rng.randrange(99), -1, "", False]]
            return command(Kind.COMMIT, values={"group": "g", "offsets": offsets})
        return self.append(queue, index)

    def append(self, queue: QueueId, index: int) -> Envelope:
        key = (queue, index)
        self.now_ms += 1
        time_ms = self.now_ms if self.now_ms > self.by_time_from else 0
        if key in self.last and self.rng.random() < 0.2:
            self.done["sent again"] += 1
            return Envelope(Kind.APPEND, queue, index, time_ms=time_ms, body=self.last[key])
        count = self.rng.randrange(1, 4)
        producer_id = self.rng.randrange(1, 4)
        sequence = self.sequences.get((key, producer_id), 0)
        values = [self.rng.randbytes(self.rng.choice((10, 100, 3000))) for _ in range(count)]
        body = batch(*values, producer_id=producer_id, epoch=0, sequence=sequence)
        self.sequences[key, producer_id] = sequence + count
        self.last[key] = body
        if self.rng.random() < 0.1:
            end = max(0, self.model.partitions[queue][index].end + self.rng.choice((0, 0, -1, 1)))
            body = AppendIf.body(body, end)
            return Envelope(Kind.APPEND_IF, queue, index, time_ms=time_ms, body=body)
        return Envelope(Kind.APPEND, queue, index, time_ms=time_ms, body=body)

    def check(self, shard: Shard) -> None:
        names = {queue.name: queue.queue_id for queue in self.queues(shard)}
        assert names == self.model.names
        assert shard.state.counts.values() == counted(shard.kv).values()
        for queue, parts in self.model.partitions.items():
            for index, part in enumerate(parts):
                self.check_partition(shard, (QueueId(queue), index), part)

    def queues(self, shard: Shard) -> list[Any]:
        found = [shard.state.queue(key[1:].decode()) for key, _ in shard.kv.scan(b"q", b"r")]
        return [queue for queue in found if queue is not None]

    def check_partition(self, shard: Shard, key: tuple[QueueId, int], part: Any) -> None:
        row = present(shard.state.partition(key))
        assert (row.log_start, row.next_offset) == (part.start, part.end)
        offset = part.start
        for last, entry in shard.state.batches(key, part.start, part.end):
            data = bytearray(entry.length)
            shard.segments.read_into(memoryview(data), entry.segment, entry.position, wait=True)
            assert bytes(data) == part.records[last]
            assert last - entry.last_delta <= offset
            assert read_header(bytes(data)).last_offset_delta == entry.last_delta
            offset = last + 1
        assert offset == part.end
        committed = shard.state.committed("g", key)
        wanted = self.model.commits.get(("g", *key))
        assert (committed.offset if committed else None) == wanted


def still_options(cache_bytes: int) -> Any:
    """Return options without compactions, which would delete files while a crash copies them."""
    options = real_options(cache_bytes)
    options.set_disable_auto_compactions(True)
    return options


real_options = rocks_module._options


def crashing(patch: pytest.MonkeyPatch, directory: Path) -> Callable[[int], Mapping[str, int]]:
    """Return a run of a seed."""
    patch.setattr(keeper_module, "_WORTH_FREEING_BYTES", 1000)
    patch.setattr(copier, "_COPY_BYTES", 5000)
    patch.setattr(rocks_module, "_options", still_options)

    async def live(simulation: Simulation) -> None:
        for _ in range(LIVES):
            await simulation.live()

    def run(seed: int) -> Mapping[str, int]:
        simulation = Simulation(directory / str(seed), seed)
        asyncio.run(live(simulation))
        assert simulation.ids > 1
        return simulation.done

    return run


@seeds(20, long=1000)
def test_nothing_is_lost_or_changed_by_crashes(
    tmp_path: Path, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = sums(crashing(monkeypatch, tmp_path), seeds)
    # A rare seed meets a full disk at each flush.
    assert min(done["segments freed"], done["forgotten"]) > 0


def _whoever_is_named_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    forget = producers.forget

    def forgetful(state: Any, key: Any, row: Any, named: Any) -> int:
        found = [(pid, state.get(rows.producer_key(*key, pid))) for pid, _ in named]
        return forget(state, key, row, [(pid, used_ms_of(d)) for pid, d in found if d is not None])

    patch.setattr(producers, "forget", forgetful)


def _forgotten_ones_are_counted_on(patch: pytest.MonkeyPatch) -> None:
    """Count forgotten producers on: a partition looks for some without need, or does not look."""
    forget = producers.forget

    def miscounted(state: Any, key: Any, row: Any, named: Any) -> int:
        forgotten = forget(state, key, row, named)
        if forgotten and row.spilled:
            row.spilled -= 1
        return forgotten

    patch.setattr(producers, "forget", miscounted)


def _a_time_outlives_a_use(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producers, "with_time", lambda data, used_ms: with_time(data, min(used_ms, 1)))


@pytest.mark.parametrize(
    "mistake",
    [_whoever_is_named_is_forgotten, _forgotten_ones_are_counted_on, _a_time_outlives_a_use],
)
def test_a_mistake_about_forgotten_producers_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Any
) -> None:
    monkeypatch.setattr(rocks_module, "_options", still_options)
    mistake(monkeypatch)

    async def run(seed: int) -> None:
        simulation = Simulation(tmp_path / str(seed), seed)
        for _ in range(LIVES):
            await simulation.live()

    see(lambda seed: asyncio.run(run(seed)), range(30), struct.error)
