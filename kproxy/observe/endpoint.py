"""The endpoint of one process: what it serves, where, and to whom (`--http-listen`)."""

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from kproxy.common.counters import Histogram
from kproxy.common.errors import CannotStart, KafkaError
from kproxy.config.sections import HTTP_DEFAULT
from kproxy.config.server import Config
from kproxy.native import lane
from kproxy.observe.health import Health
from kproxy.observe.http_thread import Answer, HttpThread
from kproxy.observe.loop_watch import LoopWatch
from kproxy.observe.selected import Selected
from kproxy.observe.series import WorkerSeries
from kproxy.observe.top_page import TopPage
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_BACKLOG = 64
_LOCAL = ("127.", "::1")
_PORTS = 64  # that are tried, where no address was asked for
_TOKEN_BYTES_MAX = 4096


class Endpoint:
    """Metrics and health of this process. `serve` tells it of the worker once there is one."""

    def __init__(self, config: Config) -> None:
        """Take the settings. Raises CannotStart: an expression or a file is not sound."""
        self._config = config
        self.watch = LoopWatch(Histogram())
        self.health = Health(self.watch)
        self._selected = _selected(config)
        self._series = WorkerSeries(self.health, self._selected)
        self._top = TopPage(self.health)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Serve while the block lasts, if there is anywhere to. Raises CannotStart."""
        thread = self._thread()
        self.watch.start()
        try:
            yield
        finally:
            self.watch.stop()
            self._top.end()
            if self._selected is not None:
                self._selected.end()
            if thread is not None:
                thread.stop()

    def serve(self, worker: Worker) -> None:
        """Serve the pages of a worker that accepts connections from now on."""
        self.watch.lag = worker.counters.loop_lag
        loop = asyncio.get_running_loop()
        self._top.attach(loop)
        if self._selected is not None:
            self._selected.attach(loop)
        self.health.worker = worker

    def _thread(self) -> HttpThread | None:
        if self._config.http_listen == "off":
            return None
        token, tls = _token(self._config.http_token_file), _tls(self._config)
        listening = bound(self._config)
        if listening is None:
            return None
        thread = HttpThread(
            listening,
            {"/metrics": self._metrics, "/livez": self._livez, "/readyz": self._readyz,
             "/healthz": self._healthz, "/top": self._top_page},
            token=token, tls=tls, names=_names(self._config),
        )  # fmt: skip
        thread.start()
        host, port = listening.getsockname()[:2]
        if self._config.authorizer != "none" and token is None and not host.startswith(_LOCAL):
            _log.warning(
                "metrics_unprotected", listen=f"{host}:{port}",
                hint="every client reads names of queues and groups there: give http_token_file",
            )  # fmt: skip
        _log.info("http_ready", listen=f"{host}:{port}", tls=self._config.http_tls_cert is not None)
        return thread

    # -- pages

    def _metrics(self) -> Answer:
        return Answer(200, self._series.page(), _TEXT)

    def _top_page(self) -> Answer:
        return Answer(200, self._top.page(), "application/json")

    def _livez(self) -> Answer:
        stuck = self.health.stuck()
        return Answer(503, f"{stuck}\n".encode()) if stuck else Answer(200, b"ok\n")

    def _readyz(self) -> Answer:
        reasons = self.health.unready()
        if reasons:
            return Answer(503, "; ".join(reasons).encode() + b"\n")
        return Answer(200, f"ok, {lane().name} lane\n".encode())

    def _healthz(self) -> Answer:
        report = self.health.report()
        status = 200 if report["live"] and report["ready"] else 503
        return Answer(status, json.dumps(report).encode() + b"\n", "application/json")


def bound(config: Config) -> socket.socket | None:
    """Return the socket to serve at; without an address, a free port from the default on.

    Raises CannotStart: the address that was asked for cannot be had.
    """
    asked = config.http_listen or HTTP_DEFAULT
    host, _, first = asked.rpartition(":")
    host, ports = host.strip("[]"), range(int(first), int(first) + 1)
    if config.http_listen is None:
        ports = range(int(first), int(first) + _PORTS)
    error: OSError | None = None
    for port in ports:
        try:
            return socket.create_server(
                (host, port), backlog=_BACKLOG,
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            )  # fmt: skip
        except OSError as found:
            error = found
    assert error is not None
    if config.http_listen is None:
        _log.warning("http_not_served", listen=asked, reason=error.strerror)
        return None
    raise CannotStart(f"cannot listen on --http-listen {asked}: {error.strerror}")


def _names(config: Config) -> Iterator[str]:
    """Yield the names of this machine, besides its addresses."""
    yield from filter(None, config.http_hosts.split(","))
    yield socket.gethostname()
    for one in config.listening:
        yield one.advertised[0]


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text("ascii")[:_TOKEN_BYTES_MAX].strip()
    except (OSError, ValueError) as error:
        raise CannotStart(f"cannot read --http-token-file {file}: {error}") from None
    if not token:
        raise CannotStart(f"--http-token-file {file} is empty")
    return token


def _tls(config: Config) -> ssl.SSLContext | None:
    if config.http_tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.http_tls_cert, config.http_tls_key)
    except (OSError, ssl.SSLError) as error:
        raise CannotStart(f"cannot use --http-tls-cert {config.http_tls_cert}: {error}") from None
    return context


def _selected(config: Config) -> Selected | None:
    if config.metrics_queues is None and config.metrics_groups is None:
        return None
    try:
        return Selected(config.metrics_queues, config.metrics_groups, config.metrics_series_max)
    except KafkaError as error:
        raise CannotStart(
            f"--metrics-queues or --metrics-groups is no expression: {error.message}"
        ) from None
