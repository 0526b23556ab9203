"""`kproxy waiting`: the records of a queue that wait until they are due, and their cancellation."""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click

from kproxy.common.errors import CannotStart, Code
from kproxy.tools.client import Address, Client, Refused
from kproxy.tools.options import as_json_option, asked, server_option
from kproxy.tools.output import print_json, size, table
from kproxy.tools.records.send import NotTaken, body_with, leaders_of, send
from kproxy.tools.records.times import moment

_LIMIT = 100
_REPLACE = "kproxy.delay.replace"


@click.command(name="waiting")
@click.argument("queue")
@click.option("--from", "first", callback=moment, metavar="TIME",
              help="begin with those that are due then")  # fmt: skip
@click.option(
    "--limit", default=_LIMIT, show_default=True, type=click.IntRange(1), help="most lines shown"
)
@click.option("--cancel", metavar="KEY",
              help="cancel the one with this key, where kproxy.delay.replace=key")  # fmt: skip
@as_json_option
@server_option
def waiting_command(
    queue: str, first: int | None, limit: int, cancel: str | None, as_json: bool,
    bootstrap_server: Address,
) -> None:  # fmt: skip
    """List the records of a queue that wait, by when they are due, or cancel one."""
    if cancel is not None:
        key = cancel.encode()
        if not asked(bootstrap_server, lambda client: cancel_waiting(client, queue, key)):
            raise CannotStart(
                f"nothing waits under {cancel}: it was delivered, or cancelled, or never there"
            )
        click.echo("cancelled 1")
        return
    found = asked(bootstrap_server, lambda client: listed(client, queue, first or 0, limit + 1))
    if as_json:
        print_json(found[:limit])
    else:
        table(["DUE", "PARTITION", "KEY", "BYTES"], map(_cells, found[:limit]))
    if len(found) > limit:
        more = found[limit]["due_ms"]
        click.echo(f"… and more: --from {more} goes on from here", err=True)


def listed(client: Client, queue: str, first: int, limit: int) -> list[dict[str, Any]]:
    """Return records by their due times, of all partitions."""
    parts = client.queue(queue).partitions
    found = [_of_partition(client, queue, part, first) for part in parts]
    return list(islice(heapq.merge(*found, key=lambda one: int(one["due_ms"])), limit))


def _of_partition(client: Client, queue: str, part: Any, first: int) -> Iterator[dict[str, Any]]:
    place: str | None = f"{first}:0:0"
    while place is not None:
        told = client.waiting(queue, part.partition_index, place, part.leader_id)
        for one in sorted(told["records"], key=lambda one: int(one["due_ms"])):
            yield {"partition": part.partition_index, **one}
        place = told["next"]


def _cells(line: dict[str, Any]) -> tuple[Any, ...]:
    due = datetime.fromtimestamp(line["due_ms"] / 1000, UTC).isoformat("T", "milliseconds")
    return due, line["partition"], key_shown(line["key"]), size(line["bytes"])


def key_shown(digits: str | None) -> str:
    if digits is None:
        return "-"
    key = bytes.fromhex(digits)
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{digits}"


def cancel_waiting(client: Client, queue: str, key: bytes) -> bool:
    """Return whether anything was cancelled: which partition a key is in is its producer's.

    Raises Refused: the queue's records have no keys to name.
    """
    if client.settings(queue, (_REPLACE,)).get(_REPLACE) != "key":
        raise Refused(f"{queue} has no {_REPLACE}=key: nothing of it can be cancelled by its key")
    done, parts = False, leaders_of(client, queue)
    for index in parts:
        try:
            send(client, queue, body_with(key, None, ()), key, index, parts)
            done = True
        except NotTaken as error:
            if error.code != Code.INVALID_RECORD:  # nothing waits there
                raise
    return done
