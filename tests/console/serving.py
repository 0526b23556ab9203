"""A console in a thread of the test, and a browser without JavaScript."""

import http.client
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import urlencode, urljoin

from kproxy.console.app import Console, Options
from kproxy.console.command import hosts
from kproxy.console.serving import server
from kproxy.tools.client_settings import ClientSettings
from tests.harness import eventually

WAIT_S = 500
"""The time of everything: a machine may be very busy, and no test waits for it to pass."""
_TIMES = (
    "kproxy.console.forms.READ_S", "kproxy.console.serving.HEAD_S",
    "kproxy.tools.records.batches.LOOKED_S", "kproxy.tools.records.walks.WALK_S",
)  # fmt: skip


class Shown(NamedTuple):
    """An answer. `text`: what its page says, without markup."""

    status: int
    headers: Any
    body: str

    @property
    def text(self) -> str:
        reader = _Text()
        reader.feed(self.body)
        return re.sub(r"\s+", " ", " ".join(reader.parts)).strip()

    @property
    def tags(self) -> set[str]:
        reader = _Text()
        reader.feed(self.body)
        return reader.tags


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.tags: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self._link: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "a":
            self._link = dict(attributes).get("href")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)
        if self._link is not None:
            self.links.append((data.strip(), self._link))
            self._link = None


class Browser:
    """A browser that runs no script; it keeps cookies."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.port, self.context = port, context
        self.scheme = "http" if context is None else "https"
        self.cookies: dict[str, str] = {}
        self._at = "/"

    def send(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> Shown:
        """Return the answer to one request, as it is."""
        host = f"localhost:{self.port}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        if self.context is not None:
            connection.sock = self.context.wrap_socket(
                socket.create_connection(("127.0.0.1", self.port)), server_hostname="localhost"
            )
        given = {"Host": host} | (headers or {})
        if self.cookies:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            found = Shown(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()
        for line in found.headers.get_all("set-cookie") or ():
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return found

    def get(self, path: str, **query: Any) -> Shown:
        """Return a page; redirects are followed."""
        path = f"{path}?{urlencode(query)}" if query else path
        self._at, found = path, self.send("GET", path)
        while found.status == 303:
            self._at = found.headers["location"]
            found = self.send("GET", self._at)
        return found

    def post(self, path: str, **form: Any) -> Shown:
        """Send a form as a page of the console does."""
        headers = {
            "Origin": f"{self.scheme}://localhost:{self.port}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return self.send("POST", path, urlencode(form), headers)

    def follow(self, page: Shown, text: str) -> Shown:
        """Return the page that a link of the last page leads to."""
        reader = _Text()
        reader.feed(page.body)
        (target,) = {target for shown, target in reader.links if shown == text}
        return self.get(urljoin(self._at, target))


@contextmanager
def console(
    address: tuple[str, int], settings: ClientSettings | None = None,
    times: Mapping[str, float] = MappingProxyType({}), **options: Any,
) -> Iterator[Browser]:  # fmt: skip
    """Serve a console, and yield a browser that shows it. `times`: those that are not `WAIT_S`."""
    settings = settings or ClientSettings()
    certificate, context = options.pop("certificate", None), options.pop("context", None)
    with ExitStack() as stack:
        for name in _TIMES:
            stack.enter_context(patch(name, times.get(name.rpartition(".")[2], WAIT_S)))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        made = Options(
            address=address, settings=settings, login=settings.mechanism is not None,
            hosts=hosts("127.0.0.1", port, (), tls=certificate is not None),
            tls=certificate is not None, timeout_s=WAIT_S, **options,
        )  # fmt: skip
        running = server(Console(made).application(), certificate)
        thread = threading.Thread(target=running.run, args=([listener],))
        thread.start()
        try:
            eventually(lambda: running.started, WAIT_S)
            yield Browser(port, context)
        finally:
            running.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive()
