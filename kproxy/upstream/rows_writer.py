"""The writer of published rows in the offset topic: the shard's owner, in one transaction.

The transactional id is the shard's, so a new owner's first publication fences the owner before it.
"""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException, Producer

from kproxy.loop.threads import Stop
from kproxy.upstream.boundary import noted, reason_of
from kproxy.upstream.read_topic import Row
from kproxy.upstream.settings import Upstream
from kproxy.virtual.snapshot import AS_OF_KEY, encode_as_of

_TIMEOUT_S = 30.0
_PIECE_S = 0.5
_LINE_BYTES = 16 << 20  # librdkafka's own bound is 1 GiB: a large publication went there whole


class NotPublished(Exception):
    """The transaction did not commit, as far as is known.

    `fenced`: another worker publishes for this shard now. `spent`: the writer is of no more use.
    """

    def __init__(self, message: str, fenced: bool, *, spent: bool = False) -> None:
        super().__init__(message)
        self.fenced = fenced
        self.spent = spent or fenced


class RowsWriter:
    """A writer of one shard's rows. All calls block; made at the first publication, not before.

    All but `close` raise NotPublished, and Stopped once they are told to stop.
    """

    def __init__(self, upstream: Upstream, shard: int, row_bytes_max: int) -> None:
        self._topic = upstream.offset
        self._shard = shard
        settings = upstream.settings(
            transactional_id=f"{upstream.prefix}-rows-{shard}",
            transaction_timeout_ms=60_000,
            linger_ms=5,
            compression_type="lz4",
            message_max_bytes=row_bytes_max,
            queue_buffering_max_kbytes=max(_LINE_BYTES, 2 * row_bytes_max) >> 10,
        )
        try:
            self._producer = Producer(settings)
        except KafkaException as error:
            raise _not_published(error) from error

    def fence(self, stop: Stop) -> None:
        """End whatever another writer has under way; it can publish nothing more."""
        try:
            self._in_time(self._producer.init_transactions, stop)
        except KafkaException as error:
            raise _not_published(error) from error

    def write(self, rows: Iterator[Row], as_of: int, stop: Stop) -> None:
        """Put all rows and what they stand for, or nothing. Raises NotPublished, Stopped."""
        try:
            self._producer.begin_transaction()
            for key, value in rows:
                self._put(key, value, stop)
            self._put(AS_OF_KEY, encode_as_of(as_of), stop)
            self._in_time(self._producer.commit_transaction, stop)
        except KafkaException as error:
            raise self._aborted(error, stop) from error

    def _in_time(self, call: Callable[[float], None], stop: Stop) -> None:
        """Make a call that goes on where it was broken off, in pieces. Raises KafkaException."""
        until = monotonic() + _TIMEOUT_S
        while True:
            stop.check()
            try:
                call(_PIECE_S)
                return
            except KafkaException as error:
                late = error.args[0].code() == UpstreamError._TIMED_OUT
                if not late or monotonic() > until:
                    raise

    def _put(self, key: bytes, value: bytes | None, stop: Stop) -> None:
        while True:
            stop.check()
            try:
                self._producer.produce(self._topic, value, key=key, partition=self._shard)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _aborted(self, error: KafkaException, stop: Stop) -> NotPublished:
        """Abort; a commit that was too late can't be: librdkafka goes on with it and with no other
        call, for good.
        """
        refusal = _not_published(error)
        if not refusal.fenced:
            try:
                self._in_time(self._producer.abort_transaction, stop)
            except KafkaException as second:
                return _not_published(second, spent=True)
        return refusal

    def close(self) -> None:
        """Drop the records under way: the next writer's fence ends them.

        The writer is of no use then.
        """
        with noted("closing the rows' producer"):
            self._producer.purge()
        del self._producer  # which waits for its threads: not on the loop


def _not_published(error: KafkaException, *, spent: bool = False) -> NotPublished:
    cause: Any = error.args[0]
    return NotPublished(reason_of(error), bool(cause.fatal()), spent=spent)
