"""Transactions on memory shards: each command as its sender would append it, at once."""

import itertools
from collections.abc import Sequence
from typing import Any

from kproxy.common.errors import Code
from kproxy.protocol.batch import control_batch
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import CommitOffsets, OffsetCommit
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.transactions import (
    Begin,
    Complete,
    End,
    Enlist,
    InitProducer,
    Marker,
    TransactionCommit,
)
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.transactions import (
    NO_NUMBER,
    OPEN_GROUPS,
    PARTICIPANTS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
)
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.wire import batch

TRANSACTIONAL = 0x10
TIMEOUT_MS = 60_000
ID = "t"


class Shards:
    """All logs of a cluster. `key(shard)` is a queue's partition that lives there."""

    def __init__(self, count: int = 1, *, shared: bool | None = None, level: int = NEWEST) -> None:
        self.level = level
        many = count > 1 if shared is None else shared
        self.all = [MemoryShard(i, count, shared=many) for i in range(count)]
        self.now_ms = 1_000
        self._queues = 0
        self.keys = [self.make(shard) for shard in range(count)]

    @property
    def home(self) -> int:
        """The coordinator's shard of ID."""
        return shard_of(ID, len(self.all))

    def make(self, shard: int = 0, partitions: int = 1) -> PartitionKey:
        """Make a queue; return the first of its partitions, which lives in this shard."""
        while True:
            self._queues += 1
            name = f"q{self._queues}"
            if shard_of(name, len(self.all)) == shard:
                break
        queue_id = QueueId(self._queues.to_bytes(16, "big"))
        assert not self.apply(shard, CreateQueue(queue_id, name, partitions, {}).envelope()).code
        return queue_id, 0

    def apply(self, shard: int, envelope: Envelope) -> Outcome:
        return self.all[shard].apply(envelope)

    # -- what is there

    def row(self, name: str = ID) -> Transaction:
        data = present(self.all[shard_of(name, len(self.all))].state.get(TRANSACTIONS.key(name)))
        return TRANSACTIONS.decode(data)

    def put_row(self, row: Transaction, name: str = ID) -> None:
        """Put a row as if all of that had happened."""
        shard = self.all[shard_of(name, len(self.all))]
        shard.commit({
            TRANSACTIONS.key(name): TRANSACTIONS.encode(row),
            transaction_rows.transaction_due_key(row, name): b"",
        })  # fmt: skip

    def partition(self, key: PartitionKey, shard: int = 0) -> Partition:
        return present(self.all[shard].state.partition(key))

    def ends(self, key: PartitionKey, shard: int = 0) -> tuple[int, int]:
        """Return last stable offset and high watermark."""
        row = self.partition(key, shard)
        return row.last_stable, row.next_offset

    def of(self, *kinds: RowKind, shard: int = 0) -> list[tuple[bytes, bytes]]:
        found = self.all[shard].kv.rows
        return sorted((k, v) for k, v in found.items() if k[:1] in kinds)

    def listed(self, name: str = ID) -> list[Participant]:
        """Return participants of an id's newest transaction that were not told of its end."""
        shard = self.all[shard_of(name, len(self.all))]
        found = shard.kv.scan(*PARTICIPANTS.range(self.row(name).number))
        return [transaction_rows.participant_of(key) for key, _ in found]

    def aborted(self, key: PartitionKey, start: int = 0, end: int = 1 << 40) -> list[Any]:
        """Return (marker's offset, producer id, first offset)."""
        found = self.all[0].state.aborted(key, start, end)
        return [(marker, one.producer_id, one.first_offset) for marker, one in found]

    def committed(self, group: str, key: PartitionKey, shard: int = 0) -> int | None:
        found: Committed | None = self.all[shard].state.committed(group, key)
        return None if found is None else found.offset

    def pending(self, shard: int = 0) -> int:
        """Return how many offsets wait, as all that counts them has it."""
        state = self.all[shard].state
        found = self.of(RowKind.PENDING_OFFSET, shard=shard)
        by_partition = self.of(RowKind.PENDING_BY_PARTITION, shard=shard)
        assert {transaction_rows.pending_by_partition_of_pending(k) for k, _ in found} == {
            k for k, _ in by_partition
        }
        groups = [
            OPEN_GROUPS.decode(v).pending for _, v in self.of(RowKind.OPEN_GROUP, shard=shard)
        ]
        assert state.pending_offsets == len(found) == sum(groups)
        return len(found)

    # -- commands

    def init(self, expected: tuple[int, int] = (-1, -1), name: str = ID) -> Outcome:
        self.now_ms += 1
        command = InitProducer(name, TIMEOUT_MS, *expected, self.now_ms)
        return self.apply(shard_of(name, len(self.all)), command.envelope())

    def enlist(
        self,
        pid: int,
        epoch: int,
        *participants: Participant,
        version: int = 1,
        name: str = ID,
    ) -> Outcome:
        self.now_ms += 1
        command = Enlist(name, pid, epoch, version, participants, self.now_ms)
        return self.apply(shard_of(name, len(self.all)), command.envelope())

    def begin(
        self,
        pid: int,
        epoch: int,
        number: int,
        keys: Sequence[PartitionKey] = (),
        groups: Sequence[str] = (),
        *,
        version: int = 1,
        shard: int = 0,
    ) -> Code:
        tag = transaction_rows.tag_of(ID)
        command = Begin(pid, epoch, version, number, tag, keys, groups, self.now_ms)
        return self.apply(shard, command.envelope()).code

    def append(
        self,
        key: PartitionKey,
        pid: int,
        epoch: int,
        sequence: int,
        count: int = 1,
        *,
        attributes: int = TRANSACTIONAL,
        shard: int = 0,
    ) -> Outcome:
        body = batch(
            *[b"v"] * count, producer_id=pid, epoch=epoch, sequence=sequence, attributes=attributes
        )
        return self.apply(shard, Envelope(Kind.APPEND, *key, body=body))

    def end(
        self,
        pid: int,
        epoch: int,
        *,
        commit: bool = True,
        version: int = 1,
        number: int | None = None,
        cause: int = 0,
        name: str = ID,
    ) -> Outcome:
        """End a transaction. `number`: by default the open one's, as a handler finds it."""
        self.now_ms += 1
        if number is None:
            data = self.all[shard_of(name, len(self.all))].state.get(TRANSACTIONS.key(name))
            row = None if data is None else TRANSACTIONS.decode(data)
            opened = row is not None and row.state == TransactionState.ONGOING
            number = row.number if row is not None and opened else NO_NUMBER
        command = End(name, pid, epoch, version, commit, number, self.now_ms, cause)
        return self.apply(shard_of(name, len(self.all)), command.envelope())

    def marker(
        self,
        row: Transaction,
        keys: Sequence[PartitionKey] = (),
        groups: Sequence[str] = (),
        *,
        shard: int = 0,
        **other: Any,
    ) -> int:
        """Write a marker; return how many pending offsets are left."""
        row = row._replace(**other)
        commit = row.state == TransactionState.PREPARE_COMMIT
        control = control_batch(
            row.ending_producer_id, row.marker_epoch, commit=commit, time_ms=self.now_ms
        )
        command = Marker(
            control, row.ending_producer_id, row.ending_epoch, row.number, commit, keys, groups,
            self.now_ms,
        )  # fmt: skip
        outcome = self.apply(shard, command.envelope())
        assert outcome.code == Code.NONE
        return outcome.number

    def complete(self, number: int | None = None, name: str = ID) -> Outcome:
        number = self.row(name).number if number is None else number
        command = Complete(name, number, self.now_ms)
        return self.apply(shard_of(name, len(self.all)), command.envelope())

    def finish(self, name: str = ID) -> Transaction:
        """See a decided end through, as its coordinator does; the row as it was decided."""
        row = self.row(name)
        assert row.state.is_ending
        for shard, some in itertools.groupby(self.listed(name), lambda one: one.shard):
            here = list(some)
            keys = [one.key for one in here if one.key is not None]
            for start in range(0, len(keys), 500):
                self.marker(row, keys[start : start + 500], shard=shard)
            for group in [one.group for one in here if one.key is None]:
                while self.marker(row, (), [group], shard=shard):
                    pass
        while self.complete(row.number, name).number:
            pass
        return row

    def commit_offsets(
        self,
        group: str,
        pid: int,
        epoch: int,
        *offsets: tuple[PartitionKey, int],
        member: str = "",
        generation: int = -1,
        shard: int = 0,
    ) -> Outcome:
        named = [OffsetCommit(*key, offset, -1, "", False) for key, offset in offsets]
        command = TransactionCommit(group, member, generation, pid, epoch, named, self.now_ms)
        return self.apply(shard, command.envelope(self.level))

    def commit_plainly(
        self, group: str, *offsets: tuple[PartitionKey, int], shard: int = 0
    ) -> Outcome:
        named = [OffsetCommit(*key, offset, -1, "", False) for key, offset in offsets]
        command = CommitOffsets(group, "", -1, named, self.now_ms)
        return self.apply(shard, command.envelope(self.level))

    def trim(self, key: PartitionKey, log_start: int, shard: int = 0) -> None:
        assert not self.apply(shard, Trim(*key, log_start).envelope()).code

    # -- longer ways

    def open(
        self, *keys: PartitionKey, groups: Sequence[str] = (), version: int = 1, name: str = ID
    ) -> tuple[int, int, int]:
        """Open a new producer's transaction, in one shard: (producer id, epoch, number)."""
        made = self.init(name=name)
        parts = [Participant(0, key) for key in keys]
        parts += [Participant(0, group=group) for group in groups]
        outcome = self.enlist(made.number, made.epoch, *parts, version=version, name=name)
        assert outcome.code == Code.NONE
        return made.number, made.epoch, outcome.number


def opened() -> tuple[Shards, PartitionKey, int, int]:
    """Return a shard with an open transaction: its partition, producer id and epoch."""
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, _ = shards.open(key)
    return shards, key, pid, epoch
