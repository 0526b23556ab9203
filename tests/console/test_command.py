"""`kproxy console` as a command: what it refuses before anybody is served."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from click.testing import CliRunner

from kproxy.cli import cli
from kproxy.common.errors import CannotStart
from kproxy.console.command import hosts
from tests.harness import ROOT, free_port


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Forget what the command configures for its process, which is the tests' own here."""
    yield
    structlog.reset_defaults()


def run(*arguments: str) -> CannotStart:
    done = CliRunner().invoke(cli, ["console", *arguments])
    assert isinstance(done.exception, CannotStart), done.output
    return done.exception


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] in ("starlette", "uvicorn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "kproxy.console.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "pip install 'kproxy[console]'" in str(run())


def test_beyond_this_machine_it_wants_tls() -> None:
    pytest.importorskip("starlette")
    assert "--tls-cert" in str(run("--listen", "0.0.0.0:0"))
    assert "--tls-cert" in str(run("--listen", "console.example:0"))


def test_an_address_that_is_taken_is_said() -> None:
    pytest.importorskip("starlette")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen" in str(run("--listen", f"127.0.0.1:{taken.getsockname()[1]}"))


def test_hosts_are_those_that_lead_here() -> None:
    known = hosts("127.0.0.1", 8080, ("Console.example",), tls=False)
    assert {"localhost:8080", "127.0.0.1:8080", "[::1]:8080", "console.example"} <= known
    assert "console.example:8080" in known
    assert "localhost" not in known
    assert "localhost" in hosts("::1", 443, (), tls=True)


def test_the_command_serves_until_it_is_stopped() -> None:
    pytest.importorskip("starlette")
    from tests.console.serving import WAIT_S, Browser

    command = [sys.executable, "-m", "kproxy", "console", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--bootstrap-server", f"127.0.0.1:{free_port()}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as running:  # fmt: skip
        try:
            assert running.stdout
            line = running.stdout.readline()
            port = int(line.rsplit(":", 1)[1])
            assert line == f"console at http://127.0.0.1:{port}\n"
            page = Browser(port).get("/")
            assert page.status == 502
            assert "nothing serves at" in page.text
            running.terminate()
            assert running.wait(WAIT_S) in (0, -15)
            assert running.stderr
            assert running.stderr.read() == ""
        finally:
            running.kill()
