"""The views of kproxy's commands, put together from a `Client`'s answers."""

import base64
import heapq
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kproxy.protocol.name_search import ALL, NameSearch
from kproxy.tools.client import PAGE, Client, Cursor
from kproxy.tools.records.walks import Parts, walk
from kproxy.tools.routes import Leaders, RouteLine, own_routes, route_settings, routes_of

_MANY = 200  # groups asked for at a time
_LOOKS_MAX = 10
"""The pages of names that are looked at for one page of queues."""
_SHARE = "share"
_OF_QUEUE = 1  # the source of a setting that the queue sets itself


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """A queue in a list. `lag`: of the group asked for, None without one; `bytes`: None where the
    asker may not know.

    `route`: the one it defines, where routes are asked for.
    """

    name: str
    partitions: int
    records: int
    bytes: int | None
    lag: int | None = None
    route: RouteLine | None = None
    decoded: str | None = None
    """The key that its name stands for, where an entrance is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group in a list. `lag`: records behind the ends of the queues it has offsets on.

    The lag of a share group is its records that are still to be delivered, or acknowledged.
    """

    group: str
    type: str
    state: str
    queues: int
    lag: int


TopicSpec = Callable[[str], bool]


def queues(
    client: Client,
    search: NameSearch = ALL,
    *,
    wanted: TopicSpec = lambda name: True,
    group: str | None = None,
    routes: bool = False,
) -> Iterator[QueueLine]:
    """Yield the wanted queues by name, a page at a time; `routes`: those that define a route."""
    offsets = client.committed([group])[group] if group is not None else None
    pending: dict[str, dict[int, int]] = {}
    for page in client.pages(search):
        for topic in page:
            parts = pending.setdefault(topic.name, {}) if wanted(topic.name) else {}
            parts.update((part.partition_index, part.leader_id) for part in topic.partitions)
        # A queue of many partitions may go on in the next page.
        last = page[-1].name if page else None
        whole = {name: parts for name, parts in pending.items() if name != last}
        pending = {name: parts for name, parts in pending.items() if name == last}
        yield from _lines(client, whole, offsets, routes=routes)
    yield from _lines(client, pending, offsets, routes=routes)


def some_queues(
    client: Client, search: NameSearch, *, limit: int
) -> tuple[list[QueueLine], str | None]:
    """Return the queues that are searched for, so many at most, and the name to go on from; None:
    there is no more.

    Names are looked at for a while, a page after another: it may find none and yet go on.
    """
    found: dict[str, dict[int, int]] = {}
    cursor: Cursor | None = {"topic_name": search.begin, "partition_index": 0}
    looks = 0
    while cursor is not None and len(found) <= limit and looks < _LOOKS_MAX:
        inside = bool(cursor["partition_index"])  # a queue of many partitions: all of them
        topics, cursor = client.page(cursor, PAGE if inside else limit + 1, search)
        for topic in topics:
            parts = found.setdefault(topic.name, {})
            parts.update((part.partition_index, part.leader_id) for part in topic.partitions)
        looks += cursor is not None and not cursor["partition_index"]
    names, after = list(found), None if cursor is None else cursor["topic_name"]
    if len(names) > limit:
        after = names[limit]
    lines = _lines(client, {name: found[name] for name in names[:limit]}, None, routes=False)
    return list(lines), after


def some_routes(
    client: Client, *, first: str, prefix: str, limit: int
) -> tuple[list[tuple[str, RouteLine]], str | None]:
    """Return queues that define a route, so many at most, and the name to go on from; None: there
    is no more. Names are looked at for a while, as by `walk`.
    """

    def pick(parts: Parts, most: int) -> list[tuple[str, RouteLine]]:
        definers = route_settings(client, list(parts))
        names = [name for name in parts if name in definers]
        wanted = {name: parts[name] for name in names[:most]}
        return sorted(own_routes(client, wanted), key=lambda one: one[0])

    return walk(client, pick, first=first, prefix=prefix, limit=limit)


def _lines(
    client: Client,
    found: dict[str, dict[int, int]],
    offsets: dict[tuple[str, int], int] | None,
    *,
    routes: bool,
) -> Iterator[QueueLine]:
    defined: dict[str, RouteLine] = {}
    if routes:
        defined = dict(own_routes(client, found))
        found = {name: parts for name, parts in found.items() if name in defined}
    if not found:
        return
    leaders = {(name, i): node for name, parts in found.items() for i, node in parts.items()}
    starts, ends = client.offsets(leaders, -2), client.offsets(leaders, -1)
    sizes = client.sizes(leaders)
    for name, parts in found.items():
        keys = [(name, index) for index in parts]
        yield QueueLine(
            name=name,
            partitions=len(parts),
            records=sum(ends.get(key, 0) - starts.get(key, 0) for key in keys),
            bytes=_total(sizes, keys),
            lag=None if offsets is None else _lag(offsets, ends, keys),
            route=defined.get(name),
        )


def _total(sizes: dict[Any, int], keys: list[Any]) -> int | None:
    """Return the sum; None: no size is told."""
    told = [sizes[key] for key in keys if key in sizes]
    return sum(told) if told else None


def _lag(offsets: dict[Any, int], ends: dict[Any, int], keys: list[Any]) -> int:
    return sum(max(0, ends.get(key, 0) - offsets[key]) for key in keys if key in offsets)


def top(lines: Iterator[QueueLine], by: str, limit: int) -> list[QueueLine]:
    """Return the first of all by a number, largest first, without keeping all."""
    return heapq.nlargest(limit, lines, key=lambda line: getattr(line, by) or 0)


def groups(client: Client, search: NameSearch = ALL) -> list[GroupLine]:
    """Return groups by name, with how far behind they are."""
    listed = client.groups(search)
    lines = []
    for start in range(0, len(listed), _MANY):
        some = listed[start : start + _MANY]
        shared = client.shared([group.group_id for group in some if group.group_type == _SHARE])
        offsets = client.committed([group.group_id for group in some if group.group_type != _SHARE])
        parts = {part for found in offsets.values() for part in found}
        ends = client.offsets(client.leaders(sorted({name for name, _ in parts})), -1)
        for group in some:
            found = offsets.get(group.group_id, {})
            shares = shared.get(group.group_id, {})
            lag = _lag(found, ends, list(found)) + sum(max(0, lag) for _, lag in shares.values())
            lines.append(
                GroupLine(
                    group=group.group_id,
                    type=group.group_type,
                    state=group.group_state,
                    queues=len({name for name, _ in (*found, *shares)}),
                    lag=lag,
                )
            )
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition of a queue."""

    partition: int
    leader: int
    start: int
    end: int
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """All about one queue. `groups`: name, committed offsets by partition, lag.

    `share_groups`: name, how many records wait for the dead-letter queue, and of each partition
    where it starts, how far it is behind, and what `shares.standing` says of it. `waiting`: of each
    partition that has any how many records wait, and when the next are due (ms). `routes`: those
    it defines, and those that others define from it.
    """

    name: str
    id: str
    partitions: list[PartitionLine]
    settings: dict[str, str]
    groups: list[dict[str, Any]] = field(default_factory=list)
    share_groups: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    routes: list[RouteLine] = field(default_factory=list)
    decoded: str | None = None
    """The key that its name stands for, where an entrance is asked for."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def describe(client: Client, name: str) -> GroupDescription:
    """Describe a queue with all that read it. Raises Refused where there is no such queue."""
    found, leaders = described(client, name)
    groups_, shares = readers(client, name, leaders, found.partitions)
    return replace(found, groups=groups_, share_groups=shares)


def described(client: Client, name: str) -> tuple[GroupDescription, Leaders]:
    """Return a queue without its groups, and its leaders by partition. Raises Refused."""
    topic = client.queue(name)
    leaders = {(name, p.partition_index): p.leader_id for p in topic.partitions}
    starts, ends = client.offsets(leaders, -2), client.offsets(leaders, -1)
    sizes = client.sizes(leaders)
    lines = [
        PartitionLine(
            partition=index,
            leader=leaders[name, index],
            start=starts.get((name, index), -1),
            end=ends.get((name, index), -1),
            bytes=sizes.get((name, index)),
        )
        for _, index in sorted(leaders)
    ]
    configs = client.configs([name], None)[0].configs
    settings = {one.name: one.value for one in configs if one.config_source == _OF_QUEUE}
    found = GroupDescription(
        name=name,
        id=base64.urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip("="),
        partitions=lines,
        settings=settings,
        waiting=client.delays(name, {node for node in leaders.values() if node >= 0}),
        routes=routes_of(client, name, settings, leaders),
    )
    return found, leaders


def readers(
    client: Client, name: str, leaders: Leaders, lines: list[PartitionLine]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the groups that have offsets on a queue, and the share groups that read it."""
    ends = {(name, line.partition): line.end for line in lines if line.end >= 0}
    listed = client.groups()
    return (
        _groups_of(client, listed, name, len(lines), ends),
        _share_groups_of(client, listed, name, leaders),
    )


def _groups_of(
    client: Client, listed: list[Any], name: str, partitions: int, ends: dict[Any, int]
) -> list[dict[str, Any]]:
    names = [group.group_id for group in listed if group.group_type != _SHARE]
    found = []
    for group, offsets in sorted(client.committed(names, name, partitions).items()):
        if offsets:
            committed = {str(index): offset for (_, index), offset in sorted(offsets.items())}
            lag = _lag(offsets, ends, list(offsets))
            found.append({"group": group, "committed": committed, "lag": lag})
    return found


def _share_groups_of(
    client: Client, listed: list[Any], name: str, leaders: dict[tuple[str, int], int]
) -> list[dict[str, Any]]:
    names = [group.group_id for group in listed if group.group_type == _SHARE]
    nodes = {node for node in leaders.values() if node >= 0}
    found = []
    for group, shares in sorted(client.shared(names, name, len(leaders)).items()):
        if shares:
            owed, stands = client.share_states(group, name, nodes)
            lines = [
                {"partition": index, "start": start, "lag": lag} | stands.get(index, {})
                for (_, index), (start, lag) in sorted(shares.items())
            ]
            found.append({"group": group, "dead_letters_waiting": owed, "partitions": lines})
    return found
