"""Redrives as jobs of the server, which the settings of their queues say: begun, changed, ended,
and how far each is.
"""

import secrets
from datetime import UTC, datetime
from typing import NamedTuple

from kproxy.tools.administration import alter
from kproxy.tools.client import QUEUE, REDRIVES, Client, Refused
from kproxy.tools.records.walks import Parts, walk
from kproxy.tools.routes import settings_of

TO, _JOB, FILTER, RATE, _PAUSED, TIMES_MAX = (
    f"kproxy.redrive.{name}" for name in ("to", "job", "filter", "rate", "paused", "times.max")
)
_ALL = (TO, _JOB, FILTER, RATE, _PAUSED, TIMES_MAX)
ORIGIN = "*"
"""The target that stands for where each letter came from."""


class Part(NamedTuple):
    """A redrive out of one partition. None: no worker says so yet."""

    partition: int
    begin: int | None = None
    landed: int | None = None
    end: int | None = None
    waits: str | None = None

    @property
    def left(self) -> int | None:
        return None if self.end is None or self.landed is None else self.end - self.landed


class Redrive(NamedTuple):
    """A redrive as it stands."""

    to: str
    job: str
    paused: bool
    parts: list[Part]
    filter: str = ""
    rate: str = ""

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
    def most(self) -> int:
        """The letters that are looked at in all, as far as workers say."""
        return sum((part.end or 0) - (part.begin or 0) for part in self.parts)

    @property
    def is_told(self) -> bool:
        return all(part.left is not None for part in self.parts)

    @property
    def waits(self) -> str | None:
        """The first reason why it waits."""
        return next((part.waits for part in self.parts if part.waits), None)


def standing(client: Client, queue: str) -> Redrive | None:
    """Return a queue's redrive; None: it has none. Raises Refused: there is no such queue.

    A worker that tells of another job has not heard of this one yet.
    """
    leaders = {part.partition_index: part.leader_id for part in client.queue(queue).partitions}
    return _of(client, queue, leaders, client.settings(queue, _ALL))


def _of(
    client: Client, queue: str, leaders: dict[int, int], given: dict[str, str | None]
) -> Redrive | None:
    if not (to := given.get(TO)):
        return None
    job = given.get(_JOB) or ""
    told = client.routes(queue, {node for node in leaders.values() if node >= 0}).get(REDRIVES, [])
    known = {one["partition"]: one for one in told if one["redrive"] == job}
    parts = []
    for index in sorted(leaders):
        one = known.get(index, {})
        parts.append(Part(index, *map(one.get, ("begin", "landed", "end", "waits"))))
    return Redrive(
        to, job, given.get(_PAUSED) == "true", parts, given.get(FILTER) or "", given.get(RATE) or ""
    )


def standing_or_refused(client: Client, queue: str) -> Redrive:
    """Return a queue's redrive. Raises Refused: it has none."""
    found = standing(client, queue)
    if found is None:
        raise Refused(f"there is no redrive of {queue}: --to-origin or --to QUEUE begins one")
    return found


def some_redrives(
    client: Client, *, first: str, prefix: str, limit: int
) -> tuple[list[tuple[str, Redrive]], str | None]:
    """Return the redrives of queues by name, as by `walk`."""

    def pick(parts: Parts, most: int) -> list[tuple[str, Redrive]]:
        given = settings_of(client, list(parts), (TO,))
        names = [name for name in parts if given.get(name, {}).get(TO)]
        found = []
        for name in names[:most]:
            if redrive := _of(client, name, parts[name], client.settings(name, _ALL)):
                found.append((name, redrive))
        return found

    return walk(client, pick, first=first, prefix=prefix, limit=limit)


def begin(
    client: Client, queue: str, target: str, given: dict[str, str | None], *, dry: bool
) -> None:
    """Begin a redrive, or only ask whether it could be begun. Raises Refused."""
    now = standing(client, queue)
    if now is not None and now.state != "over":
        raise Refused(
            f"a redrive of {queue} to {now.to} is {now.state}: `kproxy redrive {queue} --watch`"
            " waits for its end, --stop ends it"
        )
    job = f"{datetime.now(UTC).isoformat('T', 'seconds')[:19]}Z-{secrets.token_hex(3)}"
    _alter(client, queue, {TO: target, _JOB: job, _PAUSED: None, **given}, dry=dry)


def change(
    client: Client, queue: str, what: str | None, rate: str | None, *, dry: bool = False
) -> Redrive:
    """Pause, resume or stop a redrive, or change its rate; return how it stood. Raises Refused."""
    now = standing_or_refused(client, queue)
    if what == "stop":
        _alter(client, queue, dict.fromkeys(_ALL), dry=dry)
        return now
    if now.state == "over":
        raise Refused(f"the redrive of {queue} is over: --to-origin or --to QUEUE begins another")
    changes: dict[str, str | None] = {RATE: rate} if rate else {}
    if what is not None:
        changes[_PAUSED] = "true" if what == "pause" else None
    _alter(client, queue, changes, dry=dry)
    return now


def _alter(client: Client, queue: str, changes: dict[str, str | None], *, dry: bool) -> None:
    for outcome in alter(client, QUEUE, [queue], changes, dry=dry):
        if outcome.code:
            raise Refused(f"{outcome.name}: {outcome.reason}")
