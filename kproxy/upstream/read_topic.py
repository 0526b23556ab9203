"""Reads a partition from its start to its end."""

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as UpstreamError

from kproxy.upstream.settings import Upstream

_TIMEOUT_S = 30.0
_MESSAGES_AT_ONCE = 5000

Row = tuple[bytes, bytes | None]
"""Key and value of a record."""


def read_to_end(
    upstream: Upstream, topic: str, partition: int = 0, timeout_s: float = _TIMEOUT_S
) -> Iterator[list[Row]]:
    """All keys and values, in chunks; later values of a key replace earlier ones.

    Ends where nothing more is committed. Blocks, `timeout_s` for a cluster that does not answer.
    Raises KafkaException.
    """
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
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=timeout_s
        )
        if low == high:
            return
        consumer.assign([TopicPartition(topic, partition, low)])
        while True:
            messages = consumer.consume(1, 1.0)
            if messages:
                messages += consumer.consume(_MESSAGES_AT_ONCE, 0)
            rows: list[Row] = []
            for message in messages:
                error = message.error()
                if error is None:
                    rows.append((message.key() or b"", message.value()))
                elif error.code() != UpstreamError._PARTITION_EOF:
                    raise KafkaException(error)
            if rows:
                yield rows
            if messages and messages[-1].error() is not None:
                return
    finally:
        consumer.close()
