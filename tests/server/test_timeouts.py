"""The times of one connection, by a clock that the test moves."""

import pytest

from kproxy.config.server import Config
from kproxy.server.timeouts import ConnectionTimeouts

CONFIG = Config(
    connection_idle_ms_max=600_000, receive_stalled_ms_max=30_000, send_stalled_ms_max=60_000
)
READS = 64 << 10  # bytes in each `send_stalled_ms_max`, at least


def expired(
    timeouts: ConnectionTimeouts, now: float, *, idle: bool = True, inside_frame: bool = False,
    unread: int = 0,
) -> str | None:  # fmt: skip
    return timeouts.expired(now, lambda: unread, idle=idle, inside_frame=inside_frame)


@pytest.mark.parametrize(
    ("idle", "inside_frame", "over_s", "event"),
    [
        (True, False, 600, "connection_idle"),
        (True, True, 30, "client_stopped_inside_a_request"),
    ],
)
def test_a_silent_client(idle: bool, inside_frame: bool, over_s: float, event: str) -> None:
    timeouts = ConnectionTimeouts(CONFIG, 0.0)
    timeouts.active(5.0)
    assert expired(timeouts, 5.0 + over_s, idle=idle, inside_frame=inside_frame) is None
    assert expired(timeouts, 5.1 + over_s, idle=idle, inside_frame=inside_frame) == event


@pytest.mark.parametrize("inside_frame", [False, True])
def test_a_client_that_waits_for_its_answer_may_be_silent(inside_frame: bool) -> None:
    timeouts = ConnectionTimeouts(CONFIG, 0.0)
    assert expired(timeouts, 10_000.0, idle=False, inside_frame=inside_frame) is None


def test_a_client_that_reads_nothing() -> None:
    timeouts = ConnectionTimeouts(CONFIG, 0.0)
    timeouts.unread(10.0, 1_000_000)
    assert expired(timeouts, 70.0, unread=1_000_000 - READS + 1, idle=False) is None
    late = expired(timeouts, 70.1, unread=1_000_000 - READS + 1, idle=False)
    assert late == "client_does_not_read"


def test_a_client_that_reads_slowly_is_let() -> None:
    timeouts, unread = ConnectionTimeouts(CONFIG, 0.0), 1_000_000
    timeouts.unread(0.0, unread)
    for minute in range(1, 10):
        unread -= READS
        assert expired(timeouts, minute * 60.0, unread=unread, idle=False) is None
    assert expired(timeouts, 601.0, unread=unread, idle=False) == "client_does_not_read"


def test_a_client_that_has_read_all_is_idle_only() -> None:
    timeouts = ConnectionTimeouts(CONFIG, 0.0)
    timeouts.unread(0.0, 1_000_000)
    timeouts.all_read()
    assert expired(timeouts, 100.0) is None
