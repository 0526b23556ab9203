"""The server: opens the data directory, listens, and stops without losing an answer."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import anyio
import structlog
from anyio.abc import Listener, SocketAttribute, SocketStream, TaskGroup, TaskStatus
from anyio.streams.stapled import MultiListener

from kproxy.admin_socket.server import Asked, admin_socket
from kproxy.cluster.node import joined
from kproxy.config import Config
from kproxy.errors import CannotGoOn, CannotStart, first_of
from kproxy.logs import report_floods
from kproxy.loop.pulse import pulse
from kproxy.observe.endpoint import Endpoint
from kproxy.observe.service_manager import NOBODY, ServiceManager
from kproxy.server.connection import Connection
from kproxy.server.descriptors import connections_max
from kproxy.store.backups import ON_KAFKA
from kproxy.store.directory_lock import locked
from kproxy.store.rocks import RowsFailed
from kproxy.store.segments import LogFailed
from kproxy.worker.embedded import embedded
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

_EXPIRE_PERIOD_S = 1.0
_BACKLOG = 1024
_TOGETHER_S = 10.0
_LOOK_S = 0.05


def _ignore(left: int) -> None:
    pass


class Server:
    """One worker behind one listener.

    `together`: the addresses of the workers that were started with it.
    """

    def __init__(
        self, config: Config, together: Iterable[tuple[str, int]] = (),
        manager: ServiceManager = NOBODY,
    ) -> None:  # fmt: skip
        self._config = config
        self._manager = manager
        shards = config.shards if config.bootstrap_servers else 1
        self._connections_max = connections_max(config.connections_max, shards)
        self._together = frozenset(together)
        self._connections: set[Connection] = set()
        self._by_ip: Counter[str] = Counter()
        self._endpoint = Endpoint(config)
        self._endpoint.watch.on_turn = manager.turned
        self._stop = anyio.Event()
        self._ending = anyio.Event()
        self._left = anyio.Event()  # shards were handed over, all that could be
        self._told: Callable[[int], None] = _ignore
        self._fewer = anyio.Event()
        self._tasks: TaskGroup
        self._worker: Worker | None = None
        self.port = 0

    async def run(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Raises CannotStart, also where it could not go on."""
        config = self._config
        with locked(config.data_dir), self._endpoint.listening():
            try:
                await self._serve(task_status)
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
        self._ending.set()

    def drain(self) -> None:
        """Hand over what other workers can serve, then `stop`. Asked again: stop at once."""
        if self._ending.is_set():
            self._stop.set()
        self._ending.set()

    def log_counters(self) -> None:
        """Say what the worker has counted, once it serves."""
        if self._worker is not None:
            _log.info("counters", **self._worker.counters.values())

    async def _listen(self) -> Listener[SocketStream]:
        host, port = self._config.listen_address
        try:
            return await anyio.create_tcp_listener(
                local_host=host, local_port=port, backlog=_BACKLOG, reuse_port=False
            )
        except OSError as error:
            raise CannotStart(f"cannot listen on {self._config.listen}: {error.strerror}") from None

    async def _serve(self, task_status: TaskStatus[int]) -> None:
        config = self._config
        listener = await self._listen()
        host, port = config.advertised_address
        bound = listener.extra(SocketAttribute.local_port)
        site = joined if config.bootstrap_servers else embedded
        try:
            async with site(config, (host, port or bound)) as worker:
                async with anyio.create_task_group() as limiter:
                    limiter.start_soon(self._expire_connections)
                    self.port = bound
                    await self._serve_clients(listener, worker, task_status)
                    limiter.cancel_scope.cancel()
        finally:
            await listener.aclose()

    async def _serve_clients(
        self, listener: Listener[SocketStream], worker: Worker, task_status: TaskStatus[int]
    ) -> None:
        config, me = self._config, worker.cluster.me
        await self._wait_for_others(worker)
        async with anyio.create_task_group() as connections:
            self._tasks = connections
            accepting = await self._accept(listener, worker)
            self._worker = worker
            self._endpoint.serve(worker)
            _log.info(
                "ready", listen=f"{config.listen_address[0]}:{self.port}",
                advertise=f"{me.host}:{me.port}", data_dir=str(config.data_dir), sync=config.sync,
                cluster_id=worker.cluster.cluster_id, node_id=me.node_id,
            )  # fmt: skip
            self._manager.ready()
            task_status.started(self.port)
            commands = {"drain": self._drain_asked, "backup": self._backup_asked}
            async with admin_socket(config.data_dir, commands):
                await self._ending.wait()
                await self._hand_over(worker)
            self._manager.stopping()
            _log.info("stopping", connections=len(self._connections))
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
        """What is staged is kept until who asked has it, or is gone."""
        assert self._worker is not None
        if self._worker.staging is None:
            raise CannotStart(ON_KAFKA)
        async with self._worker.staging.staged() as staged:
            asked.report(**staged)
            await asked.gone()
        return {}

    async def _wait_for_others(self, worker: Worker) -> None:
        """Answer nobody until all that were started together serve, or have had their time.

        Who is told of one node only may keep that answer, and know no other for minutes.
        """
        with anyio.move_on_after(_TOGETHER_S):
            while not self._ending.is_set():
                if self._together <= {(node.host, node.port) for node in worker.cluster.brokers}:
                    return
                await anyio.sleep(_LOOK_S)

    async def _accept(
        self, listener: Listener[SocketStream], worker: Worker
    ) -> list[asyncio.Server]:
        """Let connections be made by asyncio: anyio's streams cost a task step for each read."""
        loop = asyncio.get_running_loop()
        listeners = listener.listeners if isinstance(listener, MultiListener) else [listener]
        sockets = [one.extra(SocketAttribute.raw_socket).dup() for one in listeners]
        await listener.aclose()
        return [
            await loop.create_server(lambda: Connection(worker, self), sock=one, backlog=_BACKLOG)
            for one in sockets
        ]

    def register(self, connection: Connection) -> bool:
        ip = connection.ip
        if (
            len(self._connections) >= self._connections_max
            or self._by_ip[ip] >= self._config.connections_per_ip_max
        ):
            _log.warning("connection_refused", peer=ip, connections=len(self._connections))
            return False
        self._connections.add(connection)
        self._count()
        self._by_ip[ip] += 1
        self._tasks.start_soon(connection.run)
        return True

    def _count(self) -> None:
        if self._worker is not None:
            self._worker.counters.connections_open = len(self._connections)

    def unregister(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._count()
        self._fewer.set()
        self._by_ip[connection.ip] -= 1
        if not self._by_ip[connection.ip]:
            del self._by_ip[connection.ip]

    async def _expire_connections(self) -> None:
        while True:
            await pulse(_EXPIRE_PERIOD_S)
            report_floods()
            for connection in tuple(self._connections):
                connection.expire()

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
    """Serve until SIGTERM, SIGINT or the supervisor's end; SIGUSR1 has the counters logged.

    SIGTERM hands the shards over first, the others do not.

    Raises CannotStart.
    """
    server = Server(config, together, NOBODY if supervised else ServiceManager())
    if supervised:
        _stop_at_eof(server.stop)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) as signals:
        async with anyio.create_task_group() as tasks:

            async def wait_for_signal() -> None:
                async for number in signals:
                    if number == signal.SIGUSR1:
                        server.log_counters()
                    elif number == signal.SIGTERM:
                        server.drain()
                    else:
                        server.stop()

            tasks.start_soon(wait_for_signal)
            await server.run()
            tasks.cancel_scope.cancel()
