"""The reader of the data topic: envelopes of other workers, and gaps.

The consumer has no partition assigned while there is nothing to read. librdkafka keeps one Fetch
per broker in flight, and a Fetch that long-polls an idle partition would delay the next read. A
partition whose listener is busy (with its disk) is paused, and the others go on.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as UpstreamError

from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.upstream.boundary import CLOSE_S, consumed, reason_of, translated
from kproxy.upstream.settings import Upstream
from kproxy.virtual.commands.envelope import Envelope, Kind, from_record

_log = structlog.get_logger()

Records = list[tuple[int, Envelope]]
_MESSAGES_AT_ONCE = 2000
_WAIT_S = 0.05
_METADATA_TIMEOUT_S = 10
_HOLE_MAX = 100_000
_LEADERS_S = 60.0
_RETRY_S = 0.5
_PATIENCE_S = 0.1  # for a reader, before the others go on without it
_LOOK_S = 0.02


class LogReader:
    """One consumer on a thread of its own; `deliver` is awaited before more is read."""

    def __init__(
        self,
        upstream: Upstream,
        deliver: Callable[[int, object, Records], Coroutine[Any, Any, None]],
        lost: Callable[[int, object, str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take `deliver` and `lost`: both get the partition, and for whom it was read."""
        self._topic = upstream.data
        self._monotonic = clock.monotonic
        self._deliver = deliver
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[tuple[int, int, int, object] | None] = SimpleQueue()
        self._readers: dict[int, object] = {}  # partition -> for whom
        self._newest: dict[int, object] = {}  # partition -> who asked last
        self._active: dict[int, tuple[int, int]] = {}  # partition -> next offset, end
        with translated():
            self._consumer = Consumer(
                upstream.reading(
                    "reader",
                    auto_offset_reset="error",
                    isolation_level="read_uncommitted",
                    fetch_wait_max_ms=20,
                    fetch_max_bytes=4 << 20,
                    max_partition_fetch_bytes=4 << 20,
                    queued_max_messages_kbytes=16 << 10,
                )
            )
        self._busy: dict[int, Future[None]] = {}  # partition -> what its reader is at
        self._later: list[tuple[int, int, int, object]] = []  # asked for while it was
        self._holes: dict[int, int] = {}  # partition -> where a hole was seen
        self._leaders_at = -_LEADERS_S
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="read", daemon=True)
        self._thread.start()

    def read(self, partition: int, start: int, end: int, reader: object) -> None:
        """Deliver the records from `start` to before `end`; whoever else reads there has ended."""
        self._newest[partition] = reader
        self._asked.put((partition, start, end, reader))

    def close(self) -> None:
        self._closing = True
        self._asked.put(None)
        self._thread.join(CLOSE_S)

    # -- on the thread

    def _run(self) -> None:
        while not self._closing:
            try:
                self._take_asked()
                self._look_at_busy()
                if self._active:
                    self._read_some()
            except CancelledError:  # the event loop ends
                break
            except KafkaException as error:
                _log.warning("read_failed", reason=reason_of(error))
                time.sleep(_RETRY_S)
            except Exception:
                if self._loop.is_closed():
                    break
                _log.exception("read_failed")  # a reader that lacks it will ask for it again
        with suppress(KafkaException):
            self._consumer.close()

    def _look_at_busy(self) -> None:
        """Go on with partitions whose readers are done with what they were given."""
        for partition, delivery in list(self._busy.items()):
            if delivery.done():
                if partition in self._active:
                    self._consumer.resume([TopicPartition(self._topic, partition)])
                del self._busy[partition]
                delivery.result()
        later, self._later = self._later, []
        for asked in later:
            self._asked.put(asked)
        if later and not self._active:
            time.sleep(_LOOK_S)

    def _take_asked(self) -> None:
        while True:
            try:
                asked = self._asked.get(block=not (self._active or self._later))
            except Empty:
                return
            if asked is None:
                return
            if asked[0] in self._busy:
                self._later.append(asked)
                continue
            try:
                self._begin(*asked)
            except KafkaException:
                self._active.pop(asked[0], None)
                self._unassign(asked[0])
                self._asked.put(asked)  # the caller waits for it
                raise

    def _begin(self, partition: int, start: int, end: int, reader: object) -> None:
        if self._newest[partition] is not reader:
            return  # it failed before, and somebody else has asked meanwhile
        if partition in self._active and self._readers[partition] is not reader:
            self._stop(partition)
        self._readers[partition] = reader
        if partition in self._active:
            position, known = self._active[partition]
            self._active[partition] = (position, max(end, known))
        elif start < end:
            self._refresh_leaders()
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, start)])
            self._active[partition] = (start, end)

    def _refresh_leaders(self) -> None:
        """Ask for the leaders: librdkafka would look up unknown ones at its next second only."""
        now = self._monotonic()
        if now - self._leaders_at > _LEADERS_S:
            self._consumer.list_topics(self._topic, timeout=_METADATA_TIMEOUT_S)
            self._leaders_at = now

    def _read_some(self) -> None:
        by_partition: dict[int, list[Any]] = {}
        for message in consumed(self._consumer, _MESSAGES_AT_ONCE, _WAIT_S):
            by_partition.setdefault(message.partition() or 0, []).append(message)
        failure: KafkaException | None = None
        for partition, found in by_partition.items():
            if partition not in self._active or partition in self._busy:
                self._holes.pop(partition, None)  # dropped records would look like one
                continue
            try:
                self._hand_over(partition, found)
            except KafkaException as error:
                self._read_again(partition)
                failure = error
        if failure is not None:
            raise failure

    def _read_again(self, partition: int) -> None:
        """Read what came once more, from where its reader is.

        Without that the records that were dropped would be taken for a hole.
        """
        self._holes.pop(partition, None)
        if partition in self._active:
            position, end = self._active.pop(partition)
            self._asked.put((partition, position, end, self._readers[partition]))
        self._unassign(partition)

    def _unassign(self, partition: int) -> None:
        with suppress(KafkaException):
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def _hand_over(self, partition: int, messages: list[Any]) -> None:
        position, end = self._active[partition]
        records: Records = []
        for message in messages:
            error, offset = message.error(), message.offset()
            if error is not None and error.code() != UpstreamError._PARTITION_EOF:
                self._failed(partition, error)
                return
            if offset > position:
                if not self._fill_hole(partition, records, position, offset):
                    break
                position = offset
            if error is None and offset == position:
                try:
                    records.append((offset, from_record(message.key(), message.value())))
                except ValueError as fault:
                    self._give_up(partition, f"log offset {offset}: {fault}")
                    return
                position += 1
        if partition in self._active:
            self._active[partition] = (position, end)
            if position >= end:
                self._stop(partition)
        if records and not self._closing:  # a caller that closes may end the event loop next
            delivery = self._deliver(partition, self._readers[partition], records)
            self._wait_for(partition, asyncio.run_coroutine_threadsafe(delivery, self._loop))

    def _wait_for(self, partition: int, delivery: Future[None]) -> None:
        with suppress(TimeoutError):
            delivery.result(_PATIENCE_S)
            return
        self._busy[partition] = delivery
        if partition in self._active:
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def _fill_hole(self, partition: int, records: Records, position: int, offset: int) -> bool:
        """Pass over offsets that hold no record: another's transaction marker, or the log was
        trimmed.

        They are believed when a second look, from an assignment made anew, finds the same.
        """
        if self._holes.get(partition) != position:
            self._holes[partition] = position
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, position)])
            return False
        low, _ = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, partition), timeout=_METADATA_TIMEOUT_S
        )
        if low > position or offset - position > _HOLE_MAX:
            self._give_up(partition, f"the log goes on at {offset}; {position} is missing")
            return False
        records += [(missing, Envelope(Kind.FOREIGN)) for missing in range(position, offset)]
        return True

    def _failed(self, partition: int, error: Any) -> None:
        if error.code() == UpstreamError._AUTO_OFFSET_RESET:
            self._give_up(partition, f"the log does not have what comes next: {error.str()}")
        else:
            _log.debug("read_error", shard=partition, reason=error.str())

    def _give_up(self, partition: int, reason: str) -> None:
        self._stop(partition)
        self._loop.call_soon_threadsafe(self._lost, partition, self._readers[partition], reason)

    def _stop(self, partition: int) -> None:
        del self._active[partition]
        self._unassign(partition)
