"""Races of the server's own deeds with requests of clients. Run with -s to see how each ended."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kproxy.loop.pace import slices
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.batch import read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.protocol.records import bodies, unpacked
from kproxy.virtual.partitioner import shard_of
from tests.bodies import creation
from tests.harness import eventually, served
from tests.wire import Wire, batch, batches, keyed, produce_values
from tests.workers import Site, Workers

pytestmark = pytest.mark.long

FLAGS = ("--keeper-period-ms", "50")
INVALID_RECORD = 87
LOT = 1000


@pytest.fixture(params=["embedded", "kafka"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "embedded":
        with served(tmp_path / "data", *FLAGS) as server:
            yield server
    else:
        kafka = request.getfixturevalue("kafka")
        with Workers(kafka, tmp_path, *FLAGS, count=2, shards=8).running() as workers:
            yield workers


class Pipe:
    """A connection on which requests go out when they are to, whatever was answered by then."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.answers: list[tuple[str, int, float]] = []
        """The name of each request, the code of its answer, and when that came (`time.time`)."""
        self._asked: list[str] = []
        self._sent = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def produce(self, what: str, queue: str, data: bytes) -> None:
        self._asked.append(what)
        self.wire.socket.sendall(self.wire.frame(ApiKey.PRODUCE, 9, produce_values(queue, data)))
        self._sent.release()

    def _receive(self) -> None:
        while self._sent.acquire() and (number := len(self.answers)) < len(self._asked):
            part = self.wire.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses[0]
            self.answers.append((self._asked[number], int(part.error_code), time.time()))

    def end(self) -> list[tuple[str, int, float]]:
        """Return all answers, once they are there."""
        self._sent.release()
        self._thread.join(120)
        assert len(self.answers) == len(self._asked)
        return self.answers


@contextmanager
def pipes_to(site: Site, names: list[str]) -> Iterator[dict[str, Pipe]]:
    """Yield the pipe to the owner of each of these queues."""
    with ExitStack() as stack:
        servers = site.workers if isinstance(site, Workers) else [site]
        wires = [stack.enter_context(Wire(one.host, one.port, seconds=120)) for one in servers]
        pipes = [Pipe(wire) for wire in wires]
        if isinstance(site, Workers):
            owners = site.owners()
            yield {name: pipes[owners[shard_of(name, site.shards)]] for name in names}
        else:
            yield dict.fromkeys(names, pipes[0])


def wait_until(at: float) -> None:
    """Wait for a time of `time.time`."""
    left = at - time.time()
    if left > 0:
        time.sleep(left)


# -- queues that expire

QUEUES = 10_000
IDLE_MS = 60_000  # the least
CREATED_EACH_S = 3.0
AHEAD_S, SPREAD_S = 1.0, 2.0
"""The writes to a lot of queues begin so long before it is due, and take so long."""


def make_lots(site: Site, names: list[str]) -> tuple[dict[str, Any], list[float]]:
    """Make queues that expire. Return their ids, and when each lot of them was made."""
    ids: dict[str, Any] = {}
    made: list[float] = []
    with site.wire(names[0]) as wire:
        wire.socket.settimeout(120)
        for some in slices(names, LOT):
            began = time.time()
            values = creation(*some, configs={"kproxy_expire_idle_ms": str(IDLE_MS)})
            for topic in wire.call(ApiKey.CREATE_TOPICS, 7, values).topics:
                assert topic.error_code == 0, topic
                ids[topic.name] = topic.topic_id
            made.append(time.time())
            wait_until(began + CREATED_EACH_S)
    return ids, made


def test_no_acknowledged_record_goes_with_a_queue_that_expires(site: Site) -> None:
    """Each queue is written to about when it goes; one that is gone is made anew by the write."""
    names = [f"reply-{number}" for number in range(QUEUES)]
    ids, made = make_lots(site, names)
    rng = random.Random(43)
    with pipes_to(site, names) as pipes:
        for some, at in zip(slices(names, LOT), made, strict=True):
            rng.shuffle(some)
            for number, name in enumerate(some):
                wait_until(at + IDLE_MS / 1000 - AHEAD_S + number * SPREAD_S / LOT)
                pipes[name].produce(name, name, batch(b"v"))
        answers = [one for pipe in set(pipes.values()) for one in pipe.end()]
    taken = {name for name, code, _ in answers if code == 0}
    refused = Counter(code for _, code, _ in answers if code)
    lost, anew = [], 0
    for name in taken:
        with site.wire(name) as wire:
            topic = wire.metadata(name, create=False).topics[0]
            if wire.list_offset(name, -1).offset != 1 or not wire.fetch(name, 0).records:
                lost.append(name)
            anew += topic.topic_id != ids[name]
    print(  # noqa: T201
        f"\n{QUEUES} queues: {len(taken) - anew} kept by the write, {anew} gone before it,"
        f" refused {dict(refused)}, lost {len(lost)}"
    )
    assert not lost
    assert len(taken) > 0.9 * QUEUES
    assert min(anew, len(taken) - anew) > QUEUES / 100, "they hardly met"


# -- waiting records that are cancelled

SCHEDULES, RACED, FIRING = 100_000, 10_000, 500
STEP_MS, EARLY_MS = 2, 5
"""Records are due so far apart, and cancelled so early at most."""
HOUR_MS = 3_600_000


def about(due_ms: int, rng: random.Random) -> int:
    """Return when to cancel what is due: mostly within some ms, where all is quick; of a server
    that has little CPU up to two seconds later."""
    return due_ms - EARLY_MS + int(10 ** rng.uniform(0, 3.3))


def saying(keys: list[str], headers: list[dict[str, int]]) -> bytes:
    now_ms = int(time.time() * 1000)
    pieces = []
    for key, said in zip(keys, headers, strict=True):
        made = [header(f"kproxy.{name}", str(value)) for name, value in said.items()]
        pieces.append((body_of(Content(key.encode(), b"v"), made), now_ms))
    return batch_of_bodies(pieces)


def put(wire: Wire, queue: str, data: bytes) -> int:
    return int(wire.produce(queue, data).error_code)


def delivered(wire: Wire, queue: str) -> dict[str, list[int]]:
    """Return when each key's records were appended, in ms."""
    found: dict[str, list[int]] = {}
    offset, end = 0, wire.list_offset(queue, -1).offset
    while offset < end:
        for _, data in batches(wire.fetch(queue, offset).records):
            head = read_header(data)
            for record in bodies(head, unpacked(data), headers=False):
                key = (record[2] or b"").decode()
                found.setdefault(key, []).append(head.max_timestamp)
            offset = head.base_offset + head.last_offset_delta + 1
    return found


def test_a_cancellation_in_the_millisecond_of_its_record_says_which_came_first(site: Site) -> None:
    """100,000 schedules wait beside it."""
    queue, rng = "reminders", random.Random(43)
    raced = [f"raced-{number}" for number in range(RACED)]
    firing = [f"firing-{number}" for number in range(FIRING)]
    with site.wire(queue) as wire:
        wire.socket.settimeout(120)
        assert wire.create(queue, kproxy_delay="header", kproxy_delay_replace="key").error_code == 0
        eventually(lambda: wire.list_offset(queue, -1).error_code == 0, 30)
    with site.wire(queue) as wire:
        wire.socket.settimeout(120)
        for some in slices([f"every-{number}" for number in range(SCHEDULES)], LOT):
            assert put(wire, queue, saying(some, [{"every": HOUR_MS}] * len(some))) == 0
        base_ms = int(time.time() * 1000) + 15_000
        due = {key: base_ms + STEP_MS * number for number, key in enumerate(raced)}
        for some in slices(raced, LOT):
            said = [{"deliver-at": due[key]} for key in some]
            assert put(wire, queue, saying(some, said)) == 0
        said = [{"every": 1000, "deliver-at": base_ms + number} for number in range(FIRING)]
        assert put(wire, queue, saying(firing, said)) == 0
        assert time.time() * 1000 < base_ms, "the machine is too slow for these times"
        for number, key in enumerate(firing):
            due[key] = base_ms + number + 1000 * rng.randrange(1, STEP_MS * RACED // 1000)
        plan = sorted((about(at, rng), key) for key, at in due.items())
        with pipes_to(site, [queue]) as pipes:
            for at, key in plan:
                wait_until(at / 1000)
                pipes[queue].produce(key, queue, keyed((key.encode(), None)))
            answers = pipes[queue].end()
        time.sleep(3)  # for records that are due still, and for those that must not come
        found = delivered(wire, queue)
        for key in firing[:50]:
            assert put(wire, queue, keyed((key.encode(), None))) == INVALID_RECORD
        assert put(wire, queue, keyed((b"every-7", None))) == 0
        assert put(wire, queue, keyed((b"every-7", None))) == INVALID_RECORD
    codes = Counter((key.partition("-")[0], code) for key, code, _ in answers)
    print(f"\n{SCHEDULES} wait; {dict(codes)}")  # noqa: T201
    for key, code, at in answers:
        times = found.get(key, [])
        if key in raced or not code:
            assert code in (0, INVALID_RECORD), (key, code)
        if key.startswith("raced"):
            assert len(times) == (1 if code else 0), (key, code, times)
        else:
            assert code == 0, "a schedule waits again in the step that appends it"
            assert max(times, default=0) <= at * 1000 + 1, (key, at, times)
    assert found.keys() <= {*raced, *firing}
    assert min(codes["raced", 0], codes["raced", INVALID_RECORD]) > RACED / 100, "hardly a race"
