"""The messages to systemd, and the unit that asks for them."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproxy.observe.service_manager import ServiceManager
from tests.harness import ROOT, Served, served

UNIT = ROOT / "deploy" / "systemd" / "kproxy.service"


@contextmanager
def manager(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(20)
        yield listening


def test_signs_of_life_come_in_time(tmp_path: Path) -> None:
    now = 0.0
    with manager(tmp_path / "s") as listening:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": "30000000"}
        told = ServiceManager(environ, lambda: now)
        told.turned()
        assert listening.recv(100) == b"EXTEND_TIMEOUT_USEC=60000000"
        told.ready()
        assert listening.recv(100).startswith(b"READY=1")
        for _ in range(30):
            now += 1
            told.turned()
        told.stopping()
        heard = [listening.recv(100) for _ in range(4)]
        assert heard == [b"WATCHDOG=1"] * 3 + [b"STOPPING=1"]


def test_nobody_is_told_where_nobody_asks() -> None:
    told = ServiceManager({})
    told.ready()
    told.turned()


def test_a_served_kproxy_says_that_it_is_ready_and_that_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with manager(path) as listening:
        env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1500000"}
        with served(tmp_path / "data", env=env) as running:
            heard = [listening.recv(200)]
            while not heard[-1].startswith(b"READY=1"):
                heard.append(listening.recv(200))
            assert listening.recv(200) == b"WATCHDOG=1"
            _stop(running)
            while (last := listening.recv(200)) != b"STOPPING=1":
                assert last == b"WATCHDOG=1"


def _stop(running: Served) -> None:
    running.process.send_signal(signal.SIGTERM)


def test_the_unit_is_sound_and_hardened(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine lacks systemd")
    unit = tmp_path / UNIT.name
    true = shutil.which("true")
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/kproxy", str(true)))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr  # it would say what it does not know
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:]
