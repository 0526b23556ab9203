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
from itertools import islice
from typing import Any, TextIO

import structlog

from kproxy.printable import printable


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
    if worker is not None:
        structlog.contextvars.bind_contextvars(worker=worker)


_TEXT_MAX = 1000
_ITEMS_MAX = 50
_TRACE_MAX = 16_000
_OF_ALL = 50.0, 10.0
_OF_ONE = 30.0, 5.0
"""Of one client. How many at once, and how many a second."""
_AUDIT = "administered"
_OF_AUDIT = 1000.0, 20.0
"""Of one client, which may have much to do. Nothing bounds all of them: none hides another's."""
_KEYS_MAX = 10_000


class Floods:
    """Lets so many warnings and errors of a name through, and counts the rest.

    Somebody who connects ten thousand times a second must not fill the disk, nor hide what others
    do: of one client fewer are let through. The audit is bounded of one client alone. From any
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[Any, tuple[float, float]] = {}  # by name: how many, as of when
        self._left_of: dict[Any, tuple[float, float]] = {}  # by name and client
        self._suppressed: Counter[str] = Counter()

    def __call__(self, _: Any, __: str, event: structlog.typing.EventDict) -> Any:
        """A structlog processor. Raises DropEvent."""
        name = str(event["event"])
        audit = name == _AUDIT
        if not audit and event.get("level") not in ("warning", "error"):
            return event
        now, client = self._clock(), _client(event)
        most = _OF_AUDIT if audit else _OF_ONE
        through = client is None or _took(self._left_of, (name, client), now, most)
        if through and not audit:
            through = _took(self._left, name, now, _OF_ALL)
        if not through:
            self._suppressed[name] += 1
            raise structlog.DropEvent
        return event

    def take(self) -> dict[str, int]:
        """How many events of which names were left out since the last call."""
        if not self._suppressed:
            return {}
        suppressed, self._suppressed = self._suppressed, Counter()
        return dict(suppressed)


def _client(event: structlog.typing.EventDict) -> tuple[Any, str] | None:
    """Whom an event is about: a principal and an address, or an address."""
    host = event.get("host")
    if host is not None:
        return event.get("principal"), str(host)
    peer = event.get("peer")
    return None if peer is None else (None, str(peer).rpartition(":")[0] or str(peer))


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
    for name, count in floods.take().items():
        structlog.get_logger().info("events_suppressed", of=name, count=count)


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
    """Nothing that a client sent reaches the terminal as more than text; JSON escapes by itself."""
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    for part in traceback.format_exception(*error):
        for line in part.splitlines():
            out.write(f"\n{printable(line)}")
