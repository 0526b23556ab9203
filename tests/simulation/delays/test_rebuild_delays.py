"""A rebuild as in `test_rebuild`, with delays.

Batches wait, several of one envelope, are copied forward, and are due out of order, in part, late
and twice, and wait on.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kproxy.protocol.batch import read_header, stamped
from kproxy.shard import copier
from kproxy.virtual import reindex
from kproxy.virtual.commands.delays import Later, keyed
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.records import AppendIf
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.folds import delays as delay_fold
from kproxy.virtual.reindex import RowsDisagree
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.delays import DELAY_ENTRIES, DELAYS_DUE, WAITING_BATCHES
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import HIDDEN
from kproxy.virtual.schema import decode_count
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey
from tests.present import present
from tests.simulation.rebuild_mistakes import Mistake, not_copied, uncounted, unpublished
from tests.simulation.seeds import see, seeds, sums
from tests.simulation.test_rebuild import Simulation, rebuilds, short_looks
from tests.virtual.commands.delay_cases import due, later, mixed, waiting
from tests.wire import batch
from tests.wire import keyed as keyed_batch

__all__ = ["short_looks"]

pytestmark = pytest.mark.usefixtures("one_producer_inline", "short_looks")

SEEN = "waited", "due", "void", "copied", "numbered", "mixed", "duplicate", "by key"
KEYS = [b"a", b"b", b"c"]
OWNER = 7


class WithDelays(Simulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen = dict.fromkeys(SEEN, 0)
        self.now_ms = 100

    def envelope(self) -> Envelope:
        self.now_ms += self.rng.randrange(30)
        if not self.queues or self.rng.random() < 0.4:
            return super().envelope()
        if self.rng.random() < 0.05:
            return Claim(OWNER).envelope()
        queue, partitions = self.rng.choice(self.queues[-3:])
        key = queue, self.rng.randrange(partitions)
        return self.rng.choice((self.later, self.due, self.due))(key)

    def batch_of(self, key: PartitionKey) -> bytes:
        """Return a client's batch, of a producer or of none."""
        sent = self.append(*key)
        made = AppendIf.batch_of(sent) if sent.kind == Kind.APPEND_IF else sent.body
        assert isinstance(made, bytes)
        return made

    def later(self, key: PartitionKey) -> Envelope:
        self.seen["waited"] += 1
        sent = self.batch_of(key)
        if self.rng.random() < 0.3:
            return self.by_key(key, sent)
        if self.rng.random() < 0.4:
            return later(key, stamped(sent, self.soon()), delay_ms=self.rng.choice((0, 5)))
        batches = [
            waiting(self.soon(), *[b"w"] * self.rng.randrange(1, 3))
            if self.rng.random() < 0.7 else mixed(*[self.soon() for _ in range(3)])
            for _ in range(self.rng.randrange(1, 4))
        ]  # fmt: skip
        now = batch(b"now", times=(self.now_ms,)) if self.rng.random() < 0.4 else b""
        made = later(key, *batches, now=now, split=sent[:61])
        if self.rng.random() < 0.1:
            self.late.append(made)
        return made

    def by_key(self, key: PartitionKey, sent: bytes) -> Envelope:
        """Replace what waits under some keys, or cancel it, whether anything does or not."""
        self.seen["by key"] += 1
        some = self.rng.sample(KEYS, self.rng.randrange(1, 3))
        batches = [keyed(stamped(keyed_batch((one, b"k")), self.soon())) for one in some]
        others = [one for one in KEYS if self.rng.random() < 0.3]
        gone = [(delay_rows.digest_of(one), self.rng.random() < 0.3) for one in others]
        return Later.envelope(
            key, batches, split=sent[:61], time_ms=self.now_ms, look_ms=2, gone=gone
        )

    def soon(self) -> int:
        return self.now_ms + self.rng.choice((1, 20, 20, 300, 5000))

    def due(self, key: PartitionKey) -> Envelope:
        """Deliver the due records of a partition, by an owner who may be late, or early."""
        aside, state = delay_rows.hidden(key), self.owner.state
        found = [
            WAITING_BATCHES.parts(found)[1:]
            for found, _ in state.kv.scan(*delay_rows.waiting_range(key))
        ]
        late_ms = self.rng.choice((0, 0, 0, -40, 4000))
        some = [last for at, last in found if at <= self.now_ms + late_ms][:4]
        if self.rng.random() < 0.2:
            self.rng.shuffle(some)
            some = some[:2]
        left: list[bytes] = []
        now: list[bytes] = []
        for last in some:
            stored = state.batch_at(aside, last)
            data = self.bytes_of(stored)
            if read_header(data).is_log_append_time:
                now.append(stamped(data, self.now_ms))
            else:
                self.seen["mixed"] += 1
                now.append(waiting(self.now_ms, b"m"))
                left += [waiting(self.now_ms + 40, b"m"), waiting(self.now_ms + 90, b"m")]
        time_ms = self.now_ms + late_ms * (self.rng.random() < 0.8)
        made = due(key, some, now, left, time_ms=time_ms)
        made.writer = self.rng.choice((OWNER, OWNER, OWNER, 8))
        if self.rng.random() < 0.1:
            self.late.append(made)
        return made

    def bytes_of(self, found: batch_rows.Batch) -> bytes:
        if found.copied:
            return super().bytes_of(found)
        body = self.owner.log[found.log_offset].body
        at = found.position - found.log_offset
        return bytes(body[at : at + found.length])

    def compact(self) -> None:
        """Compact a partition that readers know."""
        scan, kv = self.owner.kv.scan, self.owner.kv

        def shown(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
            for key, value in scan(start, end):
                if not RowKind.PARTITION.of(key) or not rows.is_hidden(key):
                    yield key, value

        kv.scan = shown
        try:
            super().compact()
        finally:
            del kv.scan

    def comparable(self, state: State) -> Iterator[tuple[bytes, bytes]]:
        yield from super().comparable(state)
        for key, value in state.kv.scan(*RowKind.DELAY.range()):
            yield key, value
            self.is_looked_for(state, rows.partition_of(key))
        for key, value in state.kv.scan(*RowKind.WAITING_KEY.range()):
            if state.partition(rows.partition_of(key)):
                yield key, value
        for key, value in state.kv.scan(*RowKind.WAITING.range()):
            if state.partition((rows.queue_id_of(key), int.from_bytes(key[17:21], "big"))):
                yield key, value

    def is_looked_for(self, state: State, key: PartitionKey) -> None:
        """Check that waiting records are in the index, at the next due time or earlier."""
        found = next(state.kv.scan(*delay_rows.waiting_range(key)), None)
        if found is not None:
            filed_ms = decode_count(present(state.kv.get(DELAY_ENTRIES.key(key))))
            assert filed_ms <= WAITING_BATCHES.parts(found[0])[1:][0]
            assert state.kv.get(DELAYS_DUE.key(filed_ms, key)) is not None

    def rebuild(self) -> None:
        super().rebuild()
        state = self.owner.state
        for data_key, data in state.kv.scan(*RowKind.DELAY.range()):
            key = rows.partition_of(data_key)
            said = delay_rows.waiting_in(state.kv.get, key)
            found = [
                WAITING_BATCHES.parts(one)[1:]
                for one, _ in state.kv.scan(*delay_rows.waiting_range(key))
            ]
            assert said.batches == len(found)
            assert found or said.records == 0, data
            aside = delay_rows.hidden(key)
            row = state.partition(aside)
            there = list(state.batches(aside, row.log_start, row.next_offset))
            assert sorted(last for _, last in found) == [last for last, _ in there]
            assert sorted(at for at, _ in found) == sorted(one.max_time_ms for _, one in there)
        voids = {found for found, _ in state.kv.scan(*RowKind.NO_EFFECT.range())}
        kinds = {Kind.LATER: "duplicate", Kind.DUE: "void"}
        for log_offset, one in enumerate(self.owner.log):
            if one.kind in kinds and rows.no_effect_key(log_offset) in voids:
                self.seen[kinds[Kind(one.kind)]] += 1
        for key, found in self.reachable():
            hidden = rows.partition_of(key)[1] & HIDDEN
            self.seen["copied"] += bool(found.copied and hidden)
            self.seen["numbered"] += found.number > 0
            if self.owner.log[found.log_offset].kind in kinds and not found.generation:
                data = self.bytes_of(found)
                assert read_header(data).length + 12 == len(data) == found.length
            self.seen["due"] += self.owner.log[found.log_offset].kind == Kind.DUE and not hidden


@seeds(120, long=3000, each=30)
def test_a_rebuilt_shard_is_the_owners_with_delays(seeds: range) -> None:
    seen = sums(rebuilds(WithDelays), seeds)
    assert min(seen.values()) > 0, seen


def _void_ones_are_counted(patch: pytest.MonkeyPatch) -> None:
    void = delay_fold.DelayFold._void

    def unnoted(self: Any, log_offset: int, code: Any) -> Any:
        outcome = void(self, log_offset, code)
        self._state.put(rows.no_effect_key(log_offset), None)
        return outcome

    patch.setattr(delay_fold.DelayFold, "_void", unnoted)


def _a_rebuild_revives_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reindex, "remove_waiting", lambda *removed: None)


def _numbers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch_rows, "with_number", lambda data, number: data)


def _one_of_each_envelope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copier, "DELAYS", ())


def _not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reindex, "file_at", lambda *filed: None)


def _due_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "is_owners", lambda self, envelope: True)
    patch.setattr(delay_fold, "remove_waiting", lambda *removed: None)


def _copies_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reindex.Reindex, "_waits", lambda *waiting: None)


MISTAKES: list[Mistake] = [
    unpublished(RowKind.DELAY), uncounted(Kind.LATER), not_copied(Kind.LATER),
    _void_ones_are_counted, _a_rebuild_revives_the_dead, _numbers_are_forgotten,
    _one_of_each_envelope, _not_looked_for, _due_twice, _copies_do_not_wait,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)
    see(rebuilds(WithDelays), range(100), RowsDisagree, struct.error, KeyError, TypeError)
