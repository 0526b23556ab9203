"""Clients of all kinds that work while the Kafka below is disturbed, and what they say afterwards.

Each kind works on a thread of its own until it is stopped. `Stalls` looks at how far each has come.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition

from tests.clients.calls import WAIT_S, alter, consumer, create
from tests.clients.shares.members import configure
from tests.clients.shares.test_dead_letters import ENABLED
from tests.clients.transactions import exactly_once
from tests.clients.transactions.calls import settle, transactional
from tests.faults import sharing, test_delays, test_routes
from tests.faults.servers import Servers
from tests.harness import eventually
from tests.histories.checker import assert_sound, check
from tests.histories.operations import Recorder
from tests.on_kafka.load import Load

SETTLED_S = 120
_LOOK_S = 0.1


def anomalies(history: Path) -> list[str]:
    """Return what a history has that is not sound."""
    try:
        assert_sound(history)
    except AssertionError as error:
        return [str(error)[:4000]]
    return []


class Client(ABC):
    """A kind of client at work on a thread."""

    name: str

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(4 * WAIT_S)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.work()
        except Exception as error:  # told by the test
            self.error = error

    @abstractmethod
    def work(self) -> None:
        """Do a little."""

    @abstractmethod
    def done(self) -> dict[str, int]:
        """Return how much was done, by what is to go on."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Return what is wrong, once all has ended."""


class Plain(Client):
    """Idempotent producers of twelve queues, a reader that follows, and a group that commits."""

    name = "plain"

    def __init__(self, address: str, per_second: int) -> None:
        super().__init__()
        self.queues = [f"plain-{number}" for number in range(12)]
        create(address, *self.queues)
        self.load = Load(address, self.queues, per_second)
        self._group = consumer(
            address, "plain", *self.queues, enable_auto_commit=False, reconnect_backoff_max_ms=200,
            topic_metadata_refresh_interval_ms=5000, session_timeout_ms=20_000,
        )  # fmt: skip
        self._committed: dict[str, int] = {}
        self._commits = self._looked = 0
        self._said: list[str] = []

    def start(self) -> None:
        self.load.__enter__()
        super().start()

    def work(self) -> None:
        self._group.consume(500, 0.2)
        with suppress(KafkaException):  # refused, or its fate is not known: once more next time
            taken = self._group.commit(asynchronous=False) or []
            for part in taken:
                if part.error is None:
                    before = self._committed.get(part.topic, 0)
                    self._committed[part.topic] = max(before, part.offset)
            self._commits += 1
        if self._commits > self._looked + 20:
            self._looked = self._commits
            self._look()

    def _look(self) -> None:
        with suppress(KafkaException):
            for part in self._group.committed([TopicPartition(q, 0) for q in self.queues], WAIT_S):
                known = self._committed.get(part.topic, 0)
                if part.error is None and part.offset < known:
                    self._said.append(f"{part.topic}: committed {known}, then {part.offset}")

    def end(self) -> None:
        super().end()
        self.load.__exit__()
        self._look()
        self._group.close()

    def done(self) -> dict[str, int]:
        load = self.load
        acknowledged = {f"produce {q}": len(load.acknowledged[q]) for q in self.queues}
        return acknowledged | {f"read {q}": len(load.read[q]) for q in self.queues}

    def problems(self) -> list[str]:
        try:
            self.load.check()
        except AssertionError as error:
            return [*self._said, f"plain: {error}"]
        return self._said


class Transactions(Client):
    """A producer of transactions, and two processors that copy what is committed."""

    name = "transactions"

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__()
        directory.mkdir()
        self._work = exactly_once.Work(address, "copy", 4, directory / "history")
        self._producer = transactional(address, "copy-fill")
        self._ended = 0
        for slot in ("one", "two"):
            self._work.start(slot, "librdkafka", directory, 50, 50)

    def work(self) -> None:
        self._work.revive()
        self._work.fill(20, self._producer, self._note)
        time.sleep(0.2)

    def _note(self) -> None:
        self._ended += 1

    def end(self) -> None:
        super().end()
        try:
            until = time.monotonic() + SETTLED_S
            while self.error is None and not self._work.done() and time.monotonic() < until:
                self._work.revive()
                time.sleep(0.5)
        finally:
            self._work.stop()

    def done(self) -> dict[str, int]:
        return {"end a transaction": self._ended}

    def problems(self) -> list[str]:
        settle(self._work.address, self._work.targets, SETTLED_S)
        self._work.look_at_ends()
        said = [*self._work.problems()[:10], *anomalies(self._work.histories)]
        return [*said, self._work.last_words()] if said else []


class Shared(Client):
    """A share group: each of its records ends once."""

    name = "share group"
    LOCK_S, LIMIT = 3, 6

    def __init__(self, servers: Servers, directory: Path) -> None:
        super().__init__()
        directory.mkdir()
        self._work = sharing.Work(servers, "share", directory, 2, 2)
        alter(servers.address, self._work.dead_letters, **ENABLED)
        configure(
            servers.address, "share", share_record_lock_duration_ms=1000 * self.LOCK_S,
            share_delivery_count_limit=self.LIMIT,
            errors_deadletterqueue_topic_name=self._work.dead_letters,
            errors_deadletterqueue_copy_record_enable="true",
        )  # fmt: skip
        self._work.recorder.rules(limit=self.LIMIT, lock_ns=int(self.LOCK_S * 1e9))
        self._work.recorder.invoke("disturb")  # shards may move until the end
        self._work.start("librdkafka", 2)

    def work(self) -> None:
        self._work.revive()
        self._work.fill(40)
        time.sleep(0.5)

    def end(self) -> None:
        super().end()
        try:
            until = time.monotonic() + SETTLED_S
            while self.error is None and self._work.lag() and time.monotonic() < until:
                self._work.revive()
                time.sleep(0.5)
        finally:
            self._work.close()

    def done(self) -> dict[str, int]:
        return {"take and acknowledge": self._work.events()}

    def problems(self) -> list[str]:
        def is_sound() -> bool:
            self._work.look_for_letters()
            return not check(self._work.history()).counts

        with suppress(AssertionError):  # dead letters are sent after their records are done with
            eventually(is_sound, 60, 1)
        return anomalies(self._work.histories)


class Routed(Client):
    """An entrance of four partitions, and a filter that takes from it."""

    name = "route"
    QUEUES = 40

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__()
        self._address = address
        test_routes.make(address)
        self._work = test_routes.Work(address, self.QUEUES, directory / "history")

    def work(self) -> None:
        self._work.produce(100, 1.0)

    def done(self) -> dict[str, int]:
        return {"put into an entrance": self._work.acknowledged}

    def problems(self) -> list[str]:
        self._work.finish(SETTLED_S)
        wanted = {queue: len(values) for queue, values in self._work.wanted.items()}
        wanted[test_routes.FILTERED] = self._work.red.total()
        with closing(consumer(self._address, "ends")) as reader, suppress(AssertionError):
            for queue, count in wanted.items():
                eventually(
                    lambda queue=queue, count=count: (  # type: ignore[misc]
                        test_routes.ends(reader, [queue]).get(queue, 0) >= count
                    ),
                    SETTLED_S,
                )
        found = test_routes.contents(self._address, wanted, recorder=self._work.recorder)
        said = test_routes.problems(self._work.wanted, found)
        if Counter(found[test_routes.FILTERED]) != self._work.red:
            said.append("the filter's queue has other records than it asked for")
        return [*said[:10], *anomalies(self._work.histories)]


class Delayed(Client):
    """Records that wait until they are due."""

    name = "delay"

    def __init__(self, address: str, directory: Path, rng: random.Random) -> None:
        super().__init__()
        self._address = address
        fixed = {"kproxy_delay_ms": test_delays.DELAY_MS}
        create(address, test_delays.FIXED, partitions=test_delays.PARTITIONS, **fixed)
        create(address, test_delays.HEADER, partitions=test_delays.PARTITIONS,
               kproxy_delay="header")  # fmt: skip
        self._histories = directory / "history"
        self._recorder = Recorder(self._histories / "test.jsonl", "test")
        self._recorder.rules(whole=True, unordered=[test_delays.HEADER])
        self._sender = test_delays.Sender(address, rng, self._recorder)
        self._sent = 0

    def work(self) -> None:
        self._sender.send()
        self._sent += test_delays.AT_ONCE
        time.sleep(0.5)

    def done(self) -> dict[str, int]:
        return {"send for later": self._sender.acknowledged}

    def problems(self) -> list[str]:
        self._sender.flush()
        said = []
        for queue in (test_delays.FIXED, test_delays.HEADER):
            until = time.monotonic() + SETTLED_S
            found = test_delays.there(self._address, queue, self._recorder)
            while sum(map(len, found)) < self._sent and time.monotonic() < until:
                time.sleep(1)
                found = test_delays.there(self._address, queue, self._recorder)
            values = Counter(one.value() or b"" for part in found for one in part)
            said += [f"{queue}: doubled {value!r}" for value, n in values.items() if n > 1]
            if values.total() != self._sent:
                said.append(f"{queue}: {values.total()} of {self._sent}")
            for part in found if queue == test_delays.FIXED else ():
                numbers = [int((one.value() or b"").split()[0]) for one in part]
                if numbers != sorted(numbers):
                    said.append(f"{queue}: out of order")
        return [*said[:10], *anomalies(self._histories)]


class Stalls:
    """The longest time in which something did not go on, by kind of fault."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients
        self.longest: dict[str, dict[str, float]] = {}
        """The seconds by kind of fault, and by the work that stood still."""
        self._kind = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @contextmanager
    def watched(self) -> Iterator["Stalls"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def of(self, kind: str) -> None:
        """Count what comes as of this kind of fault."""
        self._kind = kind

    def _watch(self) -> None:
        counts: dict[str, int] = {}
        since: dict[str, float] = {}
        while not self._stop.wait(_LOOK_S):
            now = time.monotonic()
            for client in self._clients:
                for what, count in client.done().items():
                    if counts.get(what) != count:
                        counts[what], since[what] = count, now
                    elif self._kind:
                        longest = self.longest.setdefault(self._kind, {})
                        verb = what.partition(" plain-")[0]
                        longest[verb] = max(round(now - since[what], 1), longest.get(verb, 0.0))


def everything(
    servers: Servers, directory: Path, rng: random.Random, per_second: int = 120
) -> list[Client]:
    """Return a client of each kind."""
    makers: list[Callable[[], Client]] = [
        lambda: Plain(servers.address, per_second),
        lambda: Transactions(servers.address, directory / "copy"),
        lambda: Shared(servers, directory / "share"),
        lambda: Routed(servers.address, directory / "route"),
        lambda: Delayed(servers.address, directory / "delay", rng),
    ]
    return [make() for make in makers]


@contextmanager
def working(clients: list[Client]) -> Iterator[Stalls]:
    """Let clients work for the length of a block; then end them."""
    with ExitStack() as stack:
        for client in clients:
            stack.callback(client.end)
            client.start()
        yield stack.enter_context(Stalls(clients).watched())
