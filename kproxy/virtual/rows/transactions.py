"""Rows of transactions: the coordinator's, those of the partitions and groups that take part.

A transaction has a *number*: the log offset of the ENLIST that opened it, in its coordinator's
shard. Numbers of one transactional id only grow, so a late command of an earlier transaction is
told from one of this. `virtual.commands.transactions` says what each command does.
"""

from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.offsets import Committed, decode_committed
from kproxy.virtual.schema import Keys, Rows
from kproxy.virtual.types import PartitionKey, QueueId

_A_PARTITION, _A_GROUP = b"\0", b"\1"  # kinds of participants

NO_NUMBER = -1
TAG_BYTES = 8
NO_TAG = bytes(TAG_BYTES)
EPOCH_MAX = 32767
EPOCH_LAST = EPOCH_MAX - 1
"""The last epoch that a producer gets; then it gets another id. One more fences who has it."""


def tag_of(transactional_id: str) -> bytes:
    """Return 8 bytes that tell a transactional id from others where it takes part."""
    return blake2b(transactional_id.encode(), digest_size=TAG_BYTES).digest()


class TransactionState(IntEnum):
    """The states of Kafka's `TransactionState`, with its numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_ending(self) -> bool:
        """Whether it is decided, and not all who took part know it yet."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        return self not in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
        )


class Transaction(NamedTuple):
    """The coordinator's row of a transactional id."""

    producer_id: int
    previous_producer_id: int = -1
    epoch: int = 0
    last_epoch: int = -1
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    version: int = 1  # version of the transaction protocol: 2 with KIP-890
    start_ms: int = -1  # start of the transaction that is open or ending
    update_ms: int = 0
    number: int = NO_NUMBER
    ending_producer_id: int = -1  # the producer id and epoch that its records have
    ending_epoch: int = -1
    marker_epoch: int = -1  # the epoch of its markers: later epochs may go on
    participants: int = 0  # partitions and groups

    @property
    def due_ms(self) -> int:
        """The time when the coordinator sees to it: at once, whatever clocks say, if it ends."""
        if self.state == TransactionState.ONGOING:
            return self.start_ms + self.timeout_ms
        return 0 if self.state.is_ending else self.update_ms


TRANSACTIONS = Rows(
    RowKind.TRANSACTION, "T", Transaction, "qqhhiBBqqqqhhI", state=TransactionState
)  # fmt: skip
"""The transactions by transactional id."""
TRANSACTION_NUMBERS = Keys(RowKind.TRANSACTIONAL_ID, "Q")
"""The transactional ids by number, while the transaction is open or ending."""
TRANSACTIONS_DUE = Keys(RowKind.TRANSACTION_DUE, "tT")
TRANSACTIONS_IDLE = Keys(RowKind.TRANSACTION_IDLE, "tT")
"""The idle transactions by time and transactional id, without a value."""


def transaction_due_key(row: Transaction, transactional_id: str) -> bytes:
    """Return the key under which a coordinator looks at a transactional id."""
    due = TRANSACTIONS_IDLE if row.state.is_idle else TRANSACTIONS_DUE
    return due.key(row.due_ms, transactional_id)


# -- the participants


class Participant(NamedTuple):
    """A partition, or a group, with the shard that it lives in. One of `key` and `group` is set."""

    shard: int
    key: PartitionKey | None = None
    group: str = ""

    def encode(self) -> bytes:
        """Return the participant without its shard; commands have it too."""
        if self.key is not None:
            return _A_PARTITION + self.key[0] + self.key[1].to_bytes(4, "big")
        return _A_GROUP + self.group.encode()


PARTICIPANTS = Keys(RowKind.PARTICIPANT, "QIR")
"""The participants by number, shard, and what a participant encodes to."""


def participant_key(number: int, participant: Participant) -> bytes:
    return PARTICIPANTS.key(number, participant.shard, participant.encode())


def participant_of(key: bytes) -> Participant:
    """Return the participant of a key of PARTICIPANTS."""
    return participant(*PARTICIPANTS.parts(key)[1:])


def participant(shard: int, data: bytes) -> Participant:
    """Return a participant from its shard and what it encodes to."""
    if data[:1] == _A_GROUP:
        return Participant(shard, group=data[1:].decode())
    return Participant(shard, (QueueId(data[1:17]), int.from_bytes(data[17:], "big")))


# -- a producer in a shard that takes part


class TransactionalProducer(NamedTuple):
    """A shard's memory of a producer whose transactions ended here: later ones may begin."""

    least_epoch: int  # a BEGIN of an earlier one comes too late
    closed: int  # the highest number of a transaction that ended
    used_ms: int


TRANSACTIONAL_PRODUCERS = Rows(RowKind.TRANSACTIONAL_PRODUCER, "q", TransactionalProducer, "hqQ")
TRANSACTIONAL_PRODUCERS_DUE = Keys(RowKind.PRODUCER_DUE, "tq")
"""The times and producers, without a value, at which to see whether one is used; filed once."""


def producer_id_of_key(key: bytes) -> int:
    """Return the producer of a key that ends with it."""
    return int.from_bytes(key[-8:], "big")


# -- partitions


class OpenTransaction(NamedTuple):
    """A partition's part in a producer's transaction."""

    version: int  # version of the transaction protocol
    first_offset: int  # -1: it has no record here yet
    epoch: int
    number: int
    tag: bytes = NO_TAG  # the transactional id's


OPEN_TRANSACTIONS = Rows(RowKind.OPEN_TRANSACTION, "Pq", OpenTransaction, "Bqhq8s")
OPEN_FIRSTS = Keys(RowKind.OPEN_FIRST, "PQ")
"""The producers' ids by partition and first offset: the first key of a partition is its last stable
offset."""


class Aborted(NamedTuple):
    """An aborted transaction of a partition, by the offset of its marker (Kafka's `AbortedTxn`)."""

    producer_id: int
    first_offset: int
    last_stable: int  # the partition's last stable offset once it had ended


ABORTED = Rows(RowKind.ABORTED, "PQ", Aborted, "qqq")
"""The aborted transactions by partition and the offset of the marker."""


def aborted_range(key: PartitionKey, start: int, end: int = (1 << 64) - 1) -> tuple[bytes, bytes]:
    """Return the range of aborted transactions whose markers lie at `start` to before `end`."""
    return ABORTED.key(key, start), ABORTED.key(key, end)


# -- groups


class OpenGroup(NamedTuple):
    """A group's part in a producer's transaction."""

    version: int
    epoch: int
    number: int
    pending: int  # offsets that wait for its end
    tag: bytes = NO_TAG  # the transactional id's


OPEN_GROUPS = Rows(RowKind.OPEN_GROUP, "Nq", OpenGroup, "BhqI8s")


class PendingOffset(NamedTuple):
    """An offset that is committed once its transaction is. A later plain commit supersedes it."""

    superseded: bool
    log_offset: int  # the commit's: of two transactions' offsets the later commit's holds
    committed: Committed

    def encode(self) -> bytes:
        return PENDING_OFFSETS.encode((self.superseded, self.log_offset, self.committed.encode()))


PENDING_OFFSETS = Rows(RowKind.PENDING_OFFSET, "NqP", PendingOffset, "BQR",
               superseded=bool, committed=decode_committed)  # fmt: skip
"""The pending offsets by group, producer and partition."""
PENDING_BY_PARTITION = Keys(RowKind.PENDING_BY_PARTITION, "NPq")
"""The same by group, partition and producer, without a value."""


def pending_by_partition_of_pending(key: bytes) -> bytes:
    """Return the key of PENDING_BY_PARTITION that goes with one of PENDING_OFFSETS."""
    group, producer_id, partition = PENDING_OFFSETS.parts(key)
    return PENDING_BY_PARTITION.key(group, partition, producer_id)


PENDING_COUNT_KEY = RowKind.PENDING_COUNT.letter
"""The key of the number of offsets pending in the shard: with none nobody looks for them."""
RESTORED_KEY = RowKind.RESTORED.letter
"""The log offset at which the log goes on after a restore."""
