"""Log lines: what a client sent is text in them and nothing else."""

import json
import subprocess
import sys
from contextlib import suppress

import pytest
import structlog

from kproxy.common.logs import OF_ALL, OF_CLIENT, Floods
from tests.harness import ROOT
from tests.project.documents import DYNAMIC, levels_of_events

CODE = r"""
import sys, structlog
from kproxy.common.logs import configure
configure("info", sys.argv[1])
log = structlog.get_logger()
evil = "a\x1b[2Jb\x9b1m\x07\u202e"
log.warning("refused " + evil, reason=evil, names=[evil])
try:
    secret = "not to be shown"
    raise ValueError(evil + "\nsecond")
except ValueError:
    log.exception("failed", peer=evil)
"""


def logged(style: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, style], capture_output=True, check=True,
        env={"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    return done.stderr.decode()


def test_a_terminal_is_sent_no_control_characters() -> None:
    text = logged("console")
    plain = text.replace("\x1b[0m", "").replace("\x1b[1m", "")
    for style in range(30, 38):  # structlog's own colours
        plain = plain.replace(f"\x1b[{style}m", "").replace(f"\x1b[{style};1m", "")
    plain = plain.replace("\x1b[2m", "")
    assert not set(plain) & set("\x1b\x9b\x07\u202e")
    assert r"a\x1b[2Jb\x9b1m\x07\u202e" in plain
    assert "ValueError" in plain
    assert "second" in plain
    assert "not to be shown" not in plain


def test_json_lines_are_ascii() -> None:
    lines = logged("json").splitlines()
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert [json.loads(line)["event"][:6] for line in lines] == ["refuse", "failed"]


LONG = r"""
import structlog
from kproxy.common.logs import configure
configure("info", "json")
log = structlog.get_logger()
log.warning("long", text="x" * 100_000, many=["y" * 5000] * 1000)
def deep(n):
    if n: return deep(n - 1)
    raise ValueError("z" * 100_000)
try:
    deep(200)
except ValueError:
    log.exception("traced")
for _ in range(500):
    log.warning("flood", peer="p")
    log.info("told")
"""


def test_lines_are_bounded_and_floods_are_cut() -> None:
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, check=True, text=True)
    lines = done.stderr.splitlines()
    long, traced, *rest = map(json.loads, lines)
    assert max(map(len, lines)) < 120_000
    assert len(long["text"]) < 1100
    assert len(long["many"]) == 51
    assert len(traced["exception"]) < 17_000
    names = [line["event"] for line in rest]
    assert names.count("told") == 500
    assert 30 <= names.count("flood") < 200


def test_events_left_out_of_a_flood_are_counted() -> None:
    now = 100.0
    floods = Floods(lambda: now)

    def passed(count: int, name: str) -> int:
        through = 0
        for _ in range(count):
            try:
                floods(None, "warning", {"event": name, "level": "warning"})
            except structlog.DropEvent:
                continue
            through += 1
        return through

    assert passed(80, "a") == 50
    assert passed(10, "b") == 10
    left = floods.take()
    assert {name: (one.count, one.most()) for name, one in left.items()} == {"a": (30, {})}
    assert floods.take() == {}
    now += 2
    assert passed(80, "a") == 20


def test_flooding_client_hides_nobody() -> None:
    now = 100.0
    floods = Floods(lambda: now)

    def passed(count: int, **who: str) -> int:
        through = 0
        for _ in range(count):
            with suppress(structlog.DropEvent):
                floods(None, "warning", {"event": "login_failed", "level": "warning", **who})
                through += 1
        return through

    assert sum(passed(1, peer=f"10.0.0.1:{port}") for port in range(100)) == 30
    assert passed(5, peer="10.0.0.2:1") == 5
    assert passed(5, host="10.0.0.1", principal="User:alice") == 5
    now += 60
    for _ in range(60):
        now += 1
        assert passed(50, peer="10.0.0.1:1") <= 30
        assert passed(1, peer="10.0.0.2:1") == 1
    for number in range(20_000):
        passed(1, peer=f"{number}:1")
    assert len(floods._left_of) <= 10_000


def test_many_addresses_do_not_hide_what_another_does() -> None:
    """FAULT: all shared one bucket: two hundred addresses kept the line of any other out."""
    now = 100.0
    floods = Floods(lambda: now)

    def passed(peer: str, name: str = "login_failed") -> bool:
        try:
            floods(None, "warning", {"event": name, "level": "warning", "peer": peer})
        except structlog.DropEvent:
            return False
        return True

    for _ in range(20):
        for number in range(1000):
            passed(f"10.1.{number >> 8}.{number & 255}:77")
    assert passed("10.0.0.2:1")
    assert not passed("10.0.0.2:2")
    assert passed("2001:db8::1:5000")
    assert not passed("2001:db8::2:3:50001"), "of the same /64"
    left = floods.take()["login_failed"]
    assert left.count > 18_000
    assert len(left.clients) == 1000
    assert len(left.most()) == 10
    now += 60
    assert passed("10.0.0.2:1")
    for number in range(20_000):
        passed(f"10.2.{number >> 8}.{number & 255}:1")
    assert len(floods._first["login_failed"]) <= 2000
    assert passed("10.0.0.2:1", "not_authorized"), "another event is another matter"


def test_logins_of_one_client_are_bounded() -> None:
    """FAULT: one client that logged in again and again had a gigabyte a day logged."""
    now, through = 100.0, 0
    floods = Floods(lambda: now)
    for _ in range(86_400):
        now += 0.1
        with suppress(structlog.DropEvent):
            floods(None, "info", {"event": "login", "level": "info", "peer": "10.0.0.1:5"})
            through += 1
    assert through < 9000
    assert floods.take()["login"].count == 86_400 - through


AUDIT = sorted({
    "admin_request", "access_rules_created", "access_rules_deleted", "quotas_changed",
    "user_changed",
})  # fmt: skip


@pytest.mark.parametrize("name", AUDIT)
def test_the_audit_is_bounded_of_one_client_and_hides_nobody(name: str) -> None:
    """FAULT: nothing bounded what one client had logged of it. Lines left out are counted."""
    now, who = 100.0, "by" if name in ("quotas_changed", "user_changed") else "principal"
    floods = Floods(lambda: now)

    def passed(count: int, host: str) -> int:
        through = 0
        for _ in range(count):
            line = {"event": name, "level": "info", who: "User:a", "host": host}
            with suppress(structlog.DropEvent):
                floods(None, "info", line)
                through += 1
        return through

    assert passed(3000, "10.0.0.1") == 1000
    assert sum(passed(1, f"10.0.1.{number}") for number in range(200)) == 200
    now += 10
    assert passed(3000, "10.0.0.1") == 200
    left = floods.take()
    assert list(left) == [name]
    assert left[name].most() == {"User:a 10.0.0.1": 4800}


NOT_ASKED = {
    "admin_command", "backup_staged", "catalogue_read_again", "counters", "drained", "draining",
    "events_suppressed", "garbage_found", "http_ready", "joined", "kafka_reachable",
    "log_recovered", "log_trimmed", "node_forgotten", "oauth_keys_read", "ready", "rows_counted",
    "segment_copied_forward", "segment_deleted", "shard_left", "shard_rebuilt", "shard_served",
    "shards_assigned", "stopped", "stopping", "tls_reloaded", "worker_started",
}  # fmt: skip
"""Events of the level info that no request causes, or one for megabytes of its own."""


def test_events_of_requests_are_bounded() -> None:
    """FAULT: changes of users, rules and quotas could fill the disk."""
    told = {name for name, levels in levels_of_events().items() if "info" in levels}
    assert told <= NOT_ASKED | OF_CLIENT.keys() | OF_ALL | DYNAMIC.keys()


@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_names_that_are_handed_on_are_in_the_source(name: str) -> None:
    assert any(f'"{name}"' in path.read_text() for path in (ROOT / "kproxy").rglob("*.py"))
