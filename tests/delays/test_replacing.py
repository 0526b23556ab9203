"""Waiting records that are replaced and cancelled by their keys, over a served kproxy."""

from tests.delays.test_delays import INVALID_CONFIG, INVALID_RECORD, put, saying, seen
from tests.harness import eventually
from tests.wire import Wire, keyed


def test_a_reminder_is_replaced_cancelled_and_delivered_once(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_delay="header", kproxy_delay_replace="key")
    assert made.error_code == 0
    assert put(wire, queue, saying(600_000, 600_000)).base_offset == -1  # k0 and k1
    assert put(wire, queue, saying(100)).base_offset == -1  # k0 comes soon instead
    assert put(wire, queue, keyed((b"k1", None))).error_code == 0
    eventually(lambda: seen(wire, queue, b"0"))
    late = put(wire, queue, keyed((b"k0", None)))
    assert late.error_code == INVALID_RECORD
    assert "it was delivered, or cancelled" in late.error_message
    assert put(wire, queue, keyed((b"k1", None), codec=4)).error_code == INVALID_RECORD
    assert put(wire, queue, keyed((None, b"v"))).error_code == INVALID_RECORD
    assert wire.fetch(queue, 0).high_watermark == 1


def test_a_fixed_delay_debounces(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_delay_ms="700", kproxy_delay_replace="key")
    assert made.error_code == 0
    for value in (b"1", b"2", b"3"):
        assert put(wire, queue, keyed((b"k", value))).error_code == 0
    eventually(lambda: seen(wire, queue, b"3"))


def test_replacing_without_a_delay_is_refused(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_delay_replace="key")
    assert made.error_code == INVALID_CONFIG
    assert "has no effect without" in made.error_message
