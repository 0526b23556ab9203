"""The cost of ends is the same, however much has ended: RocksDB steps over deleted rows."""

from collections.abc import Iterator

import pytest

from kproxy.virtual.commands.transactions import Complete
from kproxy.virtual.folds import open_firsts
from kproxy.virtual.folds import transactions as transaction_fold
from kproxy.virtual.folds.open_firsts import OpenFirsts
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import OPEN_FIRSTS, Participant, Transaction, TransactionState
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import DictKv
from tests.virtual.folds.transactional import ID, Shards

NUMBER = 5


class StoneKv(DictKv):
    """Counts the deleted rows that reads step over: to an end behind it only in a `walk`."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        super().__init__(rows)
        self.deleted: set[bytes] = set()
        self.steps = 0

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        super().write(changes)
        for key, value in changes.items():
            (self.deleted.discard if value is not None else self.deleted.add)(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(k for k in {*self.rows, *self.deleted} if start <= k < end):
            if key in self.deleted:
                self.steps += 1
            else:
                yield key, self.rows[key]

    def walk(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self.scan(start, b"\xff" * 60):
            if key >= end:
                return
            yield key, value


def with_stones() -> tuple[Shards, StoneKv]:
    shards = Shards()
    (shard,) = shards.all
    shard.kv = shard.state.kv = kv = StoneKv(shard.kv.rows)
    return shards, kv


def ended(shards: Shards, pid: int, key: PartitionKey) -> None:
    row = Transaction(
        pid, state=TransactionState.PREPARE_COMMIT, number=NUMBER, ending_producer_id=pid,
        ending_epoch=0, marker_epoch=0,
    )  # fmt: skip
    shards.marker(row, [key])


def begun(shards: Shards, pid: int, key: PartitionKey) -> int:
    """Begin a transaction; return the offset of its first record."""
    shards.begin(pid, 0, NUMBER, [key])
    return shards.append(key, pid, 0, 0).number


def test_the_end_of_a_long_transaction_steps_over_none_that_ended_behind_it() -> None:
    """FAULT: 14 ms of the loop for 20,000 of them."""
    shards, kv = with_stones()
    key = shards.keys[0]
    begun(shards, 1, key)
    for pid in range(100, 400):
        begun(shards, pid, key)
        ended(shards, pid, key)
    last = begun(shards, 2, key)
    kv.steps = 0
    ended(shards, 1, key)
    assert shards.partition(key).first_open == last
    ended(shards, 2, key)
    assert shards.partition(key).first_open == -1
    assert kv.steps < 10


@pytest.mark.parametrize("before", [[0], [0, 3], [0, 3, 5]])
def test_a_fold_that_begins_anew_finds_the_earliest_open_transaction(before: list[int]) -> None:
    """It knows of those alone that begin from then on."""
    key = (QueueId(b"q" * 16), 0)
    state = State(DictKv())
    known = OpenFirsts()
    opened = put(state, key, before)
    state.kv.write(state.drain())
    for first in put(state, key, [7, 9]):
        known.begun(key, first)
    opened += [7, 9]
    state.kv.write(state.drain())
    while opened:
        first = opened.pop(0)
        state.put(first_key(key, first), None)
        known.ended(key, first)
        wanted = opened[0] if opened else -1
        assert known.following(key, first, state.keys_of(RowKind.OPEN_FIRST)) == wanted
    assert not known._known


def first_key(key: PartitionKey, first: int) -> bytes:
    return OPEN_FIRSTS.key(key, first)


def put(state: State, key: PartitionKey, firsts: list[int]) -> list[int]:
    for first in firsts:
        state.put(first_key(key, first), b"\0" * 8)
    return [*firsts]


def test_memory_of_open_transactions_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_firsts, "PARTITIONS_MAX", 3)
    monkeypatch.setattr(open_firsts, "OFFSETS_MAX", 5)
    state = State(DictKv())
    known = OpenFirsts()
    for number in range(20):
        key = (QueueId(bytes([number]) * 16), 0)
        for first in put(state, key, [1, 2, 4]):
            known.begun(key, first)
        assert len(known._known) <= 3
        assert known._offsets == sum(len(one.firsts) for one in known._known.values()) <= 5
    for number in range(20):
        key = (QueueId(bytes([number]) * 16), 0)
        state.put(first_key(key, 1), None)
        known.ended(key, 1)
        changed = state.keys_of(RowKind.OPEN_FIRST)
        assert known.following(key, 1, changed) == 2


def test_forgetting_who_took_part_steps_over_none_that_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: of 100,000 partitions each COMPLETE stepped over all that those before deleted."""
    monkeypatch.setattr(transaction_fold, "NAMED_MAX", 10)
    shards, kv = with_stones()
    pid, epoch = shards.init()[1], 0
    keys = [shards.make() for _ in range(200)]
    number = shards.enlist(pid, epoch, *[Participant(0, key) for key in keys]).number
    shards.end(pid, epoch, number=number)
    kv.steps = 0
    outcome = shards.apply(0, Complete(ID, number, 5).envelope())
    while outcome.number:
        outcome = shards.apply(0, Complete(ID, number, 5).envelope())
    assert kv.steps < 20
    assert not shards.listed()
