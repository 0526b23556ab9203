"""Records of lanes that wait in line: they are given as they lie, and nobody waits for long."""

import random
from typing import Any

import pytest

from kproxy.shares.lanes import line, records
from kproxy.shares.lanes.index import LaneIndex, Turns
from tests.shares.lanes.test_index import SALT, Model


def lined(*names: bytes | None, in_flight: int = 0) -> LaneIndex:
    index = LaneIndex(0, Turns(in_flight=in_flight), SALT)
    index.add_named(0, names)
    return index


def twice(in_flight: int = 1) -> LaneIndex:
    """Return 20 lanes of two records each, in line one after the other."""
    index = lined(*numbers(20), in_flight=in_flight)
    index.add_named(20, numbers(20))
    assert index.lined == 40
    return index


def numbers(count: int, each: int = 1) -> list[bytes]:
    return [b"%d" % at for at in range(count)] * each


def given(index: LaneIndex, most: int, whole: int = 0) -> list[int]:
    """Take records as a window does, of which none was given before."""
    index.passes = line.PASSES_MAX
    turns = index.turns_before_line(most)
    found = index.take_fresh(turns, bytearray(index.end - index.start), index.start)
    if len(found) < most:
        for first, end in index.take_line(most - len(found), whole):
            found += range(first, end)
    if len(found) < most:
        more = most - len(found)
        found += index.take_fresh(more, bytearray(index.end - index.start), index.start)
    return found


def test_many_lanes_are_given_as_they_lie() -> None:
    index = lined(*numbers(400), *numbers(400))
    assert index.take_line(500) == [(0, 500)]
    assert index.take_line(300, 310) == [(500, 800)]
    assert (index.available, index.lined, index.lined_lanes, index.taken) == (0, 0, 0, 800)
    index.done_run(0, 800)
    assert index.taken == 0


def test_a_part_is_given_whole_where_it_is_little_more_than_asked_for() -> None:
    assert lined(*numbers(400)).take_line(390, 390) == [(0, 400)]
    assert lined(*numbers(400)).take_line(390) == [(0, 390)]
    assert lined(*numbers(400)).take_line(10, 400) == [(0, 400)]


def test_a_loud_lane_stands_in_line_no_more_than_others() -> None:
    index = lined(*numbers(300), *[b"loud"] * 300, *numbers(20), b"quiet")
    assert given(index, 1000, 1000).index(620) < 330
    assert index.available == 0


def test_a_lane_behind_a_long_line_has_a_turn_within_a_round() -> None:
    index = lined(*numbers(200, each=20))
    index.add_named(index.end, [b"new"])
    found: list[int] = []
    while 4000 not in found:
        found += given(index, 50)
    assert len(found) <= 250


def test_a_lane_behind_a_slow_line_does_not_wait_for_it() -> None:
    index = lined(*numbers(400, each=2))
    index.at(100.0)
    given(index, 1)
    index.at(100.0 + 2 * line._SLOW_S)
    index.add_named(index.end, [b"new"])
    assert index.lined == 799


def test_a_busy_lane_lets_the_line_go_on_and_has_the_next_turn() -> None:
    index = twice()
    assert given(index, 10) == list(range(10))
    assert given(index, 15) == list(range(10, 20)), "the others wait for theirs"
    index.done([3])
    index.done_run(5, 7)
    assert sorted(given(index, 15)) == [23, 25, 26]


def test_a_record_that_comes_back_is_before_those_in_line() -> None:
    index = twice()
    assert given(index, 5) == list(range(5))
    index.returned(2, 3)
    assert index.take(0.0) == 2
    index.returned(2, 3)
    assert given(index, 40) == [2, *range(5, 20)]


def test_a_trim_empties_the_line_before_it() -> None:
    index = twice()
    index.trim(25, ())
    assert index.clean()
    assert given(index, 40) == list(range(25, 40))
    assert index.available == 0


def test_lanes_in_line_keep_their_numbers() -> None:
    """Numbers of lanes without records are given again: those in line have some."""
    index = LaneIndex(0, Turns(in_flight=1), SALT)
    names = [b"%d" % at for at in range(6000)]
    for first in range(0, 6000, 500):
        index.add_named(first, names[first : first + 500])
    assert len(set(index._lanes)) == 6000
    assert sorted(given(index, 6000)) == list(range(6000))


@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_lines_are_those_of_a_model(in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_DROPPED_MIN", 16)
    monkeypatch.setattr(records, "_CLEANED_MAX", 7)
    monkeypatch.setattr(line, "_LONG", 8)
    monkeypatch.setattr(line, "_ROUNDS", 2)
    for seed in range(40):
        rng = random.Random(seed)
        index = LaneIndex(rng.choice((0, (1 << 31) - 20)), Turns(in_flight=in_flight), SALT)
        model = Model(in_flight)
        for _ in range(200):
            step(rng, index, model)
            model.waits.clear()  # turns are not one by one
        settle(index, model)


def step(rng: random.Random, index: LaneIndex, model: Model) -> None:
    dice = rng.random()
    busy = sorted(offset for some in model.busy.values() for offset in some)
    if dice < 0.25:
        keys = [rng.randrange(20) for _ in range(rng.randrange(1, 12))]
        first = index.end
        if rng.random() < 0.8:
            index.add_named(first, [b"%d" % key for key in keys])
        else:
            index.add(range(first, first + len(keys)), [line.hash_of(b"%d" % k) for k in keys])
        for offset, key in enumerate(keys, first):
            model.lane_of[offset] = key
            model.available[key].add(offset)
    elif dice < 0.6:
        take(rng.randrange(1, 12), index, model)
    elif dice < 0.95 and busy:
        offset = rng.choice(busy)
        lane = model.lane_of[offset]
        model.busy[lane].discard(offset)
        if dice < 0.85:
            index.done_run(offset, offset + 1)
        else:
            model.available[lane].add(offset)
            index.returned(offset, offset + 1)
    elif dice >= 0.97:
        to = index.start + rng.choice((1, 5, 20))
        index.trim(to, [offset for offset in busy if offset < to])
        for some in (*model.busy.values(), *model.available.values()):
            some -= {offset for offset in some if offset < to}
        while not index.clean():
            pass


def take(most: int, index: LaneIndex, model: Model) -> list[int]:
    while not index.clean():
        pass
    index.passes = line.PASSES_MAX
    found: list[Any] = []
    turns = index.turns_before_line(most)
    while len(found) < turns and (offset := index.take(0.0)) >= 0:
        found.append(offset)
    for first, end in index.take_line(most - len(found)):
        found += range(first, end)
    while len(found) < most and (offset := index.take(0.0)) >= 0:
        found.append(offset)
    for offset in found:
        if model.in_flight:
            model.waits.clear()
            model.take(offset)
        else:
            lane = model.lane_of[offset]
            model.available[lane].remove(offset)
            model.busy[lane].add(offset)
    return found


def settle(index: LaneIndex, model: Model) -> None:
    """Take and end all that is left."""
    while any(model.available.values()) or any(model.busy.values()):
        take(5, index, model)
        busy = [offset for some in model.busy.values() for offset in some]
        assert busy or not any(model.available.values()), "records are left, and none is given"
        for offset in busy:
            index.done([offset])
            model.busy[model.lane_of[offset]].discard(offset)
    assert (index.available, index.taken, index.lined, index.lined_lanes) == (0, 0, 0, 0)
