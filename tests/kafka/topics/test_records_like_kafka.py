"""Producing, fetching and offsets: answers as a real Kafka 4.3.1 gives them."""

import time
from typing import Any
from uuid import UUID

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.harness import eventually
from tests.kafka.alike import alike, made
from tests.kafka.canonical import unheard
from tests.wire import Wire, batch, fetch_values, keyed, produce_values

# Not compared: null records, which a real Kafka never answers, and an unknown codec, which it
# answers with UNKNOWN_SERVER_ERROR.
BAD = {
    "empty": b"",
    "crc": batch(b"a", crc=7),
    "count": batch(b"a", count=5),
    "over": batch(b"a", count=5, last_delta=4),
    "none": batch(count=0, last_delta=-1),
    "delta": batch(b"a", last_delta=3),
    "magic": batch(b"a", magic=1),
    "two": batch(b"a") + batch(b"b"),
    "cut": batch(b"a")[:-1],
    "short": batch(b"a")[:30],
    "tiny": b"x" * 5,
    "control": batch(b"a", attributes=0x20),
    "transactional": batch(b"a", attributes=0x10),
    "stamped": batch(b"a", attributes=0x08),
    "large": batch(b"x" * 1_048_600),
    "length": batch(b"a")[:8] + (5).to_bytes(4, "big") + batch(b"a")[12:],
    "no epoch": batch(b"a", producer_id=5, epoch=-1, sequence=0),
    "no sequence": batch(b"a", producer_id=5, epoch=0, sequence=-1),
}


@pytest.mark.parametrize("name", BAD)
@alike
def test_bad_batches(wire: Wire, queue: str, name: str) -> list[Any]:
    made(wire, queue)
    code = wire.produce(queue, BAD[name]).error_code
    stored = wire.fetch(queue, 0).records or bytes(23)
    return [code, wire.list_offset(queue, -1), stored[22]]


@alike
def test_zstd_by_version(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    return [wire.produce(queue, batch(b"a", attributes=4), version=6).error_code]


@pytest.mark.parametrize("version", [3, 5, 8, 9, 11, 12])
@alike
def test_produce_and_fetch_in_every_shape(wire: Wire, queue: str, version: int) -> list[Any]:
    made(wire, queue)
    steps = [wire.produce(queue, batch(b"a", b"b"), version=version) for _ in range(3)]
    steps += [wire.produce(queue, batch(b"a"), partition=7, version=version)]
    for fetch_version in (4, 5, 7, 11, 12):
        steps += [wire.fetch(queue, offset, version=fetch_version) for offset in (0, 3, 6)]
    return steps


@alike
def test_fetch_faults(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    wire.produce(queue, batch(b"a"))
    return [
        wire.fetch(queue, 5),
        wire.fetch(queue, -1),
        wire.fetch(queue, 0, partition=9),
        wire.fetch("absent-" + queue, 0),
        wire.fetch(queue, 0, leader_epoch=5).error_code,
        wire.fetch(UUID(int=77), 0, version=13),
        wire.fetch(queue, 0, isolation=1),
        wire.fetch(queue, 0, isolation=0),
    ]


@alike
def test_sequences(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    pid = wire.producer_id()

    def send(sequence: int, count: int = 1, epoch: int = 0) -> Any:
        data = batch(*[b"v"] * count, producer_id=pid, epoch=epoch, sequence=sequence)
        return wire.produce(queue, data)

    steps = [send(0), send(0), send(1), send(5), send(2, 3), send(2, 3), send(2, 2)]
    steps += [send(n) for n in range(5, 11)]
    steps += [send(0), send(5), send(6), send(2, 3), send(10, epoch=1), send(0, epoch=1)]
    steps += [send(1, epoch=0), send(0, epoch=1), send(1, epoch=1)]
    return steps


@alike
def test_a_producer_starts_anywhere_and_wraps(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    pid = wire.producer_id()
    steps = []
    for sequence, count in ((2**31 - 2, 2), (0, 1), (2**31 - 2, 2), (1, 2)):
        data = batch(*[b"v"] * count, producer_id=pid, epoch=0, sequence=sequence)
        steps.append(wire.produce(queue, data))
    return steps


TIMES = (1000, 5000, 3000, 9000, 2000, 9000, 100)


@alike
def test_list_offsets(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    steps = [wire.list_offset(queue, t) for t in (-1, -2, -3, 0, 5)]
    wire.produce(queue, batch(*[b"v"] * 3, times=TIMES[:3]))
    wire.produce(queue, batch(*[b"v"] * 3, times=TIMES[3:6]))
    wire.produce(queue, batch(b"v", times=TIMES[6:]))
    wanted = (-1, -2, -3, -4, -5, 0, 100, 1000, 1001, 3000, 5000, 5001, 9000, 9001)
    steps += [wire.list_offset(queue, t) for t in wanted]
    for version in (1, 4, 6):
        steps += [wire.list_offset(queue, t, version=version) for t in (-1, -2, 3000)]
    steps += [wire.list_offset("absent-" + queue, -1), wire.list_offset(queue, -1, 9)]
    trim(wire, queue, 4)
    # Not compared: -3, for which a real Kafka gives an offset that was trimmed.
    steps += [wire.list_offset(queue, t) for t in (-1, -2, 0, 3000, 9000)]
    return steps


def trim(wire: Wire, queue: str, offset: int, partition: int = 0) -> Any:
    part = {"partition_index": partition, "offset": offset}
    topics = [{"name": queue, "partitions": [part]}]
    return (
        wire.call(ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout": 5000})
        .topics[0]
        .partitions[0]
    )


@alike
def test_delete_records(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    for _ in range(5):
        wire.produce(queue, batch(b"a", b"b"))
    steps = [trim(wire, queue, offset) for offset in (3, 2, 11, -2, 7)]
    steps += [wire.fetch(queue, 6), wire.fetch(queue, 8).log_start_offset]
    steps += [trim(wire, queue, -1), wire.list_offset(queue, -2), wire.list_offset(queue, -1)]
    steps += [trim(wire, queue, 0, 4), trim(wire, "absent-" + queue, 0)]
    return [*steps, wire.produce(queue, batch(b"c"))]


@alike
def test_delete_records_by_policy(wire: Wire, queue: str) -> list[Any]:
    steps = []
    for policy in ("compact", "compact,delete", "delete"):
        name = f"{queue}-{policy.replace(',', '-')}"
        made(wire, name, cleanup_policy=policy)
        wire.produce(name, keyed((b"a", b"1"), (b"b", b"2")))
        steps.append(trim(wire, name, 1))
    return steps


@alike
def test_old_clients_write_to_a_queue_packed_with_zstd(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, compression_type="zstd")
    values = produce_values(queue, batch(b"v"))
    answers = [wire.call(ApiKey.PRODUCE, version, values) for version in (3, 6, 7)]
    return [answer.responses[0].partition_responses[0].error_code for answer in answers]


@alike
def test_a_compacted_queue_blames_all_of_its_records(wire: Wire, queue: str) -> list[Any]:
    now = int(time.time() * 1000)
    bounds = {"message_timestamp_before_max_ms": "5000"}
    made(wire, queue, cleanup_policy="compact", **bounds)
    made(wire, queue + "-any", **bounds)
    bad = batch(b"v", b"w", times=(now, now - 100_000))
    late = keyed((b"k", b"v"), time_ms=now - 100_000)
    none = keyed((b"k", b"v"), time_ms=-1)
    with unheard():  # times of now
        answers = [wire.produce(queue, one) for one in (bad, late, none)]
        answers += [wire.produce(queue + "-any", one) for one in (bad, late, none)]
    return [(a.error_code, [r.batch_index for r in a.record_errors]) for a in answers]


@alike
def test_fetch_sessions(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 3)
    names = [(queue, i) for i in range(3)]
    wire.produce(queue, batch(b"a"), partition=1)

    def fetch(offsets: Any, session: int, epoch: int, **more: Any) -> Any:
        return wire.call(
            ApiKey.FETCH, 12, fetch_values(offsets, session_id=session, epoch=epoch, **more)
        )

    def parts(answer: Any) -> Any:
        return (
            answer.error_code, answer.session_id != 0,
            sorted((p.partition_index, p.error_code, p.high_watermark, len(p.records or b""))
                   for t in answer.responses for p in t.partitions),
        )  # fmt: skip

    first = fetch(dict.fromkeys(names, 0), 0, 0)
    session = first.session_id
    steps = [parts(first)]
    steps.append(parts(fetch({}, session, 1)))
    steps.append(parts(fetch({names[1]: 1}, session, 2)))
    wire.produce(queue, batch(b"b"), partition=2)
    steps.append(parts(fetch({}, session, 3, wait_ms=1000)))
    steps.append(parts(fetch({names[2]: 1}, session, 4, forget={queue: (0,)})))
    steps.append(parts(fetch({}, session, 9)))
    steps.append(parts(fetch({}, session + 1, 5)))
    steps.append(parts(fetch({(queue, 7): 0}, session, 5)))
    steps.append(parts(fetch({}, session, -1)))
    steps.append(parts(fetch({}, session, 6)))
    return steps


@alike
def test_fetch_limits(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, 2)
    for i in range(6):
        wire.produce(queue, batch(b"x" * 1000), partition=i % 2)
    size = len(batch(b"x" * 1000))
    steps = []
    for limit in (1, size - 1, size, 2 * size, 2 * size + 1, 10 * size):
        one = wire.fetch(queue, 0, partition_max_bytes=limit).records or b""
        steps.append(len(one) // size)  # a real Kafka adds part of the next batch
        both = wire.call(
            ApiKey.FETCH, 12, fetch_values({(queue, 0): 0, (queue, 1): 0}, max_bytes=limit)
        )
        sizes = [len(p.records or b"") for t in both.responses for p in t.partitions]
        steps.append(sum(sizes) // size)
    return steps


@alike
def test_acks_and_timeouts(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    return [wire.produce(queue, batch(b"v"), acks=acks).error_code for acks in (1, -1, 2, -2)]


@alike
def test_produce_by_id(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue)
    topic_id = wire.metadata(queue).topics[0].topic_id
    steps = [
        wire.produce(topic_id, batch(b"v"), version=13),
        wire.produce(UUID(int=99), batch(b"v"), version=13),
        wire.produce(topic_id, batch(b"v"), partition=4, version=13),
        wire.fetch(topic_id, 0, version=16),
    ]
    wire.delete(queue)
    eventually(lambda: wire.produce(topic_id, batch(b"v"), version=13).error_code != 0)
    return [*steps, wire.fetch(topic_id, 0, version=16).error_code]


@alike
def test_log_append_time(wire: Wire, queue: str) -> list[Any]:
    made(wire, queue, message_timestamp_type="LogAppendTime")
    data = batch(b"a", times=(1000,))
    done = wire.produce(queue, data)
    again = wire.list_offset(queue, -3)
    stored = wire.fetch(queue, 0).records
    assert done.log_append_time is not None
    return [done.base_offset, again.offset, again.timestamp > 1_000_000, stored[22]]


@alike
def test_timestamps_of_the_future(wire: Wire, queue: str) -> list[Any]:
    now = int(time.time() * 1000)
    made(wire, queue)
    made(wire, queue + "-set", message_timestamp_after_max_ms="5000")
    made(wire, queue + "-stamped", message_timestamp_type="LogAppendTime")
    steps: list[Any] = []
    for name in ("", "-set", "-stamped"):
        for ahead in (-(10**12), 0, 100_000, 3_000_000, 4_000_000, 10**12):
            with unheard():  # times of now
                answer = wire.produce(queue + name, batch(b"v", times=(now + ahead,)))
            steps.append((f"{name} {ahead:+}", answer.error_code))
    return steps
