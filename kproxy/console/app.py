"""The console's application: which address shows which page, and the logins in front of them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import structlog
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kproxy.common.errors import CannotStart
from kproxy.console import (
    changes,
    cluster,
    dead,
    groups,
    history,
    queues,
    records,
    sending,
    waiting,
)
from kproxy.console.connections import Connections
from kproxy.console.forms import BadForm, form_of
from kproxy.console.history import History
from kproxy.console.origin import Application, Guard
from kproxy.console.pages import DONE, ActionOf, Asked, BadQuery, PageOf, Query, link
from kproxy.console.sessions import Failures, Full, Session, Sessions
from kproxy.console.shown import rendered
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.client_settings import MECHANISMS, ClientSettings, NotLoggedIn
from kproxy.tools.top import Source

_AT_ONCE_OF_ONE, _AT_ONCE = 4, 24
"""The pages that one user, and all, have made at a time."""
_LOGINS_AT_ONCE = 4
_SWEEP_S = 60.0
_COOKIE = "kproxy-console"
_CREDENTIAL_BYTES_MAX = 1024
_SAFE_NEXT = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%?=&/+")

PAGES: dict[str, PageOf] = {
    "/": cluster.overview,
    "/queues": queues.queues_page,
    "/queues/{queue}": queues.queue_page,
    "/queues/{queue}/readers": queues.readers_page,
    "/queues/{queue}/waiting": waiting.waiting_page,
    "/queues/{queue}/records": records.records_page,
    "/queues/{queue}/record": records.record_page,
    "/queues/{queue}/produce": sending.produce_page,
    "/groups": groups.groups_page,
    "/group": groups.group_page,
    "/share": groups.share_page,
    "/dead": dead.dead_page,
    "/dead/{queue}": dead.letters_page,
    "/dead/{queue}/redrive": dead.preview_page,
    "/jobs": dead.jobs_page,
    "/waiting": waiting.all_waiting_page,
    "/routes": queues.routes_page,
    "/transactions": cluster.transactions_page,
    "/workers": cluster.workers_page,
    "/access": cluster.access_page,
}
ACTIONS: dict[str, ActionOf] = {
    "/queues": changes.create_queue,
    "/queues/{queue}/settings": changes.change_queue,
    "/queues/{queue}/delete": changes.delete_queue,
    "/queues/{queue}/produce": sending.produce,
    "/queues/{queue}/copy": sending.copy,
    "/queues/{queue}/waiting": sending.cancel,
    "/dead/{queue}/redrive": dead.begin_redrive,
    "/dead/{queue}/change": dead.change_redrive,
    "/group/settings": changes.change_group,
    "/group/reset": changes.reset_group,
    "/group/delete": changes.remove_group,
    "/transactions/abort": changes.abort_transaction,
}
REFRESHES = ("", "5", "30")
"""The seconds after which a page is asked for again; the first: never."""
_log = structlog.get_logger()


class Options(NamedTuple):
    """The settings of a console. `login`: each who looks says who he is."""

    address: Address
    settings: ClientSettings
    hosts: frozenset[str]
    login: bool = False
    tls: bool = False
    read_only: bool = False
    hide_contents: bool = False
    timeout_s: float = 10.0
    http: tuple[str, ...] = ()
    """The addresses of workers' `/top`."""
    source: Source = Source((), None, None)

    def around(self, user: str | None) -> dict[str, Any]:
        """Return what every page shows."""
        return {
            "user": user,
            "read_only": self.read_only,
            "hide_contents": self.hide_contents,
            "done": None,
            "refresh": "",
            "refreshes": [],
        }


class Console:
    """The pages, and whom they are shown to."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._sessions = Sessions()
        self._failures = Failures()
        self._cookie = ("__Host-" if options.tls else "") + _COOKIE
        self._everybody = self._connections(options.settings, _AT_ONCE)
        self._history = History(options.source, options.http)
        self._threads = anyio.CapacityLimiter(_AT_ONCE)
        self._watches = anyio.CapacityLimiter(1)
        self._logins = anyio.CapacityLimiter(_LOGINS_AT_ONCE)

    def _connections(self, settings: ClientSettings, at_once: int) -> Connections:
        options = self._options
        return Connections(options.address, settings, at_once, options.timeout_s)

    def application(self) -> Application:
        """Return the ASGI application."""
        routes: list[Any] = [
            Route(path, self._page(page), methods=["GET"]) for path, page in PAGES.items()
        ]
        routes += [
            Route(path, self._action(action), methods=["POST"]) for path, action in ACTIONS.items()
        ]
        if self._options.login:
            routes += [
                Route("/login", self._login_form, methods=["GET"]),
                Route("/login", self._log_in, methods=["POST"]),
                Route("/logout", self._log_out, methods=["POST"]),
            ]
        static = StaticFiles(directory=Path(__file__).parent / "static")
        routes.append(Mount("/static", static, name="static"))
        app = Starlette(
            routes=routes, lifespan=self._lifespan, exception_handlers={404: self._not_found}
        )
        app.router.redirect_slashes = False
        return Guard(app, self._options.hosts, tls=self._options.tls)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sweep)
            tasks.start_soon(self._watch)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                self._sessions.end_all()
                self._everybody.close()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(_SWEEP_S)
            self._sessions.end_old()

    async def _watch(self) -> None:
        """Look at the workers from time to time: who looks at pages need not."""
        while True:
            await run_sync(self._look, limiter=self._watches, abandon_on_cancel=True)
            await anyio.sleep(history.EVERY_S)

    def _look(self) -> None:
        try:
            if not self._options.login:  # else pages tell where workers are
                with suppress(CannotStart, Refused):
                    self._history.know(self._everybody.ask(Client.nodes).values())
            self._history.look()
        except Exception:
            _log.exception("console_look_failed")

    # -- pages

    def _page(self, page: PageOf) -> Callable[[Any], Any]:
        def make(connections: Connections, query: Query, around: dict[str, Any]) -> Response:
            found = connections.ask(lambda client: page(self._asked(client, query)))
            refresh = query.choice("refresh", REFRESHES)
            around |= {"done": DONE.get(query.text("done")), "refresh": refresh, "refreshes": [
                (one, query.link("", refresh=one or None)) for one in REFRESHES
            ]}  # fmt: skip
            return HTMLResponse(rendered(found.template, around | found.values), found.status)

        async def answer(request: Request) -> Response:
            query = Query(dict(request.query_params), request.path_params)
            return await self._made(request, make, query, refused=404)

        return answer

    def _action(self, action: ActionOf) -> Callable[[Any], Any]:
        def make(connections: Connections, query: Query, around: dict[str, Any]) -> Response:
            after = connections.ask(lambda client: action(self._asked(client, query)), again=False)
            return RedirectResponse(after, 303)

        async def answer(request: Request) -> Response:
            around = self._around(None)
            if self._options.read_only:
                return _said(around, 403, "this console is read-only")
            if self._options.login and self._session(request) is None:
                return self._to_login(request)  # before its form is read
            try:
                query = Query(await form_of(request), request.path_params)
            except BadForm as error:
                return _said(around, 400, str(error))
            return await self._made(request, make, query, refused=409)

        return answer

    def _asked(self, client: Client, query: Query) -> Asked:
        return Asked(client, query, not self._options.hide_contents, self._history)

    async def _made(
        self, request: Request, make: Callable[[Connections, Query, dict[str, Any]], Response],
        query: Query, *, refused: int,
    ) -> Response:  # fmt: skip
        """Return what is made on a thread, by the connections of who asks."""
        session, connections = None, self._everybody
        if self._options.login:
            session = self._session(request)
            if session is None:
                return self._to_login(request)
            connections = session.connections
        around = self._around(session)
        made = partial(self._or_problem, make, connections, query, around, refused)
        try:
            async with connections.turns:
                return await run_sync(made, limiter=self._threads)
        except NotLoggedIn:
            self._sessions.end(request.cookies.get(self._cookie, ""))
            return self._to_login(request)

    def _or_problem(
        self, make: Callable[[Connections, Query, dict[str, Any]], Response],
        connections: Connections, query: Query, around: dict[str, Any], refused: int,
    ) -> Response:  # fmt: skip
        try:
            return make(connections, query, around)
        except NotLoggedIn:
            if self._options.login:
                raise
            return _said(around, 502, "kproxy asks for a login: --command-config has none")
        except BadQuery as error:
            return _said(around, 400, str(error))
        except Refused as error:
            return _said(around, refused, str(error))
        except CannotStart as error:
            return _said(around, 502, str(error))
        except Exception:
            _log.exception("console_page_failed")
            return _said(around, 500, "this page has a fault; the console's log has more")

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return _said(self._around(self._session(request)), 404, "there is no such page")

    def _around(self, session: Session | None) -> dict[str, Any]:
        return self._options.around(session.user if session else None)

    # -- logins

    def _session(self, request: Request) -> Session | None:
        token = request.cookies.get(self._cookie)
        by_itself = bool(request.query_params.get("refresh"))  # nobody looks, perhaps
        return self._sessions.find(token, used=not by_itself) if token else None

    def _to_login(self, request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        after = path if request.method == "GET" and path != "/" and _is_own(path) else None
        answer = RedirectResponse(link("/login", next=after), 303)
        self._forget(answer)
        return answer

    async def _login_form(self, request: Request) -> Response:
        return self._form(request.query_params.get("next", ""))

    def _form(self, after: str, status: int = 200, problem: str | None = None) -> Response:
        own = self._options.settings.mechanism
        values = {
            "next": after if _is_own(after) else "", "problem": problem, "mechanisms": MECHANISMS,
            "mechanism": own,
        }  # fmt: skip
        return HTMLResponse(rendered("login.html", self._around(None) | values), status)

    async def _log_in(self, request: Request) -> Response:
        try:
            form = await form_of(request)
        except BadForm as error:
            return self._form("", 400, str(error))
        user, password = form.get("user", ""), form.get("password", "")
        mechanism, after = form.get("mechanism", ""), form.get("next", "")
        sizes = (len(user.encode()), len(password.encode()))
        if mechanism not in MECHANISMS or not all(0 < n <= _CREDENTIAL_BYTES_MAX for n in sizes):
            return self._form(after, 400, "give a user and a password")
        settings = self._options.settings._replace(
            mechanism=mechanism, user=user, password=password
        )
        connections = self._connections(settings, _AT_ONCE_OF_ONE)
        peer = request.client.host if request.client else ""
        if self._failures.too_many(peer):
            return self._form(after, 429, "too many failed logins: try again in a minute")
        self._failures.add(peer)
        try:
            await run_sync(connections.ask, Client.cluster, limiter=self._logins)
            self._failures.forgive(peer)
            token = self._sessions.begin(user, connections)
        except Full:
            connections.close()
            return self._form(after, 503, "too many are logged in: try again later")
        except NotLoggedIn as error:
            return self._form(after, 401, str(error))
        except CannotStart as error:
            self._failures.forgive(peer)  # nobody said no
            return self._form(after, 502, str(error))
        self._sessions.end(request.cookies.get(self._cookie, ""))  # another's, perhaps
        answer = RedirectResponse(after if _is_own(after) else "/", 303)
        answer.set_cookie(
            self._cookie, token, path="/", httponly=True, samesite="strict",
            secure=self._options.tls,
        )  # fmt: skip
        return answer

    async def _log_out(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(self._cookie, ""))
        answer = RedirectResponse("/login", 303)
        self._forget(answer)
        return answer

    def _forget(self, answer: Response) -> None:
        answer.delete_cookie(
            self._cookie, path="/", httponly=True, samesite="strict", secure=self._options.tls
        )


def _is_own(path: str) -> bool:
    """Return whether an address is one of the console's own pages."""
    return path.startswith("/") and not path.startswith("//") and _SAFE_NEXT.issuperset(path)


def _said(around: dict[str, Any], status: int, problem: str) -> Response:
    return HTMLResponse(rendered("problem.html", around | {"problem": problem}), status)
