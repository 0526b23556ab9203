"""The HTTP server on a thread: what it answers, whom, and what it bounds."""

import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from kproxy.observe import http_thread
from kproxy.observe.http_thread import CONNECTIONS_MAX, Answer, HttpThread
from tests.harness import eventually, need_program

PAGES = {
    "/metrics": lambda: Answer(200, b"m" * 100_000),
    "/livez": lambda: Answer(200, b"ok\n"),
    "/readyz": lambda: Answer(503, b"not yet\n"),
}


@contextmanager
def served(token: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    thread = HttpThread(socket.create_server(("127.0.0.1", 0)), PAGES, token=token, tls=tls)
    thread.start()
    try:
        yield thread.port
    finally:
        thread.stop()


@contextmanager
def blocking() -> Iterator[tuple[int, threading.Event]]:
    """Yield the port, and the event that lets /metrics be answered."""
    go_on = threading.Event()

    def metrics() -> Answer:
        go_on.wait(20)
        return Answer(200, b"m")

    pages = PAGES | {"/metrics": metrics}
    thread = HttpThread(socket.create_server(("127.0.0.1", 0)), pages)
    thread.start()
    try:
        yield thread.port, go_on
    finally:
        go_on.set()
        thread.stop()


def said(connection: socket.socket, request: str) -> bytes:
    connection.settimeout(10)
    connection.sendall(request.encode())
    answer = b""
    while part := connection.recv(1 << 16):
        answer += part
    return answer


def asked(port: int, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return said(connection, request)


def get(path: str, *headers: str, method: str = "GET") -> str:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    return "\r\n".join(lines) + "\r\n\r\n"


def test_pages() -> None:
    with served() as port:
        whole = asked(port, get("/metrics?x=1"))
        assert whole.startswith(b"HTTP/1.1 200")
        assert whole.endswith(b"m" * 100_000)
        assert asked(port, get("/readyz")).endswith(b"not yet\n")
        assert asked(port, get("/readyz")).startswith(b"HTTP/1.1 503")
        absent = asked(port, get("/"))
        assert absent.startswith(b"HTTP/1.1 404")
        assert b"/metrics" in absent
        head = asked(port, get("/metrics", method="HEAD"))
        assert b"content-length: 100000" in head.lower()
        assert head.endswith(b"\r\n\r\n")
        assert asked(port, get("/metrics", method="DELETE")).startswith(b"HTTP/1.1 405")


def test_a_connection_asks_more_than_once() -> None:
    with served() as port:
        first = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = asked(port, first * 2 + get("/livez"))
        assert answers.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    "noise", ["\x00\x01", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "a" * 40_000]
)
def test_noise_ends_its_own_connection_only(noise: str) -> None:
    with served() as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(noise.encode())
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(10)
            with suppress(ConnectionError):  # a reset is as good
                while connection.recv(4096):
                    pass
        assert asked(port, get("/livez")).startswith(b"HTTP/1.1 200")


def test_a_token_is_asked_for_where_something_is_said() -> None:
    with served(token="secret") as port:
        assert asked(port, get("/metrics")).startswith(b"HTTP/1.1 401")
        assert asked(port, get("/absent")).startswith(b"HTTP/1.1 401")
        assert asked(port, get("/metrics", "Authorization: Bearer wrong")).startswith(
            b"HTTP/1.1 401"
        )
        right = asked(port, get("/metrics", "Authorization: Bearer secret"))
        assert right.startswith(b"HTTP/1.1 200")
        assert asked(port, get("/livez")).startswith(b"HTTP/1.1 200")


def test_slow_and_many_clients_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_thread, "_REQUEST_S", 0.3)
    with served() as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX + 4)]
        idle[0].sendall(b"GET /livez HTTP/1.1\r\n")
        until = time.monotonic() + 10
        while True:
            try:
                if asked(port, get("/livez")).startswith(b"HTTP/1.1 200"):
                    break
            except ConnectionError:
                pass
            assert time.monotonic() < until
        for connection in idle:
            connection.close()


def test_a_probe_does_not_wait_for_a_scrape() -> None:
    with blocking() as (port, go_on), socket.create_connection(("127.0.0.1", port)) as scrape:
        scrape.sendall(get("/metrics").encode())
        assert asked(port, get("/livez")).startswith(b"HTTP/1.1 200")
        go_on.set()
        scrape.settimeout(10)
        assert scrape.recv(100).startswith(b"HTTP/1.1 200")


def test_scrapers_that_pipeline_do_not_keep_a_probe_out() -> None:
    """FAULT: twenty of them had all places and never waited, so that a probe was turned away."""
    with blocking() as (port, go_on), ExitStack() as held:
        for number in range(100):
            source = (f"127.2.0.{number + 1}", 0)
            address = ("127.0.0.1", port)
            scrape = held.enter_context(socket.create_connection(address, 10, source))
            scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        for _ in range(5):
            assert asked(port, get("/livez")).startswith(b"HTTP/1.1 200")
        go_on.set()


def test_an_address_has_a_part_of_the_pages() -> None:
    with blocking() as (port, go_on), ExitStack() as held:
        scrapes = [
            held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(6)
        ]
        for scrape in scrapes:
            scrape.settimeout(10)
            scrape.sendall(get("/metrics").encode())
        refused = [one for one in scrapes if select.select([one], [], [], 0.5)[0]]
        assert len(refused) == 2
        assert all(one.recv(1000).startswith(b"HTTP/1.1 429") for one in refused)
        another = socket.create_connection(("127.0.0.1", port), 10, ("127.2.0.1", 0))
        held.enter_context(another)
        another.sendall(get("/metrics").encode())
        go_on.set()
        assert another.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9644", 200), ("[::1]:9644", 200), ("localhost", 200), ("kproxy:9644", 200),
     ("kproxy-0.kproxy.default.svc.cluster.local.", 200), ("metrics.example.com", 200),
     ("rebound.example.com:9644", 421), ("evil.com", 421), ("127.0.0.1.evil.com", 421)],
)  # fmt: skip
def test_a_name_that_anyone_may_own_is_refused(host: str, status: int) -> None:
    """FAULT: a page in a browser, whose name was made to point here, read names of queues."""
    listening = socket.create_server(("127.0.0.1", 0))
    thread = HttpThread(listening, PAGES, names=["metrics.example.com"])
    thread.start()
    try:
        asks = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert asked(thread.port, asks).startswith(b"HTTP/1.1 %d" % status)
        assert asked(thread.port, asks.replace("metrics ", "livez ")).startswith(b"HTTP/1.1 200")
    finally:
        thread.stop()


def test_a_head_of_very_many_lines_is_refused() -> None:
    """FAULT: sixty of them were parsed for so long that a probe waited for a second."""
    lines = 3900 * "a:\r\n"
    with served() as port:
        for rest in (lines + "\r\n", lines, lines.replace("\r", "") + "\n"):
            answer = asked(port, "GET /livez HTTP/1.1\r\nHost: x\r\n" + rest)
            assert answer.startswith(b"HTTP/1.1 431")
        assert asked(port, get("/livez", *["a: b"] * 90)).startswith(b"HTTP/1.1 200")
        several = 30 * "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + get("/livez")
        assert asked(port, several).count(b"HTTP/1.1 200") == 31


def test_unread_answers_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: one address had as many of them in memory as there are connections."""
    monkeypatch.setattr(http_thread, "UNREAD_MAX", 3)
    size = 8 << 20
    listening = socket.create_server(("127.0.0.1", 0))
    thread = HttpThread(listening, {"/metrics": lambda: Answer(200, b"m" * size)})
    thread.start()
    try:
        with ExitStack() as held:
            slow: socket.socket | None = None
            for number in range(8):
                client = held.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.bind(("127.2.0.1" if number else "127.2.0.2", 0))
                client.connect(("127.0.0.1", thread.port))
                client.sendall(get("/metrics").encode())
                eventually(lambda n=number: thread._unread.count == min(3, n + 1))  # type: ignore[misc]
                slow = slow or client
            assert slow is not None
            slow.settimeout(10)
            found = 0
            while part := slow.recv(1 << 20):
                found += len(part)
            assert found > size, "it was not for this one to go"
    finally:
        thread.stop()


def test_silent_connections_do_not_keep_a_probe_out() -> None:
    """They have asked once, and may be silent for over a minute."""
    with served() as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX)]
        for connection in idle:
            connection.settimeout(10)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000)
        assert asked(port, get("/livez")).startswith(b"HTTP/1.1 200")
        for connection in idle:
            connection.close()


def test_connections_of_another_address_do_not_break_off_an_answer() -> None:
    """FAULT: who read its answer lost its place before any of those that had asked nothing."""
    size = 8 << 20
    listening = socket.create_server(("127.0.0.1", 0))
    thread = HttpThread(listening, {"/metrics": lambda: Answer(200, b"m" * size)})
    thread.start()
    try:
        with ExitStack() as held:
            scrape = held.enter_context(
                socket.create_connection(("127.0.0.1", thread.port), 10, ("127.2.0.1", 0))
            )
            scrape.sendall(get("/metrics").encode())
            found = len(scrape.recv(1000))
            for _ in range(2 * CONNECTIONS_MAX):
                held.enter_context(socket.create_connection(("127.0.0.1", thread.port)))
            eventually(lambda: thread._fresh.count >= CONNECTIONS_MAX - 1, 10)
            while part := scrape.recv(1 << 20):
                found += len(part)
            assert found > size
    finally:
        thread.stop()


def test_a_body_is_not_read() -> None:
    """FAULT: one client's body of small chunks kept each probe waiting for seconds."""
    with served() as port:
        for method in ("GET", "POST"):
            begun = get("/livez", "Transfer-Encoding: chunked", method=method) + "1\r\na\r\n"
            keeps = begun.replace("Connection: close\r\n", "")
            status = b"200" if method == "GET" else b"405"
            assert asked(port, keeps).startswith(b"HTTP/1.1 " + status)
            whole = get("/livez", "Content-Length: 1", method=method) + "a"
            assert asked(port, whole).startswith(b"HTTP/1.1 " + status)


def test_stop_ends_connections_that_ask_all_the_time() -> None:
    """FAULT: a request that was there just then went before the end, and the next did, for good."""
    thread = HttpThread(socket.create_server(("127.0.0.1", 0)), PAGES)
    thread.start()

    request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    asking, over = threading.Event(), threading.Event()

    def ask() -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", thread.port)) as connection:
            connection.settimeout(30)
            connection.sendall(20 * request)
            while (part := connection.recv(1 << 16)) and not over.is_set():
                asking.set()
                connection.sendall(part.count(b"HTTP/1.1") * request)

    with ThreadPoolExecutor(8) as clients, ExitStack() as held:
        held.callback(over.set)
        for _ in range(8):
            clients.submit(ask)
        assert asking.wait(30)
        thread.stop()
        eventually(lambda: not thread._thread.is_alive(), 30)


def test_unread_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_thread, "_ANSWER_S", 1.0)
    own = psutil.Process()
    with served() as port, ExitStack() as held:
        before = own.num_fds()
        for _ in range(4):
            client = held.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(100 * b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(lambda: own.num_fds() == before + 8, 15)
        eventually(lambda: own.num_fds() == before + 4, 15)  # these are the client's own


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a server and one of its clients."""
    need_program("openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
               "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
               "-keyout", str(key), "-out", str(cert)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(cert, key)
    return ours, ssl.create_default_context(cafile=str(cert))


def test_tls(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """FAULT: nothing bounded how many handshakes were begun and left there."""
    ours, theirs = contexts
    with served(tls=ours) as port:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            with theirs.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                assert said(connection, get("/livez")).endswith(b"ok\n")
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(3 * CONNECTIONS_MAX)
            ]
            for connection in silent[: 2 * CONNECTIONS_MAX]:  # the others are ended for later ones
                connection.settimeout(4)
                assert connection.recv(1) == b""
            with socket.create_connection(("127.0.0.1", port)) as plain:
                with theirs.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                    assert said(connection, get("/livez")).endswith(b"ok\n")


@pytest.mark.filterwarnings("error")
def test_stop_closes_connections_that_say_goodbye(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """FAULT: a TLS connection that waited for its client's goodbye stayed open after the end."""
    ours, theirs = contexts
    own = psutil.Process()
    before = own.num_fds()
    with ExitStack() as held:
        with served(tls=ours) as port:
            plain = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            secured = theirs.wrap_socket(
                plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False
            )
            connection = held.enter_context(secured)
            connection.settimeout(10)
            connection.sendall(get("/livez").encode())
            while not connection.recv(1 << 16).endswith(b"ok\n"):
                pass
        assert own.num_fds() == before + 1
