"""Seeded: a shard publishes its rows now and then, its log is trimmed behind them, and at any time
another worker with an empty disk makes the state from the rows and what is left of the log.

It must be the owner's state: the same rows, the same batches in the same places of the log.
"""

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.metadata.levels import Level
from kproxy.protocol.batch import read_header
from kproxy.protocol.records import keyed_records, unpacked, with_records
from kproxy.shard.copier import Live, copy_of
from kproxy.shard.housekeeper import Housekeeper
from kproxy.virtual import reindex, snapshot
from kproxy.virtual.commands.envelope import COPIED, NUMBERED, Envelope, Kind
from kproxy.virtual.commands.producers import ForgetProducers
from kproxy.virtual.commands.records import AppendIf, Compact
from kproxy.virtual.commands.traits import TRAITS
from kproxy.virtual.counts import counted
from kproxy.virtual.fold import PASSED, Fold
from kproxy.virtual.folds.carried import ALONE, SEVERAL
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.reindex import Reindex, RowsDisagree
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import producers as producer_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES, RowKind
from kproxy.virtual.rows.queues import Compaction
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.snapshot import Anchors, RowCapture
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId, ShardId
from tests.commands import command
from tests.fakes import DictKv
from tests.simulation.rebuild_mistakes import unpublished
from tests.simulation.seeds import see, seeds, sums
from tests.simulation.twice import fold_twice
from tests.wire import batch

pytestmark = pytest.mark.usefixtures("one_producer_inline", "short_looks")

STEPS = 120
_TWICE = 0.04
SEGMENT = 8  # envelopes
SHARD, SHARDS = ShardId(1), 3
_ALSO = (*ALONE, *SEVERAL)  # carry a batch, and more
OF_QUEUES = b"kflASCMW"
"""Kinds of rows that a deleted queue leaves to be swept."""


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    look_shortly(monkeypatch)


def look_shortly(patch: pytest.MonkeyPatch) -> None:
    """Have looks for anchors remember the rows that they passed over after two batches."""
    patch.setattr(snapshot, "_ROWS_AT_ONCE", 2)
    patch.setattr(reindex, "_ROWS_AT_ONCE", 2)


def place_of(log_offset: int, envelope: Envelope) -> LogLocation:
    """Return a body's place in the log itself, so that two workers' places can be compared."""
    return LogLocation(log_offset // SEGMENT, log_offset, len(envelope.body))


def as_rebuilt(data: bytes) -> bytes:
    """Return a batch's row without the note that a plain one came while a transaction was open.

    A rebuild does not know that; a reader that needs it reads the batch.
    """
    batch = batch_rows.decode_batch(data)
    if batch.transaction == batch_rows.NO_TRANSACTION:
        batch = batch._replace(transaction=batch_rows.NOT_SAID)
    return batch.encode()


class Owner:
    """The shard that a Keeper keeps, in short. With a seed, its log has some envelopes twice."""

    def __init__(self, seed: int | None = None) -> None:
        self._twice = None if seed is None else random.Random(f"twice {seed}")
        self.kv = DictKv()
        self.state = State(self.kv, 8)
        self.state.unpublished = set()
        self.fold = Fold(self.state, SHARD, SHARDS, shared=True)
        self.anchors = Anchors(self.kv)
        self.log: list[Envelope] = []
        self.capture: RowCapture | None = None
        self.serving = True
        self.level = Level()

    def append(self, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        ticket.set_outcomes([self.apply(envelope) for envelope in envelopes])
        return ticket

    def apply(self, envelope: Envelope) -> Outcome:
        sent = copy.copy(envelope)
        if sent.kind != Kind.FOREIGN:
            sent.writer, sent.counter = sent.writer or 1, NUMBERED | len(self.log) + 1
        outcome = self._take(sent)
        if self._twice is not None and self._twice.random() < _TWICE:
            for one in self.log[-self._twice.randint(1, 3) :]:
                assert self._take(one) is PASSED or one.kind == Kind.FOREIGN
        return outcome

    def _take(self, envelope: Envelope) -> Outcome:
        place = place_of(len(self.log), envelope)
        outcome = self.fold.apply(len(self.log), envelope, place)
        self.log.append(envelope)
        self.commit({})
        return outcome

    def commit(self, changes: dict[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            self.state.put(key, value)
        drained = self.state.drain()
        if self.capture is not None:
            self.capture.before_write(drained)
        self.kv.write(drained)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.owner: Any = Owner(seed)
        self.keeper = Housekeeper(self.owner, Config())
        self.topic: list[tuple[bytes, bytes | None]] = []  # the offset topic
        self.as_of = 0
        self.log_start = self.may_trim_to = 0
        self.names = 0
        self.queues: list[tuple[QueueId, int]] = []  # and partitions
        self.spread_here: dict[QueueId, str] = {}
        self.sequences: dict[tuple[QueueId, int], int] = {}
        self.to_sweep: set[str] = set()
        self.late: list[Envelope] = []
        self.by_time_from = self.rng.randrange(STEPS)  # a level is put in force
        self.done = dict.fromkeys(("rebuilt", "trimmed", "copied", "compacted", "forgotten"), 0)
        self.seen = self.done
        self.became: Counter[str] = Counter()

    async def run(self) -> None:
        for _ in range(STEPS):
            dice = self.rng.random()
            if dice < 0.05:
                self.publish()
            elif dice < 0.09:
                await self.keeper._sweep()
            elif dice < 0.13:
                self.trim_log()
            elif dice < 0.17:
                self.copy_forward()
            elif dice < 0.20:
                self.rebuild()
            elif dice < 0.25:
                self.compact()
            elif dice < 0.28:
                self.forget()
            elif dice < 0.31 and self.late:  # another worker's, that stalled in the middle
                self.owner.apply(self.late.pop())
            else:
                self.owner.apply(self.envelope())
        self.rebuild()
        self.became = fold_twice(self.owner.log, SHARD, SHARDS, place=place_of)

    # -- what an owner does beside its work

    def publish(self) -> None:
        """Publish all rows changed since the last time, in one transaction."""
        state, kv = self.owner.state, self.owner.kv
        keys, state.unpublished = state.unpublished, set()
        assert all(kv.get(rows.unpublished_key(key)) is not None for key in keys)
        anchors = self.owner.anchors
        if len(self.topic) % 2:
            assert all(step is None for step in anchors.look_ahead(keys))
        capture = self.owner.capture = RowCapture(kv, set(keys), anchors)
        as_of, may_trim_to = len(self.owner.log), self.first_live(len(self.owner.log))
        while capture.take_some(self.rng.randrange(4)):  # and the work goes on
            if self.rng.random() < 0.5:
                self.owner.apply(self.envelope())
        self.topic += capture.taken.items()
        if self.rng.random() < 0.2:  # compaction
            self.topic = list(dict(self.topic).items())
        again = state.unpublished
        self.owner.commit({rows.unpublished_key(key): None for key in keys if key not in again})
        self.as_of, self.may_trim_to = as_of, may_trim_to

    def first_live(self, as_of: int) -> int:
        segment = self.log_start // SEGMENT
        while (segment + 1) * SEGMENT <= as_of and not self.owner.state.live_bytes(segment):
            segment += 1
        return segment * SEGMENT

    def trim_log(self) -> None:
        """Trim to the oldest segment that held anything live when the rows were published.

        Not now: a batch copied since is counted on from where it was, if the copy is not published.
        """
        if self.may_trim_to > self.log_start:
            self.log_start = self.may_trim_to
            self.done["trimmed"] += 1
            voids = self.owner.kv.scan(b"v", rows.no_effect_key(self.log_start))
            self.owner.commit(dict.fromkeys(key for key, _ in voids))

    def copy_forward(self) -> None:
        """Free the oldest segment, or another by mistake, wholly or in part."""
        first = self.log_start // SEGMENT
        segment = self.rng.choice((first, first, first + self.rng.randrange(4)))
        live = Live(self.owner.state)
        for log_offset in range(segment * SEGMENT, (segment + 1) * SEGMENT):
            if log_offset >= len(self.owner.log) or self.rng.random() < 0.05:
                return
            envelope = self.owner.log[log_offset]
            carries = TRAITS[Kind(envelope.kind)].carries_batch or envelope.kind in _ALSO
            if not carries or log_offset < self.log_start:
                continue
            place = place_of(log_offset, envelope)
            for made in live.copies(log_offset, envelope, place):
                if made is not None:
                    for _ in range(self.rng.choice((1, 1, 1, 2))):  # a zombie copies it as well
                        self.owner.apply(made)
                        self.done["copied"] += 1
        left = [key for key, batch in self.reachable() if batch.segment == segment]
        assert not left, f"not copied: {left}"

    def reachable(self) -> Iterator[tuple[bytes, batch_rows.Batch]]:
        """Yield the owner's rows of batches that a reader can get to."""
        for key, value in self.owner.kv.scan(*RowKind.BATCH.range()):
            row = self.owner.state.partition(rows.partition_of(key))
            if row is not None and batch_rows.batch_key_offset(key) >= row.log_start:
                yield key, batch_rows.decode_batch(value)

    def compact(self) -> None:
        """Drop any records, of a partition that there may be."""
        keys = [rows.partition_of(key) for key, _ in self.owner.kv.scan(*RowKind.PARTITION.range())]
        if not keys:
            return
        key = self.rng.choice(keys)
        row, removed = self.owner.state.partition(key), []
        for last_offset, found in list(self.owner.state.batches(key, row.log_start, 1 << 40)):
            dice = self.rng.random()
            if dice < 0.25:
                removed.append((last_offset, found.generation))
            elif dice < 0.6:
                header, records = read_header(body := self.bytes_of(found)), []
                while not records:
                    every = keyed_records(header, unpacked(body))
                    records = [record for record in every if self.rng.random() < 0.6]
                generation = found.generation % batch_rows.GENERATION_MAX + 1
                latest_ms = max(record.time_ms for record in records)
                made = with_records(header, [record.data for record in records], latest_ms)
                self.send(copy_of(key, last_offset, found, made, generation))
        self.send(Compact(*key, removed).envelope())
        done = self.owner.state.compaction(key)
        progress = Compaction(max(0, done.clean_end + self.rng.randrange(-1, 3)), 1, 2, 3, 4, 5, 0)
        self.send(Compact(*key, [], progress).envelope())
        self.done["compacted"] += 1

    def send(self, envelope: Envelope) -> None:
        """Apply a command now, or late; or twice."""
        dice = self.rng.random()
        if dice > 0.3:
            self.owner.apply(envelope)
        if dice < 0.4:
            self.late.append(envelope)

    def bytes_of(self, found: batch_rows.Batch) -> bytes:
        if found.copied:
            return bytes(self.owner.log[found.position - COPIED.size].body[COPIED.size :])
        return bytes(self.owner.log[found.position].body[: found.length])

    # -- a worker with an empty disk

    def rebuild(self) -> None:
        state = State(DictKv(), 8)
        for key, value in self.topic:
            for local, data in snapshot.decode(key, value):
                state.put(local, data)
        state.kv.write(state.drain())
        state.kv.write(dict(snapshot.names(state.kv)))
        state.counts = counted(state.kv)
        reindex, fold = Reindex(state, 0, 1), Fold(state, SHARD, SHARDS, shared=True)
        for log_offset in range(self.log_start, len(self.owner.log)):
            if log_offset == self.as_of:
                self.finish(state, reindex)
            envelope = self.owner.log[log_offset]
            step = reindex if log_offset < self.as_of else fold
            step.apply(log_offset, envelope, place_of(log_offset, envelope))
            if self.rng.random() < 0.3:
                state.kv.write(state.drain())
        if self.as_of == len(self.owner.log):
            self.finish(state, reindex)
        state.kv.write(state.drain())
        self.to_sweep = self.notes(state) | self.notes(self.owner.state)
        assert dict(self.comparable(state)) == dict(self.comparable(self.owner.state))
        for one in (state, self.owner.state):
            assert self.looked_at(one) >= set(self.remembering(one))
            assert one.counts.values() == counted(one.kv).values()
        self.done["rebuilt"] += 1

    def finish(self, state: State, reindex: Reindex) -> None:
        state.kv.write(state.drain())
        for _ in reindex.finish():
            state.kv.write(state.drain())

    def remembering(self, state: State) -> Iterator[PartitionKey]:
        """Yield the partitions whose producers are to be forgotten some time."""
        for key, data in state.kv.scan(*RowKind.PARTITION.range()):
            if rows.decode_partition(data).by_time:
                yield rows.partition_of(key)

    def looked_at(self, state: State) -> set[PartitionKey]:
        found = state.kv.scan(*RowKind.PRODUCERS_DUE.range())
        return {rows.producers_due_of(key)[1] for key, _ in found}

    def notes(self, state: State) -> set[str]:
        """Return the deleted queues whose producers are still to be swept."""
        return {json.loads(note)[0] for _, note in state.kv.scan(b"x", b"y")}

    def comparable(self, state: State) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows that answers come from.

        Notes of housekeeping, and what it has still to sweep, may differ: a rebuilt state never had
        the dead batches.
        """
        for key, value in state.kv.scan(b"", b"\xff"):
            if key[0] in OF_QUEUES and key[1:17].hex() in self.to_sweep:
                continue
            if RowKind.ABORTED.of(key) and self.is_trimmed(state, key):
                continue
            if key[0] in b"qipkohwguzTUJflAGONQSCLMRWE#" or (
                key[:1] == b"v" and key >= rows.no_effect_key(self.log_start)
            ):
                yield key, value
            elif key[:1] == b"b":
                row = state.partition((QueueId(key[1:17]), int.from_bytes(key[17:21], "big")))
                if row is not None and batch_rows.batch_key_offset(key) >= row.log_start:
                    yield key, as_rebuilt(value)

    def is_trimmed(self, state: State, aborted_key: bytes) -> bool:
        row = state.partition(rows.partition_of(aborted_key))
        return row is not None and ABORTED.parts(aborted_key)[1] < row.log_start

    # -- work

    def envelope(self) -> Envelope:
        dice = self.rng.random()
        if not self.queues or dice < 0.07:
            return self.create()
        queue, partitions = self.rng.choice(self.queues)
        index = self.rng.randrange(partitions)
        if dice < 0.09:
            return command(Kind.DELETE, queue)
        if dice < 0.11 and queue in self.spread_here:
            return self.spread(queue)
        if dice < 0.25:
            row = self.owner.state.partition((queue, index))
            end = row.next_offset if row else 3
            return command(Kind.TRIM, queue, index, number=self.rng.randrange(-1, end + 2))
        if dice < 0.30:
            offsets = [[queue.hex(), index, self.rng.randrange(9), -1, "", False]]
            return command(Kind.COMMIT, values={"group": "g", "offsets": offsets})
        if dice < 0.35:
            return self.group_command(queue, index)
        if dice < 0.36:
            return command(
                Kind.DELETE_OFFSETS, values={"group": "g", "partitions": [[queue.hex(), index]]}
            )
        if dice < 0.38:
            return command(
                Kind.QUEUE_READY, queue, number=self.rng.randrange(len(self.owner.log) + 1)
            )
        if dice < 0.40:
            return self.rng.choice((Envelope(Kind.FOREIGN), Envelope(Kind.CLAIM, writer=7)))
        return self.append(queue, index)

    def group_command(self, queue: QueueId, index: int) -> Envelope:
        """Return a command of a coordinator that knows the group as it is, or as it was."""
        data = self.owner.state.get(group_rows.group_key("g"))
        version = -1 if data is None else group_rows.decode_group(data).version
        after = self.rng.choice((version, version, version, -1, 3))
        kind = self.rng.choice(
            (Kind.GROUP, Kind.GROUP, Kind.EXPIRE, Kind.EXPIRE, Kind.DELETE_GROUP)
        )
        if kind == Kind.DELETE_GROUP:
            return command(kind, values={"group": "g"})
        if kind == Kind.EXPIRE:
            offsets = [[queue.hex(), index, 0]]
            values = {"group": "g", "after": after, "offsets": offsets,
                      "nothing_left": self.rng.random() < 0.7}  # fmt: skip
            return command(kind, number=self.rng.randrange(100), values=values)
        members = self.rng.randrange(3)
        changed = {f"m{i}": {"epoch": 1} if i < members else None for i in range(3)}
        values = {"group": "g", "after": after, "kind": "classic", "members": members,
                  "values": {}, "rows": changed}  # fmt: skip
        return command(kind, time_ms=self.rng.randrange(100), values=values)

    def create(self) -> Envelope:
        self.names += 1
        queue = QueueId(bytes([self.names]) * 16)
        partitions = self.rng.choice((1, 3, 5))
        self.queues.append((queue, partitions))
        name = f"q{self.rng.randrange(self.names) + 1}"  # now and then one that there is
        if self.rng.random() < 0.3:
            self.spread_here[queue] = name
            return self.spread(queue)
        return command(
            Kind.CREATE, queue, values={"name": name, "partitions": partitions, "configs": {}}
        )

    def spread(self, queue: QueueId) -> Envelope:
        """Return news of a queue with a home elsewhere, perhaps late; its deletion is last."""
        name = self.spread_here.setdefault(queue, f"other-{queue[0]}")
        number = self.rng.choice((10, 50, 100, 150, 1000))
        partitions = 4 if number < 100 else 7 if number < 1000 else 0
        values = {"name": name, "partitions": partitions}
        return command(Kind.ASSIGN_PARTITIONS, queue, number=number, values=values)

    def append(self, queue: QueueId, index: int) -> Envelope:
        sequence = max(0, self.sequences.get((queue, index), 0) + self.rng.choice((0, 0, 0, -1, 1)))
        count = self.rng.randrange(1, 4)
        producer_id = self.rng.randrange(-1, 4)
        times = tuple(self.rng.randrange(1000) for _ in range(count))
        body = batch(
            *[b"v"] * count, producer_id=producer_id, epoch=0, sequence=sequence, times=times
        )
        self.sequences[queue, index] = sequence + count
        by_time = len(self.owner.log) > self.by_time_from
        time_ms = len(self.owner.log) if by_time else 0
        if self.rng.random() < 0.2:
            row = self.owner.state.partition((queue, index))
            end = max(0, (row.next_offset if row else 0) + self.rng.choice((0, 0, -1, 1)))
            body = AppendIf.body(body, end)
            return Envelope(Kind.APPEND_IF, queue, index, time_ms=time_ms, body=body)
        return Envelope(Kind.APPEND, queue, index, time_ms=time_ms, body=body)

    def forget(self) -> None:
        """Forget some producers that somebody finds idle, at once or late."""
        for found, data in self.owner.kv.scan(*RowKind.PRODUCER.range()):
            if self.rng.random() < 0.3:
                named = producer_rows.producer_id_of(data), producer_rows.used_ms_of(data)
                self.send(ForgetProducers(rows.partition_of(found), [named]).envelope())
                self.done["forgotten"] += 1


def rebuilds(kind: type[Simulation]) -> Callable[[int], dict[str, int]]:
    """Return a run of a simulation of this kind, which returns its counts."""

    def run(seed: int) -> dict[str, int]:
        simulation = kind(seed)
        asyncio.run(simulation.run())
        return simulation.seen

    return run


@seeds(1000, each=100)
def test_a_rebuilt_shard_is_the_owners(seeds: range) -> None:
    seen = sums(rebuilds(Simulation), seeds)
    assert min(seen.values()) > 20, seen


def _no_voids(patch: pytest.MonkeyPatch) -> None:
    put = State.put
    patch.setattr(
        State, "put",
        lambda self, key, value: None if key[:1] == b"v" else put(self, key, value),
    )  # fmt: skip


def _removals_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reindex, "remove_batch", lambda *removed: None)


def _removals_are_not_judged(patch: pytest.MonkeyPatch) -> None:
    def remove(state: State, key: Any, last_offset: int, generation: int) -> None:
        state.put(batch_rows.batch_key(*key, last_offset), None)

    patch.setattr(reindex, "remove_batch", remove)


def _rebuilt_producers_are_never_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "remembers_by_time", lambda data: False)


@pytest.mark.parametrize(
    "mistake",
    [
        _no_voids, _removals_are_forgotten, _removals_are_not_judged,
        unpublished(RowKind.COMPACTION), unpublished(RowKind.WRITER),
        _rebuilt_producers_are_never_looked_at,
    ],
)  # fmt: skip
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    see(rebuilds(Simulation), range(2000), RowsDisagree)  # one: by few


def test_rows_and_a_log_that_do_not_fit_together_are_refused() -> None:
    owner = Owner()
    queue = QueueId(bytes([1]) * 16)
    values = {"name": "q", "partitions": 3, "configs": {}}
    owner.apply(command(Kind.CREATE, queue, values=values))
    index = next(i for i in range(3) if owner.state.partition((queue, i)) is not None)
    for _ in range(2):
        outcome = owner.apply(Envelope(Kind.APPEND, queue, index, body=batch(b"v")))
        assert outcome.code == Code.NONE
    state = State(DictKv(), 8)
    for key, data in owner.kv.rows.items():
        if key[0] in PUBLISHED_BYTES:
            for local, value in snapshot.decode(key, owner.anchors.encode(key, data)):
                state.put(local, value)
    state.kv.write(state.drain())
    reindex = Reindex(state, 0, 1)
    reindex.apply(1, owner.log[1], place_of(1, owner.log[1]))  # and the last is missing
    state.kv.write(state.drain())
    with pytest.raises(RowsDisagree, match="ends at 1 in the log, at 2 in its row"):
        list(reindex.finish())


def test_deleted_queues_of_other_home_shards_are_forgotten_after_a_rebuild_too() -> None:
    state = State(DictKv(), 8)
    there, gone = (QueueId(bytes([i]) * 16) for i in (1, 2))
    state.put(rows.assignment_key(there), rows.encode_assignment(5, 3))
    state.put(rows.assignment_key(gone), rows.encode_assignment(6, 0))
    state.kv.write(state.drain())
    for _ in Reindex(state, 1000, 1).finish():
        state.kv.write(state.drain())
    filed = [rows.retention_due_of(key) for key, _ in state.kv.scan(b"c", b"d")]
    assert filed == [(1000 + rows.TOMBSTONE_KEPT_MS, (gone, rows.TOMBSTONE_INDEX))]


def test_a_copy_carries_what_its_row_is_made_of() -> None:
    assert COPIED.size == 24
