"""Work of every kind on a server whose power is cut, and what must be left of it.

Each actor has a connection and a thread. It notes each answer with the place in the trace. After a
cut it holds the queues against the notes from before the cut.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.records import keyed_records, unpacked
from tests import bodies
from tests.harness import Served
from tests.wire import Wire, batch, batches, fetch_values, keyed, produce_values, record

_EXISTS, _STILL_ENDING = 36, 51
_TOPIC = 2  # a kind of resource
_SOON_S = 120.0
_ABORT = bytes(4)


class Found(NamedTuple):
    """A record of a queue, as a reader has it."""

    offset: int
    key: bytes


class Actor(ABC):
    """Somebody who works on queues of his own."""

    queues: tuple[str, ...] = ()

    def __init__(self, now: Callable[[], int], rng: random.Random) -> None:
        self.settings: dict[str, dict[str, str]] = {}
        self._now = now
        self.rng = rng
        self.notes: list[tuple[int, Any]] = []
        self.error: BaseException | None = None

    def note(self, fact: Any) -> None:
        self.notes.append((self._now(), fact))

    def known(self) -> list[Any]:
        return [fact for _, fact in self.notes]

    def prepare(self, wire: Wire) -> None:
        for name in self.queues:
            assert wire.create(name, **self.settings.get(name, {})).error_code in (0, _EXISTS)

    @abstractmethod
    def step(self, wire: Wire) -> None:
        """Ask for something, and note the answer."""

    @abstractmethod
    def check(self, wire: Wire) -> None:
        """Hold what is there against the notes, and go on from it."""

    def run(self, server: Served) -> None:
        try:
            with Wire(server.host, server.port, _SOON_S) as wire:
                self.prepare(wire)
                while True:
                    self.step(wire)
        except OSError:
            return  # the cut
        except BaseException as error:
            self.error = error

    def cut(self, at: int) -> None:
        """Forget what was answered behind the cut; the rest is on disk."""
        self.notes = [(-1, fact) for place, fact in self.notes if place <= at]


def read(wire: Wire, queue: str, start: int = 0, *, committed: bool = False) -> list[Found]:
    """Return the records of a queue from an offset on."""
    found: list[Found] = []
    offset, aborting, end = start, set[int](), -1
    until = time.monotonic() + _SOON_S
    while True:
        values = fetch_values({(queue, 0): offset}, isolation=int(committed))
        part = wire.call(ApiKey.FETCH, 12, values).responses[0].partitions[0]
        assert part.error_code == 0, (queue, offset, part.error_code)
        end = part.last_stable_offset if committed else part.high_watermark
        if offset >= end and (not committed or end == part.high_watermark):
            return found
        assert time.monotonic() < until, (queue, offset, end, part.high_watermark)
        pending = sorted((a.first_offset, a.producer_id) for a in part.aborted_transactions or ())
        for base, data in batches(part.records):
            header = read_header(data)
            offset = base + header.last_offset_delta + 1
            while pending and pending[0][0] < offset:
                aborting.add(pending.pop(0)[1])
            if header.is_control:
                if next(keyed_records(header, data[HEADER_BYTES:])).key == _ABORT:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                every = keyed_records(header, unpacked(data))
                some = (Found(base + one.offset_delta, one.key or b"") for one in every)
                found += (one for one in some if one.offset >= start)


def _key(number: int) -> bytes:
    return b"%d" % number


class Writer(Actor):
    """An idempotent producer that numbers its records, and repeats what is not answered."""

    def __init__(self, name: str, *more: Any, delay: bool = False, route: bool = False) -> None:
        super().__init__(*more)
        self.name = name
        self.queues = (name,)
        self._delayed = delay
        if delay:
            self.settings = {name: {"kproxy_delay_ms": "150"}}
        if route:
            self.queues += (f"{name}-routed",)
            self.settings = {f"{name}-routed": {"kproxy_route_from": name}}
        self._next = 0  # the next number: none comes again
        self._pid, self._sequence = -1, 0
        self._last: tuple[range, bytes] | None = None
        """The batch that was sent last, which may be sent again."""

    def step(self, wire: Wire) -> None:
        if self._pid < 0:
            self._pid, self._sequence = wire.producer_id(), 0
        count = self.rng.choice((1, 1, 3, 20))
        size = self.rng.choice((10, 100, 5000))
        numbers = range(self._next, self._next + count)
        data = keyed(
            *((_key(number), self.rng.randbytes(size)) for number in numbers),
            producer_id=self._pid, epoch=0, sequence=self._sequence,
        )  # fmt: skip
        self._last, self._next = (numbers, data), numbers.stop
        self._sequence += count
        self._send(wire, *self._last)
        if self.rng.random() < 0.1:  # a reader may have come so far
            self.note((range(0), wire.list_offset(self.name, -1).offset))

    def _send(self, wire: Wire, numbers: range, data: bytes) -> None:
        answer = wire.produce(self.name, data)
        assert answer.error_code == 0, (self.name, answer)
        self.note((numbers, answer.base_offset))

    def cut(self, at: int) -> None:
        before = len(self.notes)
        super().cut(at)
        if len(self.notes) < before:  # it does not know how many of its batches are there
            self._pid, self._last = -1, None

    def check(self, wire: Wire) -> None:
        if self._pid >= 0 and self._last is not None:
            self._send(wire, *self._last)
        self._pid, self._last = -1, None
        said = {number for numbers, _ in self.known() for number in numbers}
        found = read(wire, self.name)
        until = time.monotonic() + _SOON_S
        while self._delayed and not said <= set(_numbers(found)) and time.monotonic() < until:
            time.sleep(0.05)
            found += read(wire, self.name, len(found))
        _check_order(self.name, found, said)
        there = {number: one.offset for number, one in zip(_numbers(found), found, strict=True)}
        for numbers, offset in self.known():
            assert numbers or len(found) >= offset, (self.name, len(found), offset)
            if numbers and not self._delayed:
                assert there[numbers[0]] == offset, (self.name, numbers, offset)
        for target in self.queues[1:]:
            passed_on: list[Found] = []
            while len(passed_on) < len(found) and time.monotonic() < until:
                passed_on += read(wire, target, len(passed_on))
            assert passed_on == found, (target, len(found), len(passed_on))


def _numbers(found: list[Found]) -> list[int]:
    return [int(one.key) for one in found]


def _check_order(name: str, found: list[Found], said: set[int]) -> None:
    """Check that all that was answered is there, and everything once and in order."""
    numbers = _numbers(found)
    assert [one.offset for one in found] == list(range(len(found))), name
    wrong = [pair for pair in pairwise(numbers) if pair[0] >= pair[1]]
    assert not wrong, (name, wrong[:5])
    lost = said.difference(numbers)
    assert not lost, (name, sorted(lost)[:5], len(found))


class Transactions(Actor):
    """A transactional producer that writes each number into two queues, or into neither."""

    queues = ("txn-a", "txn-b")

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._number, self._sequence = 0, 0
        self._pid, self._epoch = -1, -1

    def _begin(self, wire: Wire) -> None:
        values = {"transactional_id": "txn", "transaction_timeout": 60000, "producer_id": -1,
                  "producer_epoch": -1}  # fmt: skip
        answer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, values)
        while answer.error_code == _STILL_ENDING:
            answer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, values)
        assert answer.error_code == 0, answer
        self._pid, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0

    def step(self, wire: Wire) -> None:
        if self._pid < 0:
            self._begin(wire)
        named = {"transactional_id": "txn", "producer_id": self._pid, "producer_epoch": self._epoch}
        topics = [{"name": name, "partitions": (0,)} for name in self.queues]
        asked = named | {"topics": topics}
        older = {f"v3_and_below_{name}": value for name, value in asked.items()}
        added = wire.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, older).results_by_topic_v3_and_below
        codes = {p.partition_error_code for t in added for p in t.results_by_partition}
        if codes == {_STILL_ENDING}:
            return
        assert codes == {0}, codes
        self._number += 1
        for name in self.queues:
            packed = record(0, self.rng.randbytes(200), _key(self._number))
            data = batch(
                b"", packed=packed, attributes=0x10, producer_id=self._pid, epoch=self._epoch,
                sequence=self._sequence,
            )  # fmt: skip
            asked = produce_values(name, data) | {"transactional_id": "txn"}
            answer = wire.call(ApiKey.PRODUCE, 9, asked).responses[0].partition_responses[0]
            assert answer.error_code == 0, answer
        self._sequence += 1
        commit = self.rng.random() < 0.7
        ended = wire.call(ApiKey.END_TXN, 3, named | {"committed": commit})
        assert ended.error_code == 0, ended
        self.note((self._number, commit))

    def check(self, wire: Wire) -> None:
        self._begin(wire)  # ends what is open
        first, second = ([int(one.key) for one in read(wire, name, committed=True)]
                         for name in self.queues)  # fmt: skip
        assert first == second == sorted(set(first)), (first[-5:], second[-5:])
        for number, committed in self.known():
            assert (number in set(first)) == committed, (number, committed)


class Commits(Actor):
    """A consumer that commits its offsets."""

    queues = ("committed",)

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._offset = 0

    def step(self, wire: Wire) -> None:
        self._offset += 1
        asked = bodies.commit("g", self.queues[0], self._offset, text=str(self._offset))
        part = wire.call(ApiKey.OFFSET_COMMIT, 8, asked).topics[0].partitions[0]
        assert part.error_code == 0, part
        self.note(self._offset)

    def check(self, wire: Wire) -> None:
        asked = [{"name": self.queues[0], "partition_indexes": (0,)}]
        groups = {"groups": [{"group_id": "g", "topics": asked}], "require_stable": False}
        group = wire.call(ApiKey.OFFSET_FETCH, 8, groups).groups[0]
        part = group.topics[0].partitions[0]
        assert max(self.known(), default=-1) <= part.committed_offset <= self._offset, part
        assert part.metadata in ("", str(part.committed_offset)), part


class Lives(Actor):
    """Somebody who makes queues and deletes them."""

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._made = 0
        self._doomed: set[int] = set()
        """The queues whose deletion was asked for."""

    def step(self, wire: Wire) -> None:
        number, self._made = self._made, self._made + 1
        name = f"life-{number}"
        code = wire.create(name).error_code
        assert code in (0, _EXISTS), code
        self.note((number, True))
        assert wire.produce(name, batch(b"x" * self.rng.randrange(3000))).error_code == 0
        if self.rng.random() < 0.8:
            self._doomed.add(number)
            code = wire.delete(name).error_code
            assert code == 0, code
            self.note((number, False))

    def check(self, wire: Wire) -> None:
        for number, there in dict(self.known()).items():
            code = wire.metadata(f"life-{number}", create=False).topics[0].error_code
            if not there or number not in self._doomed:
                assert code == (0 if there else 3), (number, code)


class Settings(Actor):
    """Somebody who changes a setting of a queue."""

    queues = ("set",)

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._value = 100_000_000

    def step(self, wire: Wire) -> None:
        self._value += 1
        asked = bodies.change_to(_TOPIC, self.queues[0], {"retention_ms": str(self._value)})
        answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, asked).responses[0]
        assert answer.error_code == 0, answer
        self.note(self._value)

    def check(self, wire: Wire) -> None:
        resource = {"resource_type": _TOPIC, "resource_name": self.queues[0],
                    "configuration_keys": ["retention.ms"]}  # fmt: skip
        asked = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
        (found,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, asked).results[0].configs
        said = max(self.known(), default=0)
        assert not said or said <= int(found.value) <= self._value, (found.value, said)


class Trims(Actor):
    """Somebody who deletes the records of a queue from its start on."""

    queues = ("trimmed",)

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._end = 0

    def step(self, wire: Wire) -> None:
        data = keyed(*((_key(self._end + i), self.rng.randbytes(2000)) for i in range(5)))
        answer = wire.produce(self.queues[0], data)
        assert (answer.error_code, answer.base_offset) == (0, self._end), answer
        self._end += 5
        self.note(("end", self._end))
        offset = self.rng.randrange(self._end + 1)
        asked = {"timeout": 5000, "topics": [
            {"name": self.queues[0], "partitions": [{"partition_index": 0, "offset": offset}]}
        ]}  # fmt: skip
        part = wire.call(ApiKey.DELETE_RECORDS, 2, asked).topics[0].partitions[0]
        if part.error_code == 0:
            self.note(("start", part.low_watermark))

    def check(self, wire: Wire) -> None:
        said = {what: max([n for w, n in self.known() if w == what], default=0)
                for what in ("start", "end")}  # fmt: skip
        start = wire.list_offset(self.queues[0], -2).offset
        assert start >= said["start"], (start, said)
        found = read(wire, self.queues[0], start)
        assert found == [Found(start + n, _key(start + n)) for n in range(len(found))], found[:5]
        assert start + len(found) >= said["end"], (start, len(found), said)
        self._end = start + len(found)


class Compacted(Actor):
    """A writer of keys, each of which stays with its last value."""

    queues = ("compacted",)

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self.settings = {"compacted": {
            "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "50",
        }}  # fmt: skip

    def step(self, wire: Wire) -> None:
        name = _key(self.rng.randrange(7))
        answer = wire.produce(self.queues[0], keyed((name, self.rng.randbytes(500))))
        assert answer.error_code == 0, answer
        self.note((name, answer.base_offset))

    def check(self, wire: Wire) -> None:
        found = read(wire, self.queues[0])
        offsets = [one.offset for one in found]
        assert offsets == sorted(set(offsets))
        last, end = {one.key: one.offset for one in found}, wire.list_offset("compacted", -1).offset
        said = dict(self.known())
        for name, offset in said.items():
            assert last.get(name, -1) >= offset, (name, offset, last.get(name))
        assert end >= max(said.values(), default=-1) + 1


def actors(now: Callable[[], int], rng: random.Random) -> list[Actor]:
    """Return one of each kind."""
    mine: Iterator[random.Random] = iter(lambda: random.Random(rng.random()), None)
    made: list[Actor] = [Writer("plain", now, next(mine)), Writer("other", now, next(mine))]
    made.append(Writer("later", now, next(mine), delay=True))
    made.append(Writer("source", now, next(mine), route=True))
    made += [
        kind(now, next(mine)) for kind in (Transactions, Commits, Lives, Settings, Trims, Compacted)
    ]
    return made


def work(server: Served, some: list[Actor]) -> list[threading.Thread]:
    """Have all of them work until the server is gone."""
    threads = [threading.Thread(target=one.run, args=(server,), daemon=True) for one in some]
    for thread in threads:
        thread.start()
    return threads


def check(server: Served, some: list[Actor]) -> None:
    """Check what all of them find."""
    with Wire(server.host, server.port, _SOON_S) as wire:
        for one in some:
            one.prepare(wire)
            one.check(wire)
