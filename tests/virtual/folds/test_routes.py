"""Routes as the fold decides them: who defines them, how far they are, what has landed."""

import json
from collections.abc import Sequence

import pytest

from kproxy.common.errors import Code
from kproxy.metadata.catalogue import home_of
from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import (
    AssignPartitions,
    ConfigureQueue,
    CreateQueue,
    DeleteQueue,
    GrowQueue,
    QueueReady,
)
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.routes import Batches, Cut, DefineRoute, ForgetLanded, Ship
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.fold import Fold
from kproxy.virtual.folds import route_definitions
from kproxy.virtual.folds.route_definitions import (
    FILTER,
    FROM,
    FROM_START,
    TO,
    UNROUTABLE,
    Told,
    to_tell,
)
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import routes as route_rows
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.routes import DEFINITIONS_MAX, EPOCHS_MAX, ROUTE_PARTS, Epoch, Route
from kproxy.virtual.types import PartitionKey, QueueId, ShardId
from tests.fakes import MemoryShard
from tests.present import present
from tests.virtual.commands.route_cases import names_of, ship
from tests.wire import batch

ENTRANCE = {TO: "d-{key}", UNROUTABLE: "lost"}
SPEC = '{"name":"x"}'


class Routing(MemoryShard):
    """A shard, and each command as its sender would append it, at once."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        super().__init__(shard, shards, shared=shards > 1)
        self.numbers = iter(range(1, 10_000))

    def make(self, name: str, partitions: int = 1, **configs: str) -> QueueId:
        queue_id = QueueId(next(self.numbers).to_bytes(16, "big"))
        given = {n.replace("_", "."): value for n, value in configs.items()}
        outcome = self.apply(CreateQueue(queue_id, name, partitions, given).envelope())
        assert outcome.code == Code.NONE, outcome
        return queue_id

    def entrance(self, name: str, partitions: int = 1) -> QueueId:
        return self.make(name, partitions, **ENTRANCE)

    def filter(self, name: str, source: str, text: str = "", *, start: bool = False) -> QueueId:
        more = {FROM_START: "true"} if start else {}
        return self.make(name, **{FROM: source, FILTER: text} | more)

    def configure(self, queue_id: QueueId, **configs: str) -> Outcome:
        return self.apply(ConfigureQueue(queue_id, configs, [], True).envelope())

    def put(self, queue_id: QueueId, count: int = 1, index: int = 0) -> None:
        body = batch(*[b"v"] * count, times=(5,) * count)
        assert self.apply(Envelope(Kind.APPEND, queue_id, index, body=body)).code == Code.NONE

    def route(self, source: QueueId, definer: QueueId, index: int = 0) -> Route | None:
        return route_rows.route_in(self.state.get, (source, index), definer)

    def found(self, source: QueueId, definer: QueueId, index: int = 0) -> Route:
        return present(self.route(source, definer, index))

    def names_in(self, route: Route) -> list[tuple[int, bool]]:
        return [(start, bool(spec)) for start, spec in route.epochs]

    def cut(
        self, source: QueueId, after: int, through: int, definer: QueueId | None = None,
        parts: int = 1, made: int = 0, index: int = 0,
    ) -> Outcome:  # fmt: skip
        key: PartitionKey = source, index
        return self.apply(Cut(key, definer or source, after, through, parts, made).envelope())

    def values(self, name: str) -> int:
        """Return how many records a queue has."""
        queue = self.state.queue(name)
        row = None if queue is None else self.state.partition((queue.queue_id, 0))
        return -1 if row is None else row.next_offset

    def queue(self, name: str) -> Queue:
        return present(self.state.queue(name))


def one(text: bytes = b"1") -> bytes:
    return batch(text, times=(5,))


def to(*names: str) -> Sequence[tuple[str, bytes]]:
    return [(name, one(name.encode())) for name in names]


# -- who defines routes


def test_an_entrance_passes_on_what_comes_from_now_on() -> None:
    shard = Routing()
    plain = shard.make("in")
    shard.put(plain, 3)
    shard.configure(plain, **ENTRANCE)
    route = shard.found(plain, plain)
    assert (route.landed, route.cut) == (3, 3)
    assert b"d-{key}" in route.epochs[0].spec
    made = shard.entrance("other", 3)
    assert [shard.found(made, made, index).cut for index in range(3)] == [0, 0, 0]
    assert shard.state.routed >= {(made, 0), (made, 1), (made, 2)}


def test_a_queue_without_routes_is_as_it_was() -> None:
    shard = Routing()
    queue_id = shard.make("q", 2, retention_ms="5")
    shard.put(queue_id)
    row = present(shard.state.partition((queue_id, 0)))
    assert not row.any_routes
    assert not rows.decode_partition(row.encode()).any_routes
    assert not any(key[0] in b"PXV" for key in shard.kv.rows)
    assert shard.state.routed == set()
    assert shard.state.passed_on((queue_id, 0)) is None


def test_a_filter_begins_at_the_end_or_at_the_start() -> None:
    shard = Routing()
    source = shard.make("s")
    shard.put(source, 4)
    shard.apply(Trim(source, 0, 1).envelope())
    late, early = shard.filter("late", "s"), shard.filter("early", "s", start=True)
    assert shard.found(source, late).cut == 4
    assert shard.found(source, early).cut == 1
    assert shard.state.passed_on((source, 0)) == 1


def test_a_filter_from_the_start_keeps_what_a_passage_is_about_to_take() -> None:
    """FAULT: the entrance, which keeps nothing, took records that the filter had to pass on."""
    shard = Routing()
    source = shard.entrance("s")
    shard.put(source, 4)
    assert shard.cut(source, 0, 4).number == 4
    assert shard.cut(source, 4, 4).number == 4
    trim = Trim(source, 0, 4, 1, spares=True).envelope()  # on its way, and then comes a filter
    early = shard.filter("early", "s", start=True)
    assert shard.apply(trim).number == 0
    row = present(shard.state.partition((source, 0)))
    assert (row.log_start, shard.found(source, early).landed) == (0, 0)
    assert shard.cut(source, 0, 4, early).number == 4
    assert shard.cut(source, 4, 4, early).number == 4
    shard.apply(trim)
    assert row.log_start == 4


def test_settings_that_change_begin_a_new_epoch_where_there_are_records() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    shard.configure(queue_id, **ENTRANCE | {TO: "e-{key}"})
    assert shard.names_in(shard.found(queue_id, queue_id)) == [(0, True)]
    shard.put(queue_id)
    shard.configure(queue_id, **ENTRANCE | {TO: "f-{key}", "retention.ms": "9"})
    shard.configure(queue_id, **ENTRANCE | {TO: "f-{key}"})  # nothing about the route
    route = shard.found(queue_id, queue_id)
    assert shard.names_in(route) == [(0, True), (1, True)]
    assert b"f-{key}" in route.epochs[1].spec
    assert route.ends is None


def test_the_last_of_many_epochs_takes_the_next_ones_place() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    for number in range(EPOCHS_MAX + 3):
        shard.put(queue_id)
        shard.configure(queue_id, **ENTRANCE | {TO: f"e{number}-{{key}}"})
    epochs = shard.found(queue_id, queue_id).epochs
    assert len(epochs) == EPOCHS_MAX
    assert f"e{EPOCHS_MAX + 2}-".encode() in epochs[-1].spec
    assert route_rows.decode_route(shard.found(queue_id, queue_id).encode()).epochs == epochs


HOME = next(name for name in map(str, range(9)) if shard_of(name, 2) == 0)
"""The name of a queue whose home is the first of two shards."""


def test_a_change_that_no_epoch_is_left_for_is_refused() -> None:
    """FAULT: of two changes at once the second took the last one's records along."""
    shard = Routing()
    queue_id = shard.entrance("in")
    for number in range(EPOCHS_MAX):
        shard.configure(queue_id, **ENTRANCE | {TO: f"{number}-{{key}}"})
        shard.put(queue_id)
    before = shard.found(queue_id, queue_id)
    change = ConfigureQueue(queue_id, {TO: "x-{key}"}, [], False, waits=True).envelope()
    outcome = shard.apply(change)
    assert outcome.code == Code.INVALID_CONFIG
    assert "LAG" in (outcome.message or "")
    assert shard.found(queue_id, queue_id) == before
    assert "x" not in shard.queue("in").configs[TO]
    assert shard.cut(queue_id, 0, 1).number == 1
    assert shard.cut(queue_id, 1, 2).number == 2
    assert shard.apply(change).code == Code.NONE
    assert b"x-{key}" in shard.found(queue_id, queue_id).epochs[-1].spec


def test_a_change_from_elsewhere_waits_until_there_is_an_epoch_for_it() -> None:
    """FAULT: nobody refused it where another worker served the partition."""
    shard = Routing(0, 2)
    source, red = shard.make(HOME), QueueId(b"red".ljust(16))
    for number in range(EPOCHS_MAX):
        shard.apply(DefineRoute(red, HOME, f"{number}", False, number).envelope())
        shard.put(source)
    before = shard.found(source, red)
    change = DefineRoute(red, HOME, "x", False, 2000, waits=True).envelope()
    assert shard.apply(change).code == Code.THROTTLING_QUOTA_EXCEEDED
    assert shard.found(source, red) == before
    shard.cut(source, 0, 1, red)
    shard.cut(source, 1, 2, red)
    assert shard.apply(change).code == Code.NONE
    assert shard.found(source, red).epochs[-1].spec == b"x"


def test_partitions_of_a_changed_route_in_other_shards_wait_as_well() -> None:
    other = Routing(1, 2)
    queue_id = QueueId(b"source".ljust(16))

    def assign(number: int, spec: str, *, waits: bool) -> Code:
        routes = [[queue_id.hex(), spec, False]] if spec else []
        told = AssignPartitions(queue_id, HOME, 2, number, 0, routes, waits)
        return other.apply(told.envelope()).code

    for number in range(EPOCHS_MAX):
        assert assign(number, f"{number}", waits=True) == Code.NONE
        other.put(queue_id, index=1)
    before = other.found(queue_id, queue_id, 1)
    for spec in ("x", ""):
        assert assign(1000, spec, waits=True) == Code.THROTTLING_QUOTA_EXCEEDED
    assert other.found(queue_id, queue_id, 1) == before
    other.cut(queue_id, 0, 1, index=1)
    other.cut(queue_id, 1, 2, index=1)
    assert assign(1000, "x", waits=True) == Code.NONE
    assert other.found(queue_id, queue_id, 1).epochs[-1].spec == b"x"


def test_unannounced_words_of_a_home_shard_wait_as_its_change_did() -> None:
    shard = Routing(0, 2)
    queue_id = shard.entrance(HOME, 2)
    shard.apply(ConfigureQueue(queue_id, {TO: "x-{key}"}, [], False, waits=True).envelope())
    shard.apply(GrowQueue(queue_id, 4).envelope())
    assert json.loads(present(shard.state.get(rows.pending_assignment_key(queue_id))))["waits"]


def test_a_route_that_ends_goes_once_all_before_has_landed() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    shard.put(queue_id, 2)
    shard.configure(queue_id)
    shard.put(queue_id, 2)
    assert shard.found(queue_id, queue_id).ends == 2
    assert shard.cut(queue_id, 0, 2).number == 2
    assert shard.cut(queue_id, 2, 2).code == Code.UNKNOWN_TOPIC_ID
    assert shard.route(queue_id, queue_id) is None
    assert not present(shard.state.partition((queue_id, 0))).any_routes
    assert shard.cut(queue_id, 2, 4).code == Code.UNKNOWN_TOPIC_ID
    shard.configure(queue_id, **ENTRANCE)
    assert shard.found(queue_id, queue_id).cut == 4


def test_one_route_of_two_ends_and_the_other_goes_on() -> None:
    shard = Routing()
    source = shard.entrance("in")
    red = shard.filter("red", "in")
    shard.put(source)
    shard.apply(DeleteQueue(red).envelope())
    assert shard.found(source, red).ends == 1
    assert shard.cut(source, 0, 1, red).number == 1
    assert shard.cut(source, 1, 1, red).code == Code.UNKNOWN_TOPIC_ID
    assert shard.route(source, red) is None
    assert shard.found(source, source).ends is None
    assert present(shard.state.partition((source, 0))).any_routes


def test_a_source_made_again_has_its_filters_from_its_start_and_an_entrance_none() -> None:
    shard = Routing()
    source = shard.entrance("in")
    red = shard.filter("red", "in")
    shard.put(source, 5)
    shard.apply(DeleteQueue(source).envelope())
    again = shard.make("in", 2)
    shard.put(again)
    assert [shard.found(again, red, index).cut for index in range(2)] == [0, 0]
    assert shard.route(again, source) is None
    assert shard.route(again, again) is None
    shard.apply(DeleteQueue(red).envelope())
    assert shard.found(again, red).ends == 1


def test_a_filter_of_a_queue_that_is_not_there_yet() -> None:
    shard = Routing()
    red = shard.filter("red", "in")
    source = shard.make("in")
    assert shard.found(source, red).cut == 0


def test_new_partitions_have_all_routes_from_their_start() -> None:
    shard = Routing()
    source = shard.entrance("in")
    red = shard.filter("red", "in")
    shard.put(source, 3)
    shard.apply(GrowQueue(source, 3).envelope())
    for definer in (source, red):
        assert [shard.found(source, definer, index).cut for index in (1, 2)] == [0, 0]


def test_a_filter_from_another_source_ends_at_the_old_one() -> None:
    shard = Routing()
    one_, two = shard.make("a"), shard.make("b")
    red = shard.filter("red", "a")
    shard.put(one_)
    shard.configure(red, **{FROM: "b"})
    assert shard.found(one_, red).ends == 1
    assert shard.found(two, red).ends is None


def test_a_filter_set_again_passes_nothing_on_twice() -> None:
    """It began at the source's start each time: what had landed in the queue came again."""
    shard = Routing()
    source = shard.make("s")
    shard.put(source, 4)
    red = shard.filter("red", "s", start=True)
    assert shard.cut(source, 0, 4, red).number == 4
    shard.apply(ship((source, 0), red, 4, to("red"), only=True))
    shard.configure(red)
    shard.cut(source, 4, 4, red)
    assert shard.route(source, red) is None
    shard.put(source, 2)
    shard.configure(red, **{FROM: "s", FROM_START: "true"})
    assert shard.found(source, red).cut == 6


# -- several shards: what a definer's home shard says of it


SOURCE, FOREIGN = names_of(0)[0], names_of(1)[0]
DEFINER = QueueId(b"d" * 16)


def define(spec: str = SPEC, as_of: int = 10, *, start: bool = False) -> Envelope:
    return DefineRoute(DEFINER, SOURCE, spec, start, as_of).envelope()


def test_late_news_of_a_definer_change_nothing() -> None:
    shard = Routing(0, 2)
    source = shard.make(SOURCE)
    shard.apply(define(as_of=10))
    shard.apply(define("", as_of=20))
    shard.apply(define(as_of=15))
    shard.apply(define(as_of=10))
    assert shard.found(source, DEFINER).ends == 0


def test_news_that_come_before_what_they_end() -> None:
    """The last word was not noted: a route was made for a queue that was gone, for ever."""
    shard = Routing(0, 2)
    source = shard.make(SOURCE)
    shard.apply(define("", as_of=20))
    shard.apply(define(as_of=10))
    assert shard.route(source, DEFINER) is None
    shard.put(source)
    shard.apply(define(as_of=30, start=True))  # nothing was ever passed on by it
    assert shard.found(source, DEFINER).cut == 0


def test_news_that_say_the_same_are_later_than_others() -> None:
    shard = Routing(0, 2)
    source = shard.make(SOURCE)
    shard.apply(define(as_of=10))
    shard.apply(define(as_of=30))
    shard.apply(define("", as_of=20))
    assert shard.found(source, DEFINER).ends is None


def test_other_shards_of_a_source_are_told_of_all_its_routes() -> None:
    shard = Routing(0, 2)
    source = shard.make(SOURCE, 2)
    key = rows.pending_assignment_key(source)
    shard.apply(QueueReady(source, 0).envelope())
    assert shard.state.get(key) is None
    outcome = shard.apply(define())
    assert outcome.queue is not None
    assert outcome.queue.queue_id == source
    assert DEFINER.hex().encode() in present(shard.state.get(key))
    assert shard.state.get(rows.pending_assignment_key(DEFINER)) is None


def test_announcement_of_another_home_shards_queue() -> None:
    shard = Routing(0, 2)
    source = QueueId(b"f" * 16)

    def tell(as_of: int, partitions: int, *routes: Told) -> None:
        told = AssignPartitions(source, FOREIGN, partitions, as_of, 1, to_tell(routes))
        shard.apply(told.envelope())

    told = Told(DEFINER, b"{}", False)
    tell(5, 2, told)
    assert shard.found(source, DEFINER, 1).cut == 0
    shard.put(source, 3, index=1)
    tell(4, 2)  # late
    assert shard.found(source, DEFINER, 1).ends is None
    tell(7, 4, told._replace(spec=b"{1}"), Told(source, b"{2}", True))
    assert shard.found(source, DEFINER, 1).epochs == (Epoch(0, b"{}"), Epoch(3, b"{1}"))
    assert shard.found(source, DEFINER, 3).epochs == (Epoch(0, b"{1}"),)
    assert shard.found(source, source, 1).cut == 0
    tell(9, 4)
    assert shard.found(source, DEFINER, 1).ends == 3
    assert shard.found(source, source, 3).ends == 0


def test_a_definer_tells_the_home_shard_of_its_source() -> None:
    shard = Routing(0, 2)
    name, source = names_of(0)[1], FOREIGN
    red = shard.filter(name, source)
    key = rows.pending_assignment_key(red)
    work = present(shard.state.get(key))
    assert b'"define": {"%s"' % source.encode() in work
    shard.apply(ConfigureQueue(red, {}, [], True).envelope())  # before all know
    work = present(shard.state.get(key))
    assert b'"define": {"%s": [""' % source.encode() in work
    shard.apply(QueueReady(red, 0).envelope())  # for its first definition
    assert shard.state.get(key) is not None
    shard.apply(QueueReady(red, 1).envelope())
    assert shard.state.get(key) is None
    shard.apply(DeleteQueue(red).envelope())
    assert shard.state.get(key) is None


# -- too many


def crowd(shard: Routing, source: str = SOURCE, count: int = DEFINITIONS_MAX) -> None:
    for number in range(count):
        made = DefineRoute(QueueId(b"%016d" % number), source, SPEC, False, 1 + number)
        assert shard.apply(made.envelope()).code == Code.NONE


def test_one_route_too_many_is_refused_and_nothing_is_made() -> None:
    shard = Routing()
    crowd(shard)
    source = shard.make(SOURCE)
    before = dict(shard.kv.rows)
    created = CreateQueue(DEFINER, "red", 1, {FROM: SOURCE}).envelope()
    outcome = shard.apply(created)
    assert outcome.code == Code.POLICY_VIOLATION
    assert outcome.message is not None
    assert f"there are as many routes from queue {SOURCE} already" in outcome.message
    assert shard.configure(source, **ENTRANCE).code == Code.POLICY_VIOLATION
    assert shard.kv.rows == before
    assert shard.apply(define("", as_of=999)).code == Code.NONE  # nothing is asked for
    gone = DefineRoute(QueueId(b"%016d" % 7), SOURCE, "", False, 1000)
    shard.apply(gone.envelope())
    assert shard.apply(created).code == Code.NONE
    assert shard.found(source, DEFINER).ends is None
    changed = ConfigureQueue(DEFINER, {FROM: SOURCE, FILTER: "key:a"}, [], True).envelope()
    assert shard.apply(changed).code == Code.NONE  # it has its own


def test_source_of_filters_gets_no_records_by_a_route() -> None:
    shard = Routing()
    source = shard.make(SOURCE)
    shard.apply(CreateQueue(DEFINER, "red", 1, {FROM: SOURCE}).envelope())
    outcome = shard.configure(source, **{FROM: "beyond"})
    assert outcome.code == Code.INVALID_CONFIG
    assert outcome.message is not None
    assert f"other queues take records from {SOURCE}" in outcome.message
    assert shard.configure(source, **ENTRANCE).code == Code.NONE
    shard.apply(DeleteQueue(source).envelope())
    again = CreateQueue(QueueId(b"%016d" % 9), SOURCE, 1, {FROM: "beyond"}).envelope()
    assert shard.apply(again).code == Code.INVALID_CONFIG
    shard.apply(DeleteQueue(DEFINER).envelope())
    assert shard.apply(again).code == Code.NONE


def test_routes_times_partitions_have_a_bound() -> None:
    """One command changes them all: of a few routes from 10,000 partitions it took a minute."""
    shard = Routing()
    source = shard.make(SOURCE, 1000)
    for number in range(10):
        shard.filter(f"f{number}", SOURCE)
    created = CreateQueue(DEFINER, "more", 1, {FROM: SOURCE}).envelope()
    assert shard.apply(created).code == Code.POLICY_VIOLATION
    changed = shard.configure(shard.queue("f9").queue_id, **{FROM: SOURCE, FILTER: "key:b"})
    assert changed.code == Code.NONE  # it has its own
    grown = shard.apply(GrowQueue(source, 1001).envelope())
    assert (grown.code, shard.queue(SOURCE).wanted) == (Code.INVALID_PARTITIONS, 1000)
    assert shard.apply(DeleteQueue(source).envelope()).code == Code.NONE
    for partitions, code in ((1001, Code.INVALID_PARTITIONS), (1000, Code.NONE)):
        again = CreateQueue(QueueId(b"again" + bytes(11)), SOURCE, partitions, {}).envelope()
        assert shard.apply(again).code == code
    shard.make("wide", 2001)
    created = CreateQueue(DEFINER, "of-wide", 1, {FROM: "wide"}).envelope()
    assert shard.apply(created).code == Code.POLICY_VIOLATION


def test_epochs_of_many_partitions_are_looked_up_at_once() -> None:
    """It took time by the square: seconds of a turn of the loop, of 10,000 partitions."""
    shard = Routing()
    source = shard.make(SOURCE, 300)
    looks = []
    scan = shard.state.scan
    shard.state.scan = lambda start, end: looks.append(start) or scan(start, end)  # type: ignore
    red = shard.filter("red", SOURCE)
    shard.configure(red, **{FROM: SOURCE, FILTER: "key:b"})
    assert len(looks) < 10
    assert all(b"key:b" in shard.found(source, red, n).epochs[0].spec for n in (0, 299))


def test_a_new_queue_whose_route_another_shard_refuses_goes_again() -> None:
    home, other = Routing(0, 2), Routing(1, 2)
    crowd(other, FOREIGN)
    name = names_of(0)[1]
    red = home.filter(name, FOREIGN)
    asked = DefineRoute(red, FOREIGN, SPEC, False, 0).envelope()
    assert other.apply(asked).code == Code.POLICY_VIOLATION
    outcome = home.apply(QueueReady(red, 0, refused=True).envelope())
    assert (outcome.code, outcome.queue) == (Code.POLICY_VIOLATION, outcome.queue)
    assert outcome.queue is not None
    assert home.state.queue(name) is None
    assert home.state.partition((red, 0)) is None
    assert home.apply(QueueReady(red, 0, refused=True).envelope()).code == Code.NONE  # again


def test_a_queue_whose_new_route_another_shard_refuses_goes_without() -> None:
    home = Routing(0, 2)
    name = names_of(0)[1]
    red = home.make(name, retention_ms="5")
    home.configure(red, **{FROM: FOREIGN, FILTER: "key:a", "retention.ms": "5"})
    late = QueueReady(red, 0, refused=True).envelope()
    assert home.apply(late).code == Code.NONE  # there is other news to tell by now
    outcome = home.apply(QueueReady(red, 1, refused=True).envelope())
    assert outcome.code == Code.POLICY_VIOLATION
    assert home.queue(name).configs == {"retention.ms": "5"}
    assert home.state.get(rows.pending_assignment_key(red)) is not None  # that it has none


# -- cuts


def test_cuts_follow_each_other() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    shard.put(queue_id, 5)
    assert shard.cut(queue_id, 0, 3, parts=4, made=2).number == 3
    assert shard.found(queue_id, queue_id)[:4] == (0, 3, 4, 2)
    for after, through in ((0, 3), (0, 5), (2, 5), (4, 5), (3, 2), (3, 6)):
        assert shard.cut(queue_id, after, through).code == Code.NOT_LEADER_OR_FOLLOWER
    assert shard.cut(queue_id, 3, 3, made=1).code == Code.NONE
    assert shard.found(queue_id, queue_id)[:4] == (3, 3, 1, 3)
    assert shard.state.passed_on((queue_id, 0)) == 3
    assert shard.cut(QueueId(b"?" * 16), 0, 0).code == Code.UNKNOWN_TOPIC_ID


def test_a_cut_of_a_deposed_owner_is_void() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    shard.put(queue_id)
    claim = Claim().envelope()
    claim.writer = 7
    shard.apply(claim)
    assert shard.cut(queue_id, 0, 1).code == Code.NOT_LEADER_OR_FOLLOWER
    made = Cut((queue_id, 0), queue_id, 0, 1, 1).envelope()
    made.writer = 7
    assert shard.apply(made).number == 1


def test_epochs_that_have_landed_are_forgotten() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    for number in range(3):
        shard.put(queue_id)
        shard.configure(queue_id, **ENTRANCE | {TO: f"e{number}-{{key}}"})
    assert [one_.start for one_ in shard.found(queue_id, queue_id).epochs] == [0, 1, 2, 3]
    shard.cut(queue_id, 0, 1)
    assert [one_.start for one_ in shard.found(queue_id, queue_id).epochs] == [0, 1, 2, 3]
    shard.cut(queue_id, 1, 2)
    assert [one_.start for one_ in shard.found(queue_id, queue_id).epochs] == [1, 2, 3]


# -- what is shipped


def test_targets_are_made_and_found_by_name() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    known = shard.make("known", 3)
    shard.put(queue_id, 4)
    shard.cut(queue_id, 0, 4)
    configs = {"retention.ms": "7"}
    outcome = shard.apply(
        ship((queue_id, 0), queue_id, 4, to("new", "known", "other"), configs=configs, look_ms=9)
    )
    assert (outcome.number, outcome.numbers) == (3, (2,))
    assert [queue.name for queue in outcome.made] == ["new", "other"]
    assert [shard.values(name) for name in ("new", "known", "other")] == [1, 1, 1]
    made = shard.queue("new")
    assert (made.partitions, made.wanted, made.configs) == (1, 1, configs)
    stored = present(shard.state.batch_at((made.queue_id, 0), 0))
    assert stored.routed
    assert stored.log_offset == len(shard.log) - 1
    data = bytes(shard.segments.data[stored.position : stored.position + stored.length])
    assert data == one(b"new")
    due = [rows.retention_due_of(key) for key, _ in shard.kv.scan(b"c", b"d")]
    assert (9, (made.queue_id, 0)) in due
    assert (1, (known, 0)) in due  # it has other settings: who looks will see


def test_ids_are_those_of_the_home_shard_and_unique() -> None:
    found: set[QueueId] = set()
    for index in range(3):
        shard = Routing(index, 3)
        for through in (1, 2):
            for part in (0, 1):
                names = [n for n in (f"{through}{part}{i}" for i in range(60))
                         if shard_of(n, 3) == index]  # fmt: skip
                salt = (1 << 62) - through
                shard.apply(
                    ship(
                        (DEFINER, 0), DEFINER, through, to(*names), part, salt=salt, time_ms=through
                    )
                )
                ids = {shard.queue(name).queue_id for name in names if part == 0}
                assert len(ids) == (len(names) if part == 0 else 0)
                assert all(home_of(one_, 3) == index for one_ in ids)
                assert not ids & found
                found |= ids


def test_taken_cut_is_void_and_others_are_not() -> None:
    shard = Routing(1, 2)
    name, source = names_of(1)[0], (DEFINER, 0)

    def send(through: int, part: int, *, shipped: PartitionKey = source,
             definer: QueueId = DEFINER) -> int:  # fmt: skip
        return shard.apply(ship(shipped, definer, through, to(name), part)).number

    assert [send(5, 1), send(5, 1), send(5, 0), send(5, 63), send(5, 63)] == [1, -1, 1, 1, -1]
    assert [send(9, 0), send(5, 2), send(5, 1), send(9, 1), send(9, 0)] == [1, -1, -1, 1, -1]
    assert send(5, 0, shipped=(DEFINER, 1)) == 1
    assert send(5, 0, definer=QueueId(b"e" * 16)) == 1
    voids = [key for key, _ in shard.kv.scan(b"v", b"w")]
    assert len(voids) == 5
    assert shard.values(name) == 7


def test_filter_refuses_a_cut_of_which_it_has_taken_some_before() -> None:
    """Its mark among the definitions was forgotten; what has landed says up to where."""
    shard = Routing(1, 2)
    name = names_of(1)[0]
    definer, source = shard.make(name), (QueueId(b"s" * 16), 0)

    def send(after: int, through: int) -> tuple[int, int, tuple[int, ...]]:
        body = to(name)
        outcome = shard.apply(ship(source, definer, through, body, only=True, after=after))
        return outcome.code, outcome.number, outcome.numbers

    taken, void = (0, 1, (0,)), (0, -1, (0,))
    assert [send(0, 100), send(0, 60), send(60, 100)] == [taken, void, void]
    assert send(60, 250) == (Code.OFFSET_OUT_OF_RANGE, -1, (100,))
    assert shard.values(name) == 1
    assert [send(100, 250), send(60, 250), send(250, 260)] == [taken, void, taken]
    assert send(-1, 270) == taken  # an older kproxy does not say
    assert shard.values(name) == 4


def test_a_part_of_what_is_not_cut_is_not_taken() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    shard.put(queue_id, 5)
    shard.cut(queue_id, 0, 3)
    for through in (2, 5):
        outcome = shard.apply(ship((queue_id, 0), queue_id, through, to("a")))
        assert outcome.code == Code.NOT_LEADER_OR_FOLLOWER
    assert shard.values("a") == -1
    assert shard.apply(ship((queue_id, 0), queue_id, 3, to("a"))).number == 1


def test_nothing_is_taken_of_a_source_that_is_gone() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    shard.put(queue_id)
    shard.cut(queue_id, 0, 1)
    shard.apply(DeleteQueue(queue_id).envelope())
    assert shard.apply(ship((queue_id, 0), queue_id, 1, to("a"))).code
    assert shard.values("a") == -1


def test_a_deleted_target_is_made_anew() -> None:
    shard = Routing(1, 2)
    name = names_of(1)[0]
    shard.apply(ship((DEFINER, 0), DEFINER, 1, to(name)))
    before = shard.queue(name).queue_id
    shard.apply(DeleteQueue(before).envelope())
    shard.apply(ship((DEFINER, 0), DEFINER, 2, to(name), time_ms=2))
    assert shard.queue(name).queue_id != before
    assert shard.values(name) == 1


def test_queue_looked_up_before_its_first_record_has_the_settings_of_its_route() -> None:
    shard = Routing(1, 2)
    names = names_of(1, prefix="looked")[:4]
    looked, used, asked, plain = names
    for name in (looked, used, plain):
        queue_id = QueueId(next(shard.numbers).to_bytes(16, "big"))
        shard.apply(CreateQueue(queue_id, name, 1, {}, True).envelope())
    shard.make(asked)
    shard.put(shard.queue(used).queue_id)
    settings = {"retention.ms": "5"}
    made = Ship.envelope(
        (DEFINER, 0), DEFINER, 1, 0, Batches.of(to(*names), plain), only=False, salt=1,
        time_ms=1, look_ms=1, configs=settings,
    )  # fmt: skip
    outcome = shard.apply(made)
    assert [shard.queue(name).configs for name in names] == [settings, {}, {}, {}]
    assert (outcome.numbers, [one.name for one in outcome.made]) == ((0,), [looked])
    assert not shard.queue(looked).unasked
    row = present(shard.state.get(b"q" + plain.encode()))
    assert row.endswith(b"{}")  # as an older kproxy reads it: no settings
    shard.configure(shard.queue(plain).queue_id)
    assert not shard.queue(plain).unasked


def test_a_target_that_others_take_from_has_their_routes() -> None:
    shard = Routing()
    queue_id = shard.entrance("in")
    red = shard.filter("red", "d-a")
    shard.put(queue_id)
    shard.cut(queue_id, 0, 1)
    shard.apply(ship((queue_id, 0), queue_id, 1, to("d-a")))
    target = shard.queue("d-a").queue_id
    assert shard.found(target, red).cut == 0
    assert present(shard.state.batch_at((target, 0), 0)).routed  # and so is not passed on


@pytest.mark.parametrize("most", [1, 2, 3])
def test_sources_that_are_too_many_to_remember_are_looked_up(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_definitions, "_SOURCES_MAX", most)
    shard = Routing()
    queue_id = shard.entrance("in")
    definers = [shard.filter(f"red-{n}", f"d-{n}") for n in range(2)]
    shard.put(queue_id)
    shard.cut(queue_id, 0, 1)
    for fold in (shard.fold, Fold(shard.state, ShardId(0), 1)):  # one that was restarted, too
        told = fold._routes.definitions.routes_from
        assert [[one.definer for one in told(f"d-{n}")] for n in range(3)] == [
            *[[one] for one in definers], [],
        ]  # fmt: skip
    shard.apply(ship((queue_id, 0), queue_id, 1, to("d-1", "d-2")))
    assert shard.found(shard.queue("d-1").queue_id, definers[1]).cut == 0
    assert not present(shard.state.partition((shard.queue("d-2").queue_id, 0))).any_routes


@pytest.mark.parametrize("there", [True, False])
def test_a_filter_takes_its_own_alone(there: bool) -> None:
    shard = Routing(1, 2)
    name = names_of(1)[0]
    mine = shard.make(name)
    definer = mine if there else DEFINER  # the definer is of an earlier queue of this name
    outcome = shard.apply(ship((QueueId(b"s" * 16), 0), definer, 3, to(name), only=True))
    assert outcome.number == (1 if there else -1)
    assert outcome.code == Code.NONE
    assert shard.values(name) == (1 if there else 0)
    assert any(True for _ in shard.kv.scan(b"v", b"w")) is not there


def test_a_target_of_more_partitions_takes_it_in_the_first() -> None:
    shard = Routing(1, 2)
    name = names_of(1)[0]
    shard.make(name, 4)  # other shards are not told yet
    shard.apply(ship((DEFINER, 0), DEFINER, 1, to(name)))
    assert shard.values(name) == 1


def test_offsets_and_times_go_on_from_what_is_there() -> None:
    shard = Routing(1, 2)
    name = names_of(1)[0]
    queue_id = shard.make(name)
    shard.put(queue_id, 3)
    shard.apply(ship((DEFINER, 0), DEFINER, 1, [(name, batch(b"1", b"2", times=(8, 9)))]))
    row = present(shard.state.partition((queue_id, 0)))
    assert (row.next_offset, row.max_time_ms, row.max_time_offset) == (5, 9, 4)
    shard.put(queue_id)
    first, second, third = (batch for _, batch in shard.state.batches((queue_id, 0), 0, 9))
    assert [first.routed, second.routed, third.routed] == [False, True, False]
    assert second.size_through == first.size_through + second.length


def test_landed_offsets_are_forgotten_where_nothing_comes_any_more() -> None:
    shard = Routing(1, 2)
    name, source, other = names_of(1)[0], (DEFINER, 0), (DEFINER, 1)
    for key, time_ms in ((source, 5), (other, 6)):
        shard.apply(ship(key, DEFINER, 1, to(name), time_ms=time_ms))
    shard.apply(ForgetLanded([(DEFINER, source), (DEFINER, other), (DEFINER, (DEFINER, 2))], 5)
                .envelope())  # fmt: skip
    left = [ROUTE_PARTS.parts(key) for key, _ in shard.kv.scan(b"V", b"W")]
    assert left == [(DEFINER, other)]


def test_the_body_of_a_ship_begins_as_a_batch_does() -> None:
    """A reader that looks for damaged frames finds a base offset and a length in their places."""
    made = ship((DEFINER, 0), DEFINER, 1 << 40, to("a", "b"))
    header = read_header(made.body)
    assert header.length + 12 == len(made.body)
    asked = Ship.decode(made)
    for target in asked.targets:
        data = bytes(made.body[target.position : target.position + target.length])
        assert data == one(target.name.encode())
