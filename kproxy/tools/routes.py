"""Routes of queues, as `kproxy describe` and `kproxy queues --routes` show them, and the keys that
names of queues stand for, by the template of the entrance that made them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kproxy.metadata.routing import Template, read_template
from kproxy.tools.client import REDRIVES, Client, Refused, chunks

ROUTE_TO, ROUTE_FROM = "kproxy.route.to", "kproxy.route.from"
REDRIVE_TO = "kproxy.redrive.to"
Leaders = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePart:
    """A route out of one partition of its source. None: no worker says so."""

    partition: int
    landed: int | None = None
    end: int | None = None
    lag: int | None = None
    waits: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLine:
    """A route as seen from one queue: `to d-{key}`, `to red`, `from orders`, or `redrive to *`.

    `lag`, `made`: of all partitions that are told of. `waits`: why it waits, the first reason.
    """

    route: str
    lag: int
    made: int
    waits: str | None
    partitions: list[RoutePart]


def route_settings(client: Client, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings that say to or from where, of queues that define a route."""
    return settings_of(client, names, (ROUTE_TO, ROUTE_FROM))


def settings_of(
    client: Client, names: Sequence[str], keys: tuple[str, ...]
) -> dict[str, dict[str, str]]:
    """Return settings of queues by these names, those that have a value."""
    found = {}
    for some in chunks(names, 1000):
        for result in client.configs(some, keys):
            given = {config.name: config.value for config in result.configs if config.value}
            if given:
                found[result.resource_name] = given
    return found


def routes_of(
    client: Client, name: str, settings: dict[str, str], leaders: Leaders
) -> list[RouteLine]:
    """Return all routes to and from a queue with these settings and partitions: its own first."""
    told = client.routes(name, _nodes(leaders.values()))
    to, source = settings.get(ROUTE_TO), settings.get(ROUTE_FROM)
    found, redrive = [], told.pop(REDRIVES, [])
    if again := settings.get(REDRIVE_TO):
        found.append(_line(f"redrive to {again}", redrive, leaders))
    if to:
        found.append(_line(f"to {to}", told.pop(name, []), leaders))
    elif name in told:  # it has been one: what it had then is passed on still
        found.append(_line("to its last targets", told.pop(name), {}))
    if source:
        found.append(_from(client, name, source))
    for definer in sorted(told):
        found.append(_line(f"to {definer}", told[definer], leaders))
    return found


def own_routes(
    client: Client, queues: dict[str, dict[int, int]]
) -> Iterator[tuple[str, RouteLine]]:
    """Yield the route of each of those queues (leaders by partition) that define one."""
    for name, settings in route_settings(client, list(queues)).items():
        if to := settings.get(ROUTE_TO):
            mine = {(name, index): node for index, node in queues[name].items()}
            told = client.routes(name, _nodes(mine.values()))
            yield name, _line(f"to {to}", told.get(name, []), mine)
        elif source := settings.get(ROUTE_FROM):
            yield name, _from(client, name, source)


def _from(client: Client, name: str, source: str) -> RouteLine:
    try:
        parts = client.queue(source).partitions
    except Refused:
        gone = f"there is no queue {source}"
        return RouteLine(route=f"from {source}", lag=0, made=0, waits=gone, partitions=[])
    leaders = {(source, part.partition_index): part.leader_id for part in parts}
    told = client.routes(source, _nodes(leaders.values()))
    return _line(f"from {source}", told.get(name, []), leaders)


def _line(route: str, told: list[dict[str, Any]], leaders: Leaders) -> RouteLine:
    by_index = {one["partition"]: one for one in told}
    parts = []
    for index in sorted(by_index.keys() | {index for _, index in leaders}):
        one = by_index.get(index, {})
        shown = {key: one.get(key) for key in ("landed", "end", "lag", "waits")}
        parts.append(RoutePart(partition=index, **shown))
    reasons = [part.waits for part in parts if part.waits]
    return RouteLine(
        route=route, lag=sum(part.lag or 0 for part in parts),
        made=sum(one["made"] for one in told), waits=reasons[0] if reasons else None,
        partitions=parts,
    )  # fmt: skip


def _nodes(found: Iterable[int]) -> set[int]:
    return {node for node in found if node >= 0}


TITLES = ["ROUTE", "PARTITION", "PASSED ON", "END", "LAG", "QUEUES MADE", "WAITS"]


def cells(line: RouteLine) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a table: one of each partition, and where there are several one of all."""
    several = len(line.partitions) != 1
    if several:
        yield (line.route, "all", "", "", line.lag, line.made or "-", line.waits or "-")
    for part in line.partitions:
        told = ["?" if n is None else n for n in (part.landed, part.end, part.lag)]
        made = "" if several else line.made or "-"
        yield ("" if several else line.route, part.partition, *told, made, part.waits or "-")


entrance_option = click.option(
    "--entrance", metavar="QUEUE",
    help="only queues that its kproxy.route.to makes, with the keys and headers they stand for",
)  # fmt: skip


def template_of(client: Client, entrance: str) -> Template:
    """Return the template of an entrance. Raise Refused: it is none."""
    client.queue(entrance)  # it says where there is no such queue
    text = route_settings(client, [entrance]).get(entrance, {}).get(ROUTE_TO)
    if not text:
        raise Refused(f"{entrance} has no {ROUTE_TO}: name the queue that the records come in by")
    return read_template(text)


def decoded(template: Template, name: str) -> str | None:
    """Return what a queue's name stands for; None: the template makes no such name."""
    found = template.unfill(name)
    if found is None:
        return None
    if len(found) == 1:
        return _shown(found[0][1])
    return " ".join(f"{field}={_shown(value)}" for field, value in found)


def _shown(value: bytes | None) -> str:
    """Return a key or a header's value for people: as text, or in hexadecimal digits."""
    if value is None:
        return "(a hash)"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else f"0x{value.hex()}"
