"""Rows of transactions: the coordinator's, those of the partitions and groups that take part.

A transaction has a *number*: the log offset of the ENLIST that opened it, in its coordinator's
shard. Numbers of one transactional id only grow, so a late command of an earlier transaction is
told from one of this. `virtual.transaction_commands` says what each command does.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from kproxy.virtual.forms import later_form
from kproxy.virtual.row_kinds import RowKind
from kproxy.virtual.rows import Committed, decode_committed
from kproxy.virtual.types import PartitionKey, QueueId

_FORM = 1
_TRANSACTION = struct.Struct(">BqqhhiBBqqqqhhI")
_OPEN = struct.Struct(">BBqhq8s")
_PRODUCER = struct.Struct(">BhqQ")
_ABORTED = struct.Struct(">Bqqq")
_GROUP_OPEN = struct.Struct(">BBhqI8s")
_PENDING = struct.Struct(">BBQ")
_COUNT = struct.Struct(">Q")
_NUMBER_SHARD = struct.Struct(">QI")
_PARTITION = struct.Struct(">16sI")
_LENGTH = struct.Struct(">H")
_ID = struct.Struct(">q")
_TIME = struct.Struct(">Q")
_A_PARTITION, _A_GROUP = 0, 1  # kinds of participants

NO_NUMBER = -1
TAG_BYTES = 8
NO_TAG = bytes(TAG_BYTES)
EPOCH_MAX = 32767
EPOCH_LAST = EPOCH_MAX - 1
"""The last epoch that a producer gets; then it gets another id. One more fences who has it."""


def tag_of(transactional_id: str) -> bytes:
    """What tells a transactional id from others where it takes part: 8 bytes."""
    return blake2b(transactional_id.encode(), digest_size=TAG_BYTES).digest()


class TransactionState(IntEnum):
    """As Kafka's `TransactionState`, with its numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_ending(self) -> bool:
        """Decided, and not all who took part know it yet."""
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
    version: int = 1  # of the transaction protocol: 2 with KIP-890
    start_ms: int = -1  # of the transaction that is open or ending
    update_ms: int = 0
    number: int = NO_NUMBER
    ending_producer_id: int = -1  # the producer id and epoch that its records have
    ending_epoch: int = -1
    marker_epoch: int = -1  # what its markers have: later epochs may go on
    participants: int = 0  # partitions and groups

    def encode(self) -> bytes:
        return _TRANSACTION.pack(_FORM, *self)

    @property
    def due_ms(self) -> int:
        """When the coordinator has to see to it: at once, whatever clocks say, where it ends."""
        if self.state == TransactionState.ONGOING:
            return self.start_ms + self.timeout_ms
        return 0 if self.state.is_ending else self.update_ms


def decode_transaction(data: bytes) -> Transaction:
    """Raises ValueError for a form of a later kproxy."""
    if data[0] != _FORM:
        raise later_form("a row of kind T", data[0])
    values = list(_TRANSACTION.unpack_from(data)[1:])
    values[5] = TransactionState(values[5])
    return Transaction._make(values)


def transaction_key(transactional_id: str) -> bytes:
    return RowKind.TRANSACTION + transactional_id.encode()


RESTORED_KEY = RowKind.RESTORED.letter


def encode_restored(log_offset: int) -> bytes:
    return _COUNT.pack(log_offset)


def decode_restored(data: bytes) -> int:
    (log_offset,) = _COUNT.unpack(data)
    return int(log_offset)


def id_of_transaction(key: bytes) -> str:
    return key[1:].decode()


def transaction_due_key(row: Transaction, transactional_id: str) -> bytes:
    """Without a value: what the coordinator looks at; an idle id by its last change."""
    kind = RowKind.TRANSACTION_IDLE if row.state.is_idle else RowKind.TRANSACTION_DUE
    return kind + _TIME.pack(max(0, row.due_ms)) + transactional_id.encode()


def due_end(kind: RowKind, time_ms: int) -> bytes:
    """Where keys of an index that begins with a time end that are due at this time."""
    return kind + _TIME.pack(max(0, time_ms))


def transaction_of_due(key: bytes) -> tuple[int, str]:
    """(time in ms, transactional id) of a key of kind `D` or `I`."""
    return _TIME.unpack_from(key, 1)[0], key[9:].decode()


# -- who takes part


class Participant(NamedTuple):
    """A partition, or a group, with the shard that it lives in. One of `key` and `group` is set."""

    shard: int
    key: PartitionKey | None = None
    group: str = ""

    def encode(self) -> bytes:
        """Also a part of commands: without its shard."""
        if self.key is not None:
            return bytes([_A_PARTITION]) + _PARTITION.pack(*self.key)
        name = self.group.encode()
        return bytes([_A_GROUP]) + name


def participant_key(number: int, participant: Participant) -> bytes:
    head = _NUMBER_SHARD.pack(number, participant.shard)
    return RowKind.PARTICIPANT + head + participant.encode()


def number_key(number: int) -> bytes:
    """With a transactional id as value: whose transaction it is, while it is open or ending."""
    return RowKind.TRANSACTIONAL_ID + _TIME.pack(number)


def participants_range(number: int) -> tuple[bytes, bytes]:
    return (
        RowKind.PARTICIPANT + _TIME.pack(number),
        RowKind.PARTICIPANT + _TIME.pack(number + 1),
    )


def participant_of(key: bytes) -> Participant:
    """Of a key of kind `U`."""
    _, shard = _NUMBER_SHARD.unpack_from(key, 1)
    body = key[1 + _NUMBER_SHARD.size :]
    if body[0] == _A_GROUP:
        return Participant(shard, group=body[1:].decode())
    queue_id, index = _PARTITION.unpack_from(body, 1)
    return Participant(shard, (QueueId(queue_id), index))


# -- a producer in a shard that takes part


class TransactionalProducer(NamedTuple):
    """What a shard remembers of a producer whose transactions ended here: later ones may begin."""

    least_epoch: int  # a BEGIN of an earlier one comes too late
    closed: int  # the highest number of a transaction that ended
    used_ms: int

    def encode(self) -> bytes:
        return _PRODUCER.pack(_FORM, *self)


def decode_transactional_producer(data: bytes) -> TransactionalProducer:
    """Raises ValueError for a form of a later kproxy."""
    if data[0] != _FORM:
        raise later_form("a row of kind J", data[0])
    return TransactionalProducer._make(_PRODUCER.unpack_from(data)[1:])


def transactional_producer_key(producer_id: int) -> bytes:
    return RowKind.TRANSACTIONAL_PRODUCER + _ID.pack(producer_id)


def producer_id_of_key(key: bytes) -> int:
    """Of a key of kind `J` or `H`."""
    return int(_ID.unpack_from(key, len(key) - _ID.size)[0])


def producer_due_key(used_ms: int, producer_id: int) -> bytes:
    """Without a value: when to see whether a producer is still used; filed once."""
    return RowKind.PRODUCER_DUE + _TIME.pack(max(0, used_ms)) + _ID.pack(producer_id)


def producer_due_ms(key: bytes) -> int:
    return int(_TIME.unpack_from(key, 1)[0])


# -- partitions


class OpenTransaction(NamedTuple):
    """That a partition takes part in a producer's transaction."""

    version: int  # of the transaction protocol
    first_offset: int  # -1: it has no record here yet
    epoch: int
    number: int
    tag: bytes = NO_TAG  # of the transactional id

    def encode(self) -> bytes:
        return _OPEN.pack(_FORM, *self)


def decode_open(data: bytes) -> OpenTransaction:
    """Raises ValueError for a form of a later kproxy."""
    if data[0] != _FORM:
        raise later_form("a row of kind f", data[0])
    return OpenTransaction._make(_OPEN.unpack_from(data)[1:])


def open_key(key: PartitionKey, producer_id: int) -> bytes:
    return RowKind.OPEN_TRANSACTION + _PARTITION.pack(*key) + _ID.pack(producer_id)


def open_in(
    get: Callable[[bytes], bytes | None], key: PartitionKey, producer_id: int
) -> OpenTransaction | None:
    """The open transaction of a producer in a partition; `get` gives a row by its key."""
    data = get(open_key(key, producer_id))
    return None if data is None else decode_open(data)


def open_range(key: PartitionKey) -> tuple[bytes, bytes]:
    """Where a partition's open transactions lie, for a scan."""
    prefix = RowKind.OPEN_TRANSACTION + _PARTITION.pack(*key)
    return prefix, prefix + b"\xff" * 9


def open_first_key(key: PartitionKey, first_offset: int) -> bytes:
    """With the producer's id as value: the first key of a partition is its last stable offset."""
    return RowKind.OPEN_FIRST + _PARTITION.pack(*key) + _TIME.pack(first_offset)


def open_first_range(key: PartitionKey, start: int) -> tuple[bytes, bytes]:
    prefix = RowKind.OPEN_FIRST + _PARTITION.pack(*key)
    return prefix + _TIME.pack(start), prefix + b"\xff" * 9


def first_offset_of(key: bytes) -> int:
    """Of a key of kind `l`."""
    return int(_TIME.unpack_from(key, len(key) - _TIME.size)[0])


def encode_producer_id(producer_id: int) -> bytes:
    return _ID.pack(producer_id)


class Aborted(NamedTuple):
    """An aborted transaction of a partition, by the offset of its marker (Kafka's `AbortedTxn`)."""

    producer_id: int
    first_offset: int
    last_stable: int  # the partition's last stable offset once it had ended

    def encode(self) -> bytes:
        return _ABORTED.pack(_FORM, *self)


def aborted_key(key: PartitionKey, marker_offset: int) -> bytes:
    return RowKind.ABORTED + _PARTITION.pack(*key) + _TIME.pack(marker_offset)


def aborted_range(key: PartitionKey, start: int, end: int = (1 << 64) - 1) -> tuple[bytes, bytes]:
    """Aborted transactions whose markers lie at `start` to before `end`."""
    return aborted_key(key, start), aborted_key(key, end)


def marker_offset_of(key: bytes) -> int:
    """Of a key of kind `A`."""
    return int(_TIME.unpack_from(key, len(key) - _TIME.size)[0])


def decode_aborted(data: bytes) -> Aborted:
    """Raises ValueError for a form of a later kproxy."""
    if data[0] != _FORM:
        raise later_form("a row of kind A", data[0])
    return Aborted._make(_ABORTED.unpack_from(data)[1:])


def queue_ranges(queue_id: QueueId) -> list[tuple[bytes, bytes]]:
    """Where all lies that transactions have left of a queue, for a sweep once it is deleted."""
    kinds = RowKind.OPEN_TRANSACTION, RowKind.OPEN_FIRST, RowKind.ABORTED
    return [(kind + queue_id, kind + queue_id + b"\xff" * 13) for kind in kinds]


# -- groups


class OpenGroup(NamedTuple):
    """That a group takes part in a producer's transaction."""

    version: int
    epoch: int
    number: int
    pending: int  # offsets that wait for its end
    tag: bytes = NO_TAG  # of the transactional id

    def encode(self) -> bytes:
        return _GROUP_OPEN.pack(_FORM, *self)


def decode_open_group(data: bytes) -> OpenGroup:
    """Raises ValueError for a form of a later kproxy."""
    if data[0] != _FORM:
        raise later_form("a row of kind G", data[0])
    return OpenGroup._make(_GROUP_OPEN.unpack_from(data)[1:])


def open_group_key(group: str, producer_id: int) -> bytes:
    return RowKind.OPEN_GROUP + _named(group) + _ID.pack(producer_id)


def open_group_in(
    get: Callable[[bytes], bytes | None], group: str, producer_id: int
) -> OpenGroup | None:
    """That a group takes part in a producer's transaction; `get` gives a row by its key."""
    data = get(open_group_key(group, producer_id))
    return None if data is None else decode_open_group(data)


def open_group_range(group: str) -> tuple[bytes, bytes]:
    prefix = RowKind.OPEN_GROUP + _named(group)
    return prefix, prefix + b"\xff" * 9


def _named(group: str) -> bytes:
    name = group.encode()
    return _LENGTH.pack(len(name)) + name


class PendingOffset(NamedTuple):
    """An offset that is committed once its transaction is. A later plain commit supersedes it."""

    superseded: bool
    log_offset: int  # of the commit: of two transactions' offsets the later commit's holds
    committed: Committed

    def encode(self) -> bytes:
        return _PENDING.pack(_FORM, self.superseded, self.log_offset) + self.committed.encode()


def decode_pending(data: bytes) -> PendingOffset:
    """Raises ValueError for a form of a later kproxy."""
    if data[0] != _FORM:
        raise later_form("a row of kind O", data[0])
    _, superseded, log_offset = _PENDING.unpack_from(data)
    return PendingOffset(bool(superseded), log_offset, decode_committed(data[_PENDING.size :]))


def pending_key(group: str, producer_id: int, key: PartitionKey) -> bytes:
    return RowKind.PENDING_OFFSET + _named(group) + _ID.pack(producer_id) + _PARTITION.pack(*key)


def pending_range(group: str, producer_id: int | None = None) -> tuple[bytes, bytes]:
    """A group's pending offsets, of one producer or of all; for a scan."""
    prefix = RowKind.PENDING_OFFSET + _named(group)
    if producer_id is not None:
        prefix += _ID.pack(producer_id)
    return prefix, prefix + b"\xff" * 29


def producer_and_partition_of_pending(key: bytes) -> tuple[int, PartitionKey]:
    """Of a key of kind `O`."""
    queue_id, index = _PARTITION.unpack_from(key, len(key) - _PARTITION.size)
    (producer_id,) = _ID.unpack_from(key, len(key) - _PARTITION.size - _ID.size)
    return producer_id, (QueueId(queue_id), index)


def pending_by_partition_key(group: str, key: PartitionKey, producer_id: int) -> bytes:
    """Without a value: who has an offset of this partition pending."""
    return (
        RowKind.PENDING_BY_PARTITION + _named(group) + _PARTITION.pack(*key) + _ID.pack(producer_id)
    )


def pending_by_partition_range(group: str, key: PartitionKey | None = None) -> tuple[bytes, bytes]:
    prefix = RowKind.PENDING_BY_PARTITION + _named(group)
    if key is not None:
        prefix += _PARTITION.pack(*key)
    return prefix, prefix + b"\xff" * 29


def pending_by_partition_of_pending(key: bytes) -> bytes:
    """The key of kind `Q` that goes with one of kind `O`."""
    at = len(key) - _PARTITION.size - _ID.size
    partition, producer = key[at + _ID.size :], key[at : at + _ID.size]
    return RowKind.PENDING_BY_PARTITION + key[1:at] + partition + producer


def partition_of_pending(key: bytes) -> PartitionKey:
    """Of a key of kind `Q`."""
    queue_id, index = _PARTITION.unpack_from(key, len(key) - _PARTITION.size - _ID.size)
    return QueueId(queue_id), index


PENDING_COUNT_KEY = RowKind.PENDING_COUNT.letter
"""How many offsets are pending in the shard: where there are none nobody looks for them."""


def encode_pending_count(count: int) -> bytes:
    return _COUNT.pack(count)


def decode_pending_count(data: bytes) -> int:
    return int(_COUNT.unpack(data)[0])
