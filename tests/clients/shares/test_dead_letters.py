"""Dead-letter queues of share groups, with librdkafka: what is rejected, or is given too often."""

from contextlib import closing
from typing import Any

from confluent_kafka import Message, TopicPartition

from tests.clients.calls import WAIT_S, admin, alter, consumer, create, producer
from tests.clients.shares.members import (
    ACCEPT,
    REJECT,
    RELEASE,
    configure,
    member,
    produce,
    say,
    take,
)
from tests.clients.shares.members import FLAGS as AT_ONCE
from tests.clients.topics.test_commands import lines
from tests.harness import eventually
from tests.workers import Site

FLAGS = (*AT_ONCE, "--errors-deadletterqueue-auto-create-topics-enable")
ENABLED = {"errors_deadletterqueue_group_enable": "true"}
"""The setting of a queue that share groups may have as their dead-letter queue."""


def letters(address: str, queue: str, count: int, partitions: int = 1) -> list[Message]:
    """Return a dead-letter queue's records once there are so many; check that no more come."""
    reader = consumer(
        address, "reader", enable_auto_commit=False, allow_auto_create_topics=False,
        topic_metadata_refresh_interval_ms=500,
    )  # fmt: skip
    parts = [TopicPartition(queue, index, 0) for index in range(partitions)]
    found: list[Message] = []
    with closing(reader):
        reader.assign(parts)

        def more() -> bool:
            found.extend(one for one in reader.consume(100, 0.2) if one.error() is None)
            return len(found) >= count

        eventually(more, WAIT_S)
        for part in parts:
            _, end = reader.get_watermark_offsets(part, WAIT_S, cached=False)
            assert end == sum(one.partition() == part.partition for one in found)
    assert len(found) == count
    return found


def headers_of(message: Message) -> dict[str, Any]:
    return {name: bytes(value).decode() for name, value in message.headers() or ()}


def test_rejected_records_and_poison_end_in_the_dead_letter_queue(site: Site, queue: str) -> None:
    dead = f"dlq.{queue}"
    create(site.address, queue, dead, partitions=2)
    alter(site.address, dead, **ENABLED)
    configure(
        site.address, queue, share_delivery_count_limit=2,
        errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    client = producer(site.address)
    for number in range(3):
        client.produce(
            queue, b"%d" % number, b"key", partition=1, headers=[("trace", b"%d" % number)]
        )
    assert client.flush(WAIT_S) == 0
    with closing(member(site.address, queue, queue)) as consumer:
        messages = take(consumer, 3)
        for message, kind in zip(messages, (ACCEPT, REJECT, RELEASE), strict=True):
            consumer.acknowledge(message, kind)
        assert not any(consumer.commit_sync(WAIT_S).values())
        say(consumer, take(consumer, 1), RELEASE)
        rejected, poison = letters(site.address, dead, 2, partitions=2)
    for message, number in ((rejected, 1), (poison, 2)):
        assert (message.partition(), message.key(), message.value()) == (1, b"key", b"%d" % number)
    common = {"__dlq.errors.topic": queue, "__dlq.errors.partition": "1",
              "__dlq.errors.group": queue}  # fmt: skip
    assert headers_of(rejected) == common | {
        "trace": "1", "__dlq.errors.offset": "1", "__dlq.errors.delivery.count": "1",
        "__dlq.errors.message": "Offset rejected by client.", "kproxy.dlq.cause": "rejected",
    }  # fmt: skip
    assert headers_of(poison) == common | {
        "trace": "2", "__dlq.errors.offset": "2", "__dlq.errors.delivery.count": "2",
        "__dlq.errors.message": "Offset delivery count exceeded the threshold.",
        "kproxy.dlq.cause": "delivery limit",
    }  # fmt: skip
    (told,) = lines(site, "letters", dead)
    assert (told["looked"], told["all"]) == (2, 2)
    assert sorted((one["cause"], one["queue"], one["letters"]) for one in told["letters"]) == [
        ("delivery limit", queue, 1), ("rejected", queue, 1),
    ]  # fmt: skip


def test_by_default_a_dead_letter_only_says_where_it_is_from_and_its_queue_is_made(
    site: Site, queue: str
) -> None:
    dead = f"dlq.{queue}"
    create(site.address, queue)
    configure(site.address, queue, errors_deadletterqueue_topic_name=dead)
    produce(site.address, queue, [b"secret"])
    with closing(member(site.address, queue, queue)) as consumer:
        say(consumer, take(consumer, 1), REJECT)
        eventually(lambda: dead in admin(site.address).list_topics(timeout=WAIT_S).topics, WAIT_S)
        (letter,) = letters(site.address, dead, 1)
    assert (letter.key(), letter.value()) == (None, None)
    assert headers_of(letter)["__dlq.errors.offset"] == "0"


def test_they_wait_until_their_queue_takes_them(site: Site, queue: str) -> None:
    dead = f"dlq.{queue}"
    create(site.address, queue, dead)
    configure(
        site.address, queue, errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    produce(site.address, queue, [b"0", b"1", b"2"])
    with closing(member(site.address, queue, queue)) as consumer:
        say(consumer, take(consumer, 3), REJECT)
        assert letters(site.address, dead, 0) == []
        alter(site.address, dead, **ENABLED)
        found = letters(site.address, dead, 3)
    assert [one.value() for one in found] == [b"0", b"1", b"2"]
