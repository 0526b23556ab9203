"""`kproxy console` as a command: what it refuses before anybody is served."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import yaml
from click.testing import CliRunner

from kproxy.cli import cli
from kproxy.common.errors import CannotStart
from kproxy.console.command import console_command, hosts
from kproxy.tools.client_settings import read_client_settings
from tests.harness import ROOT, eventually, free_port


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


def _written() -> Iterator[tuple[str, list[str]]]:
    """Yield the console's options where files of this repository start it."""
    for name in ("docker-compose.yml", "docker-compose.secured.yml"):
        service = yaml.safe_load((ROOT / name).read_text())["services"]["console"]
        yield name, service["command"].split()
    deployment = yaml.safe_load((ROOT / "deploy/kubernetes/console/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    yield "kubernetes", container["args"]


@pytest.mark.parametrize(("where", "arguments"), [*_written()])
def test_files_start_a_console_as_it_is_started(
    where: str, arguments: list[str], tmp_path: Path
) -> None:
    certificate = tmp_path / "there"
    certificate.touch()
    name, *options = (
        str(certificate) if one.startswith("/etc/kproxy/tls") else one for one in arguments
    )
    assert name == "console"
    given = console_command.make_context("console", options).params
    host, port = given["listen"]
    assert port == 8080
    assert (host == "127.0.0.1") == (where == "kubernetes")
    assert given["tls_cert"] is None or where == "docker-compose.secured.yml"
    read_client_settings(ROOT / "deploy/secured/console.properties", credentials=False)


def test_make_run_brings_a_console_along(tmp_path: Path) -> None:
    """It ends with its kproxy, whichever signal comes first."""
    bin_, port = tmp_path / "bin", free_port(2)
    bin_.mkdir()
    (bin_ / "kproxy").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kproxy "$@"\n')
    (bin_ / "kproxy").chmod(0o755)
    environ = os.environ | {
        "KPROXY_LISTEN": f"127.0.0.1:{port}", "KPROXY_DATA_DIR": str(tmp_path / "data"),
        "KPROXY_HTTP_LISTEN": "off",
    }  # fmt: skip
    command = ["make", "-s", "run", f"BIN={bin_}", "VENV=/nowhere", f"CONSOLE=127.0.0.1:{port + 1}",
               "-o", "/nowhere/.run"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as made:  # fmt: skip
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == f"console at http://127.0.0.1:{port + 1}\n"
            eventually(lambda: _is_served(port), 120)
        finally:
            made.terminate()
        made.wait(120)
    assert not _is_served(port)
    assert not _is_served(port + 1)


def _is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except OSError:
        return False
    return True
