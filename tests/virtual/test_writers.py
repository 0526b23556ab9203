"""Envelopes that the log has twice: what the fold knows of their writers."""

import copy
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.metadata.levels import Level
from kproxy.upstream.link import DataLink
from kproxy.virtual import writers
from kproxy.virtual.commands.envelope import NUMBERED, Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.fold import PASSED, Fold
from kproxy.virtual.levels import ONCE_FROM
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import no_effect_key
from kproxy.virtual.rows.writers import WRITERS, Writer
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId, ShardId
from kproxy.virtual.writers import Writers
from tests.fakes import DictKv
from tests.simulation.folded import differing
from tests.simulation.twice import fold_twice
from tests.virtual.commands.test_commands import story
from tests.wire import batch

ME, OTHER = 5, 6
FAR = 100_000
"""The log offset of the first copy: the story names log offsets, so none may lie between."""
Q = QueueId(b"q" * 16)
CREATED = CreateQueue(Q, "q", 1, {}).envelope()


def numbered(log: Iterable[Envelope], writer: int = ME) -> list[Envelope]:
    sent = [copy.copy(envelope) for envelope in log]
    for number, envelope in enumerate(sent, 1):
        envelope.writer, envelope.counter = writer, NUMBERED | number
    return sent


class Log:
    """A shard of two that folds what it is given, and writes after each."""

    def __init__(self, kv: DictKv | None = None) -> None:
        self.kv = kv or DictKv()
        self.state = State(self.kv, 10)
        self.fold = Fold(self.state, ShardId(0), 2, shared=True)

    def take(self, log_offset: int, envelope: Envelope) -> Outcome:
        place = LogLocation(0, log_offset, len(envelope.body))
        outcome = self.fold.apply(log_offset, copy.copy(envelope), place)
        self.kv.write(self.state.drain())
        return outcome

    def rows(self) -> dict[bytes, bytes]:
        """Return all rows, but that copies had no effect."""
        far = RowKind.NO_EFFECT.letter + FAR.to_bytes(8, "big")
        return {k: v for k, v in self.kv.rows.items() if not (RowKind.NO_EFFECT.of(k) and k >= far)}


def told(twice: frozenset[Kind]) -> tuple[dict[bytes, bytes], list[Outcome], list[Outcome]]:
    """Return what a story comes to whose envelopes of some kinds lie there twice."""
    log, outcomes, copies = Log(), [], []
    for log_offset, envelope in enumerate(numbered(story())):
        outcomes.append(log.take(log_offset, envelope))
        if Kind(envelope.kind) in twice:
            copies.append(log.take(FAR + log_offset, envelope))
    return log.rows(), outcomes, copies


def kinds_that_show() -> Iterator[Kind]:
    """Yield the kinds whose copies change what the story comes to."""
    rows, outcomes, _ = told(frozenset())
    for kind in {Kind(envelope.kind) for envelope in story()}:
        found, decided, _ = told(frozenset((kind,)))
        if differing(found, rows) or decided != outcomes:
            yield kind


def test_an_envelope_of_each_kind_is_applied_once() -> None:
    rows, outcomes, _ = told(frozenset())
    found, decided, copies = told(frozenset(Kind))
    assert not differing(found, rows)
    assert decided == outcomes
    assert all(one is PASSED for one in copies)


def test_copies_would_show_without_what_is_known_of_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Writers, "passed", lambda *asked: False)
    assert set(kinds_that_show()) >= {
        Kind.APPEND, Kind.INIT_PRODUCER, Kind.TRANSACTION_COMMIT, Kind.LATER, Kind.CLAIM,
        Kind.CONFIGURE, Kind.EXPIRE, Kind.SECURE,
    }  # fmt: skip


def test_a_run_of_copies_behind_the_first_ones_has_no_effect() -> None:
    """A batch of the client library has many, and goes again as a whole."""
    log = numbered([CREATED, *(Envelope(Kind.APPEND, Q, 0, body=batch(b"v")) for _ in range(3))])
    theirs = numbered(log[1:2], OTHER)
    shard = Log()
    for log_offset, envelope in enumerate([*log, *theirs, *log]):
        shard.take(log_offset, envelope)
    row = shard.state.partition((Q, 0))
    assert row is not None
    assert row.next_offset == 4
    voids = [key for key, _ in shard.kv.scan(*RowKind.NO_EFFECT.range())]
    assert voids == [no_effect_key(log_offset) for log_offset in range(5, 9)]
    fold_twice([*log, *theirs, *log])


def test_an_envelope_behind_what_was_sent_later_is_refused() -> None:
    """Its sender hears that, and may send it again: nothing is lost, or applied out of order."""
    log = numbered([CREATED, *(Envelope(Kind.APPEND, Q, 0, body=batch(b"v")) for _ in range(2))])
    shard = Log()
    codes = [shard.take(at, log[number]).code for at, number in enumerate((0, 2, 1))]
    assert codes == [Code.NONE, Code.NONE, Code.REQUEST_TIMED_OUT]


def test_below_its_level_a_copy_is_applied_as_before() -> None:
    log = numbered([CREATED, Envelope(Kind.APPEND, Q, 0, body=batch(b"v"))])
    for envelope in log:
        envelope.counter -= NUMBERED
    shard = Log()
    outcomes = [shard.take(at, one) for at, one in enumerate([*log, log[1]])]
    assert [one.number for one in outcomes[1:]] == [0, 1]
    assert not list(shard.kv.scan(*WRITERS.range()))


def test_the_rows_say_all_that_is_known_of_writers() -> None:
    log = numbered([CREATED, Envelope(Kind.APPEND, Q, 0, body=batch(b"v"))])
    shard = Log()
    for log_offset, envelope in enumerate(log):
        shard.take(log_offset, envelope)
    assert WRITERS.decode(shard.kv.rows[WRITERS.key(ME)]) == Writer(NUMBERED | 2, 0)
    assert Log(shard.kv).take(2, log[1]) is PASSED


def test_the_writer_that_began_first_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_WRITERS_MAX", 3)
    log = [numbered([CREATED], writer)[0] for writer in (9, 1, 5, 9, 7, 5)]
    shard = Log()
    passed = [shard.take(at, envelope) is PASSED for at, envelope in enumerate(log)]
    assert passed == [False, False, False, True, False, True]
    kept = {WRITERS.parts(key)[0] for key, _ in shard.kv.scan(*WRITERS.range())}
    assert kept == {1, 5, 7}
    assert Log(shard.kv).take(6, numbered([CREATED], 2)[0]) is not PASSED
    kept = {WRITERS.parts(key)[0] for key, _ in shard.kv.scan(*WRITERS.range())}
    assert kept == {2, 5, 7}
    fold_twice([*log, *(numbered([CREATED], writer)[0] for writer in (8, 9, 1, 9))])


def test_envelopes_are_numbered_from_their_level_on() -> None:
    link: Any = SimpleNamespace(_level=Level(ONCE_FROM - 1), _next_number=iter((6, 7)).__next__)
    assert DataLink.next_counter(link) == 6
    link._level.value = ONCE_FROM
    assert DataLink.next_counter(link) == NUMBERED | 7
