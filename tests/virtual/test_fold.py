"""The fold against the plain model: same log, same outcomes and state, at any split or restart."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.common.errors import Code
from kproxy.virtual import producers
from kproxy.virtual.commands.envelope import COPIED, NO_QUEUE, Envelope, Kind
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import producers as producer_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId, ShardId
from tests.commands import command
from tests.fakes import DictKv, MemoryShard
from tests.present import present
from tests.virtual.model import Model
from tests.wire import batch

pytestmark = pytest.mark.usefixtures("one_producer_inline")

PLACE = LogLocation(0, 0, 100)
IDS = [QueueId(bytes([i]) * 16) for i in range(1, 5)]
NAMES = ["a", "b"]
GROUPS = ["g", "h"]


def ids() -> st.SearchStrategy[QueueId]:
    return st.sampled_from(IDS)


def parts() -> st.SearchStrategy[int]:
    return st.integers(0, 2)


def appends() -> st.SearchStrategy[Envelope]:
    def build(queue: QueueId, part: int, pid: int, epoch: int, seq: int, count: int) -> Envelope:
        if pid < 0:
            epoch = seq = -1
        body = batch(*[b"v"] * count, producer_id=pid, epoch=epoch, sequence=seq)
        return Envelope(Kind.APPEND, queue, part, body=body)

    return st.builds(
        build, ids(), parts(), st.integers(-1, 3), st.integers(0, 1), st.integers(0, 6),
        st.integers(1, 3),
    )  # fmt: skip


def creates() -> st.SearchStrategy[Envelope]:
    def build(queue: QueueId, name: str, partitions: int) -> Envelope:
        values = {"name": f"{name}-{queue.hex()[:2]}", "partitions": partitions, "configs": {}}
        return command(Kind.CREATE, queue, values=values)

    return st.builds(build, ids(), st.sampled_from(NAMES), st.integers(1, 3))


def commits() -> st.SearchStrategy[Envelope]:
    def build(group: str, queue: QueueId, part: int, offset: int) -> Envelope:
        values: dict[str, Any] = {
            "group": group,
            "offsets": [[queue.hex(), part, offset, -1, "", False]],
        }
        return command(Kind.COMMIT, values=values)

    return st.builds(build, st.sampled_from(GROUPS), ids(), parts(), st.integers(0, 9))


def forgets() -> st.SearchStrategy[Envelope]:
    def build(group: str, queue: QueueId, part: int) -> Envelope:
        return command(
            Kind.DELETE_OFFSETS, values={"group": group, "partitions": [[queue.hex(), part]]}
        )

    return st.builds(build, st.sampled_from(GROUPS), ids(), parts())


LOGS = st.lists(
    st.one_of(
        appends(), appends(), appends(), creates(), creates(), commits(), forgets(),
        st.builds(lambda q: command(Kind.DELETE, q), ids()),
        st.builds(lambda q, n: command(Kind.GROW, q, number=n), ids(), st.integers(1, 3)),
        st.builds(lambda q, p, n: command(Kind.TRIM, q, p, number=n), ids(), parts(),
                  st.integers(-1, 8)),
        st.just(command(Kind.PRODUCER_ID)),
    ),
    max_size=40,
)  # fmt: skip


def run(log: list[Envelope], splits: set[int], restarts: set[int]) -> tuple[list[Any], DictKv]:
    """Fold a log: rows written at each split, everything in memory forgotten at each restart."""
    kv = DictKv()
    fold = Fold(State(kv, 8), ShardId(0), 1)
    outcomes = []
    at = 0
    for offset, envelope in enumerate(log):
        outcomes.append(fold.apply(offset, envelope, LogLocation(0, at, len(envelope.body))))
        at += len(envelope.body)
        if offset in splits or offset in restarts:
            kv.write(fold.state.drain())
        if offset in restarts:
            fold = Fold(State(kv, 8), ShardId(0), 1)
    kv.write(fold.state.drain())
    return outcomes, kv


@settings(max_examples=300, deadline=None)
@given(LOGS)
def test_outcomes_are_the_models(log: list[Envelope]) -> None:
    model = Model()
    used: set[bytes] = set()
    kept = []
    for envelope in log:  # an id is new at each creation
        if envelope.kind == Kind.CREATE:
            if envelope.queue_id in used:
                continue
            used.add(envelope.queue_id)
        kept.append(envelope)
    outcomes, kv = run(kept, {3, 9}, {5})
    for envelope, outcome in zip(kept, outcomes, strict=True):
        code, number = model.apply(envelope)
        assert outcome.code == code, envelope
        if number is not None:
            assert outcome.number == number, envelope
    state = State(kv, 8)
    for queue, partitions in model.partitions.items():
        for index, part in enumerate(partitions):
            key = (QueueId(queue), index)
            row = present(state.partition(key))
            assert (row.log_start, row.next_offset) == (part.start, part.end)
            offsets = [
                offset
                for last, b in state.batches(key, 0, part.end)
                for offset in range(last - b.last_delta, last + 1)
            ]
            assert offsets == list(range(part.end))
            for group in GROUPS:
                committed = state.committed(group, key)
                assert (committed.offset if committed else None) == model.commits.get(
                    (group, queue, index)
                )


@settings(max_examples=200, deadline=None)
@given(LOGS, st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_the_same_log_gives_the_same_rows_at_any_split_and_restart(
    log: list[Envelope], splits: set[int], restarts: set[int]
) -> None:
    plain = run(log, set(), set())
    cut = run(log, splits, restarts)
    assert [o[:6] for o in cut[0]] == [o[:6] for o in plain[0]]
    assert cut[1].rows == plain[1].rows


def test_a_thousand_seeds_of_longer_logs_survive_restarts() -> None:
    for seed in range(1000):
        rng = random.Random(seed)
        log = [command(Kind.CREATE, IDS[0], values={"name": "q", "partitions": 2, "configs": {}})]
        sequences = {(p, i): 0 for p in range(5) for i in range(2)}
        for _ in range(40):
            pid, index = rng.randrange(5), rng.randrange(2)
            seq = max(0, sequences[pid, index] - rng.choice((0, 0, 0, 1, 2)))
            count = rng.randrange(1, 3)
            body = batch(*[b"v"] * count, producer_id=pid, epoch=0, sequence=seq)
            log.append(Envelope(Kind.APPEND, IDS[0], index, body=body))
            sequences[pid, index] = max(sequences[pid, index], seq + count)
        restarts = {rng.randrange(len(log)) for _ in range(3)}
        assert run(log, set(), restarts)[1].rows == run(log, set(), set())[1].rows


def shard_with_queue() -> MemoryShard:
    shard = MemoryShard()
    values = {"name": "q", "partitions": 1, "configs": {}}
    assert not shard.apply(command(Kind.CREATE, IDS[0], values=values)).code
    return shard


def send(shard: MemoryShard, seq: int, count: int = 1, pid: int = 7, epoch: int = 0) -> Any:
    body = batch(*[b"v"] * count, producer_id=pid, epoch=epoch, sequence=seq)
    return shard.apply(Envelope(Kind.APPEND, IDS[0], 0, body=body))


def test_the_last_five_batches_are_answered_as_duplicates_the_sixth_is_out_of_order() -> None:
    shard = shard_with_queue()
    for seq in range(6):
        assert send(shard, seq).number == seq
    for seq in range(1, 6):
        assert send(shard, seq)[:2] == (Code.NONE, seq)
    assert send(shard, 0).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(shard, 8).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(shard, 6).number == 6


def test_an_old_epoch_is_fenced_and_a_new_one_starts_at_zero() -> None:
    shard = shard_with_queue()
    send(shard, 0, epoch=1)
    assert send(shard, 1, epoch=0).code == Code.INVALID_PRODUCER_EPOCH
    assert send(shard, 5, epoch=2).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(shard, 0, epoch=2).number == 1


def test_sequences_wrap_to_zero() -> None:
    shard = shard_with_queue()
    assert send(shard, 2**31 - 2, count=2).number == 0
    assert send(shard, 0).number == 2
    assert send(shard, 2**31 - 2, count=2)[:2] == (Code.NONE, 0)


def test_a_producer_not_remembered_may_start_anywhere() -> None:
    shard = shard_with_queue()
    assert send(shard, 50).number == 0


def known(shard: MemoryShard) -> list[int]:
    row = present(shard.state.partition((IDS[0], 0)))
    found = [pid for pid, _ in producers.remembered(shard.state, (IDS[0], 0), row)]
    assert row.spilled == len(found) - len(row.producers)
    return sorted(found)


def test_remembered_producers_are_bounded_and_the_idlest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_REMEMBERED", 10)
    monkeypatch.setattr(producers, "_FORGOTTEN_AT_ONCE", 3)
    shard = shard_with_queue()
    for pid in range(13):
        send(shard, 0, pid=pid)
    assert known(shard) == list(range(13))
    send(shard, 1, pid=0)
    send(shard, 0, pid=13)
    assert known(shard) == [0, *range(4, 14)]
    used = [*range(1, 13), 0, 13]
    for pid in range(14, 200):
        send(shard, 0, pid=pid)
        used.append(pid)
        assert len(known(shard)) <= 13
        assert set(known(shard)) >= set(used[-11:])
    assert send(shard, 0, pid=195).number == send(shard, 0, pid=195).number  # a duplicate of both
    assert send(shard, 5, pid=195).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(shard, 5, pid=4).code == Code.NONE  # forgotten: it may start anywhere


def test_an_append_costs_the_same_however_many_producers_a_queue_has() -> None:
    written = []
    for count in (5, 500):
        kv = DictKv()
        fold = Fold(State(kv, 8), ShardId(0), 1)
        values = {"name": "q", "partitions": 1, "configs": {}}
        fold.apply(0, command(Kind.CREATE, IDS[0], values=values), PLACE)
        for seq in range(6):
            for pid in range(count):
                body = batch(b"v", producer_id=pid, epoch=0, sequence=seq)
                assert not fold.apply(1, Envelope(Kind.APPEND, IDS[0], 0, body=body), PLACE).code
                changes = fold.state.drain()
                kv.write(changes)
        written.append(sum(len(key) + len(value or b"") for key, value in changes.items()))
    assert written[0] == written[1]


def test_rows_of_an_earlier_kproxy_have_all_producers_in_the_partitions_row() -> None:
    sent = producer_rows.BatchMetadata(0, 0, 3, 4)
    old = rows.Partition()
    old.next_offset = 9
    old.producers = tuple(producer_rows.producer_with(None, pid, 0, sent) for pid in range(20))
    assert len(old.encode()) == 42 + 20 * 35
    shard = shard_with_queue()
    key = (IDS[0], 0)
    shard.state.drop_partition(key)
    shard.state.put_partition(key, rows.decode_partition(old.encode()))
    shard.kv.write(shard.state.drain())
    assert known(shard) == list(range(20))
    assert send(shard, 0, pid=11).number == 3
    assert send(shard, 1, pid=11).number == 9
    assert send(shard, 1, pid=12).number == 10
    assert send(shard, 3, pid=13).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    row = present(shard.state.partition(key))
    assert ([*map(producer_rows.producer_id_of, row.producers)], row.spilled) == ([12], 19)
    again = rows.decode_partition(row.encode())
    assert (again.producers, again.spilled) == (row.producers, row.spilled)
    assert known(shard) == list(range(20))


def test_a_copy_moves_a_live_batch_and_nothing_else() -> None:
    shard = shard_with_queue()
    for seq in range(3):
        send(shard, seq)
    key = (IDS[0], 0)
    before = present(shard.state.batch_at(key, 1))
    head = COPIED.pack(before.log_offset, before.size_through, before.max_time_through_ms)
    body = head + batch(b"v", producer_id=7, epoch=0, sequence=1)
    shard.apply(Envelope(Kind.COPY, *key, number=1, body=body))
    after = present(shard.state.batch_at(key, 1))
    assert after.position > before.position
    assert after._replace(copied=0)[3:] == before[3:]
    assert after.copied
    assert not before.copied
    shard.apply(command(Kind.TRIM, *key, number=3))
    assert shard.apply(Envelope(Kind.COPY, *key, number=1, body=body)).code
    assert shard.apply(Envelope(Kind.COPY, NO_QUEUE, 0, number=1, body=body)).code


def test_each_shard_makes_its_own_partitions() -> None:
    name, shards = "queue", 4
    values = {"name": name, "partitions": 8, "configs": {}}
    seen = []
    for shard in range(shards):
        one = MemoryShard(shard, shards)
        one.apply(command(Kind.CREATE, IDS[0], values=values))
        mine = [i for i in range(8) if one.state.partition((IDS[0], i)) is not None]
        assert mine == [i for i in range(8) if shard_of(name, shards, i) == shard]
        seen += mine
    assert sorted(seen) == list(range(8))


def test_a_kind_of_a_later_version_is_not_guessed_at() -> None:
    shard = shard_with_queue()
    with pytest.raises(ValueError, match="later one"):
        shard.apply(Envelope(99))
