"""`kproxy redrive`: the letters of a dead-letter queue, passed on once more by the server.

It is a job of the server, which its queue's settings say: the command begins, changes and ends it,
and shows how far it is.
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from kproxy.common.errors import CannotStart
from kproxy.tools.administration import alter
from kproxy.tools.client import QUEUE, REDRIVES, Address, Client, Refused
from kproxy.tools.options import as_json_option, asked, server_option
from kproxy.tools.output import bar, print_json, table

_TO, _JOB, _FILTER, _RATE, _PAUSED, _TIMES_MAX = (
    f"kproxy.redrive.{name}" for name in ("to", "job", "filter", "rate", "paused", "times.max")
)
_ALL = (_TO, _JOB, _FILTER, _RATE, _PAUSED, _TIMES_MAX)
_LOOK_S = 0.5


class _Part(NamedTuple):
    """A redrive out of one partition. None: no worker says so yet."""

    partition: int
    begin: int | None = None
    landed: int | None = None
    end: int | None = None
    waits: str | None = None

    @property
    def left(self) -> int | None:
        return None if self.end is None or self.landed is None else self.end - self.landed


class _Redrive(NamedTuple):
    """A redrive as it stands."""

    to: str
    job: str
    paused: bool
    parts: list[_Part]

    @property
    def state(self) -> str:
        if all(part.left == 0 for part in self.parts):
            return "over"
        return "paused" if self.paused else "running"

    @property
    def left(self) -> int:
        """The letters that are still to be looked at, as far as workers say."""
        return sum(part.left or 0 for part in self.parts)

    @property
    def is_told(self) -> bool:
        return all(part.left is not None for part in self.parts)


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
    target = "*" if to_origin else to
    if change is not None and (target or rate or match or max_redrives):
        raise click.UsageError(f"--{change} is for a redrive that is under way, and stands alone")
    if target is None and (match or max_redrives):
        raise click.UsageError("say where the letters go: --to-origin or --to QUEUE")

    def ask(client: Client) -> None:
        if target is not None:
            given = {
                _FILTER: match,
                _RATE: rate,
                _TIMES_MAX: str(max_redrives) if max_redrives else None,
            }
            _begin(client, queue, target, given, dry=dry_run)
        elif change is not None or rate is not None:
            _change(client, queue, change, rate, dry=dry_run)
        if dry_run or change == "stop":
            return
        found = _found(client, queue)
        if watch:
            found = _watched(client, queue, found)
        _show(queue, found, as_json)

    asked(bootstrap_server, ask)


def _begin(
    client: Client, queue: str, target: str, given: dict[str, str | None], *, dry: bool
) -> None:
    now = _standing(client, queue)
    if now is not None and now.state != "over":
        raise Refused(
            f"a redrive of {queue} to {now.to} is {now.state}: `kproxy redrive {queue} --watch`"
            " waits for its end, --stop ends it"
        )
    job = f"{datetime.now(UTC).isoformat('T', 'seconds')[:19]}Z-{secrets.token_hex(3)}"
    _alter(client, queue, {_TO: target, _JOB: job, _PAUSED: None, **given}, dry=dry)
    if dry:
        parts = {(queue, p.partition_index): p.leader_id for p in client.queue(queue).partitions}
        starts, ends = client.offsets(parts, -2), client.offsets(parts, -1)
        count = sum(ends.get(part, 0) - starts.get(part, 0) for part in parts)
        click.echo(f"valid: {count} records of {queue} would be looked at")


def _change(client: Client, queue: str, change: str | None, rate: str | None, *, dry: bool) -> None:
    now = _found(client, queue)
    if change == "stop":
        _alter(client, queue, dict.fromkeys(_ALL), dry=dry)
        if not dry:
            click.echo("stopped" if now.left or not now.is_told else "it was over")
        return
    if now.state == "over":
        raise Refused(f"the redrive of {queue} is over: --to-origin or --to QUEUE begins another")
    changes: dict[str, str | None] = {_RATE: rate} if rate else {}
    if change is not None:
        changes[_PAUSED] = "true" if change == "pause" else None
    _alter(client, queue, changes, dry=dry)


def _alter(client: Client, queue: str, changes: dict[str, str | None], *, dry: bool) -> None:
    for outcome in alter(client, QUEUE, [queue], changes, dry=dry):
        if outcome.code:
            raise Refused(f"{outcome.name}: {outcome.reason}")


def _found(client: Client, queue: str) -> _Redrive:
    found = _standing(client, queue)
    if found is None:
        raise Refused(f"there is no redrive of {queue}: --to-origin or --to QUEUE begins one")
    return found


def _standing(client: Client, queue: str) -> _Redrive | None:
    """Return a queue's redrive; None: it has none.

    A worker that tells of another job has not heard of this one yet.
    """
    leaders = {part.partition_index: part.leader_id for part in client.queue(queue).partitions}
    given = client.settings(queue, (_TO, _JOB, _PAUSED))
    if not (to := given.get(_TO)):
        return None
    job = given.get(_JOB) or ""
    told = client.routes(queue, {node for node in leaders.values() if node >= 0}).get(REDRIVES, [])
    known = {one["partition"]: one for one in told if one["redrive"] == job}
    parts = []
    for index in sorted(leaders):
        one = known.get(index, {})
        parts.append(_Part(index, *map(one.get, ("begin", "landed", "end", "waits"))))
    return _Redrive(to, job, given.get(_PAUSED) == "true", parts)


def _watched(client: Client, queue: str, found: _Redrive) -> _Redrive:
    """Show how far a redrive is until it is over, or another one has begun."""
    with bar("redriving", None) as told:
        most = 0
        while found.state != "over":
            if found.is_told:
                most = max(most, sum((p.end or 0) - (p.begin or 0) for p in found.parts))
                told(total=most, completed=most - found.left)
            time.sleep(_LOOK_S)
            now = _standing(client, queue)
            if now is None or now.job != found.job:
                raise CannotStart(f"the redrive of {queue} was stopped: nothing more comes of it")
            found = now
    return found


def _show(queue: str, found: _Redrive, as_json: bool) -> None:
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
