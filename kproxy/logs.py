"""structlog to standard error: readable lines on a terminal, JSON lines otherwise."""

import logging
import sys
import traceback
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
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _plain if console else structlog.processors.format_exc_info,
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


def _plain(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Nothing that a client sent reaches the terminal as more than text; JSON escapes by itself."""
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    for part in traceback.format_exception(*error):
        for line in part.splitlines():
            out.write(f"\n{printable(line)}")
