import pytest

from kproxy.log.sequencer import LogChanged, Sequencer
from kproxy.virtual.commands.envelope import Envelope, Kind

ME, OTHER, ME_BEFORE = 1, 2, 3


def envelope(counter: int = 0, writer: int = ME) -> Envelope:
    return Envelope(Kind.PRODUCER_ID, writer=writer, counter=counter)


def test_a_report_at_the_next_offset_is_applied_from_memory() -> None:
    log = Sequencer(ME, 5)
    mine = envelope()
    log.sent(mine)
    assert log.reported(0, 5) == [(5, mine, 0)]
    assert log.read(5, mine) == []
    assert (log.next_offset, log.waiting, log.gap) == (6, 0, False)


def test_a_report_further_on_waits_for_the_gap() -> None:
    log = Sequencer(ME, 0)
    mine, theirs = envelope(), envelope(writer=OTHER)
    log.sent(mine)
    assert log.reported(0, 1) == []
    assert log.gap
    assert log.read(0, theirs) == [(0, theirs, None), (1, mine, 0)]
    assert not log.gap


def test_the_reader_may_be_first() -> None:
    log = Sequencer(ME, 0)
    mine = envelope()
    log.sent(mine)
    assert log.read(0, mine) == [(0, mine, 0)]
    assert log.reported(0, 0) == []


def test_envelope_without_a_waiter_is_applied_when_it_is_read() -> None:
    log = Sequencer(ME, 0)
    mine = envelope()
    log.sent(mine)
    log.unreported(0)
    assert log.reported(0, 0) == []
    assert log.read(0, mine) == [(0, mine, None)]


def test_an_earlier_life_of_ours_is_another_writer() -> None:
    log = Sequencer(ME, 0)
    log.sent(envelope())
    old = envelope(writer=ME_BEFORE)
    assert log.read(0, old) == [(0, old, None)]
    assert log.waiting == 1


def test_landed_out_of_order_is_applied_in_order() -> None:
    log = Sequencer(ME, 0)
    first, second = envelope(0), envelope(1)
    log.sent(first)
    log.sent(second)
    assert log.reported(1, 1) == []
    assert log.reported(0, 2) == []
    theirs = envelope(writer=OTHER)
    assert log.read(0, theirs) == [
        (0, theirs, None), (1, second, 1), (2, first, 0),
    ]  # fmt: skip


def test_a_second_copy_of_ours_is_read_where_its_report_says() -> None:
    """librdkafka sends again what it is not sure of, and names the place of the second."""
    log = Sequencer(ME, 0)
    mine, theirs, later = envelope(), envelope(writer=OTHER), envelope(1)
    log.sent(mine)
    log.sent(later)
    assert log.reported(0, 2) == []
    assert log.reported(1, 3) == []
    assert log.read_all([(0, theirs), (1, mine)]) == [(0, theirs, None), (1, mine, 0)]
    assert (log.next_offset, log.gap, log.landed_through) == (2, True, 3)
    assert log.read(2, mine) == [(2, mine, None), (3, later, 1)]
    assert (log.waiting, log.gap) == (0, False)


def test_a_second_copy_that_is_read_with_others_leaves_no_gap() -> None:
    """FAULT: where its report said it was stayed for good; no gap behind it was read any more."""
    log = Sequencer(ME, 0)
    mine, theirs, later = envelope(), envelope(writer=OTHER), envelope(1)
    log.sent(mine)
    assert log.reported(0, 2) == []
    assert log.read_all([(0, mine)]) == [(0, mine, 0)]
    assert len(log.read_all([(1, theirs), (2, mine), (3, theirs)])) == 3
    assert not log.gap
    log.sent(later)
    assert log.reported(1, 6) == []
    assert (log.gap, log.next_offset, log.landed_through) == (True, 4, 6)


def test_an_unknown_fate_does_not_look_at_all_that_landed() -> None:
    """FAULT: an outage amid a gap held the loop for a second: thousands, times thousands."""
    log = Sequencer(ME, 0)
    for counter in range(3):
        log.sent(envelope(counter))
        assert log.reported(counter, counter + 1) == []
    log.sent(envelope(3))
    landed = log._landed
    log.unreported(3)
    assert (log._landed is landed, log.waiting) == (True, 3)


def test_a_truncated_log_is_noticed() -> None:
    log = Sequencer(ME, 3)
    log.sent(envelope())
    with pytest.raises(LogChanged, match="truncated"):
        log.reported(0, 2)


def test_a_gap_in_the_log_is_not_jumped() -> None:
    log = Sequencer(ME, 0)
    with pytest.raises(LogChanged, match="missing"):
        log.read(1, envelope(writer=OTHER))


def test_an_offset_that_holds_something_else_than_reported_is_noticed() -> None:
    log = Sequencer(ME, 0)
    log.sent(envelope())
    log.reported(0, 1)
    log._landed = {0: 0}  # as after a truncation between the report and the reading
    with pytest.raises(LogChanged, match="another envelope"):
        log.read(0, envelope(writer=OTHER))
