"""The guard in front of all pages: which hosts, methods and origins are answered, and the headers.

No form has a token: a browser says of each request where it comes from (`Sec-Fetch-Site`,
`Origin`), and what a page of another origin sends is refused.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_SAFE = ("GET", "HEAD")
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: with that a browser says `Origin: null` of the console's own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_NOT_STORED = (b"cache-control", b"no-store")
_TLS_ONLY = (b"strict-transport-security", b"max-age=31536000")


class Guard:
    """An application that passes on only what the console's own pages and their reader ask."""

    def __init__(self, app: Application, hosts: frozenset[str], *, tls: bool) -> None:
        self._app = app
        self._hosts = hosts
        self._scheme = "https" if tls else "http"
        self._headers = [*_HEADERS, _TLS_ONLY] if tls else [*_HEADERS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("the console speaks HTTP alone")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                named = {name.lower() for name, _ in given}
                kept = [] if b"cache-control" in named else [_NOT_STORED]
                message["headers"] = [*given, *self._headers, *kept]
            await send(message)

        if refusal := self._refusal(scope):
            status, text = refusal
            await _answer(with_headers, status, text)
            return
        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason, where a request is refused."""
        values: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            values.setdefault(name, []).append(value.decode("latin-1"))
        host = values.get(b"host", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return 421, "this console does not answer to that name; --host NAME adds one"
        method, site = scope["method"], values.get(b"sec-fetch-site", [])
        if method in _SAFE:
            foreign = site and site[0] not in ("same-origin", "none")
            if foreign and values.get(b"sec-fetch-mode", ["navigate"]) != ["navigate"]:
                return 403, "a page of another origin asked for this"
            return None
        if method != "POST":
            return 405, "GET, HEAD and POST are answered"
        own = site == ["same-origin"]
        if not site:  # a browser from before 2020, or one without TLS that is not on this machine
            own = values.get(b"origin", []) == [f"{self._scheme}://{host[0].lower()}"]
        return None if own else (403, "a form of another origin sent this")


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode() + b"\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # a body may follow that nobody reads
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
