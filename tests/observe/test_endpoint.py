"""The endpoint of a served process: where it listens, what it asks for, what it does at the end."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kproxy.common.errors import CannotStart
from kproxy.config.server import Config
from kproxy.observe.endpoint import Endpoint
from tests.forked import begin_kproxy
from tests.forked import run_kproxy as kproxy
from tests.harness import ROOT, Served, eventually, free_port, served
from tests.observe.prometheus import fetched
from tests.present import present


def address(running: Served) -> str:
    return str(present(running.event("http_ready"))["listen"])


def test_it_is_on_this_machine_unless_asked_and_several_find_a_port(tmp_path: Path) -> None:
    with served(tmp_path / "a") as one, served(tmp_path / "b") as other:
        addresses = {address(one), address(other)}
        assert len(addresses) == 2
        assert all(where.startswith("127.0.0.1:") for where in addresses)
        assert all(fetched(f"http://{where}/livez") == "ok\n" for where in addresses)
    with served(tmp_path / "a", "--http-listen", "off") as one:
        assert one.event("http_ready") is None


def test_an_address_that_was_asked_for_must_be_free(tmp_path: Path) -> None:
    with served(tmp_path / "a", "--http-listen", "127.0.0.1:0") as one:
        taken = address(one)
        done = kproxy("serve", "--data-dir", str(tmp_path / "b"), "--listen", "127.0.0.1:0",
                      "--http-listen", taken)  # fmt: skip
        assert done.returncode == 1
        assert f"cannot listen on --http-listen {taken}" in done.stderr


def test_a_token_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    flags = ("--http-listen", "127.0.0.1:0", "--http-token-file", str(file))
    with served(tmp_path / "data", *flags) as running:
        url = f"http://{address(running)}/metrics"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(url)
        request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request) as answer:
            assert b"kproxy_build_info" in answer.read()
        shown = kproxy("top", "--http", address(running), "--once", "--every", "0.3",
                       "--token-file", str(file))  # fmt: skip
        assert "1 of 1 served" in shown.stdout
        told = kproxy("health", "--http", "--http-listen", address(running)).stdout
        assert told in ("ready, native lane\n", "ready, python lane\n")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metrics_queues": "("}, "--metrics-queues or --metrics-groups is no expression"),
        ({"http_token_file": "/absent"}, "cannot read --http-token-file"),
        ({"http_tls_cert": "/absent"}, "cannot use --http-tls-cert"),
    ],
)
async def test_error_is_one_line(settings: dict[str, str], said: str) -> None:
    with pytest.raises(CannotStart, match=said) as found:
        with Endpoint(Config(http_listen="127.0.0.1:0", **settings)).listening():  # type: ignore[arg-type]
            pass
    assert "\n" not in str(found.value)


def test_a_process_that_stands_still_is_seen(tmp_path: Path) -> None:
    """Metrics and health answer while the event loop does not turn."""
    code = (
        "import time, kproxy.server.connection as c\n"
        "real = c.Connection.accept\n"
        "def stuck(self, frame):\n"
        "    time.sleep(4)\n"
        "    return real(self, frame)\n"
        "c.Connection.accept = stuck\n"
        "import kproxy.observe.loop_watch as w, kproxy.observe.selected as s\n"
        "w.STUCK_S = 1.5\n"
        "s._WAIT_S = 0.5\n"
        "from kproxy.cli import main\nmain()\n"
    )
    (tmp_path / "stuck.py").write_text(code)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "stuck.py"), "serve", "--listen", f"127.0.0.1:{port}",
         "--data-dir", str(tmp_path / "data"), "--http-listen", f"127.0.0.1:{port + 1}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port + 1}"

        def ready() -> bool:
            try:
                return fetched(f"{url}/readyz", 2).startswith("ok, ")
            except OSError:
                return False

        eventually(ready, 30)
        asking = begin_kproxy("health", "--listen", f"127.0.0.1:{port}")

        def stuck() -> bool:
            try:
                fetched(f"{url}/livez", 2)
            except urllib.error.HTTPError as error:
                return error.code == 503 and b"has not turned" in error.read()
            return False

        eventually(stuck, 30)
        began = time.monotonic()
        assert "kproxy_loop_lag_seconds_count" in fetched(f"{url}/metrics")
        assert time.monotonic() - began < 20
        asking.communicate(timeout=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_workers_of_one_machine_count_up() -> None:
    config = Config(http_listen="0.0.0.0:9644")
    assert [config.http_address_of(n) for n in range(3)] == [
        "0.0.0.0:9644", "0.0.0.0:9645", "0.0.0.0:9646"
    ]  # fmt: skip
    assert Config(http_listen="127.0.0.1:0").http_address_of(2) == "127.0.0.1:0"
    assert Config(http_listen="off").http_address_of(2) == "off"
    assert Config().http_address_of(2) is None
