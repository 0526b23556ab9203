"""Appending to the data topic: one idempotent producer for all shards of a worker."""

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException, Producer

from kproxy.errors import Code, KafkaError
from kproxy.upstream.settings import Upstream
from kproxy.virtual.envelope import Envelope, record_key

_log = structlog.get_logger()

Report = tuple[int, int, int | None]
"""Partition, counter, and the log offset; None: its fate is not known."""
_POLL_S = 0.1
_FLUSH_S = 5.0


class Appender:
    """Sends envelopes; their reports come back to the event loop, many at a time."""

    def __init__(
        self,
        upstream: Upstream,
        deliver: Callable[[list[Report]], None],
        *,
        message_bytes_max: int,
        buffered_bytes_max: int,
        delivery_ms_max: int,
    ) -> None:
        self._upstream = upstream
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._settings = {
            "enable_idempotence": True,
            "linger_ms": 0,
            "compression_type": "none",  # batches come as their producers packed them
            "message_max_bytes": message_bytes_max,
            "queue_buffering_max_kbytes": max(1024, buffered_bytes_max >> 10),
            "queue_buffering_max_messages": 2_000_000,
            "delivery_timeout_ms": delivery_ms_max,
        }
        self.writer = secrets.randbits(63) | 1
        self._counters = itertools.count()
        self._reports: list[Report] = []
        self._closing = False
        self._producer = self._new()
        self._thread = threading.Thread(target=self._run, name="append", daemon=True)
        self._thread.start()

    def _new(self) -> Producer:
        self._fatal: str | None = None
        return Producer(self._upstream.settings(**self._settings, error_cb=self._on_error))

    def _on_error(self, error: UpstreamError) -> None:
        if error.fatal():
            self._fatal = error.str()
        self._upstream.reach.on_error(error)

    def next_counter(self) -> int:
        return next(self._counters)

    def send(self, partition: int, envelope: Envelope) -> None:
        """Put an envelope in line. Raises KafkaError where the line is full."""
        try:
            self._producer.produce(
                self._upstream.data,
                envelope.body,
                key=record_key(envelope),
                partition=partition,
                on_delivery=partial(self._delivered, partition, envelope.counter),
            )
        except BufferError:
            raise KafkaError(
                Code.REQUEST_TIMED_OUT, "too much waits for the cluster already"
            ) from None
        except KafkaException as error:
            cause: Any = error.args[0]
            if cause.code() == UpstreamError.MSG_SIZE_TOO_LARGE:
                raise KafkaError(Code.MESSAGE_TOO_LARGE, cause.str()) from None
            raise KafkaError(Code.REQUEST_TIMED_OUT, cause.str()) from None

    def publish(
        self, topic: str, key: bytes, value: bytes | None, done: Callable[[], None] | None = None
    ) -> None:
        """Put a record of a cache topic in line, best effort; `done` is called on the loop."""

        def delivered(error: UpstreamError | None, message: Any) -> None:
            if error is None and done is not None:
                self._loop.call_soon_threadsafe(done)

        try:
            self._producer.produce(topic, value, key=key, partition=0, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            _log.warning("not_published", topic=topic, reason=str(error))

    def _delivered(
        self, partition: int, counter: int, error: UpstreamError | None, message: Any
    ) -> None:
        if error is None:
            self._reports.append((partition, counter, message.offset()))
        else:
            self._reports.append((partition, counter, None))

    def _run(self) -> None:
        while not self._closing:
            self._producer.poll(_POLL_S)
            if self._reports:
                reports, self._reports = self._reports, []
                if any(offset is not None for _, _, offset in reports):
                    self._upstream.reach.answered()
                self._loop.call_soon_threadsafe(self._deliver, reports)
            if self._fatal is not None:
                self._replace()

    def _replace(self) -> None:
        """librdkafka's producer takes nothing more: go on with a new one."""
        _log.error("producer_failed", reason=self._fatal)
        old, self._producer = self._producer, self._new()
        old.purge()
        old.flush(_FLUSH_S)

    def close(self) -> None:
        """Send what is in line, for a few seconds at most."""
        self._producer.flush(_FLUSH_S)
        self._closing = True
        self._thread.join()
        self._producer.purge()
        self._producer.flush(1)
