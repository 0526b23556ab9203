"""The reading of a partition from its start to its end."""

from collections.abc import Callable, Iterator
from time import monotonic

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as UpstreamError

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.callbacks import nothing
from kproxy.upstream.boundary import NO_ANSWER, consumed, translated
from kproxy.upstream.settings import Upstream

_TIMEOUT_S = 30.0
_WAIT_S = 0.5
_MESSAGES_AT_ONCE = 5000

Row = tuple[bytes, bytes | None]
"""Key and value of a record."""


def read_to_end(
    upstream: Upstream,
    topic: str,
    partition: int = 0,
    timeout_s: float = _TIMEOUT_S,
    now: Callable[[], float] = monotonic,
    check: Callable[[], None] = nothing,
) -> Iterator[list[Row]]:
    """Yield all keys and values, in chunks; later values of a key replace earlier ones.

    Ends where nothing more is committed. Blocks; an error of the cluster's is waited out for
    `timeout_s` seconds. Raises KafkaError if no record came for so long, and the errors of `check`,
    which is called twice a second at least.
    """
    with translated():
        consumer = Consumer(
            upstream.reading(
                "whole",
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                fetch_wait_max_ms=20,
                fetch_max_bytes=2 << 20,
                queued_max_messages_kbytes=2 << 10,  # several shards are read at a time
            )
        )
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            yield from _chunks(consumer, timeout_s, now, check)
        finally:
            consumer.close()


def _chunks(
    consumer: Consumer, timeout_s: float, now: Callable[[], float], check: Callable[[], None]
) -> Iterator[list[Row]]:
    came_at, reason = now(), "no record came"
    while True:
        check()
        rows: list[Row] = []
        ended = False
        for message in consumed(consumer, _MESSAGES_AT_ONCE, _WAIT_S):
            error = message.error()
            if error is None:
                rows.append((message.key() or b"", message.value()))
            elif error.code() == UpstreamError._PARTITION_EOF:
                ended = True
            else:
                reason = error.str()
        if rows:
            yield rows
            came_at = now()
        if ended:
            return
        if now() - came_at > timeout_s:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"{NO_ANSWER}: {reason}")
