"""Publishing rows to a cluster that answers late: in pieces, until told to stop."""

from typing import Any

import pytest
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException

from kproxy.cluster import publisher
from kproxy.loop.threads import Stop, Stopped
from kproxy.upstream import rows_writer
from kproxy.upstream.rows_writer import NotPublished, RowsWriter
from tests.upstream.test_topics import UPSTREAM


class Late:
    """A producer whose calls take several pieces of time, and the line to the cluster is full."""

    pieces = 3
    full = False

    settings: dict[str, Any]

    def __init__(self, settings: dict[str, Any]) -> None:
        Late.settings = settings
        self.asked = 0

    def init_transactions(self, seconds: float) -> None:
        self.asked += 1
        if self.asked < self.pieces:
            raise KafkaException(UpstreamError(UpstreamError._TIMED_OUT))

    commit_transaction = init_transactions

    def begin_transaction(self) -> None:
        pass

    def produce(self, *_: Any, **__: Any) -> None:
        if self.full:
            raise BufferError

    def poll(self, seconds: float) -> None:
        pass


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> RowsWriter:
    monkeypatch.setattr(rows_writer, "Producer", Late)
    return RowsWriter(UPSTREAM, 0, 1 << 20)


def test_a_call_that_takes_long_goes_on_in_pieces(writer: RowsWriter) -> None:
    writer.fence(Stop())
    writer.write(iter([(b"k", b"v")]), 7, Stop())


def test_a_silent_cluster_is_given_up(writer: RowsWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "pieces", 1 << 40)
    seconds = iter(range(1000))
    monkeypatch.setattr(rows_writer, "monotonic", lambda: float(next(seconds)))
    with pytest.raises(NotPublished):
        writer.fence(Stop())


@pytest.mark.parametrize("full", [False, True])
def test_wait_for_a_silent_cluster_stops_when_told_to(
    writer: RowsWriter, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """SIGTERM waited for a commit, and for the abort behind it: 60 s where the cluster was away."""
    monkeypatch.setattr(Late, "pieces", 1 << 40)
    monkeypatch.setattr(Late, "full", full)
    stop = Stop()
    late, turns = (Late.poll, "poll") if full else (Late.init_transactions, "commit_transaction")

    def told(self: Late, seconds: float) -> None:
        stop.tell()
        late(self, seconds)

    monkeypatch.setattr(Late, turns, told)
    with pytest.raises(Stopped):
        writer.write(iter([(b"k", b"v")]), 7, stop)


def test_rows_of_a_large_publication_are_not_all_in_line_at_once(writer: RowsWriter) -> None:
    """All of them were in memory twice: taken, and in librdkafka's line, which takes 1 GiB."""
    assert Late.settings["queue.buffering.max.kbytes"] <= 16 << 10
    taken: dict[bytes, bytes | None] = {b"%d" % n: b"v" for n in range(1000)}
    handed_over = publisher._handed_over(taken)
    for _ in range(600):
        next(handed_over)
    assert len(taken) == 400
