"""The fold against the plain model of share partitions: the same log, the same of everything."""

import random
from collections.abc import Callable, Iterator

import pytest

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shares import (
    OWED,
    Cause,
    ChangeShares,
    LookAtShares,
    Run,
    SetShares,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.fold import Fold
from kproxy.virtual.folds import shares as share_fold
from kproxy.virtual.folds.shares import _Window
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import (
    CHUNK,
    COUNT_SHIFT,
    DEAD_LETTERS,
    SHARE_PARTITIONS,
    SHARE_STATES,
    STATE_BITS,
    RecordState,
    SharePartition,
    state_byte,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId, ShardId
from tests.fakes import DictKv
from tests.present import present
from tests.simulation.seeds import see, sums
from tests.virtual.folds.share_model import PlainQueue, ShareModel
from tests.wire import batch

SEEDS, STEPS = 120, 60
GROUPS = ("g", "gg")
STATES = (
    RecordState.AVAILABLE, RecordState.AVAILABLE, RecordState.ACKNOWLEDGED,
    RecordState.ACKNOWLEDGED, RecordState.ARCHIVED,
)  # fmt: skip


class Both:
    """A log of random commands, folded by both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kv = DictKv()
        self.model = ShareModel()
        self.keys: list[PartitionKey] = []
        self.length = 0
        self.owed: list[tuple[PartitionKey, str, int, int]] = []
        self.seen = dict.fromkeys(("moved", "chunks", "trimmed", "owed", "void"), 0)
        self.restart()

    def restart(self) -> None:
        """Restart: all that was in memory is gone."""
        self.state = State(self.kv, 8)
        self.fold = Fold(self.state, ShardId(0), 1)

    def apply(self, envelope: Envelope) -> Outcome:
        place = LogLocation(0, self.length, len(envelope.body))
        outcome = self.fold.apply(self.length, envelope, place)
        self.length += 1
        if self.rng.random() < 0.6:
            self.kv.write(self.state.drain())
            if self.rng.random() < 0.2:
                self.restart()
        return outcome

    def run(self) -> dict[str, int]:
        self.create()
        for _ in range(STEPS):
            step = self.rng.choices(
                (self.create, self.append, self.trim, self.delete, self.set_some, self.share),
                (2, 8, 8, 1, 15, 66),
            )[0]
            step()
            self.compare()
        return self.seen

    # -- commands

    def some(self) -> PartitionKey:
        return self.rng.choice(self.keys)

    def create(self) -> None:
        key = QueueId(self.length.to_bytes(16, "big")), 0
        self.apply(CreateQueue(key[0], f"q{self.length}", 1, {}).envelope())
        self.keys = [*self.keys[-2:], key]
        self.model.queues[key] = PlainQueue()
        self.append(key)

    def append(self, key: PartitionKey | None = None) -> None:
        key = key or self.some()
        count = self.rng.choice((1, 3, CHUNK, 1000, 5000))
        body = batch(b"v", count=count, last_delta=count - 1)
        self.apply(Envelope(Kind.APPEND, *key, body=body))
        if key in self.model.queues:
            self.model.queues[key].end += count

    def trim(self) -> None:
        key = self.some()
        queue = self.model.queues.get(key)
        if queue is None:
            return
        near = max(queue.start, min(queue.end, self.near(key)))
        to = self.rng.choice(
            (near, near, near, queue.end, self.rng.randint(queue.start, queue.end))
        )
        self.apply(Trim(*key, to).envelope())
        self.seen["trimmed"] += to > queue.start
        queue.start = to

    def delete(self) -> None:
        key = self.some()
        self.apply(DeleteQueue(key[0]).envelope())
        self.model.queues.pop(key, None)

    def set_some(self) -> None:
        key, group = self.some(), self.rng.choice(GROUPS)
        known = self.model.shares.get((key, group))
        epoch = self.rng.randrange(3) + (known.epoch - 1 if known else 1)
        action = self.rng.choice((*ShareAction, ShareAction.INITIALISE, ShareAction.INITIALISE))
        start = self.rng.choice((-1, -2, self.near(key)))
        since_ms = self.rng.choice((-1, -1, -1, 5))
        change = ShareChange(key, action, epoch, start, since_ms)
        since = self.rng.choice((0, 0, 0, epoch - 1, epoch))
        self.apply(SetShares(group, [change], 1, since).envelope())
        self.model.set(group, change, since)

    def near(self, key: PartitionKey) -> int:
        """Return an offset that may matter."""
        rng, around = self.rng, [0]
        for group in GROUPS:
            known = self.model.shares.get((key, group))
            if known is not None:
                around += [known.start, known.end, (known.start + known.end) // 2]
        at = rng.choice(around) + rng.choice((0, 0, 1, -1, 2, 300, -300))
        return max(0, rng.choice((at, at, at // CHUNK * CHUNK, at // CHUNK * CHUNK - 1)))

    def share(self) -> None:
        group = self.rng.choice(GROUPS)
        asked = []
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            key = self.some()
            known = self.model.shares.get((key, group))
            epoch = known.epoch if known and self.rng.random() < 0.95 else 1
            asked.append(ShareRuns(key, epoch, self.runs(key, group)))
        before = {place: one.start for place, one in self.model.shares.items()}
        outcome = self.apply(ChangeShares(group, asked, 1).envelope())
        codes = tuple(self.model.share(group, one.key, one.epoch, list(one.runs)) for one in asked)
        assert outcome.codes == codes
        self.seen["void"] += any(codes)
        self.seen["moved"] += any(
            one.start > before.get(place, 0) for place, one in self.model.shares.items()
        )

    def runs(self, key: PartitionKey, group: str) -> list[Run]:
        """Return runs of records that there are: nobody is given others."""
        rng, found = self.rng, []
        at = self.near(key)
        queue = self.model.queues.get(key)
        known = self.model.shares.get((key, group))
        if known is not None and rng.random() < 0.4:
            at = known.start
        for _ in range(rng.randrange(5)):
            records = rng.choice((1, 1, 1, 2, 30, CHUNK, 700, rng.choice((1, 4000))))
            if queue is not None and at + records > queue.end:
                break
            byte = state_byte(rng.choice(STATES), rng.randrange(6))
            cause = rng.choice((Cause.NONE, Cause.REJECTED | OWED)) if byte & 4 else Cause.NONE
            found.append(Run(at, records, byte, cause))
            at += records + rng.choice((0, 0, 1, 5, 255, 256))
        return found

    # -- what must agree

    def compare(self) -> None:
        chunks: set[bytes] = set()
        for key, queue in self.model.queues.items():
            row = present(self.state.partition(key))
            assert (row.log_start, row.next_offset) == (queue.start, queue.end)
        for key in self.keys:
            for group in GROUPS:
                chunks |= self.compare_share(key, group)
                look = self.fold.apply(
                    self.length, LookAtShares(group, [key]).envelope(), LogLocation(0, 0, 0)
                )
                assert look.numbers == self.model.look(group, key)
        self.kv.write(self.state.drain())
        found = {
            key
            for key, _ in self.kv.scan(*RowKind.SHARE_STATES.range())
            if (QueueId(key[1:17]), 0) in self.keys
        }
        assert found <= chunks, "states that nobody will drop"
        self.seen["chunks"] += len(found) > 3
        self.compare_owed()

    def compare_share(self, key: PartitionKey, group: str) -> set[bytes]:
        """Compare; return the keys of states that there may be."""
        row = SHARE_PARTITIONS.get(self.state.get, key, group)
        known = self.model.shares.get((key, group))
        assert (row is None) == (known is None)
        if row is None or known is None:
            return set()
        assert (row.start, row.end, row.epoch) == (known.start, known.end, known.epoch)
        assert row.since_ms == known.since_ms
        assert row.done == known.done(row.start, row.end)
        assert not row.done or row.start < row.end
        behind = -(-row.end // CHUNK) * CHUNK
        found = share_rows.states(self.state.get, key, group, row.start, behind)
        wanted = bytearray(behind - row.start)
        for at, (state, count) in known.states.items():
            wanted[at - row.start] = state | count << COUNT_SHIFT
        assert found == wanted, "and nothing from the end on"
        assert not found or row.start == row.end or found[0] & STATE_BITS == RecordState.AVAILABLE
        if row.start == row.end:
            return set()
        first, last = row.start // CHUNK, (row.end - 1) // CHUNK
        return {SHARE_STATES.key(key, group, chunk) for chunk in range(first, last + 1)}

    def compare_owed(self) -> None:
        singles = []
        for _, data in self.kv.scan(*RowKind.DEAD_LETTER.range()):
            one = DEAD_LETTERS.decode(data)
            assert one.cause == Cause.REJECTED
            singles += [
                (one.key, one.group, one.first + at, one.deliveries) for at in range(one.records)
            ]
        assert sorted(singles) == sorted(self.model.owed), "each once"
        self.seen["owed"] = len(singles)


@pytest.mark.parametrize("part", range(SEEDS // 20))
def test_the_fold_is_the_models(part: int) -> None:
    seen = sums(lambda seed: Both(seed).run(), range(part * 20, part * 20 + 20))
    assert min(seen.values()) > 2, seen


Patch = pytest.MonkeyPatch


def _terminal_states_change(patch: Patch) -> None:
    def all_of_it(states: bytearray, begin: int, end: int) -> Iterator[tuple[int, int]]:
        yield begin, end

    patch.setattr(share_fold, "_open_runs", all_of_it)


def _counts_fall(patch: Patch) -> None:
    patch.setattr(share_fold, "_later", lambda before, byte: byte)


def _trimmed_records_stay_counted(patch: Patch) -> None:
    def passed(self: _Window, log_start: int) -> None:
        self.start = max(self.start, log_start)
        self._end = max(self._end, log_start)

    patch.setattr(_Window, "pass_to", passed)


def _states_stay(patch: Patch) -> None:
    patch.setattr(_Window, "drop_chunks", lambda self, kept: None)


def _the_last_chunk_stays(patch: Patch) -> None:
    drop = _Window.drop_chunks
    patch.setattr(_Window, "drop_chunks", lambda self, kept: drop(self, kept - 1))


def _the_start_stays(patch: Patch) -> None:
    written = _Window.written

    def stays(self: _Window) -> SharePartition:
        return written(self)._replace(start=self._row.start)

    patch.setattr(_Window, "written", stays)


def _a_trim_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(_Window, "pass_to", lambda self, log_start: None)


@pytest.mark.parametrize(
    "mistake",
    [
        _terminal_states_change, _counts_fall, _trimmed_records_stay_counted, _states_stay,
        _the_last_chunk_stays, _the_start_stays, _a_trim_is_not_looked_at,
    ],
)  # fmt: skip
def test_a_mistake_is_seen(monkeypatch: Patch, mistake: Callable[[Patch], None]) -> None:
    mistake(monkeypatch)
    see(lambda seed: Both(seed).run(), range(SEEDS), OverflowError)
