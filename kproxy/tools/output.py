"""The output of every command: tables for people, JSON lines for programs, bars, complaints.

rich is imported where something is shown: it takes longer than most commands.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kproxy.common.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN_MAX = 20
"""The refusals or faults that are shown; others are counted."""
_PIPE_WIDTH = 200
"""A pipe has no edge."""


def console() -> "Console":
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=_PIPE_WIDTH)


def made_table(titles: Iterable[str], rows: Iterable[Iterable[Any]], **style: Any) -> "Table":
    """Return a table. The text of cells is escaped: anybody may have chosen it."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", **style)
    for number, title in enumerate(titles):
        made.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def table(titles: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table."""
    console().print(made_table(titles, rows))


def print_json(lines: Iterable[dict[str, Any]]) -> None:
    for line in lines:
        click.echo(json.dumps(line))


def size(count: int | None) -> str:
    """Return a number of bytes for a person; None: nobody says."""
    if count is None:
        return "-"
    from rich.filesize import decimal

    return decimal(count)


@contextmanager
def bar(label: str, total: float | None, *, of_bytes: bool = False) -> Iterator[Callable[..., Any]]:
    """Show on a terminal how much is done while the block lasts; nothing elsewhere.

    Yields the function that is told: `advance`, or `completed` and `total`.
    """
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"), BarColumn(),
        DownloadColumn() if of_bytes else MofNCompleteColumn(), TimeRemainingColumn(),
        transient=True, console=Console(stderr=True),
    ) as progress:  # fmt: skip
        yield partial(progress.update, progress.add_task(label, total=total))


def complain(message: str) -> None:
    """Print a line on standard error, as `kproxy.cli` does."""
    click.echo(f"kproxy: {printable(message)}", err=True)


class Refusals:
    """The refusals of a command: a line for each of the first ones, and how many there are."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, line: str) -> None:
        self.count += 1
        if self.count <= SHOWN_MAX:
            complain(line)

    def end(self) -> None:
        """Raise SystemExit where any was."""
        if self.count > SHOWN_MAX:
            complain(f"… and {self.count - SHOWN_MAX} more, {self.count} refused in all")
        if self.count:
            raise SystemExit(1)
