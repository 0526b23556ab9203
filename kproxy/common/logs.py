"""structlog to standard error: readable lines on a terminal, JSON lines otherwise.

One event is one line, but for traces on a terminal. Values are bounded, as clients choose some of
them, and so is what is logged of one name: `Floods`. docs/events.md lists the names.
"""

import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address
from itertools import islice
from typing import Any, TextIO

import structlog

from kproxy.common.printable import printable


def configure(level: str, style: str, worker: str | None = None) -> None:
    """Set up logging for this process; `worker` tells one of several apart."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=_traceback)
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            floods,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bounded,
            _plain if console else _traced,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Its warnings are of what peers do, a line for each write after an end: no bound holds them.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    if worker is not None:
        structlog.contextvars.bind_contextvars(worker=worker)


_TEXT_MAX = 1000
_ITEMS_MAX = 50
_TRACE_MAX = 16_000
_OF_ALL = 50.0, 10.0
_OF_ONE = 30.0, 5.0
"""The bound of one client: how many at once, and how many a second."""
_AUDIT = 1000.0, 20.0
OF_CLIENT = {
    "access_rules_created": _AUDIT, "access_rules_deleted": _AUDIT, "admin_request": _AUDIT,
    "quotas_changed": _AUDIT, "user_changed": _AUDIT,
    "login": (100.0, 1.0), "login_revoked": (100.0, 1.0),
}  # fmt: skip
"""Events that are no warning and that a client's request causes: how many of one client, which may
have much to do. Nothing bounds those of all: none hides another's."""
OF_ALL = frozenset({"group_deleted", "members_fenced", "request_superseded"})
"""Events that are no warning and that no client is named by: bounded as warnings are."""
_KEYS_MAX = 10_000
_FIRST_S, _FIRST_MAX = 60.0, 2000
_TOLD_CLIENTS_MAX = 1000
_NAMED_CLIENTS_MAX = 10


class Floods:
    """A filter that lets so many warnings and errors of a name through, and counts the rest.

    Somebody who connects ten thousand times a second must not fill the disk, nor hide what others
    do: fewer of one client are let through, and the first of an address in a minute always is,
    while there are not too many. The audit and logins are bounded of one client alone. From any
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[Any, tuple[float, float]] = {}  # by name: how many, as of when
        self._left_of: dict[Any, tuple[float, float]] = {}  # by name and client
        self._first: dict[str, dict[str, float]] = {}  # by name: addresses, and when
        self._suppressed: dict[str, Suppressed] = {}

    def __call__(self, _: Any, __: str, event: structlog.typing.EventDict) -> Any:
        """Filter an event as a structlog processor. Raises DropEvent."""
        name = str(event["event"])
        most = OF_CLIENT.get(name)
        loud = event.get("level") in ("warning", "error") or name in OF_ALL
        if most is None and not loud:
            return event
        now, client = self._clock(), _client(event)
        first = client is not None and self._is_first(name, client[1], now)
        through = client is None or _took(self._left_of, (name, client), now, most or _OF_ONE)
        if through and most is None:
            through = _took(self._left, name, now, _OF_ALL)
        if not (through or first):
            self._suppressed.setdefault(name, Suppressed()).add(client)
            raise structlog.DropEvent
        return event

    def _is_first(self, name: str, address: str, now: float) -> bool:
        """Whether it is the first of an address in a minute: so many addresses are known."""
        seen = self._first.setdefault(name, {})
        while seen and now - seen[oldest := next(iter(seen))] >= _FIRST_S:
            del seen[oldest]
        if address in seen or len(seen) >= _FIRST_MAX:
            return False
        seen[address] = now
        return True

    def take(self) -> dict[str, "Suppressed"]:
        """Return the events that were left out since last time, by name."""
        suppressed, self._suppressed = self._suppressed, {}
        return suppressed


class Suppressed:
    """The events of one name that were left out: how many, and how many of which client."""

    def __init__(self) -> None:
        self.count = 0
        self.clients: Counter[tuple[Any, str]] = Counter()  # some, where they are many

    def add(self, client: tuple[Any, str] | None) -> None:
        self.count += 1
        if client in self.clients or (client and len(self.clients) < _TOLD_CLIENTS_MAX):
            assert client is not None
            self.clients[client] += 1

    def most(self) -> dict[str, int]:
        """Return the counts of the clients that had most left out."""
        return {
            f"{principal} {address}" if principal else address: count
            for (principal, address), count in self.clients.most_common(_NAMED_CLIENTS_MAX)
        }


def _client(event: structlog.typing.EventDict) -> tuple[Any, str] | None:
    """Return the client of an event: a principal and an address (of IPv6, a /64), or an address."""
    host = event.get("host")
    if host is not None:
        return event.get("principal") or event.get("by"), _network(str(host))
    peer = event.get("peer")
    return None if peer is None else (None, _network(str(peer)))


def _network(text: str) -> str:
    """Return an address without its port; of IPv6 the half that says whose it is."""
    if text.count(":") < 2:
        return text.partition(":")[0]
    for address in (text.rpartition(":")[0], text):
        with suppress(ValueError):
            number = int(IPv6Address(address.partition("%")[0]))
            return f"{IPv6Address(number >> 64 << 64)}/64"
    return text


def _took(
    left: dict[Any, tuple[float, float]], key: Any, now: float, most: tuple[float, float]
) -> bool:
    """Whether one more is let through. `most`: so many at once, and so many a second."""
    burst, a_second = most
    count, as_of = left.pop(key, (burst, now))
    count = min(burst, count + (now - as_of) * a_second)
    left[key] = count - 1 if count >= 1 else count, now
    if len(left) > _KEYS_MAX:
        del left[next(iter(left))]
    return count >= 1


floods = Floods()


def report_floods() -> None:
    """Say what was left out; called every second or so."""
    for name, one in floods.take().items():
        structlog.get_logger().info(
            "events_suppressed", of=name, count=one.count, clients=len(one.clients),
            most=one.most(),
        )  # fmt: skip


def _bounded(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: _cut(value) for name, value in event.items()}


def _cut(value: Any, depth: int = 2) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else f"{value[:_TEXT_MAX]}… ({len(value)})"
    if isinstance(value, list | tuple | set | frozenset) and depth:
        some = [_cut(one, depth - 1) for one in islice(value, _ITEMS_MAX)]
        return some if len(value) <= _ITEMS_MAX else [*some, f"… ({len(value)})"]
    return value


def _traced(logger: Any, name: str, event: structlog.typing.EventDict) -> Any:
    event = structlog.processors.format_exc_info(logger, name, event)
    trace = event.get("exception")
    if isinstance(trace, str) and len(trace) > _TRACE_MAX:
        half = _TRACE_MAX // 2
        event["exception"] = f"{trace[:half]}\n…\n{trace[-half:]}"
    return event


def _plain(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape text, so that nothing that a client sent obeys a terminal; JSON escapes by itself."""
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    for part in traceback.format_exception(*error):
        for line in part.splitlines():
            out.write(f"\n{printable(line)}")
