"""A process that the system gives few file descriptors serves fewer connections, and lives."""

import socket
from contextlib import ExitStack
from pathlib import Path

from tests.harness import Served, eventually
from tests.wire import Wire, batch


def limited(data_dir: Path, limit: str) -> Served:
    flags = ("--rows-flush-ms-max", "200", "--keeper-period-ms", "100")
    prefix = ("bash", "-c", f'ulimit {limit}; exec "$@"', "kproxy")
    return Served(data_dir, *flags, prefix=prefix).wait_ready()


def served_again(server: Served) -> bool:
    try:
        with Wire(server.host, server.port) as wire:
            return bool(wire.metadata("q").topics[0].error_code == 0)
    except ConnectionError:
        return False


def test_connections_leave_descriptors_for_the_rows(data_dir: Path) -> None:
    server = limited(data_dir, "-n 300")
    try:
        assert server.event("fewer_connections")["connections"] == 300 - 150 - 64
        with ExitStack() as stack:
            wire = stack.enter_context(Wire(server.host, server.port))
            for _ in range(300):
                idle = stack.enter_context(socket.socket())
                idle.connect((server.host, server.port))
            eventually(lambda: server.event("connection_refused"))
            for _ in range(20):  # each with a flush of rows
                assert wire.produce("q", batch(b"v" * 1000)).error_code == 0
                assert wire.list_offset("q", -1).error_code == 0
        eventually(lambda: served_again(server))
        assert server.process.poll() is None
    finally:
        server.kill()


def test_a_soft_limit_is_raised(data_dir: Path) -> None:
    server = limited(data_dir, "-S -n 256")
    try:
        with ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(Wire(server.host, server.port)).metadata("q", create=False)
        assert server.event("connection_refused") is None
    finally:
        server.kill()
