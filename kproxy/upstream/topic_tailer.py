"""Tails whole topics that every worker caches: the map and the catalogue."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as UpstreamError

from kproxy.common.errors import KafkaError
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.store.rocks import RowsFailed
from kproxy.upstream.boundary import CLOSE_S, consumed, noted, reason_of, translated
from kproxy.upstream.settings import Upstream

_log = structlog.get_logger()

_MESSAGES_AT_ONCE = 2000
_WAIT_S = 0.2
_RETRY_S = 0.2
_METADATA_TIMEOUT_S = 15
NOTE = "gone"
"""The header of a tombstone that says what it ends."""


class Record(NamedTuple):
    """One record of a followed topic."""

    topic: str
    offset: int
    key: bytes
    value: bytes | None
    note: bytes | None = None
    """The note of a tombstone on the row that it ends, in its header."""


class TopicTailer:
    """A reader of partition 0 of topics from given offsets on, for ever, on a thread of its own."""

    def __init__(
        self,
        upstream: Upstream,
        starts: dict[str, int],
        deliver: Callable[[list[Record]], Coroutine[Any, Any, None]],
        began_again: Callable[[str], None],
        failed: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take `began_again`: a topic has no record at its start offset any more; all of it comes.

        `failed`: `deliver` did, for the reason given, and nothing more comes.
        """
        self._failed = failed
        self._monotonic = clock.monotonic
        self._deliver = deliver
        self._began_again = began_again
        self._loop = asyncio.get_running_loop()
        self.caught_up = asyncio.Event()
        self._starts = starts
        self._behind: dict[str, int] = {}
        with translated():
            self._consumer = Consumer(
                upstream.reading(
                    "follower",
                    auto_offset_reset="earliest",
                    isolation_level="read_uncommitted",
                    fetch_max_bytes=4 << 20,
                    queued_max_messages_kbytes=16 << 10,
                )
            )
        self._again: deque[tuple[str, Callable[[], None], asyncio.Future[None]]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Begin, for as long as it takes the cluster to answer."""
        self._thread.start()

    def _assign(self) -> None:
        assigned = []
        for topic, start in self._starts.items():
            low, high = self._watermarks(topic)
            if not low <= start <= high and start != 0:
                self._began_again(topic)
                self._starts[topic] = start = 0
            assigned.append(TopicPartition(topic, 0, max(start, low)))
            self._behind[topic] = high
        self._consumer.assign(assigned)

    def _watermarks(self, topic: str) -> tuple[int, int]:
        """Return where a topic begins and ends; one just made may not be known to every
        broker yet.
        """
        end = self._monotonic() + _METADATA_TIMEOUT_S
        while not self._closing:
            try:
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(topic, 0), timeout=_METADATA_TIMEOUT_S
                )
            except KafkaException:
                if self._monotonic() > end:
                    raise
                time.sleep(_RETRY_S)
            else:
                return int(low), int(high)
        raise KafkaException(UpstreamError(UpstreamError._DESTROY))

    async def again(self, topic: str, began: Callable[[], None]) -> None:
        """Read a topic from its start on: what is delivered once `began` was called is that.

        Raises KafkaError where the cluster does not answer.
        """
        done = self._loop.create_future()
        self._again.append((topic, began, done))
        await done

    def close(self) -> None:
        self._closing = True
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    # -- on the thread

    def _run(self) -> None:
        self._follow()
        with noted("closing a topic's reader"):
            self._consumer.close()

    def _follow(self) -> None:
        assigned = False
        while not self._closing:
            try:
                if not assigned:
                    self._assign()
                    assigned = True
                if self._again and not self._closing:
                    self._begin(*self._again.popleft())
                messages = consumed(self._consumer, _MESSAGES_AT_ONCE, _WAIT_S)
                # A caller that closes may end the event loop next
                if messages and not self._closing:
                    self._hand_over(messages)
            except CancelledError:  # the event loop ends
                return
            except RowsFailed as error:
                self._tell_failed(f"cannot write the catalogue: {error}")
                return
            except KafkaException as error:
                _log.warning("follow_failed", reason=reason_of(error))
                time.sleep(_RETRY_S)
            except Exception as error:  # a frozen catalogue would be found out by nobody
                if self._loop.is_closed():
                    return
                _log.exception("follow_ended")
                self._tell_failed(f"cannot take in what other workers say: {error!r}")
                return

    def _begin(self, topic: str, began: Callable[[], None], done: asyncio.Future[None]) -> None:
        async def tell(failure: KafkaError | None) -> None:
            if failure is None:
                began()
            if not done.done():  # it was not cancelled
                done.set_result(None) if failure is None else done.set_exception(failure)

        try:
            with translated():
                low, _ = self._watermarks(topic)
                self._consumer.seek(TopicPartition(topic, 0, low))
        except KafkaError as error:
            failure: KafkaError | None = error
        else:
            failure = None
        asyncio.run_coroutine_threadsafe(tell(failure), self._loop).result()

    def _tell_failed(self, reason: str) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._failed, reason)

    def _hand_over(self, messages: list[Any]) -> None:
        records = []
        for message in messages:
            topic, offset, error = message.topic(), message.offset(), message.error()
            if error is None:
                value = message.value()
                note = _note(message.headers()) if value is None else None
                records.append(Record(topic, offset, message.key() or b"", value, note))
            elif error.code() != UpstreamError._PARTITION_EOF:
                _log.debug("tail_error", topic=topic, reason=error.str())
                continue
            reached = offset if error is not None else offset + 1
            if self._behind.get(topic, reached + 1) <= reached:
                del self._behind[topic]
        if records:
            asyncio.run_coroutine_threadsafe(self._deliver(records), self._loop).result()
        if not self._behind and not self.caught_up.is_set():
            self._loop.call_soon_threadsafe(self.caught_up.set)


def _note(headers: list[tuple[str, bytes | None]] | None) -> bytes | None:
    return next((value for name, value in headers or () if name == NOTE), None)
