"""The output of kproxy's commands for names that anybody may have chosen."""

from typing import Any

import pytest
from click.testing import CliRunner, Result

from kproxy import cli
from kproxy.common.printable import printable
from kproxy.tools import commands
from kproxy.tools.views import GroupDescription, GroupLine, PartitionLine

EVIL = "[red]x[/red][link=http://evil]y[/link]\x1b[2J\x1b]0;owned\x07\x9b1m\u202e:smile:\n"
SHOWN = (
    r"[red]x[/red][link=http://evil]y[/link]\x1b[2J\x1b]0;owned\x07\x9b1m\u202e:smile:\n"
)  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, found: Any, *arguments: str) -> Result:
    monkeypatch.setattr(commands, "asked", lambda address, ask: found)
    done = CliRunner().invoke(cli.cli, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def test_visible_text_stays_as_it_is() -> None:
    assert printable("orders-é-日本 [a] \\x1b") == "orders-é-日本 [a] \\x1b"


def test_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    line = GroupLine(group=EVIL, type="classic", state=EVIL, queues=1, lag=2)
    done = run(monkeypatch, [line, line], "groups", "--limit", "1")
    assert done.stdout.splitlines()[1].split() == [SHOWN, "classic", SHOWN, "1", "2"]
    assert f"--from {SHOWN} goes on" in done.stderr
    assert "\x1b" not in done.output + done.stderr


def test_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    found = GroupDescription(
        name=EVIL,
        id="id",
        partitions=[PartitionLine(partition=0, leader=1, start=0, end=1, bytes=5)],
        settings={EVIL: EVIL},
        groups=[{"group": EVIL, "committed": {"0": 1}, "lag": 0}],
    )
    done = run(monkeypatch, found, "describe", "q")
    assert done.stdout.splitlines()[0] == f"{SHOWN}  id id  settings: {SHOWN}={SHOWN}"
    assert done.stdout.splitlines()[-1].split() == [SHOWN, "0:1", "0"]


def test_an_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli._fail(EVIL, 1)
    assert capsys.readouterr().err == f"kproxy: {SHOWN}\n"
