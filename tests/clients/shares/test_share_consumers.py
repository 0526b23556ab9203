"""librdkafka's share consumer (KIP-932): who is given which records, and how often."""

import time
from collections import Counter
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.clients import calls
from tests.clients.calls import WAIT_S, create, numbers
from tests.clients.shares.members import (
    ACCEPT,
    FLAGS,
    REJECT,
    RELEASE,
    configure,
    drain,
    given,
    member,
    poll,
    produce,
    rest,
    say,
    take,
)
from tests.clients.transactions.calls import abort, commit, settle, transactional, write
from tests.workers import Site

__all__ = ["FLAGS"]


def test_polled_records_are_accepted_by_the_next_poll(site: Site, queue: str) -> None:
    create(site.address, queue, partitions=3)
    configure(site.address, queue)
    produce(site.address, queue, numbers(0, 90), partitions=3)
    seen: Counter[bytes] = Counter()
    with closing(member(site.address, queue, queue, explicit=False)) as consumer:
        until = time.monotonic() + WAIT_S
        while len(seen) < 90 and time.monotonic() < until:
            for message in poll(consumer):
                assert message.delivery_count() == 1
                seen[message.value() or b""] += 1
        poll(consumer, 0.1)
    assert seen == Counter(numbers(0, 90))
    assert rest(site.address, queue, queue) == []


def test_accept_release_and_reject(site: Site, queue: str) -> None:
    """Released ones come again, counted; what is accepted or rejected does not."""
    create(site.address, queue)
    configure(site.address, queue)
    produce(site.address, queue, numbers(0, 6))
    with closing(member(site.address, queue, queue)) as consumer:
        first = take(consumer, 6)
        assert given(first) == [(n, b"%d" % n, 1) for n in range(6)]
        say(consumer, first[0:2], ACCEPT)
        say(consumer, first[2:4], REJECT)
        say(consumer, first[4:6], RELEASE)
        again = take(consumer, 2)
        assert given(again) == [(4, b"4", 2), (5, b"5", 2)]
        say(consumer, again[:1], ACCEPT)
        say(consumer, again[1:], RELEASE)
        once_more = take(consumer, 1)
        assert given(once_more) == [(5, b"5", 3)]
        say(consumer, once_more, ACCEPT)
    assert rest(site.address, queue, queue) == []


def test_a_record_is_given_so_often_and_no_more(site: Site, queue: str) -> None:
    create(site.address, queue)
    configure(site.address, queue, share_delivery_count_limit=3)
    produce(site.address, queue, [b"poison"])
    with closing(member(site.address, queue, queue)) as consumer:
        for count in (1, 2, 3):
            messages = take(consumer, 1)
            assert given(messages) == [(0, b"poison", count)]
            say(consumer, messages, RELEASE)
    assert rest(site.address, queue, queue) == []


def test_close_gives_back_unacknowledged_records(site: Site, queue: str) -> None:
    create(site.address, queue)
    configure(site.address, queue, share_record_lock_duration_ms=60_000)
    produce(site.address, queue, numbers(0, 4))
    with closing(member(site.address, queue, queue)) as consumer:
        messages = take(consumer, 4)
        say(consumer, messages[1:2], ACCEPT)
        consumer.acknowledge(messages[2], ACCEPT)  # close says it
    assert rest(site.address, queue, queue) == [(0, b"0", 2), (3, b"3", 2)]


def test_members_share_one_partition(site: Site, queue: str) -> None:
    """A record that one member holds is not given to the other. Both are given some."""
    create(site.address, queue)
    configure(site.address, queue)
    produce(site.address, queue, numbers(0, 10))
    with (
        closing(member(site.address, queue, queue, **{"max.poll.records": 4})) as one,
        closing(member(site.address, queue, queue)) as other,
    ):
        mine = take(one, 4)
        theirs = drain(other, lambda some: len(some) == 6)
        assert given(mine) == [(n, b"%d" % n, 1) for n in range(4)]
        assert given(theirs) == [(n, b"%d" % n, 1) for n in range(4, 10)]
        say(one, mine, ACCEPT)
    assert rest(site.address, queue, queue) == []


def test_a_lock_runs_out(site: Site, queue: str) -> None:
    """Others are given the record, and who had it may not acknowledge it any more."""
    create(site.address, queue)
    configure(site.address, queue, share_record_lock_duration_ms=1000)
    produce(site.address, queue, numbers(0, 2))
    with closing(member(site.address, queue, queue)) as slow:
        held = take(slow, 2)
        configure(site.address, queue, share_record_lock_duration_ms=60_000)
        with closing(member(site.address, queue, queue)) as other:
            found = take(other, 2)
            assert given(found) == [(0, b"0", 2), (1, b"1", 2)]
            for message in held:
                slow.acknowledge(message, ACCEPT)
            ((part, error),) = slow.commit_sync(WAIT_S).items()
            assert (part.topic, part.partition) == (queue, 0)
            assert isinstance(error, KafkaException)
            assert error.args[0].code() == KafkaError.INVALID_RECORD_STATE
            say(other, found, ACCEPT)
    assert rest(site.address, queue, queue) == []


def test_a_member_is_told_of_its_acknowledgements(site: Site, queue: str) -> None:
    create(site.address, queue, partitions=2)
    configure(site.address, queue)
    produce(site.address, queue, numbers(0, 8), partitions=2)
    told: dict[TopicPartition, set[int]] = {}

    def acknowledged(offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        assert error is None
        for part, some in offsets.items():
            told.setdefault(part, set()).update(some)

    with closing(member(site.address, queue, queue)) as consumer:
        consumer.set_acknowledgement_commit_callback(acknowledged)
        until = time.monotonic() + WAIT_S
        while sum(map(len, told.values())) < 8 and time.monotonic() < until:
            for message in poll(consumer):
                consumer.acknowledge(message, ACCEPT)
            consumer.commit_async()
    assert {part.partition: some for part, some in told.items()} == {
        0: {0, 1, 2, 3}, 1: {0, 1, 2, 3},
    }  # fmt: skip


def test_many_queues(site: Site, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(100)]
    create(site.address, *names)
    configure(site.address, queue)
    producer = calls.producer(site.address)
    write(producer, [(name, b"%d" % number) for number in range(3) for name in names])
    with ExitStack() as stack:
        members = [
            stack.enter_context(closing(member(site.address, queue, *names))) for _ in range(3)
        ]
        seen: Counter[tuple[str, bytes]] = Counter()
        until = time.monotonic() + 2 * WAIT_S
        while len(seen) < 300:
            assert time.monotonic() < until, len(seen)
            for consumer in members:
                some = poll(consumer, 0.1)
                if some:
                    say(consumer, some, ACCEPT)
                seen.update((one.topic() or "", one.value() or b"") for one in some)
    assert seen == Counter((name, b"%d" % number) for name in names for number in range(3))


def test_a_queue_that_is_made_after_the_subscription(site: Site, queue: str) -> None:
    configure(site.address, queue)
    with closing(member(site.address, queue, queue)) as consumer:
        assert poll(consumer, 1) == []
        create(site.address, queue)
        produce(site.address, queue, numbers(0, 3))
        found = drain(consumer, lambda some: len(some) == 3, 2 * WAIT_S)
        assert given(found) == [(n, b"%d" % n, 1) for n in range(3)]


def test_only_what_is_committed_is_given(site: Site, queue: str) -> None:
    create(site.address, queue)
    configure(site.address, queue, share_isolation_level="read_committed")
    configure(site.address, f"{queue}-all")
    producer = transactional(site.address, queue)
    commit(producer, [(queue, b"a"), (queue, b"b")])
    abort(producer, [(queue, b"aborted")])
    settle(site.address, [queue])
    producer.begin_transaction()
    write(producer, [(queue, b"open")])
    with closing(member(site.address, queue, queue)) as consumer:
        found = drain(consumer, lambda some: len(some) >= 2)
        assert [value for _, value, _ in given(found)] == [b"a", b"b"]
        assert poll(consumer, 1) == []
        producer.commit_transaction(WAIT_S)
        found = drain(consumer, lambda some: len(some) >= 1)
        assert [value for _, value, _ in given(found)] == [b"open"]
    assert rest(site.address, queue, queue) == []
    everything = rest(site.address, f"{queue}-all", queue, b"of all")
    assert [value for _, value, _ in everything] == [b"a", b"b", b"aborted", b"open", b"the end"]


@pytest.mark.parametrize("reset", ["latest", "by_duration:PT1H"])
def test_group_begins_by_its_setting(site: Site, queue: str, reset: str) -> None:
    create(site.address, queue)
    configure(site.address, queue, share_auto_offset_reset=reset)
    producer = calls.producer(site.address)
    producer.produce(queue, b"old", timestamp=int((time.time() - 7200) * 1000))
    producer.flush(WAIT_S)
    produce(site.address, queue, [b"before"])
    with closing(member(site.address, queue, queue)) as consumer:
        if reset == "latest":
            seen: list[bytes] = []
            number, until = 0, time.monotonic() + WAIT_S
            while not seen:  # until it has begun
                assert time.monotonic() < until
                produce(site.address, queue, [b"%d" % number])
                number += 1
                seen = [m.value() or b"" for m in poll(consumer, 0.2)]
            assert not {b"old", b"before"} & set(seen)
        else:
            assert [value for _, value, _ in given(take(consumer, 1))] == [b"before"]


def test_later_and_later_after_each_release(site: Site, queue: str) -> None:
    """`kproxy.share.retry.backoff.ms`: not before that much time has passed."""
    create(site.address, queue)
    configure(site.address, queue, kproxy_share_retry_backoff_ms="300,1000")
    produce(site.address, queue, [b"again"])
    with closing(member(site.address, queue, queue)) as consumer:
        messages = take(consumer, 1)
        for count, wait_s in ((2, 0.3), (3, 1.0), (4, 1.0)):
            began = time.monotonic()
            say(consumer, messages, RELEASE)
            messages = take(consumer, 1)
            assert time.monotonic() - began >= wait_s
            assert given(messages) == [(0, b"again", count)]
        say(consumer, messages, ACCEPT)
    assert rest(site.address, queue, queue) == []


def test_released_record_holds_up_no_other(site: Site, queue: str) -> None:
    create(site.address, queue)
    configure(site.address, queue, kproxy_share_retry_backoff_ms=3_600_000)
    produce(site.address, queue, numbers(0, 3))
    with closing(member(site.address, queue, queue)) as consumer:
        messages = take(consumer, 3)
        say(consumer, messages[1:2], RELEASE)
        say(consumer, messages[::2], ACCEPT)
    assert rest(site.address, queue, queue) == []
