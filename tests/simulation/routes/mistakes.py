"""Mistakes that the simulation of routes must see, and in how many seeds."""

from collections.abc import Callable
from typing import Any

import pytest

from kproxy.routes import passage, reading, stretches
from kproxy.routes.cutting import Gathered
from kproxy.routes.passage import Passage, Step
from kproxy.routes.shipping import parts_of, shipped
from kproxy.shard.appends import outcome_of
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.routes import Batches, Cut, DefineRoute
from kproxy.virtual.folds import routes as route_fold
from kproxy.virtual.folds.route_definitions import Definitions
from kproxy.virtual.folds.routes import RouteFold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows.routes import ROUTE_PARTS, ROUTES, Epoch, Landed, Route
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId

Mistake = Callable[[pytest.MonkeyPatch], None]


def _one_row_for_each_source_shard(patch: pytest.MonkeyPatch) -> None:
    key = ROUTE_PARTS.key(QueueId(bytes(16)), (QueueId(bytes(16)), 0))
    patch.setattr(ROUTE_PARTS, "key", lambda definer, source: key)


def _one_row_for_each_source_queue(patch: pytest.MonkeyPatch) -> None:
    made = ROUTE_PARTS.key
    patch.setattr(ROUTE_PARTS, "key", lambda definer, source: made(definer, (source[0], 0)))


def _the_route_is_not_in_the_row(patch: pytest.MonkeyPatch) -> None:
    made = ROUTE_PARTS.key
    patch.setattr(ROUTE_PARTS, "key", lambda definer, source: made(source[0], source))


def _nothing_is_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Landed, "has", lambda self, through, part: False)


def _parts_are_not_told_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Landed, "has", lambda self, through, part: through <= self.through)


def _shipped_before_the_cut_is_logged(patch: pytest.MonkeyPatch) -> None:
    async def cut(self: Passage, after: int, parts: int, through: int | None = None) -> None:
        through = after if through is None else through
        self._shard.append([Cut(self.source, self.definer, after, through, parts).envelope()])

    patch.setattr(Passage, "_cut", cut)


def _cut_before_the_last_one_has_landed(patch: pytest.MonkeyPatch) -> None:
    async def ship(self: Passage, cutter: Any, through: int, parts: int) -> bool:
        for index, part, batches in shipped(cutter.gathered, parts):
            now = self._shared.clock.now_ms()
            one = self._envelope(cutter, through, part, batches, now)
            self._shared.asks.ask(index, one)
        return True

    patch.setattr(Passage, "_ship", ship)


def _an_unknown_fate_is_taken_for_landed(patch: pytest.MonkeyPatch) -> None:
    async def send(self: Passage, ships: list[tuple[int, Envelope]], _: Any) -> list[Any]:
        for index, one in ships:
            await outcome_of(self._shared.asks.ask(index, passage._again(one)))
        return []

    patch.setattr(Passage, "_send", send)


def _a_new_owner_does_not_ship_again(patch: pytest.MonkeyPatch) -> None:
    async def again(self: Passage, route: Route, row: Any) -> tuple[Step, int]:
        self._landed = route.cut
        return Step.DONE, 0

    patch.setattr(Passage, "_ship_again", again)


def _shipped_again_by_what_is_set_now(patch: pytest.MonkeyPatch) -> None:
    def last(route: Route, offset: int) -> Epoch:
        return route.epochs[-1]

    patch.setattr(stretches, "epoch_at", last)


def _targets_by_the_catalogue(patch: pytest.MonkeyPatch) -> None:
    """Ship to queues that this worker does not know, or knew otherwise, later."""
    by_name = Passage._ship

    async def ship(self: Passage, cutter: Any, through: int, parts: int) -> bool:
        gathered: Gathered = cutter.gathered
        state, claim = self._shard.state, self._shard.claim_offset
        if gathered.spec.template is not None:
            for targets in gathered.by_shard:
                for name in [n for n in targets if n != gathered.spec.unroutable]:
                    if hash((name, claim)) % 7 == 0 and state.queue(name) is None:
                        moved = targets.pop(name)
                        targets.setdefault(gathered.spec.unroutable, []).extend(moved)
        return await by_name(self, cutter, through, parts)

    patch.setattr(Passage, "_ship", ship)


def _parts_by_position(patch: pytest.MonkeyPatch) -> None:
    def by_position(gathered: Gathered, parts: int) -> list[tuple[int, int, Batches]]:
        found: dict[tuple[int, int], list[tuple[str, bytes]]] = {}
        for index, _, batches in parts_of(gathered, 1):
            for number, one in enumerate(batches):
                found.setdefault((index, number % parts), []).append(one)
        return [(*key, Batches.of(batches)) for key, batches in sorted(found.items())]

    patch.setattr(passage, "shipped", by_position)


def _parts_are_counted_anew(patch: pytest.MonkeyPatch) -> None:
    ship = Passage._ship

    async def counted(self: Passage, cutter: Any, through: int, parts: int) -> bool:
        return await ship(self, cutter, through, cutter.gathered.parts)

    patch.setattr(Passage, "_ship", counted)


def _aborted_ones_are_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_is_aborted", lambda *of: False)


def _undecided_ones_are_passed_on(patch: pytest.MonkeyPatch) -> None:
    found = stretches.next_of

    def to_the_end(route: Route, row: Any) -> Any:
        opened, row.first_open = row.first_open, -1
        try:
            return found(route, row)
        finally:
            row.first_open = opened

    patch.setattr(stretches, "next_of", to_the_end)


def _routed_on(patch: pytest.MonkeyPatch) -> None:
    add = State.add_batch

    def plain(self: State, *of: Any, routed: bool = False) -> None:
        add(self, *of)

    patch.setattr(State, "add_batch", plain)


def _a_cut_may_begin_anywhere(patch: pytest.MonkeyPatch) -> None:
    cut = RouteFold.cut

    def anywhere(
        self: RouteFold, log_offset: int, envelope: Envelope, location: LogLocation
    ) -> Outcome:
        source: PartitionKey = envelope.queue_id, envelope.partition
        asked = Cut.decode(envelope)
        route = route_rows.route_in(self._state.get, source, asked.definer)
        if route is not None and self._state.is_owners(envelope):
            key = ROUTES.key(source, asked.definer)
            self._state.put(key, route._replace(cut=asked.after).encode())
        return cut(self, log_offset, envelope, location)

    patch.setattr(RouteFold, "cut", anywhere)


def ended_route_begins_anew(patch: pytest.MonkeyPatch) -> None:
    define = Definitions.define

    def forgetful(self: Definitions, asked: DefineRoute) -> Any:
        known = self._definitions(asked.source)
        before = next((one for one in known if one.definer == asked.definer), None)
        if before is not None and not before.spec and before.as_of < asked.as_of:
            self._put_definitions(asked.source, [one for one in known if one is not before])
        return define(self, asked)

    patch.setattr(Definitions, "define", forgetful)


def _no_epochs(patch: pytest.MonkeyPatch) -> None:
    def turned(route: Route, row: Any, spec: bytes, as_of: int) -> Route:
        return route._replace(as_of=as_of, epochs=(Epoch(route.epochs[0].start, spec),))

    patch.setattr(route_fold, "_turned", turned)


MISTAKES: dict[str, tuple[Mistake, int]] = {
    "one row for each source shard": (_one_row_for_each_source_shard, 5),
    "one row for each source queue": (_one_row_for_each_source_queue, 5),
    "one row for all routes of a source": (_the_route_is_not_in_the_row, 5),
    "nothing is void": (_nothing_is_void, 5),
    "parts are not told apart": (_parts_are_not_told_apart, 5),
    "shipped before the cut is logged": (_shipped_before_the_cut_is_logged, 5),
    "cut before the last one has landed": (_cut_before_the_last_one_has_landed, 5),
    "an unknown fate is taken for landed": (_an_unknown_fate_is_taken_for_landed, 5),
    "a new owner does not ship again": (_a_new_owner_does_not_ship_again, 10),
    "shipped again by what is set now": (_shipped_again_by_what_is_set_now, 20),
    "targets by the catalogue": (_targets_by_the_catalogue, 10),
    "parts by position": (_parts_by_position, 60),
    "parts are counted anew": (_parts_are_counted_anew, 60),
    "aborted ones are passed on": (_aborted_ones_are_passed_on, 5),
    "undecided ones are passed on": (_undecided_ones_are_passed_on, 5),
    "routed on": (_routed_on, 5),
    "a cut may begin anywhere": (_a_cut_may_begin_anywhere, 20),
    "from its start each time": (ended_route_begins_anew, 60),
    "no epochs": (_no_epochs, 10),
}
