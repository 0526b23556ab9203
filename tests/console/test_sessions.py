"""Sessions of the console, by a clock that the test moves."""

import pytest

pytest.importorskip("anyio")

from kproxy.console import sessions
from kproxy.console.connections import Connections
from kproxy.console.sessions import Failures, Full, Sessions
from kproxy.tools.client_settings import ClientSettings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def connections() -> Connections:
    return Connections(("127.0.0.1", 1), ClientSettings(), 1, 1.0)


def test_a_session_ends_when_nobody_looks() -> None:
    clock = Clock()
    known = Sessions(clock)
    token = known.begin("anna", connections())
    for _ in range(3):
        clock.now += 29 * 60
        assert known.find(token)
    clock.now += 31 * 60
    assert known.find(token) is None
    assert len(known) == 0


def test_a_tab_that_refreshes_by_itself_keeps_nobody_logged_in() -> None:
    clock = Clock()
    known = Sessions(clock)
    token = known.begin("anna", connections())
    for _ in range(359):
        clock.now += 5
        assert known.find(token, used=False)
    clock.now += 5
    assert known.find(token, used=False) is None


def test_a_session_that_is_used_all_day_ends_in_the_evening() -> None:
    clock = Clock()
    known = Sessions(clock)
    token = known.begin("anna", connections())
    for _ in range(12 * 3 - 1):
        clock.now += 20 * 60
        assert known.find(token)
    clock.now += 20 * 60
    assert known.find(token) is None


def test_there_are_so_many_sessions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_SESSIONS_MAX", 3)
    clock = Clock()
    known = Sessions(clock)
    tokens = [known.begin(f"user-{i}", connections()) for i in range(3)]
    with pytest.raises(Full):
        known.begin("one-more", connections())
    assert all(map(known.find, tokens))  # nobody was driven out
    known.end(tokens[1])
    assert known.begin("one-more", connections())
    clock.now += 31 * 60
    assert known.begin("later", connections())
    assert len(known) == 1


def test_one_who_logs_in_again_and_again_keeps_nobody_out() -> None:
    known = Sessions(Clock())
    other = known.begin("bert", connections())
    tokens = [known.begin("anna", connections()) for _ in range(200)]
    assert known.begin("carl", connections())
    assert known.find(other)
    assert sum(known.find(token) is not None for token in tokens) == 20
    assert known.find(tokens[-1])  # the newest stay


def test_a_token_says_nothing_and_is_not_kept() -> None:
    known = Sessions(Clock())
    first, second = known.begin("anna", connections()), known.begin("anna", connections())
    assert first != second
    assert len(first) >= 40
    assert first.encode() not in b"".join(known._by_hash)
    assert known.find("") is None
    assert known.find("\udcff") is None


def test_an_address_that_guesses_passwords_has_to_wait() -> None:
    clock = Clock()
    failures = Failures(clock)
    for _ in range(10):
        assert not failures.too_many("192.0.2.7")
        failures.add("192.0.2.7")
    assert failures.too_many("192.0.2.7")
    failures.forgive("192.0.2.7")
    assert not failures.too_many("192.0.2.7")
    failures.add("192.0.2.7")
    assert failures.too_many("192.0.2.7")
    assert not failures.too_many("192.0.2.8")
    clock.now += 60
    assert not failures.too_many("192.0.2.7")
    for number in range(5000):
        failures.add(f"10.0.{number}")
    assert len(failures._by_address) <= 1000


def test_a_machine_that_has_many_addresses_guesses_no_more() -> None:
    failures = Failures(Clock())
    for number in range(10):
        failures.add(f"2001:db8::{number:x}:1")
    assert failures.too_many("2001:db8::ffff")
    assert not failures.too_many("2001:db8:0:1::1")
    for number in range(10):
        failures.add(f"::ffff:192.0.2.{number}")
    assert not failures.too_many("::ffff:192.0.2.9")
    failures.forgive("2001:db8::3")
    assert not failures.too_many("2001:db8::3")
