"""Batches that are looked into before they are taken, over a served kproxy."""

import time
from typing import Any

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.batch import CODECS, read_header
from tests.wire import Wire, batch, batches, keyed, produce_values

INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, CORRUPT = 87, 32, 10, 2


def put(wire: Wire, queue: str, body: bytes, version: int = 9) -> Any:
    answer = wire.call(ApiKey.PRODUCE, version, produce_values(queue, body))
    return answer.responses[0].partition_responses[0]


def stored(wire: Wire, queue: str) -> list[bytes]:
    return [data for _, data in batches(wire.fetch(queue, 0).records)]


def test_each_record_of_a_compacted_queue_needs_a_key(wire: Wire, queue: str) -> None:
    assert wire.create(queue, cleanup_policy="compact").error_code == 0
    for codec in range(len(CODECS)):
        said = put(wire, queue, keyed((b"a", b"1"), (None, b"2"), (None, None), codec=codec))
        assert said.error_code == INVALID_RECORD
        assert [error.batch_index for error in said.record_errors] == [1, 2]
        message = f"Compacted topic cannot accept message without key in topic partition {queue}-0."
        assert said.record_errors[0].batch_index_error_message == message
        assert "2 record errors in total" in said.error_message
        assert put(wire, queue, keyed((b"a", b"1"), (b"b", None), codec=codec)).error_code == 0
    assert put(wire, queue, batch(b"no key"), version=3).error_code == INVALID_RECORD
    assert wire.fetch(queue, 0).high_watermark == 2 * len(CODECS)


def test_order_is_kept_behind_a_batch_that_is_looked_into(wire: Wire, queue: str) -> None:
    assert wire.create(queue, cleanup_policy="compact").error_code == 0
    big = keyed(*[(b"%d" % i, b"v" * 50) for i in range(2000)], codec=4)
    sent = []
    for i in range(20):
        body = big if i % 2 else keyed((b"small", b"%d" % i))
        sent.append(wire.send(ApiKey.PRODUCE, 9, produce_values(queue, body)))
    ends = []
    for expected in sent:
        correlation, answer = wire.receive(ApiKey.PRODUCE, 9)
        assert correlation == expected
        part = answer.responses[0].partition_responses[0]
        assert part.error_code == 0
        ends.append(part.base_offset)
    assert ends == sorted(ends)
    assert ends[-1] == 9 * 2001 + 1


def test_records_of_the_past(wire: Wire, queue: str) -> None:
    assert wire.create(queue, message_timestamp_before_max_ms="60000").error_code == 0
    now_ms = int(time.time() * 1000)
    said = put(wire, queue, batch(b"a", b"b", times=(now_ms, now_ms - 100_000)))
    assert said.error_code == INVALID_TIMESTAMP
    assert [error.batch_index for error in said.record_errors] == [1]
    assert put(wire, queue, batch(b"a", b"b", times=(now_ms, now_ms - 10_000))).error_code == 0


def test_packed_as_the_queue_says(wire: Wire, queue: str) -> None:
    for number, name in enumerate(("uncompressed", *CODECS[1:])):
        made = f"{queue}-{name}"
        assert wire.create(made, compression_type=name).error_code == 0
        for codec in range(len(CODECS)):
            assert put(wire, made, keyed((b"k", b"value" * 50), codec=codec)).error_code == 0
        assert [read_header(data).codec for data in stored(wire, made)] == [number] * len(CODECS)


def test_batch_too_large_once_it_is_packed_anew(wire: Wire, queue: str) -> None:
    made = wire.create(queue, compression_type="uncompressed", max_message_bytes="2000")
    assert made.error_code == 0
    packed = keyed((b"k", bytes(5000)), codec=4)
    assert len(packed) < 2000
    assert put(wire, queue, packed).error_code == MESSAGE_TOO_LARGE
    assert put(wire, queue, keyed((b"k", bytes(1000)), codec=4)).error_code == 0


def test_a_batch_that_lies_about_its_records_is_refused(wire: Wire, queue: str) -> None:
    assert wire.create(queue, cleanup_policy="compact").error_code == 0
    lie = batch(b"", b"", packed=b"\x7f" * 40)
    assert put(wire, queue, lie).error_code in (CORRUPT, INVALID_RECORD)


def test_a_duplicate_is_answered_as_one(wire: Wire, queue: str) -> None:
    assert wire.create(queue, cleanup_policy="compact", compression_type="gzip").error_code == 0
    producer = wire.producer_id()
    body = keyed((b"k", b"v"), producer_id=producer, epoch=0, sequence=0)
    first, again = (put(wire, queue, body) for _ in range(2))
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert wire.fetch(queue, 0).high_watermark == 1


def test_entrance_refuses_a_record_that_no_route_takes(wire: Wire, queue: str) -> None:
    """Its value was dropped on the way to the queue of the unroutable ones."""
    lost = f"{queue}.lost"
    settings = {"kproxy_route_to": f"{queue}-{{key}}", "kproxy_route_unroutable": lost}
    assert wire.create(queue, **settings).error_code == 0
    for codec in range(1, 5):
        fine = put(wire, queue, keyed((b"a", bytes(7 << 20)), (b"b", bytes(7 << 20)), codec=codec))
        assert fine.error_code == 0
        answer = put(wire, queue, keyed((b"a", b"1"), (b"a", bytes(9 << 20)), codec=codec))
        assert answer.error_code == MESSAGE_TOO_LARGE
        assert "kproxy.route.to" in answer.error_message
    assert put(wire, queue, batch(b"", packed=b"\x7f" * 20)).error_code == 0


def test_message_names_the_setting_that_needs_a_look(wire: Wire, queue: str) -> None:
    for setting, value in (
        ("cleanup.policy", "compact"), ("compression.type", "gzip"), ("kproxy.delay", "header"),
        ("message.timestamp.before.max.ms", "3600000"),
    ):  # fmt: skip
        name = f"{queue}-{setting}"
        assert wire.create(name, **{setting: value}).error_code == 0
        answer = put(wire, name, keyed((b"a", bytes(33 << 20)), codec=4))
        assert answer.error_code == MESSAGE_TOO_LARGE
        assert setting in answer.error_message
