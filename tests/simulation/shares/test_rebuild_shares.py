"""A rebuild as in `test_rebuild`, with share groups.

Archived records are owed, sent elsewhere and settled, and other queues' dead letters are taken:
once, late, twice, or in part.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kproxy.protocol.batch import read_header
from kproxy.virtual import reindex
from kproxy.virtual.commands import shares as share_commands
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.commands.shares import (
    EARLIEST,
    OWED,
    AimForward,
    Cause,
    ChangeShares,
    Forward,
    NoteShareQueues,
    Run,
    SetShares,
    SettleForward,
    ShareAction,
    ShareChange,
    ShareRuns,
    batch_of,
)
from kproxy.virtual.folds.carried import carried
from kproxy.virtual.reindex import RowsDisagree
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import (
    DEAD_LETTERS,
    FORWARD_TARGETS,
    SHARE_PARTITIONS,
    Position,
    RecordState,
    state_byte,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId
from tests.simulation.rebuild_mistakes import Mistake, not_copied, uncounted, unpublished
from tests.simulation.seeds import see, seeds, sums
from tests.simulation.test_rebuild import Simulation, rebuilds, short_looks
from tests.wire import batch

__all__ = ["short_looks"]

pytestmark = pytest.mark.usefixtures("one_producer_inline", "short_looks")

SEEN = "taken", "void", "copied", "owed", "SHARE_QUEUE", "GROUP_CONFIG"
SOURCES = [(QueueId(bytes([200 + number]) * 16), number) for number in range(2)]


class WithShares(Simulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sent: dict[tuple[PartitionKey, PartitionKey], int] = {}
        self.seen = dict.fromkeys(SEEN, 0)

    def envelope(self) -> Envelope:
        if not self.queues or self.rng.random() < 0.5:
            return super().envelope()
        queue, partitions = self.rng.choice(self.queues[-4:])
        key = queue, self.rng.randrange(partitions)
        return self.rng.choice((*(self.forward, self.share) * 3, self.of_group))(key)

    def of_group(self, key: PartitionKey) -> Envelope:
        """Return a command of the group's own shard, for the group as it is or was."""
        if self.rng.random() < 0.3:
            return ConfigureGroup("g", {"a": str(self.rng.randrange(9))}, ["b"]).envelope()
        if self.rng.random() < 0.1:
            return ConfigureGroup("g", {}, [], replace_all=True).envelope()
        data = self.owner.state.get(group_rows.group_key("g"))
        version = -1 if data is None else group_rows.decode_group(data).version
        after = version - (self.rng.random() < 0.1)
        return NoteShareQueues("g", after, [(key[0], self.rng.randrange(3))]).envelope()

    def forward(self, key: PartitionKey) -> Envelope:
        source = self.rng.choice(SOURCES)
        at = max(0, self.sent.get((key, source), 0) + self.rng.choice((0, 0, 0, -1, -2)))
        count = self.rng.randrange(1, 4)
        self.sent[key, source] = at + count
        body = batch(
            *[b"dead"] * count, times=tuple(self.rng.randrange(1000) for _ in range(count))
        )
        first, last = (Position(at // 3, at % 2, offset) for offset in (at, at + count - 1))
        made = Forward(
            key, 1, source, self.rng.choice("gh"), first, last, body, 5, self.rng.random() < 0.5
        ).envelope()
        if self.rng.random() < 0.1:
            self.late.append(made)
        return made

    def share(self, key: PartitionKey) -> Envelope:
        step, group = self.rng.randrange(6), "g"
        known = SHARE_PARTITIONS.get(self.owner.state.get, key, group)
        epoch = 0 if known is None else known.epoch
        if step == 0 or not epoch:
            action = ShareAction.INITIALISE if not epoch else self.rng.choice((*ShareAction,))
            change = ShareChange(key, action, max(1, epoch + self.rng.randrange(2)), EARLIEST)
            return SetShares(group, [change], 9).envelope()
        if step == 1:
            aimed = FORWARD_TARGETS.get(self.owner.state.get, key, group)
            after = -1 if aimed is None else aimed.log_offset - (self.rng.random() < 0.2)
            made = AimForward(key, group, self.rng.choice(SOURCES), after).envelope()
            made.writer = self.rng.choice((7, 7, 7, 8))
            return made
        found = self.owner.kv.scan(*RowKind.DEAD_LETTER.range())
        owed = [DEAD_LETTERS.parts(found_key) for found_key, _ in found]
        self.seen["owed"] += len(owed)
        if step == 2:
            return SettleForward(self.rng.sample(owed, min(len(owed), 2))).envelope()
        state = self.rng.choice((RecordState.ARCHIVED, RecordState.ACKNOWLEDGED))
        byte, first = state_byte(state, 2), self.rng.randrange(4)
        cause = OWED | Cause.REJECTED if state == RecordState.ARCHIVED else 0
        runs = [Run(first, 2, byte, cause), Run(first + 300, 2, byte, cause)]
        epoch -= self.rng.random() < 0.1
        made = ChangeShares(group, [ShareRuns(key, epoch, runs)], 9).envelope()
        made.writer = self.rng.choice((7, 7, 7, 8))
        return made

    def rebuild(self) -> None:
        super().rebuild()
        for kind in (RowKind.SHARE_QUEUE, RowKind.GROUP_CONFIG):
            self.seen[kind.name] += any(True for _ in self.owner.kv.scan(*kind.range()))
        voids = {found for found, _ in self.owner.kv.scan(*RowKind.NO_EFFECT.range())}
        forwards = {n for n, one in enumerate(self.owner.log) if one.kind == Kind.FORWARD}
        self.seen["void"] += sum(int.from_bytes(found[1:], "big") in forwards for found in voids)
        for _, found in self.reachable():
            if found.log_offset in forwards:
                data = self.bytes_of(found)
                if not found.generation:
                    assert data == batch_of(self.owner.log[found.log_offset])
                assert read_header(data).length + 12 == len(data) == found.length
                self.seen["taken"] += 1
                self.seen["copied"] += found.copied > 0


@seeds(300, each=50)
def test_a_rebuilt_shard_is_the_owners_with_share_groups(seeds: range) -> None:
    seen = sums(rebuilds(WithShares), seeds)
    assert min(seen.values()) > 0, seen


def _void_ones_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "void", lambda self, log_offset: None)


def _the_whole_body_is_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reindex, "carried", _whole(carried))


def _the_whole_body_is_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kproxy.shard.copier.carried", _whole(carried))


def _whole(found: Any) -> Any:
    def whole(state: Any, log_offset: int, envelope: Envelope, location: Any) -> Iterator[Any]:
        for key, data, place in found(state, log_offset, envelope, location):
            if envelope.kind == Kind.FORWARD:
                yield key, envelope.body, location
            else:
                yield key, data, place

    return whole


MISTAKES: dict[str, Mistake] = {
    "a rebuild passes over them": uncounted(Kind.FORWARD),
    "void ones are not noted": _void_ones_are_counted,
    "a rebuild counts what follows the batch": _the_whole_body_is_counted,
    "copying forward takes what follows the batch": _the_whole_body_is_copied,
    "copying forward drops them": not_copied(Kind.FORWARD),
} | {
    f"{kind.name} is not published": unpublished(kind)
    for kind in (
        RowKind.SHARE_PARTITION, RowKind.SHARE_STATES, RowKind.DEAD_LETTER, RowKind.FORWARDED,
        RowKind.FORWARD_TARGET, RowKind.SHARE_QUEUE, RowKind.GROUP_CONFIG,
    )
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    MISTAKES[mistake](monkeypatch)
    see(rebuilds(WithShares), range(100), RowsDisagree, struct.error)


def test_the_batch_of_a_forward_is_found_without_reading_it() -> None:
    body = batch(b"v" * 1000)
    made = Forward(SOURCES[0], 1, SOURCES[1], "g\u00fc", Position(1, 2, 3), Position(1, 2, 4), body)
    assert batch_of(made.envelope()) == body
    assert share_commands.FORWARD_BYTES + len(body) + 3 == len(made.envelope().body)
