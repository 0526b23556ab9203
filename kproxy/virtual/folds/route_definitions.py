"""The definitions of routes, in the home shard of the source's name, and who may have one.

A queue defines a route by its settings. The shards of the source's partitions are told of it
(`Told`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kproxy.common.errors import Code
from kproxy.virtual.commands.routes import DefineRoute
from kproxy.virtual.folds.redrives import redrive_of, redrives_between
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue, name_of
from kproxy.virtual.rows.routes import (
    DEFINITIONS,
    DEFINITIONS_MAX,
    PARTITION_ROUTES_MAX,
    SOURCE_PARTITIONS_MAX,
    Definition,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import QueueId

TO, FROM, FROM_START = "kproxy.route.to", "kproxy.route.from", "kproxy.route.from.start"
FILTER, CONFIGS = "kproxy.route.filter", "kproxy.route.configs"
UNROUTABLE = "kproxy.route.unroutable"
FROM_SETTINGS = frozenset((FROM, FROM_START, FILTER))
ROUTE_SETTINGS = b'"kproxy.route.'
"""The mark in the body of a CREATE of a queue that defines a route."""
_SOURCES_MAX = 1000
"""The names of sources that are remembered: a queue of another name has no routes."""
ROUTE_SPEC = (TO, CONFIGS, UNROUTABLE, FILTER)


class Told(NamedTuple):
    """A definer's route, as the shards of its source are told of it."""

    definer: QueueId
    spec: bytes
    from_start: bool


def definitions_between(before: Queue | None, after: Queue | None) -> dict[str, str]:
    """Return what a made, changed or deleted queue has to tell: specs by the source's name."""
    was = None if before is None else source_of(before.configs, before.name)
    now = None if after is None else source_of(after.configs, after.name)
    told = {} if was is None or was == now else {was: ""}
    if after is not None and now is not None:
        told[now] = spec_of(after).decode()
    return told


def source_of(configs: Mapping[str, str], name: str) -> str | None:
    """Return the name of the queue that a queue with these settings has a route from."""
    if configs.get(TO):
        return name
    return configs.get(FROM) or None


def spec_of(queue: Queue) -> bytes:
    """Return the spec of where records go, by the settings of the queue that defines it."""
    spec = {name: queue.configs[name] for name in ROUTE_SPEC if name in queue.configs}
    return json.dumps({"name": queue.name, **spec}, sort_keys=True).encode()


def told_of(work: Iterable[Sequence[Any]]) -> list[Told]:
    """Return routes as ASSIGN_PARTITIONS carries them."""
    return [
        Told(QueueId(bytes.fromhex(definer)), spec.encode(), bool(from_start))
        for definer, spec, from_start in work
    ]


def to_tell(routes: Iterable[Told]) -> list[list[Any]]:
    """Return routes for `told_of` to read."""
    return [[one.definer.hex(), one.spec.decode(), one.from_start] for one in routes]


def crowded(source: str, queue: Queue | None = None) -> Outcome:
    """Refuse a route, as its source has as many as it may."""
    message = (
        f"there are as many routes from queue {source} already as there may be: {DEFINITIONS_MAX},"
        f" {PARTITION_ROUTES_MAX} over its partitions, and none from more than"
        f" {SOURCE_PARTITIONS_MAX} partitions"
    )
    return Outcome(Code.POLICY_VIOLATION, message=message, queue=queue)


class Definitions:
    """The definitions that a shard has, for the fold."""

    def __init__(self, state: State, shards: int) -> None:
        self._state = state
        self._shards = shards
        self._sources: set[str] | None = None  # not looked at yet
        self._many = False

    @property
    def any_defined(self) -> bool:
        """Whether this shard has ever told of a route: where not, nothing is looked up."""
        return bool(self._known_sources()) or self._many

    def _known_sources(self) -> set[str]:
        """Return the names that routes may be from, unless they are too many to remember."""
        if self._sources is None:
            found = self._state.some(*RowKind.ROUTE_DEFINITION.range(), _SOURCES_MAX + 1)
            self._sources = set()
            for key, _ in found:
                self._note_source(name_of(key))
        return self._sources

    def _note_source(self, source: str) -> None:
        sources = self._known_sources()
        sources.add(source)
        if len(sources) > _SOURCES_MAX:
            self._many = True
            sources.clear()

    def _definitions(self, source: str) -> list[Definition]:
        if source not in self._known_sources() and not self._many:
            return []
        data = self._state.get(DEFINITIONS.key(source))
        return [] if data is None else route_rows.decode_definitions(data)

    def _put_definitions(self, source: str, definitions: Sequence[Definition]) -> None:
        key = DEFINITIONS.key(source)
        value = route_rows.encode_definitions(definitions) if definitions else None
        self._note_source(source)
        self._state.put(key, value)

    def define(self, asked: DefineRoute) -> Code | None:
        """Note a route. NONE: that has changed something; None: it has not."""
        known = self._definitions(asked.source)
        spec = asked.spec.encode()
        before = next((one for one in known if one.definer == asked.definer), None)
        if before is not None and before.as_of >= asked.as_of:
            return None
        others = [one for one in known if one is not before]
        if spec and (before is None or not before.spec) and self._is_full(asked.source, others):
            return Code.POLICY_VIOLATION
        if len(others) >= DEFINITIONS_MAX:
            gone = [one for one in others if not one.spec]
            if not gone:
                return Code.POLICY_VIOLATION if spec else None
            others.remove(min(gone, key=lambda one: one.as_of))
        first = before is None or before.from_start
        # Records that were passed on once are not passed on again; one that was never told of may
        # begin so.
        from_start = first and (asked.from_start if spec else before is None)
        made = Definition(asked.definer, asked.as_of, from_start, spec)
        self._put_definitions(asked.source, [*others, made])
        return None if spec == (b"" if before is None else before.spec) else Code.NONE

    def refusal(self, before: Queue | None, after: Queue) -> Outcome | None:
        """Return why a queue is not made, or not changed, for its routes or those from it."""
        if after.configs:
            source = self._crowded(before, after)
            if source is not None:
                return crowded(source)
            fault = self._chained(before, after)
            if fault is not None:
                return Outcome(Code.INVALID_CONFIG, message=fault, queue=before)
        if before is None or after.wanted > before.wanted:
            fault = self._spread_too_far(after)
            if fault is not None:
                return Outcome(Code.INVALID_PARTITIONS, message=fault, queue=before)
        return None

    def _crowded(self, before: Queue | None, after: Queue) -> str | None:
        """Return the source that has as many routes as it may, if a queue is to have one more.

        Only sources whose home is asked at once count; others answer for themselves.
        """
        for source, spec in definitions_between(before, after).items():
            if spec and (self._shards == 1 or source == after.name):
                known = self._definitions(source)
                if not any(one.definer == after.queue_id and one.spec for one in known):
                    if self._is_full(source, known):
                        return source
        for definer, spec in redrives_between(before, after):
            known = [one for one in self._definitions(after.name) if one.spec]
            gone = before and redrive_of(before.queue_id, before.configs)
            known = [one for one in known if one.definer not in (definer, gone)]
            if spec and self._is_full(after.name, known):
                return after.name
        return None

    def _chained(self, before: Queue | None, after: Queue) -> str | None:
        """Return what is wrong with a queue that gets records by a route while others take its."""
        source = after.configs.get(FROM)
        if not source or (before and before.configs.get(FROM) == source):
            return None
        if all(one.definer == after.queue_id for one in self.routes_from(after.name)):
            return None
        return (
            f"{FROM}={source}: other queues take records from {after.name} by a route, and what it"
            f" gets by one is not routed on: have them take theirs from {source} first"
        )

    def _is_full(self, source: str, known: Sequence[Definition]) -> bool:
        """Return whether a queue of this name has as many routes as it may."""
        queue = self._state.queue(source)
        most = route_rows.routes_max(1 if queue is None else queue.wanted)
        return sum(bool(one.spec) for one in known) >= most

    def _spread_too_far(self, queue: Queue) -> str | None:
        """Return what is wrong with so many partitions of a queue that has routes, for people."""
        routes = len(self.routes_from(queue.name))
        if routes <= route_rows.routes_max(queue.wanted):
            return None
        most = min(SOURCE_PARTITIONS_MAX, PARTITION_ROUTES_MAX // routes)
        return f"a queue that {routes} routes are from may have at most {most} partitions"

    def forget(self, source: str, definer: QueueId) -> None:
        """Forget the definition of a queue that is gone: nobody tells of it any more."""
        known = self._definitions(source)
        left = [one for one in known if one.definer != definer]
        if len(left) < len(known):
            self._put_definitions(source, left)

    def routes_from(self, source: str) -> list[Told]:
        """Return all routes from a queue of this name."""
        found = self._definitions(source)
        return [Told(one.definer, one.spec, one.from_start) for one in found if one.spec]
