"""The fold's part for share groups: which records of a share partition are done, and what follows.

Only the owner of a queue's shard decides about records, for it alone knows who holds them: a SHARE
of anybody else is void. A state once terminal stays, and a count never falls, whatever comes late.
"""

from collections.abc import Iterator

from kproxy.common.errors import Code
from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.shares import (
    EARLIEST,
    LATEST,
    OWED,
    AimForward,
    ChangeShares,
    Forward,
    FreeLanes,
    LookAtShares,
    NoteShareQueues,
    SetShares,
    SettleForward,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.folds.groups import GroupFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.rows.shares import (
    CHUNK,
    COUNT_SHIFT,
    DEAD_LETTERS,
    EMPTY_CHUNK,
    FORWARD_TARGETS,
    FORWARDED,
    HELD_LANES,
    NOWHERE,
    SHARE_PARTITIONS,
    SHARE_QUEUES,
    SHARE_STATES,
    STATE_BITS,
    TERMINAL,
    HeldLane,
    Owed,
    SharePartition,
    freed_key,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_MOVED_MAX = 1 << 20
"""Offsets that a start moves over at once, the rest with the next change. Windows were far smaller
before there were lanes, so logs of earlier releases come to the same rows."""


class ShareFold:
    """The application of share groups to a shard's state."""

    def __init__(self, state: State, groups: GroupFold) -> None:
        self._state = state
        self._groups = groups

    # -- share partitions

    def set(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Set share partitions; leave those absent or set by a later command."""
        asked = SetShares.decode(envelope)
        for change in asked.changes:
            self._set(asked, change)
        return Outcome(Code.NONE)

    def _set(self, asked: SetShares, change: ShareChange) -> None:
        group = asked.group
        partition = self._state.partition(change.key)
        if partition is None:
            return
        known = self._state.row(SHARE_PARTITIONS, change.key, group)
        if change.action == ShareAction.RESOLVE:
            if known is not None and known.epoch == change.epoch and known.since_ms >= 0:
                start = _start_of(change.start, partition)
                after = known._replace(start=start, end=start, since_ms=NOWHERE)
                self._put(change.key, group, after)
            return
        if known is not None and known.epoch >= change.epoch:
            return
        if change.action == ShareAction.DROP:
            if known is not None:
                self._drop_states(change.key, group, known)
                self._state.put(SHARE_PARTITIONS.key(change.key, group), None)
                self._state.put(FORWARD_TARGETS.key(change.key, group), None)
            return
        if change.action == ShareAction.INITIALISE and known and known.epoch >= asked.since:
            return
        if known is not None:
            self._drop_states(change.key, group, known)
        start = _start_of(change.start, partition)
        made = SharePartition(start, start, 0, change.epoch, asked.time_ms, change.since_ms)
        self._put(change.key, group, made)
        self._state.touched.add(change.key)  # waiting readers look again

    def _put(self, key: PartitionKey, group: str, row: SharePartition) -> None:
        self._state.put_row(SHARE_PARTITIONS, row, key, group)

    def _drop_states(self, key: PartitionKey, group: str, row: SharePartition) -> None:
        _Window(self._state, key, group, row).drop_chunks(row.end // CHUNK + 1)

    # -- records

    def change(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Change states. Each partition's code: UNKNOWN_TOPIC_OR_PARTITION if it is another now.

        The outcome's code is NOT_LEADER_OR_FOLLOWER, and nothing changes, where it was not the
        owner who said so.
        """
        if not self._state.is_owners(envelope):
            return Outcome(Code.NOT_LEADER_OR_FOLLOWER)
        group, partitions, _, holds = ChangeShares.decode(envelope)
        owed: list[Owed] = []
        holding = {(hold.key, hold.offset): hold.lane for hold in holds}
        codes = tuple(self._change(group, one, owed, holding, envelope) for one in partitions)
        for number, one in enumerate(owed):
            self._state.file(DEAD_LETTERS.key(log_offset, number), DEAD_LETTERS.encode(one))
        return Outcome(Code.NONE, log_offset, codes=codes)

    def _change(
        self, group: str, asked: ShareRuns, owed: list[Owed],
        holding: dict[tuple[PartitionKey, int], int], envelope: Envelope,
    ) -> Code:  # fmt: skip
        state, key = self._state, asked.key
        partition = state.partition(key)
        known = state.row(SHARE_PARTITIONS, key, group)
        if partition is None or known is None or known.epoch != asked.epoch or known.since_ms >= 0:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        window = _Window(state, key, group, known)
        window.pass_to(partition.log_start)
        for first, records, byte, cause in asked.runs:
            if first < window.start:
                records -= window.start - first
                first = window.start
                if records <= 0:
                    continue
            if records == 1 and not cause and first != window.start:
                window.become_one(first, byte)
                continue
            ended = window.become(first, records, byte)
            if cause & OWED and ended:
                count, why = byte >> COUNT_SHIFT, cause & ~OWED
                owed += [Owed(key, at, some, count, why, group) for at, some in ended]
            if holding and cause:
                for at, some in ended:
                    for offset in range(at, at + some):
                        if (lane := holding.get((key, offset))) is not None:
                            held = HeldLane(offset, envelope.time_ms, known.epoch)
                            state.put_row(HELD_LANES, held, key, group, lane)
        self._put(key, group, window.written())
        return Code.NONE

    def free(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Free lanes; those that are not held stay as they are."""
        asked = FreeLanes.decode(envelope)
        if self._state.partition(asked.key) is None:
            return Outcome(Code.UNKNOWN_TOPIC_ID)
        for (lane,) in asked.lanes:
            self._state.put(HELD_LANES.key(asked.key, asked.group, lane), None)
        self._state.touched.add(freed_key(asked.key))
        return Outcome(Code.NONE)

    # -- reads for others

    def look(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = LookAtShares.decode(envelope)
        numbers: list[int] = []
        for key in asked.keys:
            numbers += stands(self._state, key, asked.group)
        return Outcome(Code.NONE, numbers=tuple(numbers))

    def note_queues(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Note queues of a group. NOT_COORDINATOR: the group is another by now."""
        asked = NoteShareQueues.decode(envelope)
        head = self._groups.head(asked.group)
        if head is None or head.version != asked.after:
            return Outcome(Code.NOT_COORDINATOR)
        for queue_id, partitions in asked.queues:
            value = share_rows.encode_initialised(partitions) if partitions else None
            self._state.put(SHARE_QUEUES.key(asked.group, queue_id), value)
        return Outcome(Code.NONE)

    # -- records that are passed on

    def forward(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Append a FORWARD. The outcome's number is the base offset.

        It is -1 where some were taken before; `numbers` is the last position that was.
        """
        asked = Forward.decode(envelope)
        state, key = self._state, asked.target
        row = state.partition(key)
        if row is None:
            state.void(log_offset)
            return Outcome(Code.UNKNOWN_TOPIC_ID)
        stream = key, asked.stream, asked.source, asked.group
        taken = state.row(FORWARDED, *stream)
        if taken is not None and taken >= asked.first:
            state.void(log_offset)
            return Outcome(Code.NONE, -1, numbers=tuple(taken))
        state.put_row(FORWARDED, asked.last, *stream)
        header = read_header(asked.batch)
        place = LogLocation(location.segment, location.position, len(asked.batch))
        base_offset = row.next_offset
        routed = not asked.passed_on
        state.add_batch(key, row, header, place, log_offset, asked.look_ms, routed=routed)
        state.note_shipped(key, state.queue_by_id(key[0]))
        return Outcome(Code.NONE, base_offset)

    def aim(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Set a stream's target. Only the owner does: an earlier one must not change it."""
        if not self._state.is_owners(envelope):
            return Outcome(Code.NOT_LEADER_OR_FOLLOWER)
        asked = AimForward.decode(envelope)
        if self._state.partition(asked.source) is None:
            return Outcome(Code.UNKNOWN_TOPIC_ID)
        known = self._state.row(FORWARD_TARGETS, asked.source, asked.group)
        if asked.after != (-1 if known is None else known.log_offset):  # one that was late
            return Outcome(Code.NOT_LEADER_OR_FOLLOWER)
        aimed = share_rows.Aimed(asked.target, log_offset)
        self._state.put_row(FORWARD_TARGETS, aimed, asked.source, asked.group)
        return Outcome(Code.NONE)

    def settle(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        for place in SettleForward.decode(envelope).places:
            self._state.put(DEAD_LETTERS.key(*place), None)
        return Outcome(Code.NONE)


def _start_of(start: int, partition: Partition) -> int:
    if start == LATEST:
        return partition.next_offset
    if start == EARLIEST:
        return partition.log_start
    return max(0, start)


def stands(state: State, key: PartitionKey, group: str) -> tuple[int, int]:
    """Return (start, lag) of a share partition; -1 if it is not there or not resolved.

    Below 0, as in Kafka, where it was reset to what is still to be written.
    """
    partition = state.partition(key)
    known = state.row(SHARE_PARTITIONS, key, group)
    if partition is None or known is None or known.since_ms >= 0:
        return -1, -1
    start, done = max(known.start, partition.log_start), known.done
    if start >= known.end:
        done = 0
    elif start > known.start and done:
        done -= _done_between(state, key, group, known.start, start)
    return start, partition.next_offset - start - done


def _done_between(state: State, key: PartitionKey, group: str, start: int, end: int) -> int:
    found = share_rows.states(state.get, key, group, start, end)
    return found.translate(TERMINAL).count(1)


class _Window:
    """The states of one share partition while a SHARE is applied; chunks as they are needed."""

    def __init__(self, state: State, key: PartitionKey, group: str, row: SharePartition) -> None:
        self._state = state
        self._prefix = SHARE_STATES.key(key, group)
        self._row = row
        self._chunks: dict[int, bytearray] = {}
        self._changed: set[int] = set()
        self.start, self._end, self._done = row.start, row.end, row.done

    def _key(self, chunk: int) -> bytes:
        return self._prefix + chunk.to_bytes(8, "big")

    def _chunk(self, chunk: int) -> bytearray:
        found = self._chunks.get(chunk)
        if found is None:
            data = self._state.get(self._key(chunk)) or EMPTY_CHUNK
            found = self._chunks[chunk] = bytearray(data)
        return found

    def _parts(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (chunk, begin, end) in it: the parts of a stretch of offsets."""
        while start < end:
            chunk, begin = divmod(start, CHUNK)
            upto = min(CHUNK, end - chunk * CHUNK)
            yield chunk, begin, upto
            start = chunk * CHUNK + upto

    def pass_to(self, log_start: int) -> None:
        """Pass to a later beginning of the log: what was before it is not counted any more."""
        if log_start <= self.start:
            return
        for chunk, begin, end in self._parts(self.start, min(log_start, self._end)):
            self._done -= self._chunk(chunk)[begin:end].translate(TERMINAL).count(1)
        self.start = log_start
        self._end = max(self._end, log_start)

    def become(self, first: int, records: int, byte: int) -> list[tuple[int, int]]:
        """Change records to a run's state; return runs of those that are terminal by it."""
        if first == self.start and TERMINAL[byte]:
            return self._finish(first + records, byte)
        ended: list[tuple[int, int]] = []
        if records == 1:
            return [(first, 1)] if self.become_one(first, byte) else []
        self._end = max(self._end, first + records)
        for chunk, begin, end in self._parts(first, first + records):
            states = self._chunk(chunk)
            self._changed.add(chunk)
            for at, upto in _open_runs(states, begin, end):
                before = states[at:upto]
                if max(before) <= byte:
                    states[at:upto] = bytes((byte,)) * (upto - at)
                else:
                    states[at:upto] = bytes(_later(one, byte) for one in before)
                self._note(ended, chunk * CHUNK + at, upto - at, byte)
        return ended

    def become_one(self, offset: int, byte: int) -> bool:
        """Do as `become` for one that is not the first; return whether it is terminal by it."""
        self._end = max(self._end, offset + 1)
        chunk = offset // CHUNK
        states = self._chunks.get(chunk) or self._chunk(chunk)
        self._changed.add(chunk)
        before = states[offset % CHUNK]
        if TERMINAL[before]:
            return False
        states[offset % CHUNK] = byte if before <= byte else _later(before, byte)
        self._done += TERMINAL[byte]
        return bool(TERMINAL[byte])

    def _finish(self, end: int, byte: int) -> list[tuple[int, int]]:
        """Finish all from the start on: states are not needed, however much compaction took."""
        ended: list[tuple[int, int]] = []
        for chunk, begin, upto in self._parts(self.start, min(end, self._end)):
            for at, behind in _open_runs(self._chunk(chunk), begin, upto):
                self._note(ended, chunk * CHUNK + at, behind - at, byte)
        fresh = max(self.start, self._end)
        if fresh < end:
            self._note(ended, fresh, end - fresh, byte)
        self._done -= end - self.start
        self.start = end
        self._end = max(self._end, end)
        return ended

    def _note(self, ended: list[tuple[int, int]], first: int, records: int, byte: int) -> None:
        if not TERMINAL[byte]:
            return
        self._done += records
        if ended and sum(ended[-1]) == first:
            ended[-1] = ended[-1][0], ended[-1][1] + records
        else:
            ended.append((first, records))

    def written(self) -> SharePartition:
        """Return the row as it is now, once the start has moved over what is done."""
        start, end = self.start, self._end
        for chunk, begin, upto in self._parts(start, min(end, start + _MOVED_MAX)):
            found = self._chunk(chunk).translate(TERMINAL).find(0, begin, upto)
            start = chunk * CHUNK + (upto if found < 0 else found)
            if found >= 0:
                break
        self._done -= start - self.start
        kept = start // CHUNK if start < end else end // CHUNK + 1
        for chunk in self._changed:
            if chunk >= kept:
                self._state.put(self._key(chunk), bytes(self._chunk(chunk)))
        self.drop_chunks(kept)
        return self._row._replace(start=start, end=end, done=self._done)

    def drop_chunks(self, kept: int) -> None:
        """Drop the chunks that there are before this one."""
        start, end = self._row.start, self._row.end
        if start < end:
            for chunk in range(start // CHUNK, min(kept, (end - 1) // CHUNK + 1)):
                if self._state.get(self._key(chunk)) is not None:
                    self._state.put(self._key(chunk), None)


def _open_runs(states: bytearray, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of what is not terminal."""
    terminal = states.translate(TERMINAL)
    while (first := terminal.find(0, begin, end)) >= 0:
        found = terminal.find(1, first, end)
        begin = end if found < 0 else found
        yield first, begin


def _later(before: int, byte: int) -> int:
    """Return what a state becomes: its count never falls."""
    return byte & STATE_BITS | max(before, byte) >> COUNT_SHIFT << COUNT_SHIFT
