"""The server: opens the data directory, listens, and stops without losing an answer."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from kproxy.admin_socket.server import Asked, Command, admin_socket
from kproxy.cluster.joining import joined
from kproxy.common.counters import Counters
from kproxy.common.errors import CannotGoOn, CannotStart, first_of
from kproxy.common.logs import report_floods
from kproxy.config.server import Config
from kproxy.loop.callbacks import nothing
from kproxy.loop.garbage import GarbageNet
from kproxy.loop.pulse import pulse
from kproxy.observe.endpoint import Endpoint
from kproxy.observe.service_manager import NOBODY, ServiceManager
from kproxy.security.mechanisms import Users
from kproxy.server.accepting import TlsAcceptor, bound_sockets
from kproxy.server.admission import Admission
from kproxy.server.api_table import RANGES
from kproxy.server.bulk_jobs import BulkJobs
from kproxy.server.connection import Connection
from kproxy.server.descriptors import connections_max
from kproxy.server.login_connection import LoginConnection
from kproxy.server.schemas import load_common
from kproxy.server.served_listener import ServedListener, served_listeners
from kproxy.server.user_commands import change_users, list_users
from kproxy.store.backups import ON_KAFKA
from kproxy.store.directory_lock import locked, readable_by_others
from kproxy.store.rocks import RowsDamaged, RowsFailed
from kproxy.store.segments import LogFailed
from kproxy.virtual.rows.access import USER, user_of
from kproxy.worker.embedded import embedded
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_EXPIRE_PERIOD_S = 1.0
_BACKLOG = 1024
_TOGETHER_S = 10.0
_LOOK_S = 0.05
_GARBAGE_MANY = 1000


class Server:
    """One worker behind its listeners.

    `together`: the addresses of the workers that were started with it.
    """

    def __init__(
        self, config: Config, together: Iterable[tuple[str, int]] = (),
        manager: ServiceManager = NOBODY,
    ) -> None:  # fmt: skip
        self._config = config
        self._manager = manager
        shards = config.shards if config.bootstrap_servers else 1
        most = connections_max(config.connections_max, shards)
        self._admission = Admission(most, config.connections_per_ip_max)
        self._listeners: list[ServedListener] = []
        self._together = frozenset(together)
        self._connections: set[Connection] = set()
        self._changed_users: dict[str, set[str]] = {}  # their mechanisms
        self._endpoint = Endpoint(config)
        self._garbage = GarbageNet()
        self._endpoint.watch.on_turn = manager.turned
        self._starting = anyio.CancelScope()
        self._stop = anyio.Event()
        self._ending = anyio.Event()
        self._left = anyio.Event()  # shards were handed over, all that could be
        self._told: Callable[[int], None] = nothing
        self._fewer = anyio.Event()
        self._tasks: TaskGroup
        self._closed = False
        self._worker: Worker | None = None
        self.port = 0

    async def run(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Raises CannotStart, also where it could not go on."""
        config = self._config
        with locked(config.data_dir), self._endpoint.listening():
            if readable_by_others(config.data_dir):
                _log.warning(
                    "data_dir_readable_by_others", data_dir=str(config.data_dir),
                    hint=f"records and users' keys lie there: chmod -R go= {config.data_dir}",
                )  # fmt: skip
            try:
                await self._serve(task_status)
            except* RowsDamaged as group:
                raise CannotGoOn(
                    f"rows in {config.data_dir} are damaged: {first_of(group)}; restore a backup"
                ) from group
            except* (RowsFailed, LogFailed) as group:
                raise CannotGoOn(
                    f"cannot write to {config.data_dir}: {first_of(group)}; give the disk space and"
                    " start kproxy again: nothing that was acknowledged is lost"
                ) from group
            except* CannotStart as group:
                raise first_of(group) from None
        _log.info("stopped")

    def stop(self) -> None:
        """End as soon as what is in flight is answered."""
        self._stop.set()
        self._end()

    def drain(self) -> None:
        """Hand over what other workers can serve, then `stop`. Asked again: stop at once."""
        if self._ending.is_set():
            self._stop.set()
        self._end()

    def _end(self) -> None:
        self._ending.set()
        self._starting.cancel()  # for which it may be too late

    def reload(self) -> None:
        """Read certificates again."""
        for listener in self._listeners:
            listener.reload()

    def log_counters(self) -> None:
        """Say what the worker has counted, once it serves."""
        if self._worker is not None:
            _log.info("counters", **self._worker.counters.values())

    async def _serve(self, task_status: TaskStatus[int]) -> None:
        config = self._config
        self._schemas = asyncio.get_running_loop().run_in_executor(None, load_common, RANGES)
        self._listeners = await to_thread.run_sync(
            served_listeners, config.listening, self._admission
        )
        with ExitStack() as held:
            for listener in self._listeners:
                held.callback(listener.close)
            sockets = []
            for one in config.listening:
                sockets.append(bound := bound_sockets(one))
                for each in bound:
                    held.enter_context(closing(each))
            host, port = config.advertised_address
            self.port = sockets[0][0].getsockname()[1]
            site = joined if config.bootstrap_servers else embedded
            with self._starting:
                async with site(config, (host, port or self.port)) as worker:
                    self._starting = anyio.CancelScope()
                    async with anyio.create_task_group() as limiter:
                        limiter.start_soon(self._expire_connections)
                        limiter.start_soon(BulkJobs(worker).run)
                        await self._serve_clients(sockets, worker, task_status)
                        limiter.cancel_scope.cancel()

    async def _serve_clients(
        self, sockets: list[list[socket.socket]], worker: Worker, task_status: TaskStatus[int]
    ) -> None:
        config, me = self._config, worker.cluster.me
        await self._wait_for_others(worker)
        async with anyio.create_task_group() as connections:
            self._tasks = connections
            await self._schemas
            accepting = await self._accept(sockets, worker)
            self._worker = worker
            self._endpoint.serve(worker)
            _log.info(
                "ready", listen=f"{config.listen_address[0]}:{self.port}",
                advertise=f"{me.host}:{me.port}", data_dir=str(config.data_dir), sync=config.sync,
                cluster_id=worker.cluster.cluster_id, node_id=me.node_id,
            )  # fmt: skip
            self._manager.ready()
            task_status.started(self.port)
            commands: dict[str, Command] = {
                "drain": self._drain_asked, "backup": self._backup_asked,
                "users": partial(change_users, worker), "list-users": partial(list_users, worker),
            }  # fmt: skip
            async with admin_socket(config.data_dir, commands):
                await self._ending.wait()
                await self._hand_over(worker)
            self._manager.stopping()
            _log.info("stopping", connections=len(self._connections))
            self._closed = True
            for server in accepting:
                server.close()
            worker.stop()
            await self._drain()

    async def _hand_over(self, worker: Worker) -> None:
        """Let other workers have the shards, unless a stop is asked for meanwhile."""
        worker.draining = True

        async def stopped() -> None:
            await self._stop.wait()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stopped)
            if not self._stop.is_set():
                await worker.hand_over(lambda left: self._told(left))
            tasks.cancel_scope.cancel()
        self._left.set()

    async def _drain_asked(self, asked: Asked) -> dict[str, Any]:
        self._told = lambda left: asked.report(shards=left)
        self._ending.set()
        await self._left.wait()
        return {}

    async def _backup_asked(self, asked: Asked) -> dict[str, Any]:
        """Stage a backup, and keep it until the client has it, or is gone."""
        assert self._worker is not None
        if self._worker.staging is None:
            raise CannotStart(ON_KAFKA)
        async with self._worker.staging.staged() as staged:
            asked.report(**staged)
            await asked.gone()
        return {}

    async def _wait_for_others(self, worker: Worker) -> None:
        """Answer nobody until all that were started together serve, or have had their time.

        A client that is told of one node only may keep that answer, and know no other for minutes.
        """
        with anyio.move_on_after(_TOGETHER_S):
            while not self._ending.is_set():
                if self._together <= {(node.host, node.port) for node in worker.cluster.brokers}:
                    return
                await anyio.sleep(_LOOK_S)

    async def _accept(
        self, sockets: list[list[socket.socket]], worker: Worker
    ) -> list[asyncio.Server | TlsAcceptor]:
        """Let connections be made by asyncio: anyio's streams cost a task step for each read."""
        loop = asyncio.get_running_loop()
        users = Users(worker.security)
        worker.security.on_change.append(self._user_changed)
        accepting: list[asyncio.Server | TlsAcceptor] = []
        for listener, bound in zip(self._listeners, sockets, strict=True):
            listener.open(users)
            listener.warn_where_open()
            make = partial(LoginConnection if listener.sasl else Connection, worker, self, listener)
            for one in bound:
                if listener.tls is None:
                    accepting.append(
                        await loop.create_server(make, sock=one.dup(), backlog=_BACKLOG)
                    )
                else:
                    acceptor = TlsAcceptor(
                        one, listener.tls, make, listener.room, worker.counters, worker.quotas,
                        self._config.login_ms_max / 1000,
                    )  # fmt: skip
                    acceptor.start()
                    accepting.append(acceptor)
        return accepting

    def _user_changed(self, row: str, value: object) -> None:
        """Disconnect clients whose credentials changed: they have to log in again.

        One request may change hundreds of users: connections are looked at once for all.
        """
        if row[:1] != USER:
            return
        if not self._changed_users:
            asyncio.get_running_loop().call_soon(self._revoke)
        user, mechanism = user_of(row)
        self._changed_users.setdefault(user, set()).add(mechanism)

    def _revoke(self) -> None:
        changed, self._changed_users = self._changed_users, {}
        for connection in tuple(self._connections):
            if isinstance(connection, LoginConnection) and (user := connection.one_of(changed)):
                _log.info("login_revoked", peer=connection.ip, user=user)
                connection.abort()

    def register(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._count()
        if self._closed:  # a TLS handshake has ended just now
            connection.abort()
        else:
            self._tasks.start_soon(connection.run)

    def _count(self) -> None:
        if self._worker is not None:
            self._worker.counters.connections_open = len(self._connections)

    def unregister(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._count()
        self._fewer.set()

    async def _expire_connections(self) -> None:
        while True:
            await pulse(_EXPIRE_PERIOD_S)
            report_floods()
            now_s = time.time()
            for listener in self._listeners:
                listener.look_after(now_s)
                if self._worker is not None:
                    self._worker.quotas.tidy()
                    self._worker.counters.certificates |= listener.standing()
            for connection in tuple(self._connections):
                self._expire(connection)
            if self._worker is not None:
                self._look_for_garbage(self._worker.counters)

    def _expire(self, connection: Connection) -> None:
        """Look at one connection; a mistake over it is its own, not the end of all others."""
        try:
            connection.expire()
        except Exception as error:
            connection.report(error)
            connection.abort()

    def _look_for_garbage(self, counters: Counters) -> None:
        look = self._garbage.look(counters.requests)
        if look is None:
            return
        counters.garbage_looks += 1
        counters.garbage_found += look.found
        if look.found > _GARBAGE_MANY or look.everything:
            _log.info(
                "garbage_found", objects=look.found, seconds=round(look.seconds, 3),
                everything=look.everything,
            )  # fmt: skip

    async def _drain(self) -> None:
        """Answer what is in flight, for so long as a stop may take."""
        for connection in tuple(self._connections):
            connection.stop_reading()
        with anyio.move_on_after(self._config.shutdown_ms_max / 1000):
            while self._connections:
                self._fewer = anyio.Event()
                await self._fewer.wait()
        for connection in tuple(self._connections):
            connection.abort()


def _stop_at_eof(stop: Callable[[], None]) -> None:
    """Stop when standard input ends: who started this worker is gone."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would hold up the exit
            pass
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()


async def serve(
    config: Config, supervised: bool = False, together: Iterable[tuple[str, int]] = ()
) -> None:
    """Serve until SIGTERM, SIGINT or the supervisor's end; SIGUSR1 has the counters logged, SIGHUP
    certificates and keys of tokens read again.

    SIGTERM hands the shards over first, the others do not.

    Raises CannotStart.
    """
    server = Server(config, together, NOBODY if supervised else ServiceManager())
    if supervised:
        _stop_at_eof(server.stop)
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        async with anyio.create_task_group() as tasks:

            async def wait_for_signal() -> None:
                async for number in signals:
                    if number == signal.SIGUSR1:
                        server.log_counters()
                    elif number == signal.SIGHUP:
                        server.reload()
                    elif number == signal.SIGTERM:
                        server.drain()
                    else:
                        server.stop()

            tasks.start_soon(wait_for_signal)
            await server.run()
            tasks.cancel_scope.cancel()
