"""The producer of the data topic: one idempotent producer for all shards of a worker."""

import asyncio
import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Protocol

import structlog
from anyio import to_thread
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException, Producer

from kproxy.common.counters import APPEND_S, TIMED_EVERY, Histogram
from kproxy.common.errors import Code, KafkaError
from kproxy.upstream.boundary import noted, reason_of, translated
from kproxy.upstream.native_producer import Header, NativeProducer, Reported, Reports, library
from kproxy.upstream.settings import Upstream
from kproxy.virtual.commands.envelope import Envelope, record_key

_log = structlog.get_logger()

Report = tuple[int, int, int | None]
"""Partition, counter, and the log offset; None: its fate is not known."""
_POLL_S = 0.1
_FLUSH_S = 5.0
_NEW_AGAIN_S = 1.0
_RECORDS_MAX = 2_000_000
_KBYTES_MAX = 2_147_483_647  # as librdkafka takes it


class ProducerBackend(Protocol):
    """A backend that takes records to the cluster and reports the fate of each."""

    def put(
        self, topic: str, partition: int, key: bytes, value: bytes | None, tag: int,
        header: Header | None = None,
    ) -> None:  # fmt: skip
        """Put a record in line. Raises BufferError where the line is full, KafkaException."""
        ...

    async def close(self, seconds: float) -> None:
        """Send what is in line for so long; what is left then has no known fate."""
        ...


class PlainProducer:
    """A `ProducerBackend` on confluent-kafka's own interface: a thread polls for the reports."""

    def __init__(self, settings: dict[str, Any], reported: Reported) -> None:
        self._producer = Producer(settings)
        self._reported = reported
        self._reports: Reports = []
        self._until = math.inf  # monotonic seconds; then nothing more is waited for
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="append", daemon=True)
        self._thread.start()

    def put(
        self, topic: str, partition: int, key: bytes, value: bytes | None, tag: int,
        header: Header | None = None,
    ) -> None:  # fmt: skip
        self._producer.produce(
            topic, value, key=key, partition=partition, on_delivery=partial(self._delivered, tag),
            headers=None if header is None else [header],
        )  # fmt: skip

    def _delivered(self, tag: int, error: UpstreamError | None, message: Any) -> None:
        self._reports.append((tag, message.offset() if error is None else None))

    def _run(self) -> None:
        """Take all reports on this thread: two would tell of them out of order."""
        while not self._ended():
            with noted("taking delivery reports"):
                self._producer.poll(_POLL_S)
            self._hand_over()
        with noted("closing the producer"):
            self._producer.purge()
            self._producer.flush(1)
        self._hand_over()

    def _ended(self) -> bool:
        closing = self._until < math.inf
        return closing and (not len(self._producer) or time.monotonic() >= self._until)

    def _hand_over(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._loop.call_soon_threadsafe(self._reported, reports)

    async def close(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        await to_thread.run_sync(self._thread.join)


def sending(settings: dict[str, Any], reported: Reported) -> ProducerBackend:
    """Return the backend that works here. Raises KafkaException: settings that librdkafka refuses.

    Tokens that a callback of the application's fetches are confluent-kafka's own business.
    """
    lib = library()
    if lib is None or any(name.startswith("sasl.oauthbearer") for name in settings):
        return PlainProducer(settings, reported)
    return NativeProducer(lib, settings, reported)


class Appender:
    """An appender of envelopes; their reports come back to the event loop, many at a time."""

    def __init__(
        self,
        upstream: Upstream,
        deliver: Callable[[list[Report]], None],
        *,
        message_bytes_max: int,
        buffered_bytes_max: int,
        delivery_ms_max: int,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._upstream = upstream
        self._data = upstream.data
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._settings = upstream.settings(
            enable_idempotence=True,
            linger_ms=0,
            compression_type="none",  # batches come as their producers packed them
            message_max_bytes=message_bytes_max,
            queue_buffering_max_kbytes=min(max(1024, buffered_bytes_max >> 10), _KBYTES_MAX),
            queue_buffering_max_messages=_RECORDS_MAX,
            delivery_timeout_ms=delivery_ms_max,
            error_cb=self._on_error,
        )
        self.writer = random_bits(63) | 1
        self._tags = itertools.count(1)
        self.next_counter: Callable[[], int] = self._tags.__next__
        self._in_flight: dict[int, int] = {}  # counter -> partition
        self._timed: dict[int, float] = {}  # when some of them were sent, by counter
        self.append_seconds = Histogram(APPEND_S)
        self._callbacks: dict[int, Callable[[], None]] = {}  # by tag
        self._ending: set[asyncio.Task[None]] = set()
        with translated():
            self._sending = self._new()

    def _new(self) -> ProducerBackend:
        return sending(self._settings, self._reported)

    def _on_error(self, error: UpstreamError) -> None:
        """Take an error of librdkafka; from any thread."""
        if error.fatal():
            self._loop.call_soon_threadsafe(self._replace, error.str())
        self._upstream.connectivity.on_error(error)

    def send(self, partition: int, envelope: Envelope) -> None:
        """Put an envelope in line. Raises KafkaError where the line is full."""
        counter, body = envelope.counter, bytes(envelope.body)
        envelope.body = body  # one copy, and not the frame that it came in
        try:
            self._sending.put(self._data, partition, record_key(envelope), body, counter)
        except BufferError:
            raise KafkaError(
                Code.REQUEST_TIMED_OUT, "too much waits for the cluster already"
            ) from None
        except KafkaException as error:
            too_large = error.args[0].code() == UpstreamError.MSG_SIZE_TOO_LARGE
            code = Code.MESSAGE_TOO_LARGE if too_large else Code.REQUEST_TIMED_OUT
            raise KafkaError(code, reason_of(error)) from None
        self._in_flight[counter] = partition
        if not counter % TIMED_EVERY:
            self._timed[counter] = monotonic()

    def publish(
        self, topic: str, key: bytes, value: bytes | None, done: Callable[[], None] | None = None,
        header: Header | None = None,
    ) -> None:  # fmt: skip
        """Put a record of a cache topic in line, best effort; `done` is called on the loop."""
        tag = next(self._tags)
        try:
            self._sending.put(topic, 0, key, value, tag, header)
        except (BufferError, KafkaException) as error:
            _log.warning("not_published", topic=topic, reason=str(error))
            return
        if done is not None:
            self._callbacks[tag] = done

    def _reported(self, found: Reports) -> None:
        reports: list[Report] = []
        reached = False
        for tag, offset in found:
            reached = reached or offset is not None
            partition = self._in_flight.pop(tag, None)
            if partition is not None:
                reports.append((partition, tag, offset))
                if tag in self._timed:
                    self.append_seconds.observe(monotonic() - self._timed.pop(tag))
            else:
                done = self._callbacks.pop(tag, None)
                if done is not None and offset is not None:
                    done()
        if reached:
            self._upstream.connectivity.report_success()
        if reports:
            self._deliver(reports)

    def _replace(self, reason: str) -> None:
        """Go on with a new producer: librdkafka's takes nothing more."""
        _log.error("producer_failed", reason=reason)
        try:
            new = self._new()
        except KafkaException as error:
            self._loop.call_later(_NEW_AGAIN_S, self._replace, reason_of(error))
            return
        old, self._sending = self._sending, new
        task = self._loop.create_task(old.close(0))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Send what is in line, for a few seconds at most where the cluster is there."""
        for task in list(self._ending):
            await task
        await self._sending.close(0.0 if self._upstream.connectivity.lost else _FLUSH_S)
