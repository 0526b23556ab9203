"""`kproxy letters`: the letters of a dead-letter queue by cause, origin and group.

The server counts the newest ones of each partition, in several looks; how many it looked at is
always told beside what they are.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click

from kproxy.tools.client import Address, Client, Refused, checked
from kproxy.tools.options import as_json_option, asked, server_option
from kproxy.tools.output import print_json, table

_NEWEST = 10_000


@dataclass(slots=True)
class Letters:
    """Letters by (cause, queue, group), of the `looked` newest of `all` records.

    A record that is no letter has empty ones. `others`: of more kinds than are told; `unread`:
    batches that are damaged; `since_ms`: the oldest time, -1 without any.
    """

    looked: int = 0
    all: int = 0
    since_ms: int = -1
    others: int = 0
    unread: int = 0
    kinds: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def causes(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (cause, _, _), count in self.kinds.items():
            found[cause] += count
        return found

    def add(self, told: dict[str, Any]) -> None:
        """Add what one look has found."""
        self.looked += told["looked"]
        self.others += told["others"]
        self.unread += told["unread"]
        times = [one for one in (self.since_ms, told["since_ms"]) if one >= 0]
        self.since_ms = min(times, default=-1)
        for one in told["letters"]:
            self.kinds[one["cause"], one["queue"], one["group"]] += one["letters"]


def counted(client: Client, queue: str, newest: int = _NEWEST) -> Letters:
    """Return the letters of a queue, of about so many records of each partition. Raise Refused."""
    found = Letters()
    for part in client.queue(queue).partitions:
        before: int | str | None = ""
        looked = 0
        while before is not None and looked < newest:
            told = _look(client, queue, part, before)
            found.all += told["all"] if before == "" else 0
            found.add(told)
            looked, before = looked + told["looked"], told["next"]
    return found


def _look(client: Client, queue: str, part: Any, before: int | str) -> dict[str, Any]:
    key = f"kproxy.state.letters:{part.partition_index}:{before}"
    (result,) = client.configs([queue], (key,), part.leader_id)
    checked(result.error_code, f"letters of {queue}")
    for config in result.configs:
        found: dict[str, Any] = json.loads(config.value)
        return found
    raise Refused(f"{queue}: its worker is of an older release, and counts no letters")


@click.command(name="letters")
@click.argument("queue")
@click.option("--newest", default=_NEWEST, show_default=True, type=click.IntRange(1), metavar="N",
              help="look at about so many of each partition")  # fmt: skip
@as_json_option
@server_option
def letters_command(queue: str, newest: int, as_json: bool, bootstrap_server: Address) -> None:
    """Count the letters of a dead-letter queue by cause, origin and group."""
    found: Letters = asked(bootstrap_server, lambda client: counted(client, queue, newest))
    lines = [
        {"cause": cause, "queue": origin, "group": group, "letters": count}
        for (cause, origin, group), count in found.kinds.most_common()
    ]
    if as_json:
        told = {"queue": queue, "all": found.all, "looked": found.looked, "others": found.others,
                "unread": found.unread, "since_ms": found.since_ms, "letters": lines}  # fmt: skip
        print_json([told])
        return
    rows = [[value or "-" for value in line.values()] for line in lines]
    rows += [["others", "-", "-", found.others]] if found.others else []
    table(["CAUSE", "FROM", "GROUP", "LETTERS"], rows)
    click.echo(_bounds(found), err=True)


def _bounds(found: Letters) -> str:
    since = ""
    if found.since_ms >= 0:
        since = datetime.fromtimestamp(found.since_ms / 1000, UTC).isoformat("T", "seconds")
        since = f", since {since}"
    unread = f"; {found.unread} batches are damaged" if found.unread else ""
    if found.looked >= found.all:
        return f"{found.looked} records{since}{unread}"
    more = "--newest looks at more"
    return f"the newest {found.looked} of {found.all} records{since}{unread}: {more}"
