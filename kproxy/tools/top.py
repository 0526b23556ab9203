"""`kproxy top`: a live view of workers: rates, the busiest queues and groups, lag, shards."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kproxy.common.errors import CannotStart
from kproxy.tools.options import path
from kproxy.tools.output import console as shown_on
from kproxy.tools.output import made_table

_TIMEOUT_S = 6
_ANSWER_BYTES_MAX = 8 << 20
_PORTS = 16
_DEFAULT = "127.0.0.1:9644"

Page = dict[str, Any]


class Source:
    """The workers' pages."""

    def __init__(self, addresses: Sequence[str], token: str | None, ca_file: Path | None) -> None:
        """Take addresses; without any, this machine's, from the default port on."""
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        context = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
        https = urllib.request.HTTPSHandler(context=context)
        self._open = urllib.request.build_opener(NoRedirects, https).open
        self._urls = [url_of(address) for address in addresses]

    def pages(self) -> list[tuple[str, Page | None]]:
        """Return each worker's page, None where it does not answer.

        Raises CannotStart: none does.
        """
        if not self._urls:
            self._urls = list(self._found())
        pages = [(url, self.page(url)) for url in self._urls]
        if not any(page for _, page in pages):
            raise CannotStart(
                f"no kproxy answers at {', '.join(self._urls) or _DEFAULT}: give --http"
                " HOST:PORT as its --http-listen says, and --token-file if it asks for one"
            )
        return pages

    def _found(self) -> Iterator[str]:
        host, _, port = _DEFAULT.rpartition(":")
        for number in range(int(port), int(port) + _PORTS):
            url = url_of(f"{host}:{number}")
            if self.page(url) is None:
                return
            yield url

    def page(self, url: str) -> Page | None:
        """Return a worker's page; None: it does not answer."""
        request = urllib.request.Request(f"{url}/top", headers=self._headers)
        try:
            with self._open(request, timeout=_TIMEOUT_S) as said:
                page = json.loads(said.read(_ANSWER_BYTES_MAX))
        except (OSError, ValueError, RecursionError, urllib.error.URLError):
            return None
        return page if isinstance(page, dict) else None


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: a token, above all, goes to no other address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def watched(addresses: Sequence[str], token_file: Path | None, ca_file: Path | None) -> Source:
    """Return the pages of workers at these addresses. Raises CannotStart."""
    if token_file is not None and not addresses:
        raise CannotStart(
            "any process at the default port would get the token: say with --http which address"
            " is to have it"
        )
    token = None if token_file is None else token_file.read_text().strip()
    return Source(addresses, token, ca_file)


def url_of(address: str) -> str:
    return address.rstrip("/") if "://" in address else f"http://{address}"


# -- from two looks


def rate(before: Page, after: Page, name: str) -> float:
    """Return the rate of a counter, per second."""
    seconds = after["at"] - before["at"]
    change = after["counters"].get(name, 0) - before["counters"].get(name, 0)
    return max(0.0, change / seconds) if seconds > 0 else 0.0


def quantile(before: Page, after: Page, name: str, share: float) -> float | None:
    """Return the bound that so many of a histogram's values between two looks are at or below."""
    bounds, counts = after[name]
    changes = [b - a for a, b in zip(before[name][1], counts, strict=True)]
    wanted, seen = share * sum(changes), 0
    for bound, count in zip([*bounds, float("inf")], changes, strict=True):
        seen += count
        if count and seen >= wanted:
            return float(bound)
    return None


def differences(
    before: Page, after: Page, name: str, columns: int
) -> list[tuple[str, tuple[float, ...]]]:
    """Return rates of the busiest: rows of `name` begin with the name that they are of."""
    known = {row[0]: row[1:] for row in before[name]}
    seconds = max(0.001, after["at"] - before["at"])
    found = []
    for of, *amounts in after[name]:
        earlier = known.get(of, [0] * columns)
        rates = [max(0.0, (b - a) / seconds) for a, b in zip(earlier, amounts, strict=True)]
        found.append((str(of), tuple(rates)))
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers, those that follow each other as one: 0-3 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


# -- the view


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def _worker_row(url: str, before: Page | None, after: Page | None) -> list[str]:
    name = url.partition("://")[2]
    if after is None:
        return [name, "no answer", *["-"] * 8]
    health = after["health"]
    state = "ready" if health["ready"] else "; ".join(health["reasons"])
    if "at" not in after or before is None or "at" not in before:
        return [name, state, *["-"] * 8]
    served = [number for number, phase, _ in after["shards"] if phase == "served"]
    return [
        after["address"], state,
        f"{rate(before, after, 'produced_records'):,.0f}",
        f"{rate(before, after, 'fetched_records'):,.0f}",
        f"{rate(before, after, 'answered') + rate(before, after, 'failed'):,.0f}",
        _seconds(quantile(before, after, "produce_seconds", 0.99)),
        f"{after['counters']['connections_open']:,}",
        f"{after['appends_waiting']:,} / {after['long_polls']:,}",
        _seconds(quantile(before, after, "loop_lag", 0.99)),
        ranges(served) or "-",
    ]  # fmt: skip


_WORKERS = ("WORKER", "STATE", "RECORDS IN/S", "OUT/S", "REQUESTS/S", "PRODUCE P99", "CLIENTS",
            "IN FLIGHT / WAITING", "LOOP P99", "SHARDS")  # fmt: skip


def view(
    before: Sequence[tuple[str, Page | None]], after: Sequence[tuple[str, Page | None]], lines: int
) -> Group:
    """Return tables of what happened between two looks."""
    earlier = dict(before)
    pairs = [(earlier.get(url), page) for url, page in after]
    both = [(a, b) for a, b in pairs if a and b and "at" in a and "at" in b]
    workers = [_worker_row(url, earlier.get(url), page) for url, page in after]
    return Group(
        _totals(both), Text(""), made_table(_WORKERS, workers), Text(""),
        _queue_table(both, lines), Text(""), _group_table(both, lines),
    )  # fmt: skip


def _totals(both: Sequence[tuple[Page, Page]]) -> Text:
    def total(name: str) -> float:
        return sum(rate(a, b, name) for a, b in both)

    def there(name: str) -> int:
        return int(sum(page[name] for _, page in both))

    shards = max((page["shards_configured"] for _, page in both), default=0)
    served = sum(one[1] == "served" for _, page in both for one in page["shards"])
    lag = sum(one[2] for _, page in both for one in page["shards"])
    return Text(
        f"in {total('produced_records'):,.0f} records/s, {decimal(int(total('produced_bytes')))}/s"
        f"   out {total('fetched_records'):,.0f} records/s,"
        f" {decimal(int(total('fetched_bytes')))}/s   errors {total('failed'):,.1f}/s\n"
        f"{there('queues_count'):,} queues, {there('partitions_count'):,} partitions,"
        f" {there('groups_count'):,} groups, {decimal(there('live_bytes'))}"
        f"   shards {served} of {shards} served, {lag:,} records behind their logs"
    )


def _queue_table(both: Sequence[tuple[Page, Page]], lines: int) -> Table:
    rates: dict[str, tuple[float, float]] = {}
    for before, after in both:
        for name, (come, gone) in differences(before, after, "queues", 2):
            known = rates.get(name, (0.0, 0.0))
            rates[name] = known[0] + come, known[1] + gone
    busiest = sorted(rates.items(), key=lambda item: -sum(item[1]))[:lines]
    rows = [(name, f"{decimal(int(a))}/s", f"{decimal(int(b))}/s") for name, (a, b) in busiest]
    return made_table(("BUSIEST QUEUES (about)", "IN", "OUT"), rows)


def _group_table(both: Sequence[tuple[Page, Page]], lines: int) -> Table:
    found = []
    for before, after in both:
        known = {one["group"]: one["commits"] for one in before["groups"]}
        seconds = max(0.001, after["at"] - before["at"])
        for one in after["groups"]:
            commits = (one["commits"] - known.get(one["group"], 0)) / seconds
            found.append((max(0.0, commits), one))
    found.sort(key=lambda item: (-item[0], -(item[1]["lag"] or 0)))
    rows = [
        (one["group"], f"{commits:,.1f}", "-" if one["lag"] is None else f"{int(one['lag']):,}",
         "-" if one["members"] is None else f"{int(one['members'])}")
        for commits, one in found[:lines]
    ]  # fmt: skip
    return made_table(("BUSIEST GROUPS", "COMMITS/S", "LAG", "MEMBERS"), rows)


@click.command(name="top")
@click.option(
    "--http", "addresses", multiple=True, metavar="HOST:PORT",
    help="the address of a worker's --http-listen; more than one may be given"
    f" [default: {_DEFAULT} and the ports that follow]",
)  # fmt: skip
@click.option("--every", default=2.0, show_default=True, type=click.FloatRange(0.2),
              help="seconds between two looks")  # fmt: skip
@click.option("--lines", default=10, show_default=True, type=click.IntRange(1, 20))
@click.option("--once", is_flag=True, help="print one look and end")
@path("--token-file", exists=True, help="the bearer token that workers ask for")
@path("--ca-file", exists=True, help="the certificates to trust at https:// addresses")
def top_command(
    addresses: tuple[str, ...], every: float, lines: int, once: bool,
    token_file: Path | None, ca_file: Path | None,
) -> None:  # fmt: skip
    """Watch workers: rates, busiest queues and groups, lag, shards."""
    source = watched(addresses, token_file, ca_file)
    console = shown_on()
    before = source.pages()
    time.sleep(every)
    if once or not console.is_terminal:
        console.print(view(before, source.pages(), lines))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                after = source.pages()
                live.update(view(before, after, lines), refresh=True)
                before = after
                time.sleep(every)
        except KeyboardInterrupt:
            return
