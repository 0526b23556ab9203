"""Dead letters: the queues that hold them, why they are there, and which a redrive would take."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from kproxy.protocol.records import Body
from kproxy.protocol.varint import Malformed
from kproxy.routes.redriving import ORIGIN, TIMES, read_redrive
from kproxy.tools.client import Client, Refused
from kproxy.tools.records.batches import Budget, look
from kproxy.tools.records.offsets import Part, Place, spans
from kproxy.tools.records.redrives import TO, begin
from kproxy.tools.records.text import Record
from kproxy.tools.records.walks import Parts, walk
from kproxy.tools.routes import settings_of

ENABLE, PREFIX = "errors.deadletterqueue.group.enable", "dlq."
"""The setting of a queue that takes dead letters, and the beginning of its name by default."""
_PARTITIONS_MAX = 16
_SHOWN_MAX, _TOP = 20, 10
_TEXT_MAX = 200
_CAUSE, _GROUP, _TIMES = "kproxy.dlq.cause", "__dlq.errors.group", TIMES.decode()
_TOPIC = ORIGIN.decode()
KINDS = (_CAUSE, _GROUP, _TOPIC)
"""The headers by whose values letters are counted."""
_ENDLESS = 1 << 62


class DeadQueue(NamedTuple):
    """A queue that takes dead letters. `redriven_to`: None: nothing of it was redriven."""

    letters: int
    redriven_to: str | None


class Letter(NamedTuple):
    """A record, and what its headers say of how it came here; "": nothing."""

    record: Record
    cause: str
    group: str
    origin: str
    origin_partition: str
    origin_offset: str
    deliveries: str
    message: str
    redriven: str


@dataclass(slots=True)
class Sample:
    """The newest letters of a queue. `total`: how many it has."""

    total: int
    letters: list[Letter] = field(default_factory=list)
    counts: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """The most frequent values of each of `KINDS`."""
    left_out: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Preview:
    """A redrive that has not begun. `looked_at` of `total` letters were."""

    total: int
    looked_at: int = 0
    goes: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    stays: Counter[str] = field(default_factory=Counter)
    """The reasons why letters stay, that are meant."""
    some: list[Record] = field(default_factory=list)


def dead_queues(
    client: Client, *, first: str, prefix: str, limit: int
) -> tuple[list[tuple[str, DeadQueue]], str | None]:
    """Return the queues that take dead letters by name, as by `walk`."""

    def pick(parts: Parts, most: int) -> list[tuple[str, DeadQueue]]:
        given = settings_of(client, list(parts), (ENABLE, TO))
        names = [name for name in parts if given.get(name, {}).get(ENABLE) == "true"][:most]
        leaders = {(name, index): node for name in names for index, node in parts[name].items()}
        counts = _counts(client, leaders)
        return [
            (name, DeadQueue(sum(counts.get((name, index), 0) for index in parts[name]),
                             given[name].get(TO)))
            for name in names
        ]  # fmt: skip

    return walk(client, pick, first=first, prefix=prefix, limit=limit)


def _counts(client: Client, leaders: dict[Part, int]) -> dict[Part, int]:
    starts, ends = client.offsets(leaders, -2), client.offsets(leaders, -1)
    return {part: ends[part] - starts[part] for part in starts.keys() & ends.keys()}


def _leaders(client: Client, queue: str) -> dict[Part, int]:
    parts = client.queue(queue).partitions
    return {(queue, p.partition_index): p.leader_id for p in parts if p.leader_id >= 0}


def sample(client: Client, queue: str, most: int) -> Sample:
    """Return the newest letters of a queue, about so many, the newest first. Raises Refused."""
    leaders = _leaders(client, queue)
    found = Sample(sum(_counts(client, leaders).values()))
    some = dict(list(leaders.items())[:_PARTITIONS_MAX])
    each, budget = -(-most // max(1, len(some))), Budget()
    for part, span in spans(client, some, Place("last", each), None).items():
        looked = look(client, part, leaders[part], span.first, each, budget=budget)
        found.letters += map(_letter, looked.records)
        found.left_out += looked.left_out
    found.letters.sort(key=lambda one: (-one.record.timestamp, -one.record.offset))
    values = [(letter.cause, letter.group, letter.origin) for letter in found.letters]
    for place, name in enumerate(KINDS):
        found.counts[name] = Counter(one[place] for one in values).most_common(_TOP)
    return found


def _letter(record: Record) -> Letter:
    headers = dict(record.headers)

    def said(name: str) -> str:
        return (headers.get(name) or b"")[:_TEXT_MAX].decode(errors="backslashreplace")

    of = "__dlq.errors."
    return Letter(
        record, said(_CAUSE), said(_GROUP), said(_TOPIC), said(f"{of}partition"),
        said(f"{of}offset"), said(f"{of}delivery.count"), said(f"{of}message"), said(_TIMES),
    )  # fmt: skip


def preview(client: Client, queue: str, target: str, given: dict[str, str | None]) -> Preview:
    """Return what a redrive would take, as far as there is time to look; nothing changes.

    Raises Refused: the server would not begin it.
    """
    begin(client, queue, target, given, dry=True)
    values = {TO: target} | {name: value for name, value in given.items() if value}
    try:
        redrive = read_redrive(queue, values)
    except ValueError as error:
        raise Refused(f"{queue}: {error}") from None
    leaders, budget = _leaders(client, queue), Budget()
    found = Preview(sum(_counts(client, leaders).values()))

    def takes(body: Body) -> bool:
        found.looked_at += 1
        try:
            name, _, why = redrive.place(body[2], body[3], body[4])
        except Malformed:
            name, why = "", "it is damaged"
        if why:
            found.stays[why] += 1
        if not name:
            return False
        found.goes += 1
        if name in found.targets or len(found.targets) < _SHOWN_MAX:
            found.targets[name] += 1
        return found.goes <= _SHOWN_MAX

    for part, span in spans(client, leaders, Place("start"), None).items():
        if not budget.is_left:
            break
        looked = look(client, part, leaders[part], span.first, _ENDLESS, wanted=takes,
                      names=redrive.headers, budget=budget)  # fmt: skip
        found.some += looked.records
    return found
