"""Transactions of librdkafka, kafka-python and aiokafka, and kafka-transactions.sh."""

import asyncio
import gc
import re
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.errors import KafkaError as PythonError
from kafka.structs import OffsetAndMetadata

from tests.clients import calls
from tests.clients.calls import WAIT_S, create, numbers
from tests.clients.transactions.calls import (
    COMMITTED,
    UNCOMMITTED,
    abort,
    commit,
    committed_offsets,
    ends,
    read,
    settle,
    transactional,
    values,
    write,
)
from tests.harness import eventually, java, run_java
from tests.workers import Site

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOOL = "org.apache.kafka.tools.TransactionsCommand"
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
QUEUES = 200
TIMEOUT_MS = 2000
ABORTED_S = 40  # Kafka looks for timed out transactions every ten seconds


def member(site: Site, group: str, queue: str) -> Consumer:
    return calls.consumer(
        site.address, group, queue, enable_auto_commit=False, isolation_level=COMMITTED
    )


def into(queue: str, some: list[bytes]) -> list[tuple[str, bytes]]:
    return [(queue, value) for value in some]


# librdkafka


def test_readers_see_what_is_committed(site: Site, queue: str) -> None:
    create(site.address, queue)
    producer = transactional(site.address, queue)
    commit(producer, into(queue, numbers(0, 10)))
    abort(producer, into(queue, numbers(10, 20)))
    commit(producer, into(queue, numbers(20, 30)))
    settle(site.address, [queue])
    assert values(site.address, queue) == numbers(0, 10) + numbers(20, 30)
    everything = read(site.address, [queue], UNCOMMITTED)[queue]
    assert [value for _, value in everything] == numbers(0, 30)
    seen = read(site.address, [queue])[queue]
    assert set(seen) < set(everything)  # at the same offsets
    assert [offset for offset, _ in everything] == sorted({offset for offset, _ in everything})


def test_an_open_transaction_holds_readers_back(site: Site, queue: str) -> None:
    """And what is behind it, of whomever; they get on when it is aborted."""
    create(site.address, queue)
    producer, plain = transactional(site.address, queue), calls.producer(site.address)
    write(plain, into(queue, [b"before"]))
    producer.begin_transaction()
    write(producer, into(queue, [b"open"]))
    write(plain, into(queue, [b"behind"]))
    assert values(site.address, queue) == [b"before"]
    assert ends(site.address, [queue]) == {queue: 1}
    assert ends(site.address, [queue], UNCOMMITTED) == {queue: 3}
    assert values(site.address, queue, UNCOMMITTED) == [b"before", b"open", b"behind"]
    producer.abort_transaction(WAIT_S)
    settle(site.address, [queue])
    assert values(site.address, queue) == [b"before", b"behind"]


def test_a_follower_gets_a_transaction_at_once_when_it_is_committed(site: Site, queue: str) -> None:
    create(site.address, queue)
    producer = transactional(site.address, queue)
    follower = calls.consumer(
        site.address, queue, isolation_level=COMMITTED, fetch_wait_max_ms=120_000,
        socket_timeout_ms=180_000,
    )  # fmt: skip
    try:
        follower.assign([TopicPartition(queue, 0, 0)])
        for round_ in range(3):
            producer.begin_transaction()
            write(producer, into(queue, [b"%d" % round_]))
            assert follower.poll(0.5) is None
            producer.commit_transaction(WAIT_S)
            message = follower.poll(60)  # not after fetch.wait.max.ms
            assert message
            assert message.value() == b"%d" % round_
    finally:
        follower.close()


def test_offsets_are_committed_with_the_transaction(site: Site, queue: str) -> None:
    source, target, group = f"{queue}-in", f"{queue}-out", f"{queue}-group"
    create(site.address, source, target)
    write(calls.producer(site.address), into(source, numbers(0, 20)))
    producer = transactional(site.address, queue)
    consumer = member(site, group, source)

    def offsets() -> dict[str, int] | None:
        """Return the committed offset; None while a transaction's offsets are not yet ended."""
        try:
            return committed_offsets(site.address, group, [source])
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.UNSTABLE_OFFSET_COMMIT  # noqa: PT017
            return None

    try:
        messages: list[Any] = []
        eventually(lambda: messages.extend(consumer.consume(20, 1)) or len(messages) == 20, WAIT_S)
        positions = [TopicPartition(source, 0, 7)]
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            write(producer, into(target, numbers(0, 7)))
            producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), WAIT_S
            )
            with pytest.raises(KafkaException) as unstable:
                committed_offsets(site.address, group, [source])
            assert unstable.value.args[0].code() == KafkaError.UNSTABLE_OFFSET_COMMIT
            assert committed_offsets(site.address, group, [source], stable=False) == {}
            end(WAIT_S)
            settle(site.address, [target])
            wanted = {source: 7} if end == producer.commit_transaction else {}
            eventually(lambda wanted=wanted: offsets() == wanted, WAIT_S)
        assert values(site.address, target) == numbers(0, 7)
    finally:
        consumer.close()


def test_offsets_of_a_member_that_was_replaced_are_refused(site: Site, queue: str) -> None:
    """KIP-447: the group's generation fences whose partitions have gone to another."""
    source, group = f"{queue}-in", f"{queue}-group"
    create(site.address, source)
    write(calls.producer(site.address), into(source, numbers(0, 5)))
    producer = transactional(site.address, queue)
    first = member(site, group, source)
    second = None
    try:
        assert eventually(lambda: first.consume(5, 1), WAIT_S)
        earlier = first.consumer_group_metadata()
        first.close()
        second = member(site, group, source)
        assert eventually(lambda: second.consume(5, 1), WAIT_S)
        producer.begin_transaction()
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction([TopicPartition(source, 0, 5)], earlier, WAIT_S)
        assert refused.value.args[0].txn_requires_abort()
        assert not refused.value.args[0].fatal()
        producer.abort_transaction(WAIT_S)
        assert not committed_offsets(site.address, group, [source])
    finally:
        if second:
            second.close()


def test_a_second_producer_of_an_id_fences_the_first(site: Site, queue: str) -> None:
    create(site.address, queue)
    first = transactional(site.address, queue)
    commit(first, into(queue, [b"of the first"]))
    first.begin_transaction()
    write(first, into(queue, [b"never committed"]))
    second = transactional(site.address, queue)
    settle(site.address, [queue])  # its transaction was aborted
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(WAIT_S)
    assert fenced.value.args[0].code() in FENCED
    assert fenced.value.args[0].fatal()
    commit(second, into(queue, [b"of the second"]))
    settle(site.address, [queue])
    assert values(site.address, queue) == [b"of the first", b"of the second"]


def test_a_fenced_producers_records_are_refused(site: Site, queue: str) -> None:
    """It had begun, and writes only when another has its id."""
    create(site.address, queue)
    first = transactional(site.address, queue)
    commit(first, into(queue, [b"of the first"]))
    second = transactional(site.address, queue)
    first.begin_transaction()
    errors: list[Any] = []
    first.produce(queue, b"of a zombie", on_delivery=lambda error, _: errors.append(error))
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()
    assert first.flush(WAIT_S) == 0
    assert len(errors) == 1
    assert errors[0] is not None
    commit(second, into(queue, [b"of the second"]))
    settle(site.address, [queue])
    assert values(site.address, queue) == [b"of the first", b"of the second"]
    assert b"of a zombie" not in values(site.address, queue, UNCOMMITTED)


def test_many_queues_in_a_transaction(site: Site, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(QUEUES)]
    create(site.address, *names)
    producer = transactional(site.address, queue)
    commit(producer, [(name, b"one") for name in names])
    abort(producer, [(name, b"two") for name in names])
    commit(producer, [(name, b"three") for name in names[::2]])
    producer.begin_transaction()
    write(producer, [(name, b"four") for name in names[1::2]])
    settle(site.address, names[::2])
    found = {name: [value for _, value in seen] for name, seen in read(site.address, names).items()}
    assert found == {name: [b"one", b"three"] for name in names[::2]} | {
        name: [b"one"] for name in names[1::2]
    }
    producer.commit_transaction(WAIT_S)
    settle(site.address, names)
    found = {name: [value for _, value in seen] for name, seen in read(site.address, names).items()}
    assert found == {name: [b"one", b"three"] for name in names[::2]} | {
        name: [b"one", b"four"] for name in names[1::2]
    }


def test_a_transaction_that_takes_too_long_is_aborted(site: Site, queue: str) -> None:
    create(site.address, queue)
    producer = transactional(
        site.address, queue,
        **{"transaction.timeout.ms": TIMEOUT_MS, "message.timeout.ms": TIMEOUT_MS},
    )  # fmt: skip
    producer.begin_transaction()
    write(producer, into(queue, [b"too late"]))
    settle(site.address, [queue], ABORTED_S)
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)
    assert values(site.address, queue) == []
    assert values(site.address, queue, UNCOMMITTED) == [b"too late"]
    again = transactional(site.address, queue)
    commit(again, into(queue, [b"in time"]))
    settle(site.address, [queue])
    assert values(site.address, queue) == [b"in time"]


def test_a_producer_that_comes_again_ends_what_it_left(site: Site, queue: str) -> None:
    """Nobody waits for the timeout, which is a minute here."""
    create(site.address, queue)
    producer = transactional(site.address, queue)
    commit(producer, into(queue, [b"1"]))
    producer.begin_transaction()
    write(producer, into(queue, [b"left"]))
    del producer
    gc.collect()
    assert ends(site.address, [queue]) != ends(site.address, [queue], UNCOMMITTED)
    producer = transactional(site.address, queue)
    settle(site.address, [queue], 10)
    commit(producer, into(queue, [b"2"]))
    settle(site.address, [queue])
    assert values(site.address, queue) == [b"1", b"2"]


def test_a_hundred_transactions_one_after_another(site: Site, queue: str) -> None:
    """Every third is aborted; none waits for the markers of the one before."""
    names = [f"{queue}-{number}" for number in range(3)]
    create(site.address, *names)
    producer = transactional(site.address, queue)
    for number in range(100):
        end = abort if number % 3 == 2 else commit
        end(producer, [(name, b"%d" % number) for name in names])
    settle(site.address, names)
    kept = [b"%d" % number for number in range(100) if number % 3 != 2]
    for name, seen in read(site.address, names).items():
        assert [value for _, value in seen] == kept, name


# aiokafka


async def test_aiokafka(site: Site, queue: str) -> None:
    source, target = f"{queue}-in", f"{queue}-out"
    create(site.address, source, target)

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=site.address, transactional_id=queue
        ) as producer:
            async with producer.transaction():
                for number in range(20):
                    await producer.send(source, b"%d" % number)
            await producer.begin_transaction()
            await producer.send_and_wait(source, b"aborted")
            await producer.abort_transaction()
            consumer = AIOKafkaConsumer(
                source, bootstrap_servers=site.address, group_id=queue,
                isolation_level=COMMITTED, enable_auto_commit=False, auto_offset_reset="earliest",
            )  # fmt: skip
            await consumer.start()
            found: list[Any] = []
            while len(found) < 20:
                found += [one async for one in _some(consumer)]
            assert [one.value for one in found] == numbers(0, 20)
            async with producer.transaction():
                for one in found:
                    await producer.send(target, one.value)
                part = AioPartition(source, 0)
                await producer.send_offsets_to_transaction({part: 20}, queue)
            while await consumer.committed(part) != 20:
                await asyncio.sleep(0.05)
            await consumer.stop()
            async with AIOKafkaProducer(bootstrap_servers=site.address, transactional_id=queue):
                with pytest.raises(ProducerFenced):
                    async with producer.transaction():
                        await producer.send_and_wait(target, b"of a zombie")

    await asyncio.wait_for(run(), 60)
    settle(site.address, [source, target])
    assert values(site.address, target) == numbers(0, 20)
    assert values(site.address, source) == numbers(0, 20)
    assert values(site.address, source, UNCOMMITTED) == [*numbers(0, 20), b"aborted"]


async def _some(consumer: AIOKafkaConsumer) -> Any:
    for records in (await consumer.getmany(timeout_ms=500)).values():
        for record in records:
            yield record


# kafka-python


def test_kafka_python(site: Site, queue: str) -> None:
    source, target = f"{queue}-in", f"{queue}-out"
    create(site.address, source, target)
    producer = KafkaProducer(bootstrap_servers=site.address, transactional_id=queue)
    producer.init_transactions()
    for ending, some in (
        (producer.commit_transaction, numbers(0, 20)),
        (producer.abort_transaction, [b"aborted"]),
    ):
        producer.begin_transaction()
        sent = [producer.send(source, value) for value in some]
        producer.flush(WAIT_S)
        assert all(one.succeeded() for one in sent)
        ending()
    consumer = KafkaConsumer(
        source, bootstrap_servers=site.address, group_id=queue, isolation_level=COMMITTED,
        enable_auto_commit=False, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000,
    )  # fmt: skip
    found = [next(consumer) for _ in range(20)]
    assert [one.value for one in found] == numbers(0, 20)
    part = PythonPartition(source, 0)
    producer.begin_transaction()
    for one in found:
        producer.send(target, one.value)
    producer.send_offsets_to_transaction({part: OffsetAndMetadata(20, "", -1)}, queue)
    producer.commit_transaction()
    eventually(lambda: consumer.committed(part) == 20, WAIT_S)
    consumer.close()
    second = KafkaProducer(bootstrap_servers=site.address, transactional_id=queue)
    second.init_transactions()
    producer.begin_transaction()
    zombies = producer.send(target, b"of a zombie")
    with pytest.raises(PythonError):
        zombies.get(WAIT_S)
    producer.close(timeout=1)
    second.close(timeout=WAIT_S)
    settle(site.address, [source, target])
    assert values(site.address, target) == numbers(0, 20)
    assert values(site.address, source) == numbers(0, 20)
    assert values(site.address, source, UNCOMMITTED) == [*numbers(0, 20), b"aborted"]


# kafka-transactions.sh


def table(text: str) -> list[dict[str, str]]:
    """Return the rows that a tool printed, by the names above them."""
    lines = [re.split(r"\s*\t\s*|\s{2,}", line.strip()) for line in text.splitlines() if line]
    return [dict(zip(lines[0], row, strict=False)) for row in lines[1:]]


def test_the_tool(site: Site, queue: str) -> None:
    at = ("--bootstrap-server", site.address)
    part = ("--topic", queue, "--partition", "0")
    create(site.address, queue)
    producer = transactional(site.address, queue)
    commit(producer, into(queue, [b"1"]))
    producer.begin_transaction()
    write(producer, into(queue, [b"2"]))
    (start,) = ends(site.address, [queue]).values()
    (listed,) = [
        row for row in table(java(TOOL, *at, "list")) if row["TransactionalId"] == queue
    ]  # fmt: skip
    assert listed["TransactionState"] == "Ongoing"
    (described,) = table(java(TOOL, *at, "describe", "--transactional-id", queue))
    assert described["TransactionState"] == "Ongoing"
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["TopicPartitions"] == f"{queue}-0"
    (known,) = table(java(TOOL, *at, "describe-producers", *part))
    assert known["ProducerId"] == listed["ProducerId"]
    assert known["ProducerEpoch"] == described["ProducerEpoch"]
    assert known["CurrentTransactionStartOffset"] == str(start)
    assert not table(java(TOOL, *at, "find-hanging", *part, "--max-transaction-timeout", "0"))
    java(TOOL, *at, "abort", *part, "--start-offset", str(start))
    settle(site.address, [queue])
    assert values(site.address, queue) == [b"1"]
    refused = run_java(TOOL, *at, "abort", *part, "--start-offset", str(start))
    assert refused.returncode
    assert "Could not find any open transactions" in refused.stdout + refused.stderr
    (known,) = table(java(TOOL, *at, "describe-producers", *part))
    assert known["CurrentTransactionStartOffset"] == "None"
    again = transactional(site.address, queue)
    commit(again, into(queue, [b"3"]))
    settle(site.address, [queue])
    (described,) = table(java(TOOL, *at, "describe", "--transactional-id", queue))
    assert described["TransactionState"] == "CompleteCommit"
    assert values(site.address, queue) == [b"1", b"3"]
