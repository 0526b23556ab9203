"""A worker's access to the data topic: appending, reading, where the logs end and begin.

A worker that appends to another owner's log notifies it through the queues topic once the record
is durable (`call`), and the owner reads on at once. The link therefore polls the ends of logs
rarely, in case a notification is lost. It polls often where somebody may append without notifying:
a worker of a release before levels, or a worker that does not know yet that it has lost a shard.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import anyio
from anyio import to_thread
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.log.shared import UNKNOWN_FATE, PartialTicket
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.threads import left_behind
from kproxy.metadata.levels import Level
from kproxy.upstream.boundary import admin_client, translated
from kproxy.upstream.log_reader import LogReader, Records
from kproxy.upstream.native_producer import Header
from kproxy.upstream.producer import Appender, Report
from kproxy.upstream.settings import Upstream
from kproxy.virtual.commands.envelope import NUMBERED, Envelope
from kproxy.virtual.levels import CALLS_FROM, ONCE_FROM
from kproxy.virtual.outcome import Outcome

_ENDS_PERIOD_S = 1.0
_ENDS_OFTEN_S = 0.1
_OFTEN_S = 5.0  # how long after a claim, its own or another's, a log is looked at often
_CALL = struct.Struct(">cI")
_END = struct.Struct(">Q")
CALL = b"k"
"""The beginning of the key of a call."""
_ADMIN_TIMEOUT_S = 10
_AWAY_S = 0.5


class End(NamedTuple):
    """An end of a log, and the epoch of the leader that says so; -1: it does not say."""

    offset: int
    epoch: int


def _end(future: Any) -> End:
    """Return an offset as the cluster says it. Raises KafkaError.

    If a broker stands still librdkafka gives -1001, and no error.
    """
    told = future.result()
    if told.offset < 0:
        raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the cluster does not say where a log ends")
    return End(int(told.offset), -1 if told.leader_epoch is None else int(told.leader_epoch))


def _told(future: Any) -> int:
    return _end(future).offset


class LogListener(Protocol):
    """A listener to one shard's log here: a served shard's log, or a rebuild."""

    def reported(self, reports: list[tuple[int, int | None]]) -> None: ...
    async def was_read(self, records: Records) -> None: ...
    def lost(self, reason: str) -> None: ...
    def saw_end(self, end: int, applied: int, epoch: int = -1) -> None: ...
    def called(self, end: int) -> None: ...
    @property
    def next_offset(self) -> int: ...


class LogListenerBase:
    """A reader of a part of a log, which neither appends to it nor follows its end."""

    next_offset = 0

    def reported(self, reports: list[tuple[int, int | None]]) -> None:
        pass

    def saw_end(self, end: int, applied: int, epoch: int = -1) -> None:
        pass

    def called(self, end: int) -> None:
        pass


class DataLink:
    """`log.shared.Link` over confluent-kafka. Made and used on the event loop."""

    def __init__(
        self, upstream: Upstream, config: Config, level: Level, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._upstream = upstream
        self._monotonic = clock.monotonic
        self._level = level
        self._landing: dict[int, tuple[PartialTicket, int]] = {}  # by counter
        self._often_until: dict[int, float] = {}  # until when, by partition
        self._often_changed = anyio.Event()
        self._following: dict[int, LogListener] = {}
        self._appender = Appender(
            upstream,
            self._reported,
            message_bytes_max=config.data_message_bytes_max,
            buffered_bytes_max=2 * config.request_bytes_buffered_max,
            delivery_ms_max=config.delivery_ms_max,
        )
        self._reader = LogReader(upstream, self._was_read, self._lost, clock)
        self._admin = admin_client(upstream)
        self.writer = self._appender.writer
        self.append_seconds = self._appender.append_seconds
        self._next_number: Callable[[], int] = self._appender.next_counter
        self.send: Callable[[int, Envelope], None] = self._appender.send
        self.unfollowed: Callable[[int, int | None], None] = lambda counter, offset: None
        """A callback for reports on shards that nothing follows here: (counter, log offset)."""

    def next_counter(self) -> int:
        """Return a number for an envelope of ours, greater than all before."""
        number = self._next_number()
        return number | NUMBERED if self._level.value >= ONCE_FROM else number

    def publish_queue(
        self, key: bytes, value: bytes | None, done: Callable[[], None] | None = None,
        header: Header | None = None,
    ) -> None:  # fmt: skip
        """Put a record in the queues topic; `done` is called once it is there."""
        self._appender.publish(self._upstream.queues, key, value, done, header)

    def publish_map(self, key: bytes, value: bytes | None) -> None:
        """Put a record in the partitions topic."""
        self._appender.publish(self._upstream.partitions, key, value)

    def read(self, partition: int, start: int, end: int) -> None:
        """Bring records to who follows this log now, and to nobody who follows it later."""
        self._reader.read(partition, start, end, self._following.get(partition))

    def follow(self, partition: int, following: LogListener) -> None:
        self._following[partition] = following
        self._watch_often(partition)

    def forget(self, partition: int) -> None:
        self._following.pop(partition, None)
        self._often_until.pop(partition, None)

    def _watch_often(self, partition: int) -> None:
        self._often_until[partition] = self._monotonic() + _OFTEN_S
        self._often_changed.set()

    # -- calls

    def _call(self, partition: int, end: int) -> None:
        """Tell who follows a log that it has a record of ours before `end`."""
        self.publish_queue(_CALL.pack(CALL, partition), _END.pack(end))

    def called(self, key: bytes, value: bytes | None) -> None:
        """Take a call, perhaps for a log that is followed here. Others' records are passed over."""
        if value is not None and len(key) == _CALL.size and len(value) == _END.size:
            following = self._following.get(_CALL.unpack(key)[1])
            if following is not None:
                following.called(_END.unpack(value)[0])

    def claimed(self, partition: int, claim: int) -> None:
        """Note a claim of a log at this offset: the owner till now may not know yet."""
        following = self._following.get(partition)
        if following is not None:
            following.called(claim + 1)
            self._watch_often(partition)

    async def close(self) -> None:
        await self._appender.close()
        await to_thread.run_sync(self._reader.close)

    # -- to logs of others

    def land(self, partition: int, envelopes: Sequence[Envelope]) -> Ticket:
        """Append to a log, whoever follows it: settled once all are durable, before any is applied.

        An outcome has the log offset as its number; REQUEST_TIMED_OUT: its fate is not known.
        """
        landing = PartialTicket(list(envelopes))
        for slot, envelope in enumerate(landing.envelopes):
            envelope.writer, envelope.counter = self.writer, self.next_counter()
            self._landing[envelope.counter] = (landing, slot)
            try:
                self.send(partition, envelope)
            except KafkaError as error:
                self._landed(envelope.counter, Outcome(error.code, message=error.message))
        return landing

    def _landed(self, counter: int, outcome: Outcome) -> None:
        waiting = self._landing.pop(counter, None)
        if waiting is not None:
            waiting[0].set_outcome(waiting[1], outcome)

    # -- coming back

    def _reported(self, reports: list[Report]) -> None:
        by_partition: dict[int, list[tuple[int, int | None]]] = {}
        for partition, counter, offset in reports:
            by_partition.setdefault(partition, []).append((counter, offset))
        for partition, mine in by_partition.items():
            if self._landing:
                self._land_reported(mine)
            following = self._following.get(partition)
            if following is not None:
                following.reported(mine)
            else:
                self._reported_elsewhere(partition, mine)

    def _land_reported(self, reports: list[tuple[int, int | None]]) -> None:
        for counter, offset in reports:
            self._landed(counter, UNKNOWN_FATE if offset is None else Outcome(number=offset))

    def _reported_elsewhere(self, partition: int, reports: list[tuple[int, int | None]]) -> None:
        landed = [offset for _, offset in reports if offset is not None]
        if landed:
            self._call(partition, max(landed) + 1)
        for counter, offset in reports:
            self.unfollowed(counter, offset)

    async def _was_read(self, partition: int, reader: object, records: Records) -> None:
        following = self._following.get(partition)
        if following is not None and following is reader:
            await following.was_read(records)

    def _lost(self, partition: int, reader: object, reason: str) -> None:
        following = self._following.get(partition)
        if following is not None and following is reader:
            following.lost(reason)

    # -- where logs begin and end

    async def watch_ends(self) -> None:
        """Tell every followed log, all the time, where its partition ends."""
        asked_all_at = 0.0
        while True:
            self._often_changed = anyio.Event()
            with anyio.move_on_after(_ENDS_OFTEN_S if self._often() else _ENDS_PERIOD_S):
                await self._often_changed.wait()
                await anyio.sleep(_ENDS_OFTEN_S)
            now = self._monotonic()
            partitions = list(self._often())
            if now - asked_all_at >= _ENDS_PERIOD_S:
                partitions, asked_all_at = list(self._following), now
            if partitions:
                await self._tell_ends(partitions)

    def _often(self) -> Collection[int]:
        """Return the logs that a worker without calls may append to."""
        if not self._level.reaches(CALLS_FROM):
            return self._following.keys()
        now = self._monotonic()
        for partition in [p for p, until in self._often_until.items() if until < now]:
            del self._often_until[partition]
        return self._often_until.keys()

    async def _tell_ends(self, partitions: list[int]) -> None:
        before = {p: self._following[p].next_offset for p in partitions if p in self._following}
        try:
            ends = await self.ends(list(before))
        except KafkaError:
            await anyio.sleep(_AWAY_S)  # `Connectivity` says so
            return
        for partition, end in ends.items():
            following = self._following.get(partition)
            if following is not None:
                following.saw_end(end.offset, before[partition], end.epoch)

    async def ends(self, partitions: list[int]) -> dict[int, End]:
        """Return the offsets behind the last records, in one request. Raises KafkaError."""
        return await left_behind(partial(self._offsets, partitions, OffsetSpec.latest()))

    async def end(self, partition: int) -> int:
        return (await self.ends([partition]))[partition].offset

    async def queues_end(self) -> int:
        """Return the offset behind the last record of the queues topic. Raises KafkaError."""

        def ask() -> int:
            asked = {TopicPartition(self._upstream.queues, 0): OffsetSpec.latest()}
            with self._asking() as admin:
                (future,) = admin.list_offsets(asked, request_timeout=_ADMIN_TIMEOUT_S).values()
                return _told(future)

        return await left_behind(ask)

    async def start(self, partition: int) -> int:
        """Return the offset of the first record there is. Raises KafkaError."""
        found = await left_behind(partial(self._offsets, [partition], OffsetSpec.earliest()))
        return found[partition].offset

    def _offsets(self, partitions: list[int], spec: OffsetSpec) -> dict[int, End]:
        asked = {TopicPartition(self._upstream.data, p): spec for p in partitions}
        with self._asking() as admin:
            futures = admin.list_offsets(asked, request_timeout=_ADMIN_TIMEOUT_S)
            found = {tp.partition: _end(future) for tp, future in futures.items()}
        self._upstream.connectivity.report_success()
        return found

    @contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        """Lend the admin client. Raises KafkaError, and goes on with a new client.

        librdkafka's admin requests go out with the leader epochs that it once learned; it does not
        ask for new ones when a broker refuses them (FENCED_LEADER_EPOCH after a restart, for ever).
        """
        admin = self._admin
        try:
            with translated():
                yield admin
        except KafkaError:
            if self._admin is admin:
                self._admin = admin_client(self._upstream)
            raise

    async def rows_settled(self, partition: int) -> bool:
        """Whether all published rows of a shard are to be seen by who reads what is committed.

        The coordinator says that a transaction is committed before its markers are written.
        """

        def ask() -> bool:
            asked = {TopicPartition(self._upstream.offset, partition): OffsetSpec.latest()}
            ends = []
            with self._asking() as admin:
                for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
                    futures = admin.list_offsets(
                        asked, request_timeout=_ADMIN_TIMEOUT_S, isolation_level=isolation
                    )
                    ends += [_told(future) for future in futures.values()]
            return bool(ends[1] >= ends[0])

        return await left_behind(ask)

    async def trim(self, partition: int, offset: int) -> int:
        """Delete records before `offset`; return the log's new start. Raises KafkaError."""

        def delete() -> int:
            wanted = TopicPartition(self._upstream.data, partition, offset)
            with self._asking() as admin:
                futures = admin.delete_records([wanted], request_timeout=_ADMIN_TIMEOUT_S)
                return int(futures[wanted].result().low_watermark)

        return await left_behind(delete)
