"""The ends of handshakes, and listeners that cannot be."""

import asyncio
import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kproxy.common.counters import Counters
from kproxy.common.errors import CannotStart
from kproxy.config.listeners import ListenerConfig
from kproxy.security.tls import Tls
from kproxy.server import accepting, served_listener
from kproxy.server.accepting import TlsAcceptor
from kproxy.server.admission import Admission
from kproxy.server.listener import Server
from kproxy.server.served_listener import ServedListener
from tests.fakes import memory_worker
from tests.harness import until
from tests.securing import Authority


class Site:
    def __init__(self, directory: Path, make: Any) -> None:
        self.authority = Authority(directory)
        config = ListenerConfig(
            name="T", listen="127.0.0.1:0", protocol="SSL", certificate=self.authority.server
        )
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.admission = Admission(10, 10)
        self.room = self.admission.room(logins=True)
        self.counters, quotas = Counters(), memory_worker().quotas
        self.acceptor = TlsAcceptor(
            self.listening, Tls(config), make, self.room, self.counters, quotas, 5.0,
        )  # fmt: skip
        self.acceptor.start()

    def close(self) -> None:
        self.acceptor.close()
        self.listening.close()

    async def connect(self) -> None:
        port = self.listening.getsockname()[1]
        context = self.authority.context()
        with suppress(OSError):  # it is closed as soon as it is there
            _, writer = await asyncio.open_connection("localhost", port, ssl=context)
            writer.close()


async def test_a_handshake_that_fails_by_a_mistake_gives_its_place_back(tmp_path: Path) -> None:
    def make() -> Any:
        raise RuntimeError("a mistake")

    site = Site(tmp_path, make)
    for _ in range(3):
        await site.connect()
    async with asyncio.timeout(5):
        await until(lambda: site.counters.handshakes["failed"] >= 3)
    assert site.admission.count == 0
    assert not site.admission.by_network
    site.close()


async def test_a_socket_that_cannot_accept_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def sock_accept(_: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        raise OSError(errno.EBADF, "no socket")

    monkeypatch.setattr(accepting, "_PAUSE_S", 0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", sock_accept)
    site = Site(tmp_path, lambda: None)
    await asyncio.sleep(0.3)
    site.close()
    assert 0 < asked < 10


async def test_a_mistake_over_one_client_does_not_close_the_listener(tmp_path: Path) -> None:
    """FAULT: the task that accepts ended, and nobody was told: no client came in any more."""
    site = Site(tmp_path, Mock(side_effect=RuntimeError("a mistake")))
    come = site.room.come
    once = iter([KeyError("a mistake")])

    def fails_once(ip: str, *, new: bool) -> Any:
        for error in once:
            raise error
        return come(ip, new=new)

    site.room.come = fails_once  # type: ignore[method-assign]
    await site.connect()
    await site.connect()
    async with asyncio.timeout(5):
        await until(lambda: site.counters.handshakes["failed"])
    site.close()


def test_a_listener_without_a_way_to_log_in_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ListenerConfig(
        name="S", listen="127.0.0.1:0", protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",)
    )
    monkeypatch.setattr(served_listener, "offered", lambda *_: {})
    listener = ServedListener(config)
    assert listener.sasl
    with pytest.raises(CannotStart, match="listener S offers no mechanism"):
        listener.open(memory_worker().security)  # type: ignore[arg-type]


def test_connection_is_aborted_where_the_listener_has_closed() -> None:
    """FAULT: a handshake that ended amid a stop began a task in a group that had ended."""
    listener, connection = Server.__new__(Server), Mock()
    listener._connections, listener._worker, listener._closed = set(), None, True
    listener.register(connection)
    connection.abort.assert_called_once_with()


def test_a_mistake_over_one_connection_ends_no_other() -> None:
    """FAULT: it ended the server."""
    listener = Server.__new__(Server)
    mistaken, error = Mock(), AttributeError("a mistake")
    mistaken.expire.side_effect = error
    listener._expire(mistaken)
    mistaken.report.assert_called_once_with(error)
    mistaken.abort.assert_called_once_with()
