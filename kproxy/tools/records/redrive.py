"""`kproxy redrive`: the letters of a dead-letter queue, passed on once more by the server.

It is a job of the server, which its queue's settings say: the command begins, changes and ends it,
and shows how far it is.
"""

import time
from collections.abc import Callable
from typing import Any

import click

from kproxy.common.errors import CannotStart
from kproxy.tools.client import Address, Client
from kproxy.tools.options import as_json_option, asked, server_option
from kproxy.tools.output import bar, print_json, table
from kproxy.tools.records.redrives import (
    FILTER,
    ORIGIN,
    RATE,
    TIMES_MAX,
    Redrive,
    begin,
    standing,
    standing_or_refused,
)
from kproxy.tools.records.redrives import change as changed

_LOOK_S = 0.5


@click.command(name="redrive")
@click.argument("queue")
@click.option("--to", metavar="QUEUE", help="begin: the letters go to this queue")
@click.option("--to-origin", is_flag=True, help="begin: each letter goes where it came from")
@click.option("--match", metavar="CONDITIONS",
              help="only such letters, as in kproxy.route.filter: header:NAME:VALUE")  # fmt: skip
@click.option("--rate", metavar="NUMBER/s", help="so many and no more; also while it runs")
@click.option("--max-redrives", type=click.IntRange(1), metavar="N",
              help="leave a letter that was redriven as often  [default: 3]")  # fmt: skip
@click.option("--pause", "change", flag_value="pause", help="wait")
@click.option("--resume", "change", flag_value="resume", help="go on after a pause")
@click.option("--stop", "change", flag_value="stop", help="end it: what has landed stays")
@click.option("--dry-run", is_flag=True, help="check only: nothing changes")
@click.option("--watch", is_flag=True, help="show how far it is until it is over")
@as_json_option
@server_option
def redrive_command(
    queue: str, to: str | None, to_origin: bool, match: str | None, rate: str | None,
    max_redrives: int | None, change: str | None, dry_run: bool, watch: bool, as_json: bool,
    bootstrap_server: Address,
) -> None:  # fmt: skip
    """Pass the letters of a dead-letter queue on once more, or show how far that is."""
    if to is not None and to_origin:
        raise click.UsageError("--to and --to-origin exclude each other: letters go to one place")
    target = ORIGIN if to_origin else to
    if change is not None and (target or rate or match or max_redrives):
        raise click.UsageError(f"--{change} is for a redrive that is under way, and stands alone")
    if target is None and (match or max_redrives):
        raise click.UsageError("say where the letters go: --to-origin or --to QUEUE")

    def ask(client: Client) -> None:
        if target is not None:
            given = {
                FILTER: match,
                RATE: rate,
                TIMES_MAX: str(max_redrives) if max_redrives else None,
            }
            _begin(client, queue, target, given, dry=dry_run)
        elif change is not None or rate is not None:
            before = changed(client, queue, change, rate, dry=dry_run)
            if change == "stop" and not dry_run:
                click.echo("stopped" if before.left or not before.is_told else "it was over")
        if dry_run or change == "stop":
            return
        found = standing_or_refused(client, queue)
        if watch:
            found = _watched(client, queue, found)
        _show(queue, found, as_json)

    asked(bootstrap_server, ask)


def _begin(
    client: Client, queue: str, target: str, given: dict[str, str | None], *, dry: bool
) -> None:
    begin(client, queue, target, given, dry=dry)
    if dry:
        parts = {(queue, p.partition_index): p.leader_id for p in client.queue(queue).partitions}
        starts, ends = client.offsets(parts, -2), client.offsets(parts, -1)
        count = sum(ends.get(part, 0) - starts.get(part, 0) for part in parts)
        click.echo(f"valid: {count} records of {queue} would be looked at")


def _watched(client: Client, queue: str, found: Redrive) -> Redrive:
    """Show how far a redrive is until it is over, or another one has begun."""
    with bar("redriving", None) as told:
        most = 0
        while found.state != "over":
            if found.is_told:
                most = max(most, found.most)
                told(total=most, completed=most - found.left)
            time.sleep(_LOOK_S)
            now = standing(client, queue)
            if now is None or now.job != found.job:
                raise CannotStart(f"the redrive of {queue} was stopped: nothing more comes of it")
            found = now
    return found


def _show(queue: str, found: Redrive, as_json: bool) -> None:
    if as_json:
        parts = [part._asdict() for part in found.parts]
        line = {"queue": queue, "to": found.to, "job": found.job, "state": found.state}
        print_json([{**line, "partitions": parts}])
        return
    known: Callable[[Any], Any] = lambda value: "?" if value is None else value  # noqa: E731
    table(
        ["REDRIVE TO", "STATE", "PARTITION", "PASSED ON", "END", "LEFT", "WAITS"],
        [
            (found.to, found.state, part.partition, known(part.landed), known(part.end),
             known(part.left), part.waits or "-")
            for part in found.parts
        ],
    )  # fmt: skip
