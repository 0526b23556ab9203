"""Coordinators: ends are seen through whoever is away, and time does what it should."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.protocol.batch import read_header
from kproxy.transactions.coordinators import TransactionCoordinators
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.transactions import Begin, Complete, End, Enlist, InitProducer
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
    tag_of,
)
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.harness import until
from tests.present import present
from tests.wire import batch

NAME = "moves"
SHARDS = 3
HOME = 0
SOON_S = 30  # on a busy machine


class Cluster:
    """Three shards in memory; `away` are those whose logs take nothing."""

    def __init__(self, **settings: Any) -> None:
        self.shards = [MemoryShard(index, SHARDS, shared=True) for index in range(SHARDS)]
        self.away: set[int] = set()
        self.landed: list[tuple[int, Envelope]] = []
        self.now_ms = 1_000_000
        self.serving: list[Any] = [self.shards[HOME]]
        self.coordinators = TransactionCoordinators(
            lambda: self.serving, self, Config(**settings), lambda: self.now_ms
        )

    # -- ShardLogs

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        if index in self.away:
            ticket.set_error(KafkaError(Code.NOT_LEADER_OR_FOLLOWER))
        else:
            self.landed += [(index, envelope) for envelope in envelopes]
            ticket.set_outcomes([self.shards[index].apply(one) for one in envelopes])
        return ticket

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        return self.land(index, [envelope])

    # -- what a test does

    def apply(self, command: Any, shard: int = HOME) -> Outcome:
        return self.shards[shard].apply(command.envelope())

    def queue(self, index: int, name: str) -> PartitionKey:
        queue_id = QueueId(name.encode().ljust(16, b"-"))
        self.apply(CreateQueue(queue_id, name, 1, {}), index)
        self.shards[index].state.add_partitions(queue_id, [0])
        self.shards[index].commit({})
        return queue_id, 0

    def open(self, keys: dict[int, list[PartitionKey]], *, written: bool = True) -> int:
        """Open a transaction in partitions by shard, with a record in each; its number."""
        made = self.apply(InitProducer(NAME, 60_000, -1, -1, self.now_ms))
        self.producer_id, self.epoch = made.number, made.epoch
        participants = [Participant(index, key) for index, some in keys.items() for key in some]
        enlist = Enlist(NAME, made.number, made.epoch, 1, participants, self.now_ms)
        number = self.apply(enlist).number
        for index, some in keys.items():
            begin = Begin(made.number, made.epoch, 1, number, tag_of(NAME), some, (), self.now_ms)
            self.apply(begin, index)
            for key in some if written else ():
                self.write(index, key)
        return number

    def write(self, index: int, key: PartitionKey) -> Outcome:
        data = batch(
            b"x", attributes=0x10, producer_id=self.producer_id, epoch=self.epoch, sequence=0
        )
        return self.shards[index].apply(Envelope(Kind.APPEND, *key, body=data))

    def end(self, number: int, *, commit: bool = True) -> Outcome:
        end = End(NAME, self.producer_id, self.epoch, 1, commit, number, self.now_ms)
        return self.apply(end)

    @property
    def row(self) -> Transaction | None:
        data = self.shards[HOME].kv.get(TRANSACTIONS.key(NAME))
        return None if data is None else TRANSACTIONS.decode(data)

    def stable(self, index: int, key: PartitionKey) -> tuple[int, int]:
        """Return (last stable offset, next offset)."""
        row = present(self.shards[index].state.partition(key))
        return row.last_stable, row.next_offset

    def left(self, kind: RowKind) -> int:
        return sum(kind.of(key) for shard in self.shards for key in shard.kv.rows)


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.coordinators.run)
        await anyio.lowlevel.checkpoint()
        yield
        tasks.cancel_scope.cancel()


def state_is(cluster: Cluster, state: TransactionState) -> Callable[[], bool]:
    return lambda: cluster.row is not None and cluster.row.state == state


@pytest.mark.parametrize("commit", [True, False])
async def test_all_shards_are_told_and_then_it_is_complete(commit: bool) -> None:
    cluster = Cluster()
    keys = {index: [cluster.queue(index, f"q{index}")] for index in range(SHARDS)}
    number = cluster.open(keys)
    assert cluster.stable(1, keys[1][0]) == (0, 1)
    cluster.end(number, commit=commit)
    async with running(cluster):
        event = cluster.coordinators.drive(cluster.serving[0], NAME)
        with anyio.fail_after(SOON_S):
            await event.wait()
    for index, (key,) in keys.items():
        assert cluster.stable(index, key) == (2, 2)
    assert cluster.left(RowKind.ABORTED) == (0 if commit else SHARDS)
    assert cluster.left(RowKind.PARTICIPANT) == cluster.left(RowKind.OPEN_TRANSACTION) == 0
    complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    assert state_is(cluster, complete)()


async def test_one_that_is_away_is_told_later_and_nobody_is_answered_before() -> None:
    cluster = Cluster()
    keys = {index: [cluster.queue(index, f"q{index}")] for index in range(SHARDS)}
    number = cluster.open(keys)
    cluster.end(number)
    cluster.away = {2}
    async with running(cluster):
        event = cluster.coordinators.drive(cluster.serving[0], NAME)
        assert cluster.coordinators.drive(cluster.serving[0], NAME) is event, "one at a time"
        await anyio.sleep(0.25)
        assert not event.is_set()
        assert state_is(cluster, TransactionState.PREPARE_COMMIT)()
        cluster.away = set()
        with anyio.fail_after(SOON_S):
            await event.wait()
    assert [cluster.stable(index, key) for index, (key,) in keys.items()] == [(2, 2)] * SHARDS
    markers = [index for index, envelope in cluster.landed if envelope.kind == Kind.MARKER]
    assert markers.count(2) == 1
    assert markers.count(0) > 1, "told again, without effect"


async def test_one_behind_another_whose_completion_was_not_known_is_told_as_well() -> None:
    """FAULT: it was complete and nobody had been told: its partitions were held back for good."""
    cluster = Cluster()
    key = cluster.queue(1, "q")
    home: Any = cluster.shards[HOME]
    append = home.append

    def unknown(envelopes: Sequence[Envelope]) -> Ticket:
        home.append = append
        append(envelopes)
        cluster.end(cluster.open({1: [key]}))
        ticket = Ticket(list(envelopes))
        ticket.set_error(KafkaError(Code.REQUEST_TIMED_OUT))
        return ticket

    cluster.end(cluster.open({1: [key]}))
    home.append = unknown
    async with running(cluster):
        await until(lambda: home.append is append and cluster.row and cluster.row.state.is_idle)
    assert cluster.stable(1, key) == (4, 4)
    assert not cluster.left(RowKind.OPEN_TRANSACTION)


async def test_a_new_owner_goes_on_where_an_earlier_one_stopped() -> None:
    cluster = Cluster()
    keys = {1: [cluster.queue(1, "q")]}
    number = cluster.open(keys)
    cluster.end(number)
    async with running(cluster):  # nobody asks it to
        await until(state_is(cluster, TransactionState.COMPLETE_COMMIT))
    assert cluster.stable(1, keys[1][0]) == (2, 2)


async def test_overdue_transaction_is_aborted_and_its_producer_fenced() -> None:
    cluster = Cluster(transaction_abort_timed_out_transaction_cleanup_interval_ms=50)
    keys = {1: [cluster.queue(1, "q")]}
    cluster.open(keys)
    async with running(cluster):
        await anyio.sleep(0.2)
        assert state_is(cluster, TransactionState.ONGOING)()
        cluster.now_ms += 60_001
        await until(state_is(cluster, TransactionState.COMPLETE_ABORT))
    assert cluster.row is not None
    assert cluster.row.epoch == cluster.epoch + 1
    assert cluster.stable(1, keys[1][0]) == (2, 2)
    assert cluster.write(1, keys[1][0]).code == Code.INVALID_PRODUCER_EPOCH
    (marker,) = [envelope for _, envelope in cluster.landed if envelope.kind == Kind.MARKER]
    assert read_header(marker.body).producer_epoch == cluster.epoch + 1


async def test_ids_and_producers_that_nobody_uses_are_forgotten() -> None:
    cluster = Cluster(
        transactional_id_expiration_ms=5000, producer_id_expiration_ms=2000,
        transaction_remove_expired_transaction_cleanup_interval_ms=50,
        producer_id_expiration_check_interval_ms=50,
    )  # fmt: skip
    cluster.serving = list(cluster.shards)
    keys = {1: [cluster.queue(1, "q")]}
    number = cluster.open(keys)
    cluster.end(number)
    async with running(cluster):
        await until(state_is(cluster, TransactionState.COMPLETE_COMMIT))
        assert cluster.left(RowKind.TRANSACTIONAL_PRODUCER) == 1
        cluster.now_ms += 2100
        await until(lambda: not cluster.left(RowKind.TRANSACTIONAL_PRODUCER))
        assert cluster.row is not None
        cluster.now_ms += 3100
        await until(lambda: cluster.row is None)
    for kind in (RowKind.TRANSACTION_IDLE, RowKind.TRANSACTION_DUE, RowKind.PRODUCER_DUE):
        assert not cluster.left(kind)


async def test_rows_that_an_index_speaks_of_no_more_do_no_harm() -> None:
    cluster = Cluster(transaction_abort_timed_out_transaction_cleanup_interval_ms=50)
    cluster.open({1: [cluster.queue(1, "q")]})
    row = present(cluster.row)
    for stale in (row._replace(start_ms=1), row._replace(state=TransactionState.PREPARE_ABORT)):
        for name in (NAME, "nobody"):
            key = transaction_rows.transaction_due_key(stale._replace(update_ms=2), name)
            cluster.shards[HOME].commit({key: b""})
    async with running(cluster):
        await until(lambda: cluster.left(RowKind.TRANSACTION_DUE) == 1)
        assert state_is(cluster, TransactionState.ONGOING)()


async def test_many_partitions_in_lots() -> None:
    cluster = Cluster()
    queue_id = QueueId(b"many".ljust(16, b"-"))
    cluster.apply(CreateQueue(queue_id, "many", 1, {}), 1)
    keys = [(queue_id, index) for index in range(1250)]
    cluster.shards[1].state.add_partitions(queue_id, [index for _, index in keys])
    cluster.shards[1].commit({})
    number = cluster.open({1: keys})
    assert cluster.left(RowKind.PARTICIPANT) == 1250
    cluster.end(number)
    async with running(cluster):
        event = cluster.coordinators.drive(cluster.serving[0], NAME)
        with anyio.fail_after(SOON_S):
            await event.wait()
        await until(state_is(cluster, TransactionState.COMPLETE_COMMIT))
    assert [envelope.kind for _, envelope in cluster.landed].count(Kind.MARKER) == 7
    assert cluster.left(RowKind.PARTICIPANT) == cluster.left(RowKind.OPEN_TRANSACTION) == 0
    assert cluster.stable(1, keys[-1]) == (2, 2)
    key = batch_rows.batch_key(*keys[7], 1)
    stored = {data[:12] for key, data in cluster.shards[1].kv.rows.items() if RowKind.BATCH.of(key)}
    assert cluster.shards[1].kv.get(key) is not None
    assert len(stored) == 1250 + 7, "one stored marker serves the partitions of a command"


def test_a_request_on_an_older_connection_is_late_while_its_transaction_is_open() -> None:
    cluster = Cluster()
    number = cluster.open({1: [cluster.queue(1, "q")]})
    coordinator = cluster.coordinators.of(cluster.serving[0])
    assert not coordinator.is_late(NAME, 1), "nobody knows where it began"
    coordinator.note_begun(NAME, number, 7)
    coordinator.note_begun(NAME, number, 9)  # more of it, after the client has reconnected
    assert coordinator.is_late(NAME, 6)
    assert not coordinator.is_late(NAME, 7)
    assert not coordinator.is_late(NAME, 8)
    assert not coordinator.is_late("other", 1)
    cluster.end(number)
    assert not coordinator.is_late(NAME, 6), "its end is decided: the fold answers"


def test_a_late_end_does_not_end_what_was_begun_by_kip_890() -> None:
    """Its producer has changed the version between two transactions; the epoch is the same."""
    cluster = Cluster()
    key = cluster.queue(1, "q")
    cluster.end(cluster.open({1: [key]}))
    cluster.apply(Complete(NAME, cluster.row.number if cluster.row else -1, cluster.now_ms))
    again = Enlist(
        NAME, cluster.producer_id, cluster.epoch, 2, [Participant(1, key)], cluster.now_ms
    )
    assert not cluster.apply(again).code
    coordinator = cluster.coordinators.of(cluster.serving[0])
    assert coordinator.is_late(NAME, 6)
    assert coordinator.is_late(NAME, 6)
    assert not coordinator.is_late(NAME, 7), "its client has reconnected, and asks once more"


async def test_a_timeout_of_days_is_waited_for() -> None:
    """FAULT: what was due later than tomorrow was taken for filed by a clock that was ahead."""
    day_ms = 24 * 3600 * 1000
    cluster = Cluster(transaction_abort_timed_out_transaction_cleanup_interval_ms=20)
    made = cluster.apply(InitProducer(NAME, 2 * day_ms, -1, -1, cluster.now_ms))
    taking = [Participant(1, cluster.queue(1, "q"))]
    cluster.apply(Enlist(NAME, made.number, 0, 1, taking, cluster.now_ms))
    async with running(cluster):
        await anyio.sleep(0.1)
        assert state_is(cluster, TransactionState.ONGOING)()
        cluster.now_ms += 2 * day_ms + 1
        await until(state_is(cluster, TransactionState.COMPLETE_ABORT))


async def test_one_begun_by_a_clock_that_was_ahead_is_aborted() -> None:
    cluster = Cluster(transaction_abort_timed_out_transaction_cleanup_interval_ms=20)
    cluster.now_ms += 30 * 24 * 3600 * 1000
    cluster.open({1: [cluster.queue(1, "q")]})
    cluster.now_ms -= 30 * 24 * 3600 * 1000
    async with running(cluster):
        await until(state_is(cluster, TransactionState.COMPLETE_ABORT))


async def test_a_group_that_is_away_keeps_nobody_waiting_and_partitions_are_told_once() -> None:
    """FAULT: 200 such transactions held up all others of the shard."""
    cluster = Cluster()
    key = cluster.queue(1, "q")
    cluster.away = {2}
    names = [f"held-{number}" for number in range(250)]
    for name in names:
        made = cluster.apply(InitProducer(name, 60_000, -1, -1, cluster.now_ms))
        taking = [Participant(1, key), Participant(2, group="g")]
        enlist = Enlist(name, made.number, 0, 1, taking, cluster.now_ms)
        number = cluster.apply(enlist).number
        cluster.apply(End(name, made.number, 0, 1, True, number, cluster.now_ms))
    number = cluster.open({1: [key]})
    cluster.end(number)
    async with running(cluster):
        await anyio.sleep(0.5)
        event = cluster.coordinators.drive(cluster.serving[0], NAME)
        with anyio.fail_after(SOON_S):
            await event.wait()
        await anyio.sleep(0.5)
        markers = [one for index, one in cluster.landed if one.kind == Kind.MARKER and index == 1]
        assert len(markers) == 251
        cluster.away = set()
        await until(lambda: not cluster.left(RowKind.PARTICIPANT))
