"""The clients that are disconnected where users change."""

import asyncio
from types import SimpleNamespace
from typing import Any

from kproxy.config.server import Config
from kproxy.security.login import Identity
from kproxy.server.listener import Server
from kproxy.server.login_connection import LoginConnection
from kproxy.virtual.rows.access import user_name

SCRAM, OTHER = "SCRAM-SHA-256", "SCRAM-SHA-512"


class Open(LoginConnection):
    """A connection by which somebody has logged in."""

    looks = 0

    def __init__(self, user: str | None, mechanism: str) -> None:
        identity = None if user is None else Identity(user)
        login: Any = SimpleNamespace(identity=identity, mechanism=mechanism)
        self._login, self.ip, self.aborted = login, "10.0.0.1", False

    def one_of(self, changed: Any) -> str | None:
        Open.looks += 1
        return super().one_of(changed)

    def abort(self) -> None:
        self.aborted = True


async def test_connections_are_looked_at_once_however_many_users_change() -> None:
    server = Server(Config())
    gone = [Open("u1", SCRAM), Open("u2", "PLAIN")]
    left = [Open("u1", OTHER), Open("other", SCRAM), Open("u3", "OAUTHBEARER"), Open(None, "")]
    server._connections = {*gone, *left}
    for number in range(200):
        server._user_changed(user_name(f"u{number}", SCRAM), None)
    await asyncio.sleep(0)
    assert [one.aborted for one in (*gone, *left)] == [True, True, *[False] * 4]
    assert Open.looks == 6
    server._user_changed(user_name("u1", OTHER), {})
    await asyncio.sleep(0)
    assert left[0].aborted
