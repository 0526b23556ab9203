"""Envelopes that a real Kafka has twice: applied once by an owner, the next one, and a rebuild."""

import shutil
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.commands.envelope import NUMBERED, Kind, from_record
from kproxy.virtual.partitioner import shard_of
from tests.harness import eventually
from tests.on_kafka.test_storage import EAGER, contents, records
from tests.on_kafka.test_takeover import SESSION_S
from tests.real_kafka import Kafka
from tests.wire import Wire, batch
from tests.workers import Workers

SHARDS = 2
QUEUE = "q"
ID = next(name for name in "tuvwx" if shard_of(name, SHARDS) == shard_of(QUEUE, SHARDS))


def begin(wire: Wire) -> tuple[int, int]:
    """Return the epoch that the transactional id is given, once its coordinator takes it."""
    values = {"transactional_id": ID, "transaction_timeout": 60_000}

    def given() -> Any:
        answer = wire.call(ApiKey.INIT_PRODUCER_ID, 1, values)
        return None if answer.error_code else (answer.producer_id, answer.producer_epoch)

    found: tuple[int, int] = eventually(given)
    return found


def send_again(kafka: Kafka, workers: Workers) -> set[Kind]:
    """Append what the workers have appended once more, as librdkafka would; return its kinds."""
    topic, shard = f"{workers.prefix}-data", shard_of(QUEUE, SHARDS)
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 0})
    kinds = set()
    for record in records(kafka, topic, shard):
        envelope = from_record(record.key(), record.value())
        assert envelope.counter > NUMBERED
        kinds.add(Kind(envelope.kind))
        producer.produce(topic, record.value(), key=record.key(), partition=shard)
    assert not producer.flush(30)
    return kinds


def test_an_envelope_taken_twice_is_applied_once(kafka: Kafka, tmp_path: Path) -> None:
    workers = Workers(kafka, tmp_path, *EAGER, count=2, shards=SHARDS)
    sent: list[bytes] = []

    def check(wire: Wire, epoch: int) -> None:
        """Find all that was sent, once, and send one more; a transactional id has one more life."""
        found = contents(wire, QUEUE) if sent else []
        assert [data for _, data in found] == [data[16:] for data in sent]
        sent.append(batch(b"%d" % len(sent)))
        assert wire.produce(QUEUE, sent[-1]).base_offset == len(sent) - 1
        assert begin(wire)[1] == epoch

    with workers.running():
        owner = workers.owner(QUEUE)
        with owner.wire(QUEUE) as wire:
            for epoch in range(3):
                check(wire, epoch)
            assert send_again(kafka, workers) >= {Kind.APPEND, Kind.INIT_PRODUCER, Kind.CLAIM}
            check(wire, 3)
        owner.kill()
        workers.wait_served(SESSION_S + 20)
        follower = workers.owner(QUEUE)
        send_again(kafka, workers)
        with follower.wire(QUEUE) as wire:
            check(wire, 4)
        follower.kill()
        shutil.rmtree(follower.data_dir)
        again = workers.again(workers.workers.index(follower)).wait_ready()
        workers.wait_served(SESSION_S + 20)
        assert again.event("shard_rebuilt")
        with again.wire(QUEUE) as wire:
            check(wire, 5)
