"""The commands: options, tables for people, JSON lines for programs."""

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, track
from rich.table import Table
from rich.text import Text

from kproxy.common.errors import CannotStart
from kproxy.common.printable import printable
from kproxy.tools.client import Client, Refused
from kproxy.tools.client_settings import ClientSettings, read_client_settings
from kproxy.tools.routes import TITLES, cells
from kproxy.tools.views import GroupDescription, QueueLine, TopicSpec, describe, groups, queues, top

_LIMIT = 100


def server_address(context: Any, parameter: Any, text: str) -> tuple[str, int]:
    host, _, port = text.split(",")[0].rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{text}: write it as HOST:PORT, for example 127.0.0.1:9092")
    return host.strip("[]"), int(port)


_SETTINGS = "kproxy.client_settings"


def _keep_settings(context: click.Context, parameter: Any, path: Path | None) -> None:
    context.meta[_SETTINGS] = read_client_settings(path)


settings_option = click.option(
    "--command-config",
    type=click.Path(path_type=Path),
    envvar="KPROXY_COMMAND_CONFIG",
    expose_value=False,
    callback=_keep_settings,
    help="file of client settings, for TLS and SASL (names of librdkafka, or of Kafka's tools)",
)
_server_option = click.option(
    "--bootstrap-server",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    envvar="KPROXY_BOOTSTRAP_SERVER",
    callback=server_address,
    help="a kproxy to ask",
)


def given_settings() -> ClientSettings | None:
    """Return the settings of --command-config."""
    found: ClientSettings | None = click.get_current_context().meta.get(_SETTINGS)
    return found


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the server's address and the client's credentials."""
    return _server_option(settings_option(command))


as_json_option = _json = click.option(
    "--json", "as_json", is_flag=True, help="JSON lines instead of a table"
)
_from = click.option("--from", "first", default="", metavar="NAME", help="begin at this name")
_limit = click.option(
    "--limit", default=_LIMIT, show_default=True, type=click.IntRange(1), help="most lines shown"
)
_match = click.option("--match", metavar="REGEX", help="only names that this matches as a whole")


def _wanted(match: str | None) -> TopicSpec:
    if match is None:
        return lambda name: True
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise click.BadParameter(f"--match {match}: {error}") from None
    return lambda name: pattern.fullmatch(name) is not None


def asked(address: tuple[str, int], ask: Callable[[Client], Any]) -> Any:
    try:
        with Client(address, given_settings()) as client:
            return ask(client)
    except Refused as error:
        raise CannotStart(str(error)) from None


def table(titles: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a pipe has no edge
    console.print(table)


def _more(name: str) -> None:
    click.echo(f"… and more: --from {printable(name)} goes on from here", err=True)


def _print_json(lines: Iterable[dict[str, Any]]) -> None:
    for line in lines:
        click.echo(json.dumps(line))


@click.command(name="queues")
@_match
@_from
@_limit
@click.option(
    "--sort", type=click.Choice(["name", "records", "bytes", "lag"]), default="name",
    show_default=True, help="by a number: the largest first, of all queues",
)  # fmt: skip
@click.option("--group", help="show how far this group is behind")
@click.option("--routes", is_flag=True, help="only queues that define a route, and its lag")
@_json
@server_option
def queues_command(
    match: str | None,
    first: str,
    limit: int,
    sort: str,
    group: str | None,
    routes: bool,
    as_json: bool,
    bootstrap_server: tuple[str, int],
) -> None:
    """List queues with their records and bytes, by name or the largest first."""
    if sort == "lag" and group is None:
        raise click.UsageError("--sort lag needs --group: whose lag")
    wanted = _wanted(match)

    def ask(client: Client) -> list[QueueLine]:
        lines = queues(client, wanted, first=first, group=group, routes=routes)
        if sort == "name":
            return list(islice(lines, limit + 1))
        shown = track(
            lines, "looking at all queues", total=None, transient=True,
            console=Console(stderr=True), disable=not sys.stderr.isatty(),
        )  # fmt: skip
        return top(iter(shown), sort, limit)

    found = asked(bootstrap_server, ask)
    if as_json:
        _print_json(asdict(line) for line in found[:limit])
    else:
        titles = ["QUEUE", "PARTITIONS", "RECORDS", "BYTES"] + (["LAG"] if group else [])
        titles += ["ROUTE", "ROUTE LAG", "WAITS"] if routes else []
        table(titles, [_cells(line, group is not None) for line in found[:limit]])
    if len(found) > limit:
        _more(found[limit].name)


def _cells(line: QueueLine, with_lag: bool) -> list[Any]:
    shown: list[Any] = [line.name, line.partitions, line.records, decimal(line.bytes)]
    if with_lag:
        shown.append(line.lag)
    if line.route is not None:
        shown += [line.route.route, line.route.lag, line.route.waits or "-"]
    return shown


@click.command(name="groups")
@_match
@_from
@_limit
@_json
@server_option
def groups_command(
    match: str | None, first: str, limit: int, as_json: bool, bootstrap_server: tuple[str, int]
) -> None:
    """List groups with their state and how far they are behind."""
    wanted = _wanted(match)
    found = asked(bootstrap_server, lambda c: groups(c, wanted, first=first, limit=limit + 1))
    if as_json:
        _print_json(asdict(line) for line in found[:limit])
    else:
        table(
            ["GROUP", "TYPE", "STATE", "QUEUES", "LAG"],
            [(g.group, g.type, g.state, g.queues, g.lag) for g in found[:limit]],
        )
    if len(found) > limit:
        _more(found[limit].group)


@click.command(name="describe")
@click.argument("queue")
@_json
@server_option
def describe_command(queue: str, as_json: bool, bootstrap_server: tuple[str, int]) -> None:
    """Show a queue's partitions, settings, routes and groups."""
    found: GroupDescription = asked(bootstrap_server, lambda client: describe(client, queue))
    if as_json:
        _print_json([found.plain()])
        return
    settings = ", ".join(f"{name}={value}" for name, value in sorted(found.settings.items()))
    line = f"{found.name}  id {found.id}  settings: {settings or 'defaults'}"
    click.echo(printable(line) + "\n")
    table(
        ["PARTITION", "LEADER", "START", "END", "RECORDS", "BYTES"],
        [
            (p.partition, p.leader, p.start, p.end, p.end - p.start, decimal(p.bytes))
            for p in found.partitions
        ],
    )
    if found.waiting:
        click.echo()
        table(
            ["PARTITION", "WAITING", "NEXT DUE"],
            [(w["partition"], w["records"], _time(w["next_ms"])) for w in found.waiting],
        )
    if found.routes:
        click.echo()
        table(TITLES, [row for line in found.routes for row in cells(line)])
    if found.groups:
        click.echo()
        table(
            ["GROUP", "COMMITTED", "LAG"],
            [
                (g["group"], " ".join(f"{i}:{o}" for i, o in g["committed"].items()), g["lag"])
                for g in found.groups
            ],
        )
    if found.share_groups:
        click.echo()
        table(
            ["SHARE GROUP", "PARTITION", "START", "LAG", "IN FLIGHT", "DELIVERED", "ARCHIVED",
             "OLDEST", "DEAD LETTERS WAITING"],
            [_share_line(g, p) for g in found.share_groups for p in g["partitions"]],
        )  # fmt: skip


def _time(time_ms: int) -> str:
    if time_ms < 0:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat("T", "seconds")


def _share_line(group: dict[str, Any], line: dict[str, Any]) -> tuple[Any, ...]:
    """Return the cells of a line.

    `DELIVERED`: how often, and how many records of those that are not done.
    """
    oldest = line.get("oldest_ms", -1)
    times = " ".join(f"{count}x:{records}" for count, records in line.get("deliveries", {}).items())
    return (
        group["group"], line["partition"], line["start"], line["lag"], line.get("in_flight", "-"),
        times or "-", line.get("archived", "-"),
        _time(oldest),
        group["dead_letters_waiting"],
    )  # fmt: skip


@click.command(name="delete")
@click.argument("names", nargs=-1, metavar="QUEUE...")
@_match
@click.option("--yes", is_flag=True, help="do not ask")
@_json
@server_option
def delete_command(
    names: tuple[str, ...],
    match: str | None,
    yes: bool,
    as_json: bool,
    bootstrap_server: tuple[str, int],
) -> None:
    """Delete queues, with their records and all that groups committed on them."""
    if bool(names) == (match is not None):
        raise click.UsageError("name the queues to delete, or give --match REGEX")

    def ask(client: Client) -> list[tuple[str, int]]:
        doomed = list(dict.fromkeys(names))
        if match is not None:
            wanted = _wanted(match)
            doomed = [t.name for page in client.pages() for t in page if wanted(t.name)]
            doomed = list(dict.fromkeys(doomed))
        if not doomed:
            raise Refused(f"no queue is matched by {match}")
        if not yes:
            what = doomed[0] if len(doomed) == 1 else f"{len(doomed)} queues, {doomed[0]} first,"
            click.confirm(f"delete {printable(what)} with all records?", abort=True, err=True)
        done = []
        with Progress(
            transient=True, console=Console(stderr=True), disable=not sys.stderr.isatty()
        ) as bar:
            task = bar.add_task("deleting", total=len(doomed))
            for outcome in client.delete(doomed):
                done.append(outcome)
                bar.advance(task)
        return done

    outcomes = asked(bootstrap_server, ask)
    failed = [name for name, code in outcomes if code]
    if as_json:
        _print_json({"queue": name, "deleted": not code, "error_code": code}
                    for name, code in outcomes)  # fmt: skip
    else:
        click.echo(f"deleted {len(outcomes) - len(failed)}")
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise CannotStart(f"not deleted: {failed[0]}{more}: is it there? `kproxy queues` lists all")
