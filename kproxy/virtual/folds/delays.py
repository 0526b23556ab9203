"""The fold's part for delays: what waits, and what is appended when it is due.

Whether a batch is due is decided here by the time that is in the DUE, so nothing is early by the
clock of who sent it; and once, for what was appended does not wait any more.
"""

from collections.abc import Iterable, Sequence

from kproxy.common.errors import Code
from kproxy.protocol.batch import read_header
from kproxy.virtual import producers
from kproxy.virtual.commands.delays import Due, Later, Span, key_of
from kproxy.virtual.commands.envelope import Body, Envelope
from kproxy.virtual.folds.participants import ParticipantFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.delays import (
    DELAY_ENTRIES,
    DELAYS,
    DELAYS_DUE,
    WAITING_BATCHES,
    WAITING_KEYS,
    Waiting,
    digest_of,
    hidden,
    shown,
    waiting_in,
)
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.producers import BatchMetadata
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.schema import decode_count, encode_count
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId

_NEVER = (1 << 63) - 1
_NOTHING_WAITS = (
    "nothing waits under a key whose record is to be cancelled: it was delivered, or cancelled, or"
    " never there"
)


def digests_in(body: Body, spans: Sequence[Span]) -> list[bytes]:
    """Return what stands for the keys of batches of one record each."""
    whole = memoryview(body)
    found = (key_of(whole[at : at + length]) for at, length in spans)
    return [digest_of(key or b"") for key in found]


def remove_waiting(state: State, key: PartitionKey, last_offset: int) -> None:
    """Remove a batch of this hidden partition that does not wait any more."""
    batch = state.batch_at(key, last_offset)
    if batch is not None:
        state.count_dead(batch)
        state.put(batch_rows.batch_key(*key, last_offset), None)
        waiting_key = WAITING_BATCHES.key(shown(key), batch.max_time_ms, last_offset)
        digest = state.get(waiting_key)
        state.put(waiting_key, None)
        if digest:
            named = WAITING_KEYS.key(shown(key), digest)
            if state.get(named) == encode_count(last_offset):
                state.put(named, None)


def note_waiting(
    state: State, key: PartitionKey, due_ms: int, last_offset: int, digest: bytes = b""
) -> None:
    """Put the row of a batch that waits for this partition, and that of its key, if it has one."""
    state.put(WAITING_BATCHES.key(key, due_ms, last_offset), digest)
    if digest:
        state.put(WAITING_KEYS.key(key, digest), encode_count(last_offset))


def waiting_of(state: State, key: PartitionKey, digest: bytes) -> int | None:
    """Return the last offset of the batch that waits under a key, in the hidden partition."""
    data = state.get(WAITING_KEYS.key(key, digest))
    return None if data is None else decode_count(data)


def file_at(state: State, key: PartitionKey, due_ms: int) -> None:
    """Have a partition looked at by this time, if it is not to be looked at before."""
    entry_key = DELAY_ENTRIES.key(key)
    entry = state.get(entry_key)
    if entry is None or due_ms < decode_count(entry):
        state.put(entry_key, encode_count(due_ms))
        state.file(DELAYS_DUE.key(due_ms, key))


def _digests_of(body: Body, spans: Sequence[Span]) -> list[bytes]:
    """Return the same, empty for batches that have no key of their own."""
    whole = memoryview(body)
    found = (key_of(whole[at : at + length]) for at, length in spans)
    return [b"" if key is None else digest_of(key) for key in found]


class DelayFold:
    """The application of delays to a shard's state."""

    def __init__(self, state: State, participants: ParticipantFold) -> None:
        self._state = state
        self._participants = participants
        self._any: bool | None = None  # not looked at yet

    @property
    def any_delays(self) -> bool:
        """Whether anything has ever waited in this shard: where not, nothing is looked up."""
        if self._any is None:
            self._any = bool(self._state.some(*RowKind.DELAY.range(), 1))
        return self._any

    def later(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Put records aside. The outcome's number is -1: waiting ones have no offset."""
        state, asked = self._state, Later.decode(envelope)
        key, header = asked.key, asked.header
        row = state.partition(key)
        if row is None:
            return Outcome(Code.UNKNOWN_TOPIC_ID)
        if header.producer_id >= 0:
            known = producers.find(state, key, row, header.producer_id)
            verdict: Code | BatchMetadata | None = producers.judge(
                known, header, row, asked.known_ms
            )
            if verdict != Code.INVALID_PRODUCER_EPOCH:
                verdict = self._participants.fault(key, row, known, header) or verdict
            if verdict is not None:
                return self._not_taken(log_offset, row, verdict)
        if asked.gone is not None and self._lacks(key, asked.gone):
            self._state.void(log_offset)
            return Outcome(Code.INVALID_RECORD, log_start=row.log_start, message=_NOTHING_WAITS)
        if header.producer_id >= 0:
            producers.remember(state, key, row, known, header, -1, asked.known_ms)
            state.put_quietly(key, row)
        if asked.now is not None:
            head, place = read_header(envelope.body, asked.now[0]), _part(location, asked.now)
            state.add_batch(key, row, head, place, log_offset, asked.look_ms)
        aside = state.partition(hidden(key)) or Partition()
        digests: list[bytes] = []
        if asked.gone is not None:
            digests = digests_in(envelope.body, asked.later)
            self._replace(key, aside, [*digests, *(one for one, _ in asked.gone)])
        before = waiting_in(state.get, key)
        records, first_ms = self._wait(
            key, aside, envelope.body, asked.later, location, log_offset, digests
        )
        waiting = before._replace(
            records=before.records + records, batches=before.batches + len(asked.later)
        )
        if asked.delay_ms:
            waiting = waiting._replace(delay_ms=asked.delay_ms, due_ms=first_ms)
        self._put_waiting(key, before, waiting)
        return Outcome(Code.NONE, -1, -1, row.log_start)

    def _put_waiting(self, key: PartitionKey, before: Waiting, waiting: Waiting) -> None:
        self._state.counts.waiting += waiting.records - before.records
        self._state.put_row(DELAYS, waiting, key)

    def _not_taken(self, log_offset: int, row: Partition, verdict: Code | BatchMetadata) -> Outcome:
        self._state.void(log_offset)
        if isinstance(verdict, Code):
            return Outcome(verdict, log_start=row.log_start)
        return Outcome(Code.NONE, verdict.base_offset, verdict.time_ms, row.log_start)

    def _wait(
        self, key: PartitionKey, row: Partition, body: Body, spans: Sequence[Span],
        location: LogLocation, log_offset: int, digests: Sequence[bytes] = (),
    ) -> tuple[int, int]:  # fmt: skip
        """Put batches aside. Return how many records they have, and when the first of them is due.

        `row`: of the hidden partition.
        """
        state, aside = self._state, hidden(key)
        self._any = True
        records, first_ms = 0, _NEVER
        for number, span in enumerate(spans):
            header = read_header(body, span[0])
            place, due_ms = _part(location, span), header.max_timestamp
            state.add_batch(aside, row, header, place, log_offset, None, number=number)
            digest = digests[number] if digests else b""
            note_waiting(state, key, due_ms, row.next_offset - 1, digest)
            records += header.record_count
            first_ms = min(first_ms, due_ms)
        if spans:
            file_at(state, key, first_ms)
        return records, first_ms

    def _lacks(self, key: PartitionKey, gone: Sequence[tuple[bytes, bool]]) -> bool:
        """Return whether nothing waits of what must be there to be cancelled."""
        return any(must and waiting_of(self._state, key, one) is None for one, must in gone)

    def _replace(self, key: PartitionKey, row: Partition, digests: Iterable[bytes]) -> None:
        """Remove what waits under some keys."""
        state, aside = self._state, hidden(key)
        removed: list[int] = []
        for digest in digests:
            last_offset = waiting_of(state, key, digest)
            if last_offset is not None:
                removed.append(last_offset)
                state.put(WAITING_KEYS.key(key, digest), None)
        if not removed:
            return
        gone = [state.batch_at(aside, last_offset) for last_offset in removed]
        for last_offset in removed:
            remove_waiting(state, aside, last_offset)
        before = waiting_in(state.get, key)
        batches = before.batches - len(removed)
        records = max(0, before.records - len(removed)) if batches else 0
        self._put_waiting(key, before, before._replace(records=records, batches=batches))
        self._move_start(aside, row, gone, removed, batches)

    def due(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        """Append what is due. The outcome's number: how many batches; -1: it is void."""
        state, asked, body = self._state, Due.decode(envelope), envelope.body
        key, aside = asked.key, hidden(asked.key)
        row, waiting_row = state.partition(key), state.partition(aside)
        if row is None or waiting_row is None:
            return self._void(log_offset, Code.UNKNOWN_TOPIC_ID)
        if not state.is_owners(envelope):
            return self._void(log_offset, Code.NOT_LEADER_OR_FOLLOWER)
        gone = [state.batch_at(aside, last_offset) for last_offset in asked.removed]
        if not all(batch is not None and batch.max_time_ms <= asked.time_ms for batch in gone):
            return self._void(log_offset, Code.NONE)
        for last_offset in asked.removed:
            remove_waiting(state, aside, last_offset)
        for number, span in enumerate(asked.now):
            head, place = read_header(body, span[0]), _part(location, span)
            state.add_batch(key, row, head, place, log_offset, asked.look_ms, number=number)
        before = waiting_in(state.get, key)
        # Each record that is taken from aside is appended or put back; one of a schedule is both.
        records = sum(batch.last_delta + 1 for batch in gone if batch is not None)
        records -= sum(read_header(body, at).record_count for at, _ in asked.later)
        batches = before.batches + len(asked.later) - len(asked.removed)
        left = max(0, before.records - records) if batches else 0
        waiting = before._replace(records=left, batches=batches)
        self._put_waiting(key, before, waiting)
        if asked.later:
            digests = _digests_of(body, asked.later)
            self._wait(key, waiting_row, body, asked.later, location, log_offset, digests)
        self._move_start(aside, waiting_row, gone, asked.removed, batches)
        return Outcome(Code.NONE, len(asked.now))

    def _move_start(
        self, aside: PartitionKey, row: Partition, gone: Sequence[Batch | None],
        removed: Sequence[int], left: int,
    ) -> None:  # fmt: skip
        """Move the start over what is gone, and to the end once nothing is known to wait."""
        for last_offset, batch in zip(removed, gone, strict=True):
            if batch is not None and last_offset - batch.last_delta == row.log_start:
                row.log_start = last_offset + 1
        if not left:
            row.log_start = row.next_offset
        self._state.put_partition(aside, row)

    def _void(self, log_offset: int, code: Code) -> Outcome:
        self._state.void(log_offset)
        return Outcome(code)

    def drop(self, queue_id: QueueId, indexes: Iterable[int]) -> None:
        """Drop what waits for partitions that are gone. The sweeper has the rest."""
        if not self.any_delays:
            return
        for index in indexes:
            key = queue_id, index
            waiting = self._state.row(DELAYS, key)
            if waiting is not None:
                self._state.counts.waiting -= waiting.records
                self._state.put(DELAYS.key(key), None)
                self._state.drop_hidden(hidden(key))


def _part(location: LogLocation, span: Span) -> LogLocation:
    """Return where a batch of a body lies."""
    return LogLocation(location.segment, location.position + span[0], span[1])
