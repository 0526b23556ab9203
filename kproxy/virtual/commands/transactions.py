"""Commands of transactions: what a coordinator decides, and what those who take part are told.

A transaction goes through these, in this order:

- INIT_PRODUCER, in the shard of the transactional id: it gets a producer id and an epoch, and
  whoever had an earlier epoch is fenced.
- ENLIST, there: partitions and groups take part; the first one opens the transaction.
- BEGIN, in each other shard that takes part: records and offsets may come. In the coordinator's own
  shard ENLIST does that.
- END, in the coordinator's shard: it is decided, for good.
- MARKER, in each shard that takes part: a control batch in each partition that has records of it.
- COMPLETE, in the coordinator's shard: all who took part know.

A body: a form byte, then numbers and text of known length, big-endian. A MARKER's body begins with
the control batch itself, which all its partitions share.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kproxy.protocol.batch import CONTROL_BATCH_BYTES
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.forms import Command
from kproxy.virtual.commands.offsets import OffsetCommit, pack_offsets, read_offsets
from kproxy.virtual.commands.traits import DiskUse, by_items, of_kind
from kproxy.virtual.fields import Fields, pack_name, read_name
from kproxy.virtual.levels import ORDERED_FROM, TRANSACTIONS_FROM
from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import NO_NUMBER, Participant, participant
from kproxy.virtual.types import PartitionKey

NAMED_MAX = 500
"""Partitions in one ENLIST or BEGIN, forgotten by one COMPLETE; offsets that one MARKER settles."""
MARKED_MAX = 200
"""Partitions in one MARKER: each takes some 30 µs, and a dozen rows."""

ASKS_ONLY = 0
"""The version of an ENLIST that only asks whether all take part (Kafka's verification)."""

SETS_CLOCK = 255
"""The version of an ENLIST that says when what is open began, by its coordinator's clock."""

_FORM = 1
_ORDERED = 2  # the form of a TRANSACTION_COMMIT whose offsets keep its log offset
_ENLIST = Fields("BqhBNR")
_MARKER = struct.Struct(">BqhqBII")
_PARTITION = struct.Struct(">16sI")
_ENLISTED = Fields("IY")
_COMMIT = struct.Struct(">qhiI")
_COORDINATOR_ROWS = (RowKind.TRANSACTION, RowKind.TRANSACTIONAL_ID, RowKind.PARTICIPANT)
_OPEN_ROWS = (RowKind.OPEN_TRANSACTION, RowKind.OPEN_GROUP)
_ITEM_BYTES = 20  # bytes of a partition's name


def _body_of(envelope: Envelope, at: int = 0) -> bytes:
    """Return the body, whose form is at `at`. Raise ValueError for one of a later kproxy."""
    body = bytes(envelope.body)
    if body[at] != _FORM:
        raise later_form(f"a command {Kind(envelope.kind).name}", body[at])
    return body


def _weight_of_partitions(envelope: Envelope) -> int:
    return 1 + len(envelope.body) // _ITEM_BYTES


def _weight_of_marker(envelope: Envelope) -> int:
    """Return the weight of a MARKER: a partition takes three units; a group may have as many
    offsets as one MARKER settles."""
    if len(envelope.body) < CONTROL_BATCH_BYTES + _MARKER.size:
        return 1  # none that kproxy wrote
    *_, partitions, groups = _MARKER.unpack_from(envelope.body, CONTROL_BATCH_BYTES)
    return 1 + 3 * int(partitions) + NAMED_MAX * int(groups)


@of_kind(
    Kind.INIT_PRODUCER, DiskUse.ORDINARY, level=TRANSACTIONS_FROM, publishes=(RowKind.TRANSACTION,),
    head="time_ms", body="timeout_ms:i expected_id:q expected_epoch:h transactional_id:T",
)  # fmt: skip
class InitProducer(Command):
    """A producer with a transactional id begins, or begins anew.

    `expected_id`, `expected_epoch`: what it believes to have, -1 where it has nothing.
    """

    transactional_id: str
    timeout_ms: int
    expected_id: int
    expected_epoch: int
    time_ms: int


@of_kind(
    Kind.ENLIST, DiskUse.ORDINARY, _weight_of_partitions, level=TRANSACTIONS_FROM,
    publishes=(*_COORDINATOR_ROWS, *_OPEN_ROWS, RowKind.GROUP), answered_across_workers=True,
)  # fmt: skip
class Enlist(NamedTuple):
    """Partitions and groups take part in a producer's transaction; the first ones open it.

    `version`: of the transaction protocol; 2 where a Produce or a commit enlists by itself;
    `ASKS_ONLY`; `SETS_CLOCK`.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    participants: Sequence[Participant]
    time_ms: int

    def envelope(self) -> Envelope:
        numbers = self.producer_id, self.epoch, self.version
        parts = [_ENLIST.pack(_FORM, *numbers, self.transactional_id)]
        parts += [_ENLISTED.pack(one.shard, one.encode()) for one in self.participants]
        return Envelope(Kind.ENLIST, time_ms=self.time_ms, body=b"".join(parts))

    @staticmethod
    def decode(envelope: Envelope) -> "Enlist":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        _, producer_id, epoch, version, name, rest = _ENLIST.read(_body_of(envelope), 0)
        participants = [participant(*one) for one in _ENLISTED.items(rest, 0)]
        return Enlist(name, producer_id, epoch, version, participants, envelope.time_ms)


@of_kind(
    Kind.BEGIN, DiskUse.ORDINARY, _weight_of_partitions, level=TRANSACTIONS_FROM,
    publishes=(*_OPEN_ROWS, RowKind.GROUP), head="time_ms",
    body="producer_id:q epoch:h version:B number:q tag:8s #partitions:I #groups:I "
         "partitions:(P) groups:(N)",
)  # fmt: skip
class Begin(Command):
    """A shard's partitions and groups take part in the transaction with this number."""

    producer_id: int
    epoch: int
    version: int
    number: int
    tag: bytes  # the transactional id's (`transaction_rows.tag_of`)
    partitions: Sequence[PartitionKey]
    groups: Sequence[str]
    time_ms: int


class EndCause:
    """The reason why a transaction ends."""

    CLIENT = 0
    TIMEOUT = 1
    """The transaction was open for too long: any holder of its epoch is fenced."""
    OPERATOR = 2
    """A TIMEOUT by an operator; the transaction is named by its number alone."""


@of_kind(
    Kind.END, DiskUse.ALWAYS, level=TRANSACTIONS_FROM, publishes=_COORDINATOR_ROWS,
    answered_across_workers=True, head="time_ms",
    body="producer_id:q epoch:h version:B commit+cause:B number:q transactional_id:T",
)  # fmt: skip
class End(Command):
    """A transaction is committed or aborted.

    `number`: of the transaction that was open as the client's request was taken, -1: none was; it
    ends no other. `version`: of the transaction protocol, 2: the epoch is bumped (KIP-890).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    commit: bool
    number: int
    time_ms: int
    cause: int = EndCause.CLIENT


@of_kind(
    Kind.MARKER, DiskUse.ALWAYS, _weight_of_marker, level=TRANSACTIONS_FROM,
    publishes=(
        RowKind.PARTITION, RowKind.PRODUCER, RowKind.NO_EFFECT, RowKind.OFFSET, RowKind.GROUP,
        RowKind.OPEN_TRANSACTION, RowKind.OPEN_FIRST, RowKind.ABORTED, RowKind.OPEN_GROUP,
        RowKind.PENDING_OFFSET, RowKind.PENDING_COUNT, RowKind.TRANSACTIONAL_PRODUCER,
    ), answered_across_workers=True, head="number=#groups time_ms",
    body=f"<batch:{CONTROL_BATCH_BYTES}s producer_id:q epoch:h number:q commit:? #partitions:I "
         "#groups:I partitions:(P) groups:(N)",
)  # fmt: skip
class Marker(Command):
    """A transaction ends in a shard's partitions and groups.

    `batch`: the control batch, of `protocol.batch.control_batch`; its producer epoch is the lowest
    that may go on. `epoch`: of the records. `groups`: at most one, which may have many offsets.
    The sender of a group's end waits for its outcome; of partitions nothing more can be said.
    """

    batch: bytes
    producer_id: int
    epoch: int
    number: int
    commit: bool
    partitions: Sequence[PartitionKey]
    groups: Sequence[str]
    time_ms: int


@of_kind(
    Kind.COMPLETE, DiskUse.ALWAYS, lambda envelope: NAMED_MAX // 2, level=TRANSACTIONS_FROM,
    publishes=_COORDINATOR_ROWS, head="number time_ms", body="transactional_id:T",
)  # fmt: skip
class Complete(Command):
    """All who took part know how it ended; forgets up to `NAMED_MAX` of them at a time.

    Its outcome says how many are left: the transaction is complete once there are none.
    """

    transactional_id: str
    number: int
    time_ms: int


@of_kind(
    Kind.TRANSACTION_COMMIT, DiskUse.MODEST, by_items, level=TRANSACTIONS_FROM,
    publishes=(RowKind.PENDING_OFFSET, RowKind.PENDING_COUNT, RowKind.OPEN_GROUP, RowKind.GROUP),
)  # fmt: skip
class TransactionCommit(NamedTuple):
    """Offsets that a group commits once a producer's transaction is committed.

    `generation`: of the group's member, below 0: nobody's. `number`: of the transaction that was
    open as the client's request was taken, -1: whichever has this epoch. `ordered`: as of COMMIT.
    """

    group: str
    member: str
    generation: int
    producer_id: int
    epoch: int
    offsets: Sequence[OffsetCommit]
    time_ms: int
    number: int = NO_NUMBER
    ordered: bool = False

    def envelope(self, level: int) -> Envelope:
        """Return the envelope as this level has it."""
        parts = [
            bytes([_ORDERED if level >= ORDERED_FROM else _FORM]),
            _COMMIT.pack(self.producer_id, self.epoch, self.generation, len(self.offsets)),
            pack_name(self.group),
            pack_name(self.member),
        ]
        body = b"".join(parts) + pack_offsets(self.offsets)
        return Envelope(
            Kind.TRANSACTION_COMMIT, number=self.number, time_ms=self.time_ms, body=body
        )

    @staticmethod
    def decode(envelope: Envelope) -> "TransactionCommit":
        """Decode an envelope. Raise ValueError for a form of a later kproxy."""
        body = bytes(envelope.body)
        ordered = body[0] == _ORDERED
        if not ordered:
            body = _body_of(envelope)
        producer_id, epoch, generation, count = _COMMIT.unpack_from(body, 1)
        group, at = read_name(body, 1 + _COMMIT.size)
        member, at = read_name(body, at)
        offsets = read_offsets(body, at, count)
        return TransactionCommit(
            group, member, generation, producer_id, epoch, offsets, envelope.time_ms,
            envelope.number, ordered,
        )  # fmt: skip


@of_kind(
    Kind.EXPIRE_TRANSACTION, DiskUse.ALWAYS, level=TRANSACTIONS_FROM,
    publishes=(RowKind.TRANSACTION, RowKind.TRANSACTIONAL_PRODUCER),
    head="number=producer_id time_ms=used_ms", body="transactional_id:T",
)  # fmt: skip
class ExpireTransaction(Command):
    """A transactional id, or what a shard remembers of a producer, was not used for long.

    Without effect where it was used since `used_ms`. One of `transactional_id` and `producer_id`
    is set.
    """

    transactional_id: str
    producer_id: int
    used_ms: int
