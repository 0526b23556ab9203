"""Records that say where their partition must end, over a served kproxy."""

import time
from typing import Any

from confluent_kafka import KafkaError, Producer

from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from tests.delays.test_delays import put
from tests.harness import Served
from tests.wire import Wire

INVALID_RECORD, INVALID_CONFIG = 87, 40
NAME = "kproxy.if-end-offset"


def saying(*ends: int | str | None, codec: int = 0, filler: int = 0) -> bytes:
    """Return a batch whose records say this, or nothing."""
    now_ms = int(time.time() * 1000)
    return batch_of_bodies(
        [
            (body_of(Content(b"k", bytes(filler)),
                     [header(NAME, str(end))] if end is not None else []), now_ms)
            for end in ends
        ],
        codec,
    )  # fmt: skip


def test_a_batch_is_appended_only_where_the_partition_ends(wire: Wire, queue: str) -> None:
    assert wire.create(queue, kproxy_append_if="header").error_code == 0
    assert put(wire, queue, saying(0, None)).base_offset == 0
    said = put(wire, queue, saying(1, None))
    assert said.error_code == INVALID_RECORD
    assert said.error_message == f"the partition ends at 2, not at 1 ({NAME})"
    assert put(wire, queue, saying(None, codec=4)).base_offset == 2
    for codec in (1, 2, 3, 4):
        assert put(wire, queue, saying(0, codec=codec)).error_code == INVALID_RECORD
    assert put(wire, queue, saying(3, None, codec=4)).base_offset == 3
    assert put(wire, queue, saying(5, filler=100_000)).base_offset == 5  # read on a thread
    assert put(wire, queue, saying(5, filler=100_000)).error_code == INVALID_RECORD
    assert wire.fetch(queue, 0).high_watermark == 6


def test_records_that_a_client_has_put_together_each_say_their_place(
    wire: Wire, queue: str
) -> None:
    assert wire.create(queue, kproxy_append_if="header").error_code == 0
    assert put(wire, queue, saying(0, 1, 2)).base_offset == 0
    assert put(wire, queue, saying(None, 4, None)).base_offset == 3
    said = put(wire, queue, saying(6, 6))
    assert said.error_code == INVALID_RECORD
    assert [one.batch_index for one in said.record_errors] == [1]
    assert "it cannot be record 1 of its batch where record 0 is at 6" in said.error_message
    assert wire.fetch(queue, 0).high_watermark == 6


def test_a_wrong_end_is_told(wire: Wire, queue: str) -> None:
    assert wire.create(queue, kproxy_append_if="header").error_code == 0
    for wrong in ("-1", "", "x", "1" * 19, "0x1"):
        said = put(wire, queue, saying(wrong))
        assert (said.error_code, "it must be an offset" in said.error_message) == (87, True)
    assert put(wire, queue, saying(None, 0)).error_code == INVALID_RECORD


def test_without_the_setting_a_condition_says_nothing(wire: Wire, queue: str) -> None:
    assert wire.create(queue).error_code == 0
    assert put(wire, queue, saying(77)).base_offset == 0


def test_conditions_and_delays_exclude_each_other(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_append_if="header", kproxy_delay="header")
    assert made.error_code == INVALID_CONFIG
    assert "exclude each other" in made.error_message
    assert wire.create(queue, kproxy_append_if="yes").error_code == INVALID_CONFIG


def test_librdkafka_is_told_of_a_second_writer(server: Served, wire: Wire, queue: str) -> None:
    assert wire.create(queue, kproxy_append_if="header").error_code == 0
    told: list[Any] = []
    for end in (0, 0, 1):
        producer = Producer({"bootstrap.servers": server.address})
        producer.produce(
            queue, b"v", headers={NAME: str(end)}, on_delivery=lambda error, _: told.append(error)
        )
        producer.flush(20)
    assert told[0] is None
    assert told[1].code() == KafkaError.INVALID_RECORD
    assert told[2] is None
