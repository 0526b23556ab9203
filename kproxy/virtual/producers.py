"""Idempotent producers: is a batch next in sequence, a duplicate, or out of order?

Kafka's rules (`ProducerStateManager`, `ProducerAppendInfo`, KIP-98, KIP-360): the last five batches
of a producer are remembered in each partition; a producer not remembered may start anywhere.
"""

from kproxy.errors import Code
from kproxy.protocol.batch import BatchHeader
from kproxy.virtual.rows import (
    BATCHES_REMEMBERED,
    PRODUCERS_REMEMBERED,
    Partition,
    Producer,
    Sent,
)

_SEQUENCE_MAX = 0x7FFFFFFF


def last_sequence(header: BatchHeader) -> int:
    """The sequence of a batch's last record; sequences wrap from 2^31-1 to 0."""
    return (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MAX


def judge(row: Partition, header: BatchHeader) -> Code | Sent | None:
    """An error code, the batch that this one repeats, or None where it is next in sequence."""
    producer = row.producers.get(header.producer_id)
    if producer is None:
        return None
    if header.producer_epoch < producer.epoch:
        return Code.INVALID_PRODUCER_EPOCH
    if header.producer_epoch > producer.epoch:
        return None if header.base_sequence == 0 else Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    if header.base_sequence == (producer.batches[-1].last_sequence + 1) & _SEQUENCE_MAX:
        return None
    last = last_sequence(header)
    for sent in producer.batches:
        if sent.last_sequence == last and sent.last_delta == header.last_offset_delta:
            return sent
    return Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def remember(row: Partition, header: BatchHeader, base_offset: int) -> None:
    """Note an accepted batch; the producer becomes the one used last."""
    sent = Sent(last_sequence(header), header.last_offset_delta, base_offset, header.max_timestamp)
    known = row.producers.pop(header.producer_id, None)
    kept: tuple[Sent, ...] = ()
    if known is not None and known.epoch == header.producer_epoch:
        kept = known.batches[1 - BATCHES_REMEMBERED :]
    row.producers[header.producer_id] = Producer(header.producer_epoch, (*kept, sent))
    if len(row.producers) > PRODUCERS_REMEMBERED:
        del row.producers[next(iter(row.producers))]
