import pytest

from kproxy.log.sequencer import EnvelopeId, LogChanged, Sequencer
from kproxy.virtual.envelope import Envelope, Kind

ME, OTHER = b"me", b"other"


def envelope() -> Envelope:
    return Envelope(Kind.PRODUCER_ID)


def test_a_report_at_the_next_offset_is_applied_from_memory() -> None:
    log = Sequencer(ME, 5)
    mine = envelope()
    log.sent(0, mine)
    assert log.reported(0, 5) == [(5, mine, 0)]
    assert log.read(5, EnvelopeId(ME, 0), mine) == []
    assert (log.next_offset, log.waiting, log.gap) == (6, 0, False)


def test_a_report_further_on_waits_for_the_gap() -> None:
    log = Sequencer(ME, 0)
    mine, theirs = envelope(), envelope()
    log.sent(0, mine)
    assert log.reported(0, 1) == []
    assert log.gap
    assert log.read(0, EnvelopeId(OTHER, 0), theirs) == [(0, theirs, None), (1, mine, 0)]
    assert not log.gap


def test_the_reader_may_be_first() -> None:
    log = Sequencer(ME, 0)
    mine = envelope()
    log.sent(0, mine)
    assert log.read(0, EnvelopeId(ME, 0), mine) == [(0, mine, 0)]
    assert log.reported(0, 0) == []


def test_what_nobody_waits_for_is_applied_when_it_is_read() -> None:
    log = Sequencer(ME, 0)
    mine = envelope()
    log.sent(0, mine)
    log.unreported(0)
    assert log.reported(0, 0) == []
    assert log.read(0, EnvelopeId(ME, 0), mine) == [(0, mine, None)]


def test_an_earlier_life_of_ours_is_another_writer() -> None:
    log = Sequencer(ME, 0)
    log.sent(0, envelope())
    old = envelope()
    assert log.read(0, EnvelopeId(b"me, before", 0), old) == [(0, old, None)]
    assert log.waiting == 1


def test_landed_out_of_order_is_applied_in_order() -> None:
    log = Sequencer(ME, 0)
    first, second = envelope(), envelope()
    log.sent(0, first)
    log.sent(1, second)
    assert log.reported(1, 1) == []
    assert log.reported(0, 2) == []
    theirs = envelope()
    assert log.read(0, EnvelopeId(OTHER, 0), theirs) == [
        (0, theirs, None), (1, second, 1), (2, first, 0),
    ]  # fmt: skip


def test_a_truncated_log_is_noticed() -> None:
    log = Sequencer(ME, 3)
    log.sent(0, envelope())
    with pytest.raises(LogChanged, match="truncated"):
        log.reported(0, 2)


def test_a_gap_in_the_log_is_not_jumped() -> None:
    log = Sequencer(ME, 0)
    with pytest.raises(LogChanged, match="missing"):
        log.read(1, EnvelopeId(OTHER, 0), envelope())


def test_an_offset_that_holds_something_else_than_reported_is_noticed() -> None:
    log = Sequencer(ME, 0)
    log.sent(0, envelope())
    log.reported(0, 1)
    log._landed = {0: 0}  # as after a truncation between the report and the reading
    with pytest.raises(LogChanged, match="another envelope"):
        log.read(0, EnvelopeId(OTHER, 0), envelope())
