"""The commands that list, describe and delete queues and groups."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

import click

from kproxy.common.errors import CannotStart
from kproxy.common.printable import printable
from kproxy.protocol.name_search import ALL, NameSearch
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.options import as_json_option, asked, match_option, server_option
from kproxy.tools.output import bar, print_json, size, table
from kproxy.tools.routes import ROUTE_TO, TITLES, cells, decoded, entrance_option, template_of
from kproxy.tools.views import GroupDescription, QueueLine, describe, groups, queues, top

_LIMIT = 100


_from = click.option("--from", "first", default="", metavar="NAME", help="begin at this name")
_limit = click.option(
    "--limit", default=_LIMIT, show_default=True, type=click.IntRange(1), help="most lines shown"
)


def _list(
    found: list[Any], limit: int, as_json: bool, titles: list[str],
    cells_of: Callable[[Any], Iterable[Any]],
) -> None:  # fmt: skip
    """Print lines that begin with a name, at most so many."""
    if as_json:
        print_json(asdict(line) for line in found[:limit])
    else:
        table(titles, map(cells_of, found[:limit]))
    if len(found) > limit:
        name = next(iter(asdict(found[limit]).values()))
        click.echo(f"… and more: --from {printable(name)} goes on from here", err=True)


@click.command(name="queues")
@match_option
@_from
@_limit
@click.option(
    "--sort", type=click.Choice(["name", "records", "bytes", "lag"]), default="name",
    show_default=True, help="by a number: the largest first, of all queues",
)  # fmt: skip
@click.option("--group", help="show how far this group is behind")
@click.option("--routes", is_flag=True, help="only queues that define a route, and its lag")
@entrance_option
@as_json_option
@server_option
def queues_command(
    match: NameSearch | None,
    first: str,
    limit: int,
    sort: str,
    group: str | None,
    routes: bool,
    entrance: str | None,
    as_json: bool,
    bootstrap_server: Address,
) -> None:
    """List queues with their records and bytes, by name or the largest first."""
    if sort == "lag" and group is None:
        raise click.UsageError("--sort lag needs --group: whose lag")
    search = (match or ALL)._replace(first=first)

    def ask(client: Client) -> list[QueueLine]:
        stands_for, more = _nothing, dict[str, Any]()
        if entrance is not None:
            stands_for = partial(decoded, template_of(client, entrance))
            more["wanted"] = lambda name: stands_for(name) is not None
        found = queues(client, search, group=group, routes=routes, **more)
        lines = (replace(line, decoded=stands_for(line.name)) for line in found)
        if sort == "name":
            return list(islice(lines, limit + 1))
        with bar("looking at all queues", None) as told:
            return top(_told(lines, told), sort, limit)

    found = asked(bootstrap_server, ask)
    titles = ["QUEUE", "PARTITIONS", "RECORDS", "BYTES"] + (["LAG"] if group else [])
    titles += ["ROUTE", "ROUTE LAG", "WAITS"] if routes else []
    titles += ["STANDS FOR"] if entrance is not None else []
    _list(found, limit, as_json, titles, lambda line: _cells(line, group is not None))


def _told(lines: Iterable[QueueLine], told: Callable[..., Any]) -> Iterator[QueueLine]:
    for line in lines:
        told(advance=1)
        yield line


def _cells(line: QueueLine, with_lag: bool) -> list[Any]:
    shown: list[Any] = [line.name, line.partitions, line.records, size(line.bytes)]
    if with_lag:
        shown.append(line.lag)
    if line.route is not None:
        shown += [line.route.route, line.route.lag, line.route.waits or "-"]
    if line.decoded is not None:
        shown.append(line.decoded)
    return shown


def _nothing(name: str) -> str | None:
    """Return no key: no entrance is asked for."""
    return None


@click.command(name="groups")
@match_option
@_from
@_limit
@as_json_option
@server_option
def groups_command(
    match: NameSearch | None, first: str, limit: int, as_json: bool, bootstrap_server: Address
) -> None:
    """List groups with their state and how far they are behind."""
    search = (match or ALL)._replace(first=first, limit=limit + 1)
    found = asked(bootstrap_server, lambda client: groups(client, search))
    titles = ["GROUP", "TYPE", "STATE", "QUEUES", "LAG"]
    _list(found, limit, as_json, titles, lambda line: asdict(line).values())


@click.command(name="describe")
@click.argument("queue")
@entrance_option
@as_json_option
@server_option
def describe_command(
    queue: str, entrance: str | None, as_json: bool, bootstrap_server: Address
) -> None:
    """Show a queue's partitions, settings, routes and groups."""

    def ask(client: Client) -> GroupDescription:
        stands_for = None
        if entrance is not None:
            stands_for = decoded(template_of(client, entrance), queue)
            if stands_for is None:
                raise Refused(f"{queue} is no name that the {ROUTE_TO} of {entrance} makes")
        return replace(describe(client, queue), decoded=stands_for)

    found: GroupDescription = asked(bootstrap_server, ask)
    if as_json:
        print_json([found.plain()])
        return
    settings = ", ".join(f"{name}={value}" for name, value in sorted(found.settings.items()))
    stands_for = "" if found.decoded is None else f"  stands for {found.decoded}"
    line = f"{found.name}{stands_for}  id {found.id}  settings: {settings or 'defaults'}"
    click.echo(printable(line) + "\n")
    table(
        ["PARTITION", "LEADER", "START", "END", "RECORDS", "BYTES"],
        [
            (p.partition, p.leader, p.start, p.end, p.end - p.start, size(p.bytes))
            for p in found.partitions
        ],
    )
    for titles, rows in (
        (["PARTITION", "WAITING", "NEXT DUE"],
         [(w["partition"], w["records"], _time(w["next_ms"])) for w in found.waiting]),
        (TITLES, [row for line in found.routes for row in cells(line)]),
        (["GROUP", "COMMITTED", "LAG"],
         [(g["group"], " ".join(f"{i}:{o}" for i, o in g["committed"].items()), g["lag"])
          for g in found.groups]),
        (["SHARE GROUP", "PARTITION", "START", "LAG", "IN FLIGHT", "DELIVERED", "ARCHIVED",
          "OLDEST", "DEAD LETTERS WAITING"],
         [_share_line(g, p) for g in found.share_groups for p in g["partitions"]]),
    ):  # fmt: skip
        if rows:
            click.echo()
            table(titles, rows)


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
@match_option
@click.option("--yes", is_flag=True, help="do not ask")
@as_json_option
@server_option
def delete_command(
    names: tuple[str, ...],
    match: NameSearch | None,
    yes: bool,
    as_json: bool,
    bootstrap_server: Address,
) -> None:
    """Delete queues, with their records and all that groups committed on them."""
    if bool(names) == (match is not None):
        raise click.UsageError("name the queues to delete, or give --match REGEX")

    def ask(client: Client) -> list[tuple[str, int]]:
        doomed = list(dict.fromkeys(names))
        if match is not None:
            doomed = list(dict.fromkeys(t.name for page in client.pages(match) for t in page))
        if not doomed:
            raise Refused(f"no queue is matched by {match and match.matching}")
        if not yes:
            what = doomed[0] if len(doomed) == 1 else f"{len(doomed)} queues, {doomed[0]} first,"
            click.confirm(f"delete {printable(what)} with all records?", abort=True, err=True)
        done = []
        with bar("deleting", len(doomed)) as told:
            for outcome in client.delete(doomed):
                done.append(outcome)
                told(advance=1)
        return done

    outcomes = asked(bootstrap_server, ask)
    failed = [name for name, code in outcomes if code]
    if as_json:
        print_json({"queue": name, "deleted": not code, "error_code": code}
                    for name, code in outcomes)  # fmt: skip
    else:
        click.echo(f"deleted {len(outcomes) - len(failed)}")
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise CannotStart(f"not deleted: {failed[0]}{more}: is it there? `kproxy queues` lists all")
