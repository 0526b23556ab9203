"""`--workers N`: one process per worker, each on a port and a directory of its own.

The workers know each other through the cluster. The supervisor restarts a worker that dies. A
worker that refuses its first start ends them all, because the others would refuse as well; one that
has served is tried again, because the others serve on. Each worker's
standard input is a pipe from the supervisor: when the supervisor is killed, the workers see its
end and stop.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import anyio
import structlog
from anyio.abc import Process

from kproxy.admin_socket.server import Asked, admin_socket
from kproxy.common.counters import Histogram
from kproxy.common.errors import CannotGoOn, CannotStart
from kproxy.config.server import Config
from kproxy.observe.loop_watch import LoopWatch
from kproxy.observe.service_manager import ServiceManager
from kproxy.store.directory_lock import locked

_log = structlog.get_logger()

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_RESTART_S = 0.5
_RESTART_S_MAX = 10.0
_STEADY_S = 10.0  # a worker that lives so long had started well
SUPERVISED = "--supervised"
COMMAND = (sys.executable, "-m", "kproxy", "serve", SUPERVISED)

Address = tuple[str, int]


def instructions(config: Config, index: int) -> bytes:
    """Return the line that worker `index` reads from its standard input: command lines are public.

    It has its settings, and the addresses of all workers. A default stays unsaid: a setting may be
    refused where somebody has given it.
    """
    host, port = config.listen_address
    name, advertised = config.advertised_address
    first = advertised or port
    settings = config.model_dump(mode="json", exclude_unset=True) | {
        "workers": 1,
        "listen": f"{host}:{port + index}",
        "advertise": f"{name}:{first + index}",
        "listeners": [
            one.beside(index).model_dump(mode="json", exclude_unset=True)
            for one in config.listeners
        ],
        "data_dir": str(config.data_dir / f"worker-{index}"),
        "http_listen": config.http_address_of(index),
    }
    together = [(name, first + number) for number in range(config.workers)]
    return json.dumps({"settings": settings, "together": together}).encode() + b"\n"


def instructed() -> tuple[Config, list[Address]]:
    """Return this worker's settings, and the addresses of all workers, from standard input."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 1 << 16)):
            raise CannotStart("the supervisor has gone")
        line += more
    values = json.loads(line)
    return Config(**values["settings"]), [(host, port) for host, port in values["together"]]


class Supervisor:
    """A supervisor that keeps the workers of one machine running until told to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._manager = ServiceManager()
        self._processes: dict[int, Process] = {}
        self._stopping = anyio.Event()
        self._refused: int | None = None
        self._ended = anyio.Event()

    async def run(self) -> None:
        """Run the workers. Raises CannotGoOn where a worker refuses to start, CannotStart."""
        directory, watch = self._config.data_dir, LoopWatch(Histogram())
        watch.on_turn = self._manager.turned
        with locked(directory):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._wait_for_signal)
                watch.start()
                async with admin_socket(directory, {"drain": self._drain_asked}):
                    await self._keep_all()
                tasks.cancel_scope.cancel()
            watch.stop()
        if self._refused is not None:
            raise CannotGoOn(f"a worker ended with status {self._refused}; its last line says why")

    async def _keep_all(self) -> None:
        async with anyio.create_task_group() as workers:
            for index in range(self._config.workers):
                workers.start_soon(self._keep, index)
            self._manager.ready()
        self._ended.set()

    async def _drain_asked(self, asked: Asked) -> dict[str, Any]:
        """Drain all workers here.

        Each has a socket of its own, too; one that ends is started again.
        """
        self._stop_all()
        await self._ended.wait()
        return {}

    async def _wait_for_signal(self) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            async for number in signals:
                if number in (signal.SIGUSR1, signal.SIGHUP):
                    self._send_all(number)
                elif number == signal.SIGINT:
                    self._stopping.set()
                    self._send_all(signal.SIGINT)
                else:
                    self._stop_all()

    def _stop_all(self) -> None:
        self._stopping.set()
        self._manager.stopping()
        self._send_all(signal.SIGTERM)  # workers that others can stand in for are drained

    def _send_all(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _keep(self, index: int) -> None:
        wait_s, has_served = _RESTART_S, False
        while not self._stopping.is_set():
            began = anyio.current_time()
            status = await self._run_once(index)
            steady = anyio.current_time() - began > _STEADY_S
            has_served = has_served or steady
            if self._stopping.is_set():
                return
            if status in (1, 2) and not has_served:
                self._refused = status
                self._stop_all()
                return
            _log.error("worker_died", worker=index, status=status, again_in_s=wait_s)
            with anyio.move_on_after(wait_s):
                await self._stopping.wait()
            wait_s = _RESTART_S if steady else min(2 * wait_s, _RESTART_S_MAX)

    async def _run_once(self, index: int) -> int:
        process = await anyio.open_process(COMMAND, stdin=subprocess.PIPE, stdout=None, stderr=None)
        self._processes[index] = process
        if self._stopping.is_set():  # it got no signal
            process.terminate()
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError, OSError):  # its status says why it ended
            await process.stdin.send(instructions(self._config, index))
        _log.info("worker_started", worker=index, pid=process.pid)
        return await process.wait()
