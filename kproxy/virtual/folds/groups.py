"""The fold's part for groups: their members as their coordinators decide, and their offsets.

A coordinator works outside the log; what must survive it is one GROUP command, void where the group
has changed since the coordinator looked. A commit is judged here, in log order: by the member's
epoch, and by `kproxy.commit.rewind` as its handler found it set.
"""

from dataclasses import replace

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.groups import ChangeGroup, DeleteGroup
from kproxy.virtual.commands.offsets import (
    CommitOffsets,
    DeleteOffsets,
    ExpireOffsets,
    OffsetCommit,
)
from kproxy.virtual.commands.transactions import NAMED_MAX, TransactionCommit
from kproxy.virtual.folds.moved_start import MovedStart
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.groups import NO_VERSION, TOPOLOGY_ROW, GroupRow
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.offsets import Committed
from kproxy.virtual.rows.transactions import (
    OPEN_GROUPS,
    PENDING_BY_PARTITION,
    PENDING_OFFSETS,
    PendingOffset,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_FEW = 4
_FORGOTTEN_MAX = 1000  # offsets that wait, by one DELETE_OFFSETS: ten milliseconds
ALLOW_REWIND = "allow-rewind"
"""A commit whose metadata says so may go back."""


class GroupFold:
    """The application of groups' commands to a shard's state."""

    def __init__(self, state: State, *, alone: bool) -> None:
        """Set up; `alone`: every queue is in this shard; a commit to an absent one is refused."""
        self._state = state
        self._alone = alone
        self._settling = MovedStart(state)

    def head(self, group: str) -> GroupRow | None:
        data = self._state.get(group_rows.group_key(group))
        return None if data is None else group_rows.decode_group(data)

    def _put_group(self, group: str, before: GroupRow | None, head: GroupRow) -> None:
        if before is None or before.look_ms != head.look_ms:
            if before is not None:
                self._state.put(group_rows.group_due_key(before.look_ms, group), None)
            self._state.file(group_rows.group_due_key(head.look_ms, group))
        if before is None or before.kind != head.kind:
            counts = self._state.counts.groups
            counts[head.kind] += 1
            if before is not None:
                counts[before.kind] -= 1
        self._state.put(group_rows.group_key(group), head.encode())

    def _drop_group(self, group: str, head: GroupRow) -> None:
        self._state.counts.groups[head.kind] -= 1
        self._state.put(group_rows.group_due_key(head.look_ms, group), None)
        self._state.put(group_rows.group_key(group), None)
        if head.kind == "streams":
            self._state.put(group_rows.member_key(group, TOPOLOGY_ROW), None)

    # -- members

    def change(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        group, after, kind, members, values, changed, time_ms = ChangeGroup.decode(envelope)
        before = self.head(group)
        if (NO_VERSION if before is None else before.version) != after:
            return Outcome(Code.NOT_COORDINATOR)
        for member, row in changed.items():
            self._state.put(group_rows.member_key(group, member), row)
        head = GroupRow(
            version=log_offset, kind=kind, members=members, values=values,
            empty_since_ms=time_ms if members == 0 or before is None else before.empty_since_ms,
            look_ms=time_ms if before is None else before.look_ms,
        )  # fmt: skip
        self._put_group(group, before, head)
        return Outcome(Code.NONE, log_offset)

    # -- offsets

    def commit(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        group, member, epoch, offsets, time_ms, ordered = CommitOffsets.decode(envelope)
        head = self.head(group)
        fault = self._member_fault(group, head, member, epoch)
        if fault:
            return Outcome(fault)
        ordered_at = log_offset if ordered and self._state.pending_offsets else -1
        codes = [self._commit_one(group, head, one, time_ms, ordered_at) for one in offsets]
        if not ordered:
            waiting = _Waiting(self._state, group)
            for asked, code in zip(offsets, codes, strict=True):
                if not code:
                    self._supersede(group, asked.key, log_offset, waiting)
        if Code.NONE in codes:
            self.note_commit(log_offset, group, time_ms)
        return Outcome(Code.NONE, codes=tuple(codes))

    def note_commit(self, log_offset: int, group: str, time_ms: int) -> None:
        """Note that a group has an offset: it is made, if there is none, and is not empty."""
        head = self.head(group)
        if head is None:
            made = GroupRow(version=log_offset, empty_since_ms=time_ms, look_ms=time_ms)
            self._put_group(group, None, made)
        elif head.empty_at_last_scan:
            self._put_group(
                group, head, replace(head, version=log_offset, empty_at_last_scan=False)
            )

    def _member_fault(self, group: str, head: GroupRow | None, member: str, epoch: int) -> Code:
        """Return a commit's fault as Kafka's groups do; without members anyone may make it."""
        if epoch < 0 and (head is None or not head.members):
            return Code.NONE
        row = self._state.get(group_rows.member_key(group, member)) if member else None
        if head is None or row is None:
            return Code.UNKNOWN_MEMBER_ID
        if group_rows.member_epoch(row) == epoch:
            return Code.NONE
        stale = head.kind in ("consumer", "streams")
        return Code.STALE_MEMBER_EPOCH if stale else Code.ILLEGAL_GENERATION

    def _commit_one(
        self, group: str, head: GroupRow | None, asked: OffsetCommit, time_ms: int, ordered_at: int
    ) -> Code:
        """Commit one offset; `ordered_at`: the log offset to keep; -1: none."""
        key = asked.key
        if self._alone and self._state.partition(key) is None:
            return Code.UNKNOWN_TOPIC_ID
        if self._rewinds(group, head, asked):
            return Code.POLICY_VIOLATION
        committed = Committed(asked.offset, asked.leader_epoch, time_ms, asked.metadata, ordered_at)
        self._put_offset(group, key, committed)
        return Code.NONE

    def _rewinds(self, group: str, head: GroupRow | None, asked: OffsetCommit) -> bool:
        """Return whether a commit goes back although its queue denies that."""
        # A commit without a member id to a group with members is an administrator's reset.
        reset = head is not None and head.kind != "offsets" and not head.members
        if not asked.deny or reset or asked.metadata.startswith(ALLOW_REWIND):
            return False
        known = self._state.committed(group, asked.key)
        return known is not None and asked.offset < known.offset

    def _put_offset(self, group: str, key: PartitionKey, committed: Committed) -> None:
        self._state.put(offset_rows.offset_key(group, *key), committed.encode())
        self._state.put(offset_rows.offset_by_queue_key(*key, group), b"")

    # -- offsets of transactions

    def commit_fault(self, group: str, member: str, generation: int) -> Code:
        """Return the fault of a transaction's commit: anybody may make it without a member id.

        Codes are those of classic groups, as in Kafka.
        """
        if generation < 0 and not member:
            return Code.NONE
        head = self.head(group)
        if head is None and generation >= 0:
            return Code.ILLEGAL_GENERATION
        fault = self._member_fault(group, head, member, generation)
        return Code.ILLEGAL_GENERATION if fault == Code.STALE_MEMBER_EPOCH else fault

    def takes(self, key: PartitionKey) -> bool:
        """Return whether this partition's offset can be committed, as far as the shard knows."""
        return not self._alone or self._state.partition(key) is not None

    def pending_fault(self, group: str, asked: OffsetCommit) -> Code:
        """Return why an offset of a transaction is refused."""
        if not self.takes(asked.key):
            return Code.UNKNOWN_TOPIC_ID
        rewinds = asked.deny and self._rewinds(group, self.head(group), asked)
        return Code.POLICY_VIOLATION if rewinds else Code.NONE

    def wait_for_end(self, log_offset: int, asked: TransactionCommit, offset: OffsetCommit) -> bool:
        """Keep an offset until its transaction ends; whether it is one more that waits."""
        self._settling.forget()
        group, producer_id = asked.group, asked.producer_id
        key = PENDING_OFFSETS.key(group, producer_id, offset.key)
        one_more = self._state.get(key) is None
        committed = Committed(
            offset.offset, offset.leader_epoch, asked.time_ms, offset.metadata,
            log_offset if asked.ordered else -1,
        )  # fmt: skip
        self._state.put(key, PendingOffset(False, log_offset, committed).encode())
        by_partition = PENDING_BY_PARTITION.key(group, offset.key, producer_id)
        self._state.put(by_partition, b"")
        return one_more

    def settle(
        self, log_offset: int, group: str, producer_id: int, *, commit: bool, time_ms: int
    ) -> int:
        """Commit or drop some offsets of a transaction that has ended; how many."""
        found = self._settling.some(*PENDING_OFFSETS.range(group, producer_id), NAMED_MAX)
        committed = False
        waiting: _Waiting | None = None
        for pending_key, data in found:
            pending = PENDING_OFFSETS.decode(data)
            _, key = PENDING_OFFSETS.parts(pending_key)[1:]
            self._drop_pending(pending_key)
            if not commit or not self.takes(key) or self._is_superseded(group, key, pending):
                continue
            self._put_offset(group, key, pending.committed)
            if pending.committed.log_offset < 0:
                waiting = waiting or _Waiting(self._state, group)
                self._supersede(group, key, pending.log_offset, waiting)
            committed = True
        if committed:
            self.note_commit(log_offset, group, time_ms)
        return len(found)

    def _is_superseded(self, group: str, key: PartitionKey, pending: PendingOffset) -> bool:
        """Return whether a later commit holds."""
        known = self._state.committed(group, key)
        later = known is not None and known.log_offset > pending.log_offset
        return later or pending.superseded

    def _supersede(
        self, group: str, key: PartitionKey, log_offset: int, waiting: "_Waiting"
    ) -> None:
        """Mark offsets that wait and were given before one that is committed: they do not count.

        An offset that is committed below level 8 does not keep its log offset, so this is noted in
        each row that waits.
        """
        for producer_id in waiting.producers(key):
            pending_key = PENDING_OFFSETS.key(group, producer_id, key)
            pending = self._state.row(PENDING_OFFSETS, group, producer_id, key)
            if pending is not None and pending.log_offset < log_offset:
                self._state.put(pending_key, pending._replace(superseded=True).encode())

    def _drop_pending(self, pending_key: bytes) -> None:
        self._state.put(pending_key, None)
        self._state.put(transaction_rows.pending_by_partition_of_pending(pending_key), None)

    def _forget_pending(
        self, group: str, key: PartitionKey, waiting: "_Waiting", most: int | None = None
    ) -> int:
        """Drop offsets that wait, with what is committed; return how many, up to `most`."""
        forgotten = 0
        for producer_id in waiting.producers(key):
            pending_key = PENDING_OFFSETS.key(group, producer_id, key)
            if self._state.get(pending_key) is None:
                continue
            if forgotten == most:
                break
            forgotten += 1
            self._drop_pending(pending_key)
            self._state.count_pending(-1)
            opened = self._state.row(OPEN_GROUPS, group, producer_id)
            if opened is not None:
                left = opened._replace(pending=opened.pending - 1)
                self._state.put_row(OPEN_GROUPS, left, group, producer_id)
        return forgotten

    def delete_offsets(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        group, partitions = DeleteOffsets.decode(envelope)
        waiting, most = _Waiting(self._state, group), _FORGOTTEN_MAX
        for key in partitions:
            self._drop_offset(group, key)
            most -= self._forget_pending(group, key, waiting, most)
        return Outcome(Code.NONE, int(most <= 0))

    def _drop_offset(self, group: str, key: PartitionKey) -> None:
        self._state.put(offset_rows.offset_key(group, *key), None)
        self._state.put(offset_rows.offset_by_queue_key(*key, group), None)

    def _offsets(self, group: str) -> list[PartitionKey]:
        found = self._state.scan(*offset_rows.offset_range(group))
        return [offset_rows.partition_of_offset(key) for key, _ in found]

    def expire(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Expire offsets that were old when looked at, if they still are what was looked at.

        One stays while an open transaction has staged another of its partition.
        Whether any are left is not looked at here: earlier kproxies swept those of dead queues
        without the log.
        A group that was found without any is `empty_at_last_scan`. It goes if the next scan finds
        none either.
        """
        group, after, nothing_left, offsets, again_ms = ExpireOffsets.decode(envelope)
        head = self.head(group)
        if head is None or head.version != after:
            return Outcome(Code.NOT_COORDINATOR)
        staged = self._state.any_pending(group)
        waiting = self._state.keys_of(RowKind.PENDING_BY_PARTITION) if staged else None
        for queue_id, index, time_ms in offsets:
            key = (queue_id, index)
            known = self._state.committed(group, key)
            if known is None or known.time_ms != time_ms:
                continue
            start, end = PENDING_BY_PARTITION.range(group, key)
            if waiting is None or next(waiting.between(start, end), None) is None:
                self._drop_offset(group, key)
        nothing_left = nothing_left and not head.members and not self._state.any_pending(group)
        if nothing_left and head.empty_at_last_scan:
            self._drop_group(group, head)
        else:
            self._put_group(
                group, head, replace(head, look_ms=again_ms, empty_at_last_scan=nothing_left)
            )
        return Outcome(Code.NONE)

    def delete(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        group = DeleteGroup.decode(envelope).group
        head = self.head(group)
        if head is None:
            return Outcome(Code.GROUP_ID_NOT_FOUND)
        if head.members:
            return Outcome(Code.NON_EMPTY_GROUP)
        for key in self._offsets(group):
            self._drop_offset(group, key)
        if self._state.pending_offsets:
            waiting = _Waiting(self._state, group)
            found = self._state.scan(*PENDING_BY_PARTITION.range(group))
            keys = (PENDING_BY_PARTITION.parts(tracked)[1] for tracked, _ in found)
            for key in dict.fromkeys(keys):
                self._forget_pending(group, key, waiting)
        self._drop_group(group, head)
        return Outcome(Code.NONE)


class _Waiting:
    """The producers whose offsets of a group wait for the end of a transaction, for one command.

    If they are few all are named, whatever the partition. Else it is looked up.
    """

    def __init__(self, state: State, group: str) -> None:
        self._group = group
        self._few: list[int] | None = []
        if state.pending_offsets:
            found = state.some(*OPEN_GROUPS.range(group), _FEW + 1)
            self._few = [transaction_rows.producer_id_of_key(key) for key, _ in found]
            if len(found) > _FEW:
                self._few = None
                self._keys = state.keys_of(RowKind.PENDING_BY_PARTITION)

    def producers(self, key: PartitionKey) -> list[int]:
        """Return the producers that may have an offset of this partition waiting."""
        if self._few is not None:
            return self._few
        found = self._keys.between(*PENDING_BY_PARTITION.range(self._group, key))
        return [transaction_rows.producer_id_of_key(tracked) for tracked in found]
