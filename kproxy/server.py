"""The server: opens the data directory, listens, keeps house, stops without losing an answer."""

import asyncio
import fcntl
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import structlog
from anyio.abc import Listener, SocketAttribute, SocketStream, TaskStatus

from kproxy.config import Config
from kproxy.connection import Connection
from kproxy.embedded import embedded
from kproxy.errors import CannotGoOn, CannotStart, first_of
from kproxy.owning.member import joined
from kproxy.store.rocks import RowsFailed
from kproxy.store.segments import LogFailed
from kproxy.worker import Worker

_log = structlog.get_logger()

_EXPIRE_PERIOD_S = 1.0


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the data directory for this process alone. Raises CannotStart."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CannotStart(f"cannot use --data-dir {directory}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotStart(
                f"another kproxy is using {directory}; stop it, or choose another --data-dir"
            ) from None
        yield
    finally:
        os.close(fd)


class Server:
    """One worker behind one listener."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connections: set[Connection] = set()
        self._by_ip: Counter[str] = Counter()
        self._stop = anyio.Event()
        self._fewer = anyio.Event()
        self.port = 0

    async def run(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Raises CannotStart, also where it could not go on."""
        config = self._config
        with locked(config.data_dir):
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
        self._stop.set()

    async def _listen(self) -> Listener[SocketStream]:
        host, port = self._config.listen_address
        try:
            return await anyio.create_tcp_listener(
                local_host=host, local_port=port, backlog=1024, reuse_port=False
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
                async with anyio.create_task_group() as house:
                    house.start_soon(self._expire_now_and_then)
                    self.port = bound
                    await self._serve_clients(listener, worker, task_status)
                    house.cancel_scope.cancel()
        finally:
            await listener.aclose()

    async def _serve_clients(
        self, listener: Listener[SocketStream], worker: Worker, task_status: TaskStatus[int]
    ) -> None:
        config, me = self._config, worker.cluster.me
        async with anyio.create_task_group() as connections:
            accepting = anyio.CancelScope()
            connections.start_soon(self._accept, listener, worker, accepting, connections)
            _log.info(
                "ready", listen=f"{config.listen_address[0]}:{self.port}",
                advertise=f"{me.host}:{me.port}", data_dir=str(config.data_dir), sync=config.sync,
                cluster_id=worker.cluster.cluster_id, node_id=me.node_id,
            )  # fmt: skip
            task_status.started(self.port)
            await self._stop.wait()
            _log.info("stopping", connections=len(self._connections))
            accepting.cancel()
            worker.stop()
            await self._drain(connections.cancel_scope)

    async def _accept(
        self,
        listener: Listener[SocketStream],
        worker: Worker,
        scope: anyio.CancelScope,
        connections: anyio.abc.TaskGroup,
    ) -> None:
        async def serve(stream: SocketStream) -> None:
            await self._connected(stream, worker)

        async with listener:
            with scope:
                await listener.serve(serve, connections)

    async def _connected(self, stream: SocketStream, worker: Worker) -> None:
        address = stream.extra(SocketAttribute.remote_address, ("?", 0))
        ip = str(address[0])
        if (
            len(self._connections) >= self._config.connections_max
            or self._by_ip[ip] >= self._config.connections_per_ip_max
        ):
            _log.warning("connection_refused", peer=ip, connections=len(self._connections))
            await stream.aclose()
            return
        connection = Connection(stream, worker, f"{ip}:{address[1]}")
        self._connections.add(connection)
        self._by_ip[ip] += 1
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._fewer.set()
            self._by_ip[ip] -= 1
            if not self._by_ip[ip]:
                del self._by_ip[ip]

    async def _expire_now_and_then(self) -> None:
        while True:
            await anyio.sleep(_EXPIRE_PERIOD_S)
            now = anyio.current_time()
            for connection in tuple(self._connections):
                connection.expire(now)

    async def _drain(self, scope: anyio.CancelScope) -> None:
        """Answer what is in flight, for so long as a stop may take."""
        for connection in tuple(self._connections):
            connection.stop_reading()
        with anyio.move_on_after(self._config.shutdown_ms_max / 1000):
            while self._connections:
                self._fewer = anyio.Event()
                await self._fewer.wait()
        scope.cancel()


def _stop_at_eof(stop: Callable[[], None]) -> None:
    """Stop when standard input ends: who started this worker is gone."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would hold up the exit
            pass
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()


async def serve(config: Config, supervised: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, or the supervisor's end. Raises CannotStart."""
    server = Server(config)
    if supervised:
        _stop_at_eof(server.stop)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:

            async def wait_for_signal() -> None:
                async for _ in signals:
                    server.stop()

            tasks.start_soon(wait_for_signal)
            await server.run()
            tasks.cancel_scope.cancel()
