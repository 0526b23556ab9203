"""`state = apply(state, offset, envelope)`: the only place where durable state changes.

Deterministic: no clock, no randomness, no setting that is not in the log. Live and on recovery the
same code runs, so what was answered and what is rebuilt cannot differ.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from kproxy.errors import Code
from kproxy.protocol.batch import read_header
from kproxy.virtual import producers, rows
from kproxy.virtual.envelope import Envelope, Kind
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import Batch, Committed, Partition, Queue
from kproxy.virtual.state import State
from kproxy.virtual.types import LogOffset, PartitionKey, QueueId, ShardId


class Place(NamedTuple):
    """Where the local copy keeps an envelope's body: segment, byte position, length."""

    segment: int
    position: int
    length: int


class Outcome(NamedTuple):
    """What `apply` decided. `number`: base offset, new log start, partition count, producer id."""

    code: Code = Code.NONE
    number: int = -1
    time_ms: int = -1  # log append time
    log_start: int = -1
    message: str | None = None
    queue: Queue | None = None
    codes: tuple[Code, ...] = ()  # one for each item of a command that has several


_NO_QUEUE = Outcome(Code.UNKNOWN_TOPIC_ID)


class Fold:
    """Applies envelopes of one shard's log to its state."""

    def __init__(self, state: State, shard: ShardId, shards: int) -> None:
        self.state = state
        self._shard = shard
        self._shards = shards
        self._by_kind: dict[int, Callable[[int, Envelope, Place], Outcome]] = {
            Kind.APPEND: self._append,
            Kind.CREATE: self._create,
            Kind.GROW: self._grow,
            Kind.DELETE: self._delete,
            Kind.TRIM: self._trim,
            Kind.COMMIT: self._commit,
            Kind.FORGET: self._forget,
            Kind.PRODUCER_ID: self._producer_id,
            Kind.COPY: self._copy,
        }

    def apply(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        """Change the state by one envelope. Raises ValueError for a kind of a later kproxy."""
        try:
            step = self._by_kind[envelope.kind]
        except KeyError:
            raise ValueError(
                f"log offset {log_offset} holds kind {envelope.kind}, which this kproxy does not"
                " know: it was written by a later one"
            ) from None
        return step(log_offset, envelope, place)

    # -- records

    def _append(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        key = (envelope.queue_id, envelope.partition)
        row = self.state.partition(key)
        if row is None:
            return _NO_QUEUE
        header = read_header(envelope.body)
        if header.producer_id >= 0:
            verdict = producers.judge(row, header)
            if isinstance(verdict, Code):
                return Outcome(verdict, log_start=row.log_start)
            if verdict is not None:
                return Outcome(Code.NONE, verdict.base_offset, verdict.time_ms, row.log_start)
        base_offset = row.next_offset
        if header.producer_id >= 0:
            producers.remember(row, header, base_offset)
        last_offset = base_offset + header.last_offset_delta
        row.next_offset = last_offset + 1
        row.size += place.length
        if header.max_timestamp > row.max_time_ms:
            row.max_time_ms = header.max_timestamp
            row.max_time_offset = last_offset
        self.state.put(
            rows.batch_key(*key, last_offset),
            Batch(
                *place,
                header.last_offset_delta,
                log_offset,
                row.size,
                header.max_timestamp,
                row.max_time_ms,
            ).encode(),
        )
        self.state.put_partition(key, row)
        self.state.add_live_bytes(place.segment, place.length)
        time_ms = header.max_timestamp if header.is_log_append_time else -1
        return Outcome(Code.NONE, base_offset, time_ms, row.log_start)

    def _copy(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        """A live batch was written again further on, so that the old place can be freed."""
        key = (envelope.queue_id, envelope.partition)
        last_offset = envelope.number + read_header(envelope.body).last_offset_delta
        row = self.state.partition(key)
        batch = self.state.batch_at(key, last_offset)
        if row is None or batch is None or last_offset < row.log_start:
            return _NO_QUEUE
        self.state.add_live_bytes(batch.segment, -batch.length)
        self.state.add_live_bytes(place.segment, place.length)
        moved = Batch(*place, *batch[3:])
        self.state.put(rows.batch_key(*key, last_offset), moved.encode())
        return Outcome(Code.NONE, envelope.number)

    def _trim(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        key = (envelope.queue_id, envelope.partition)
        row = self.state.partition(key)
        if row is None:
            return _NO_QUEUE
        start = row.next_offset if envelope.number == -1 else envelope.number
        if not 0 <= start <= row.next_offset:
            return Outcome(Code.OFFSET_OUT_OF_RANGE)
        if start > row.log_start:
            row.log_start = start
            self.state.put_partition(key, row)
            self._sweep_later(log_offset, envelope.queue_id, envelope.partition)
        return Outcome(Code.NONE, row.log_start)

    def _sweep_later(self, log_offset: int, queue_id: QueueId, partition: int) -> None:
        """Leave a note for the sweeper: partition -1 is a whole queue that is gone."""
        note = json.dumps([queue_id.hex(), partition]).encode()
        self.state.put(rows.sweep_key(log_offset), note)

    # -- the life of a queue

    def _mine(self, name: str, partitions: range) -> list[int]:
        if self._shards == 1:
            return list(partitions)
        return [i for i in partitions if shard_of(name, self._shards, i) == self._shard]

    def _create(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        values = envelope.values()
        name: str = values["name"]
        existing = self.state.queue(name)
        if existing is not None:
            return Outcome(Code.TOPIC_ALREADY_EXISTS, queue=existing)
        queue = Queue(
            name=name,
            queue_id=envelope.queue_id,
            partitions=values["partitions"],
            created_at=LogOffset(log_offset),
            configs=values["configs"],
        )
        self.state.put_queue(queue)
        for index in self._mine(name, range(queue.partitions)):
            self.state.put_partition((queue.queue_id, index), Partition())
        return Outcome(Code.NONE, queue.partitions, queue=queue)

    def _known(self, queue_id: QueueId) -> Queue | None:
        name = self.state.name(queue_id)
        return None if name is None else self.state.queue(name)

    def _grow(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        queue = self._known(envelope.queue_id)
        if queue is None:
            return _NO_QUEUE
        if envelope.number <= queue.partitions:
            return Outcome(
                Code.INVALID_PARTITIONS,
                message=f"the queue has {queue.partitions} partitions already",
                queue=queue,
            )
        grown = Queue(
            name=queue.name,
            queue_id=queue.queue_id,
            partitions=envelope.number,
            created_at=queue.created_at,
            configs=queue.configs,
        )
        self.state.put_queue(grown)
        for index in self._mine(queue.name, range(queue.partitions, grown.partitions)):
            self.state.put_partition((queue.queue_id, index), Partition())
        return Outcome(Code.NONE, grown.partitions, queue=grown)

    def _delete(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        queue = self._known(envelope.queue_id)
        if queue is None:
            return _NO_QUEUE
        self.state.drop_queue(queue)
        for index in self._mine(queue.name, range(queue.partitions)):
            self.state.drop_partition((queue.queue_id, index))
        self._sweep_later(log_offset, queue.queue_id, -1)
        return Outcome(Code.NONE, queue=queue)

    # -- committed offsets

    def _commit(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        values = envelope.values()
        group: str = values["group"]
        codes = []
        for queue_hex, index, offset, leader_epoch, metadata in values["offsets"]:
            key: PartitionKey = (QueueId(bytes.fromhex(queue_hex)), index)
            if self._shards == 1 and self.state.partition(key) is None:
                codes.append(Code.UNKNOWN_TOPIC_ID)
                continue
            committed = Committed(offset, leader_epoch, envelope.time_ms, metadata)
            self.state.put(rows.offset_key(group, *key), committed.encode())
            self.state.put(rows.tracked_key(*key, group), b"")
            codes.append(Code.NONE)
        return Outcome(Code.NONE, codes=tuple(codes))

    def _forget(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        values = envelope.values()
        group: str = values["group"]
        for queue_hex, index in values["partitions"]:
            key: PartitionKey = (QueueId(bytes.fromhex(queue_hex)), index)
            self.state.put(rows.offset_key(group, *key), None)
            self.state.put(rows.tracked_key(*key, group), None)
        return Outcome(Code.NONE)

    def _producer_id(self, log_offset: int, envelope: Envelope, place: Place) -> Outcome:
        """Unique for ever: no two allocations share shard and log offset."""
        return Outcome(Code.NONE, log_offset * self._shards + self._shard)
