"""Mistakes in lanes: those that the simulation must see, and those that a test of turns sees."""

from collections.abc import Awaitable, Callable
from heapq import heappop
from typing import Any

import pytest

from kproxy.shares.lanes.index import LaneIndex
from kproxy.shares.lanes.lane_window import LaneWindow
from kproxy.shares.lanes.reading import LaneReader
from kproxy.shares.lanes.ring import Rings
from kproxy.shares.lanes.share_lanes import ShareLanes
from kproxy.shares.lanes.table import NONE
from kproxy.shares.window import ACCEPT, Window
from tests.shares.lanes import test_index, test_lanes

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]


def the_next_is_given_before_the_acceptance_is_durable(patch: Patch) -> None:
    decide = Window._decide

    def decided(self: Window, first: int, last: int, kind: int, *more: Any) -> None:
        decide(self, first, last, kind, *more)
        if self.lanes is not None and kind == ACCEPT:
            self.lanes.done(range(max(first, self.start), last + 1))

    def scattered(self: LaneWindow, member: str, offsets: Any, kind: int, *more: Any) -> Any:
        pending = acknowledge(self, member, offsets, kind, *more)
        if pending is not None and self.lanes is not None and kind == ACCEPT:
            self.lanes.done(offsets)
        return pending

    acknowledge = LaneWindow.acknowledge_scattered
    patch.setattr(Window, "_decide", decided)
    patch.setattr(LaneWindow, "acknowledge_scattered", scattered)


def a_released_record_goes_to_the_end_of_its_lane(patch: Patch) -> None:
    def linked(self: LaneIndex, lane: int, offset: int) -> None:
        links, base, tails = self._next, self._base, self.table.tails
        at, short = offset - base, offset & 0x7FFFFFFF
        self.available += 1
        tail = tails[lane]
        if tail == NONE:
            links[at] = short
        else:
            last = (tail - base) & 0x7FFFFFFF
            links[at] = links[last]
            links[last] = short
        tails[lane] = short

    patch.setattr(LaneIndex, "_link", linked)


def the_ring_forgets_a_lane_that_was_busy(patch: Patch) -> None:
    def done(self: LaneIndex, offsets: Any) -> None:
        for offset in offsets:
            if self.lane_of(offset) >= 0:
                self._free_place(offset)
                self._lanes[offset - self._base] = NONE

    patch.setattr(LaneIndex, "done", done)


def gaps_are_not_archived(patch: Patch) -> None:
    patch.setattr(ShareLanes, "_note_holes", lambda self, *more: None)


def a_lane_at_its_rate_never_goes_on(patch: Patch) -> None:
    def resumed(self: LaneIndex, now: float) -> bool:
        while self._resting and self._resting[0][0] <= now:
            heappop(self._resting)
        return False

    patch.setattr(LaneIndex, "resume", resumed)


def what_is_held_when_lanes_begin_is_not_looked_at(patch: Patch) -> None:
    add = LaneIndex.add

    def added(self: LaneIndex, offsets: Any, hashes: Any, levels: Any, taken: Any = ()) -> None:
        kept = [at for at, offset in enumerate(offsets) if offset not in taken]
        if kept:
            levels = None if levels is None else [levels[at] for at in kept]
            add(self, [offsets[at] for at in kept], [hashes[at] for at in kept], levels)

    patch.setattr(LaneIndex, "add", added)


def a_trim_leaves_its_lane_busy(patch: Patch) -> None:
    trim = LaneIndex.trim
    patch.setattr(LaneIndex, "trim", lambda self, start, taken: trim(self, start, ()))


def done_records_are_given_again_after_a_takeover(patch: Patch) -> None:
    patch.setattr("kproxy.shares.lanes.share_lanes.IS_AVAILABLE", bytes([1]) * 256)


def what_has_expired_is_given(patch: Patch) -> None:
    patch.setattr(LaneIndex, "_leave_expired", lambda self, lane, now_ms: True)


def a_refused_expiry_is_a_hole(patch: Patch) -> None:
    archive = LaneWindow._archive_expired

    def archived(self: LaneWindow, lanes: LaneIndex, taken: Any) -> None:
        archive(self, lanes, taken)
        lanes.expiring.clear()

    patch.setattr(LaneWindow, "_archive_expired", archived)


def the_first_in_line_is_given_though_its_lane_is_busy(patch: Patch) -> None:
    take = LaneIndex.take_line

    def taken(self: LaneIndex, *more: Any) -> Any:
        found = take(self, *more)
        for first, end in found:
            for offset in range(first, end):
                self._busy.pop(self._lanes[offset - self._base], None)
        return found

    patch.setattr(LaneIndex, "take_line", taken)


SIMULATED: list[tuple[Mistake, range]] = [
    (the_next_is_given_before_the_acceptance_is_durable, range(20)),
    (a_released_record_goes_to_the_end_of_its_lane, range(20)),
    (the_ring_forgets_a_lane_that_was_busy, range(20)),
    (gaps_are_not_archived, range(20)),
    (a_lane_at_its_rate_never_goes_on, range(20)),
    (what_is_held_when_lanes_begin_is_not_looked_at, range(60)),
    (a_trim_leaves_its_lane_busy, range(60)),
    (done_records_are_given_again_after_a_takeover, range(20)),
    (what_has_expired_is_given, range(20)),
    (a_refused_expiry_is_a_hole, range(60)),
    (the_first_in_line_is_given_though_its_lane_is_busy, range(20)),
]


def lower_levels_starve(patch: Patch) -> None:
    patch.setattr(Rings, "had_turn", lambda self, level: None)


def a_lane_keeps_its_turn(patch: Patch) -> None:
    def end_turn(self: LaneIndex, lane: int) -> None:
        self._left[lane] = 1
        self._enter(lane)

    patch.setattr(LaneIndex, "_end_turn", end_turn)


def the_name_of_the_header_is_the_lane(patch: Patch) -> None:
    lanes_of = LaneReader._lanes_of

    def of_name(self: LaneReader, run: Any) -> Any:
        names, levels = lanes_of(self, run)
        return ([b"7"] * len(names) if self._header else names), levels

    patch.setattr(LaneReader, "_lanes_of", of_name)


def holes_are_taken_for_records(patch: Patch) -> None:
    patch.setattr(LaneWindow, "_archive_holes", lambda self, taken: None)


def held_lanes_are_in_memory_alone(patch: Patch) -> None:
    patch.setattr(ShareLanes, "hold_again", lambda self: True)


TURNS: list[tuple[Mistake, Callable[[], Awaitable[None] | None]]] = [
    (lower_levels_starve, test_index.test_lower_levels_have_their_share_in_turn),
    (a_lane_keeps_its_turn, test_index.test_lanes_take_turns),
    (the_name_of_the_header_is_the_lane, test_lanes.test_lanes_are_those_of_a_header),
    (holes_are_taken_for_records,
     test_lanes.test_compacted_records_and_markers_are_gaps_of_no_lane),
    (held_lanes_are_in_memory_alone,
     test_lanes.test_a_lane_whose_record_was_rejected_is_held_until_it_is_freed),
]  # fmt: skip
