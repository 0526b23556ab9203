"""Queues and records that go by themselves, on two workers, with stock clients."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message, Producer, TopicCollection

from tests.clients.calls import WAIT_S, admin, alter, bounds, consumer, create, producer
from tests.clients.groups.test_group_tools import CONFIGS
from tests.clients.libraries.test_kcat import kcat
from tests.clients.routes.calls import entrance
from tests.clients.shares.members import FLAGS as AT_ONCE
from tests.clients.shares.members import RELEASE, configure, member, poll, say, take
from tests.clients.shares.test_dead_letters import ENABLED, headers_of, letters
from tests.forked import run_kproxy
from tests.harness import eventually, java
from tests.real_kafka import Kafka
from tests.workers import Workers

pytestmark = pytest.mark.long

INVALID_RECORD = 87
FLAGS = (*AT_ONCE, "--retention-check-ms", "500")
JOURNAL = Path(__file__).with_name("Journal.java")
SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
WITH_HEADERS = "%s %h\n"


@pytest.fixture(scope="module")
def workers(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(kafka, tmp_path_factory.mktemp("life"), *FLAGS).running() as running:
        yield running


@pytest.fixture
def two(workers: Workers) -> Workers:
    """Return both workers, also where the test before has killed one."""
    for index, worker in enumerate(workers.workers):
        if worker.process.poll() is not None:
            workers.again(index).wait_ready(60)
    workers.wait_balanced(60)
    return workers


def kill_owner(workers: Workers, queue: str) -> None:
    """Kill the worker that serves a queue, and wait until the other one serves it."""
    workers.owner(queue).kill()
    workers.wait_served(60)


def living(workers: Workers) -> str:
    """Return the address of a worker that runs: a tool knows one."""
    return next(one.address for one in workers.workers if one.process.poll() is None)


def tool(workers: Workers, *arguments: str) -> str:
    done = run_kproxy(*arguments, "--bootstrap-server", living(workers))
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def told(workers: Workers, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tool(workers, *arguments, "--json").splitlines()]


# An append on a condition.


def test_java_writes_where_the_end_is_as_it_expects(two: Workers, queue: str) -> None:
    create(two.address, queue, kproxy_append_if="header")
    said = java(str(JOURNAL), two.address, queue, "0", "1", "5", "2", "1", "3").splitlines()
    refused = "InvalidRecordException: the partition ends at {}, not at {} (kproxy.if-end-offset)"
    assert said == ["at 0", "at 1", refused.format(2, 5), "at 2", refused.format(3, 1), "at 3"]


class Writer(threading.Thread):
    """A writer that believes to be the only one; refused, it looks for the end anew."""

    def __init__(self, address: str, queue: str, name: str, count: int) -> None:
        super().__init__(name=name)
        self.address, self.queue, self.count = address, queue, count
        self.written: dict[int, bytes] = {}
        self.refused = 0
        self.failed: list[object] = []

    def run(self) -> None:
        client = producer(self.address, enable_idempotence=True, reconnect_backoff_max_ms=200)
        end = 0
        for number in range(self.count):
            value = f"{self.name} {number}".encode()
            while (at := self._put(client, end, value)) is None:
                end = self._end()
                self.refused += 1
            if at != end:
                self.failed.append((at, end))
            self.written[at] = value
            end = at + 1

    def _end(self) -> int:
        while True:
            with suppress(KafkaException):  # nobody serves the queue for a while
                return bounds(self.address, self.queue)[1]

    def _put(self, client: Producer, end: int, value: bytes) -> int | None:
        answers: list[int | None] = []

        def answered(error: Any, message: Message) -> None:
            if error is not None and error.code() != INVALID_RECORD:
                self.failed.append(error)
            answers.append(message.offset() if error is None else None)

        headers = {"kproxy.if-end-offset": str(end)}
        client.produce(self.queue, value, partition=0, headers=headers, on_delivery=answered)
        if client.flush(120):
            self.failed.append("no answer")
            return end
        return answers[0]


def test_two_writers_never_write_over_each_other_while_a_worker_dies(
    two: Workers, queue: str
) -> None:
    create(two.address, queue, kproxy_append_if="header")
    writers = [Writer(two.address, queue, name, 60) for name in ("left", "right")]
    for writer in writers:
        writer.start()
    eventually(lambda: sum(len(writer.written) for writer in writers) >= 20, 60)
    kill_owner(two, queue)
    for writer in writers:
        writer.join(300)
        assert not writer.is_alive()
        assert not writer.failed
    written = writers[0].written | writers[1].written
    assert sorted(written) == list(range(120))
    assert all(writer.refused for writer in writers)
    said = kcat(two, "-C", "-t", queue, "-e", "-q", "-f", "%o:%s\n")
    assert said.splitlines() == [f"{at}:{written[at].decode()}" for at in range(120)]


# Any key names a queue.


def test_any_key_names_a_queue_of_either_worker(two: Workers, queue: str) -> None:
    lost = f"{queue}.lost"
    create(two.address, lost)
    entrance(two.address, queue, f"{queue}-{{key:%}}", 2, lost)
    keys = ["eu/berlin 7", "ann@example.com", "münchen", "%41", ".", "a b", "日本"]
    keys += [f"tenant {number}/x" for number in range(9)]
    long = "ü" * 60  # 360 characters
    kcat(two, "-P", "-t", queue, "-K", "\t", stdin="".join(f"{key}\tto {key}\n" for key in keys))
    kcat(two, "-P", "-t", queue, "-K", "\t", stdin=f"{long}\ttoo long\n")

    def made() -> dict[str, str] | None:
        found = told(two, "queues", "--entrance", queue, "--limit", "100")
        names = {one["decoded"]: one["name"] for one in found}
        return names if len(names) == len(keys) else None

    names = eventually(made, 60)
    assert sorted(names) == sorted(keys)
    owners = {two.ports[two.workers.index(two.owner(name))] for name in names.values()}
    assert len(owners) == 2
    for key in keys[:5]:
        eventually(lambda key=key: bounds(two.address, names[key]) == (0, 1), 30)
        assert kcat(two, "-C", "-t", names[key], "-e", "-q", "-f", "%k|%s\n") == f"{key}|to {key}\n"
    said = java(
        CONSUMER, "--bootstrap-server", two.address, "--topic", names["日本"], "--from-beginning",
        "--max-messages", "1", "--timeout-ms", "30000",
    )  # fmt: skip
    assert said.strip() == "to 日本"
    (letter,) = letters(two.address, lost, 1)
    assert letter.value() == b"too long"
    assert "249" in str(headers_of(letter))


# Records that expire.


def test_expired_records_reach_no_member_but_the_dead_letters(two: Workers, queue: str) -> None:
    dead = f"dlq.{queue}"
    create(two.address, dead)
    alter(two.address, dead, **ENABLED)
    create(two.address, queue, kproxy_ttl="header")
    configure(
        two.address, queue, errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    past = int(time.time() * 1000) - 1
    kcat(two, "-P", "-t", queue, "-H", f"kproxy.expires-at={past}", stdin="stale\n")
    kcat(two, "-P", "-t", queue, stdin="fresh\n")
    kcat(two, "-P", "-t", queue, "-H", "kproxy.ttl-ms=3600000", stdin="lasting\n")
    said = java(
        SHARE_CONSUMER, "--bootstrap-server", two.address, "--topic", queue, "--group", queue,
        "--max-messages", "2", "--timeout-ms", "60000",
    )  # fmt: skip
    assert said.split() == ["fresh", "lasting"]
    (letter,) = letters(two.address, dead, 1)
    assert letter.value() == b"stale"
    assert headers_of(letter)["kproxy.dlq.cause"] == "expired"

    soon = int(time.time() * 1000) + 5000
    kcat(two, "-P", "-t", queue, "-H", f"kproxy.expires-at={soon}", stdin="soon\n")
    with closing(member(two.address, queue, queue)) as holder:
        held = take(holder, 1)
        eventually(lambda: time.time() * 1000 > soon + 1, 30)
        say(holder, held, RELEASE)
        eventually(lambda: not poll(holder) and bounds(two.address, dead) == (0, 2), 60)
    kill_owner(two, queue)
    kcat(two, "-P", "-t", queue, stdin="after\n")
    said = java(
        SHARE_CONSUMER, "--bootstrap-server", two.address, "--topic", queue, "--group", queue,
        "--max-messages", "1", "--timeout-ms", "60000",
    )  # fmt: skip
    assert said.split() == ["after"]
    assert kcat(two, "-C", "-t", queue, "-e", "-q") == "stale\nfresh\nlasting\nsoon\nafter\n"


# Dead letters that go back to work.


def reject(workers: Workers, queue: str, count: int) -> list[str]:
    """Have Java's share consumer reject so many records, and return them."""
    said = java(
        SHARE_CONSUMER, "--bootstrap-server", living(workers), "--topic", queue, "--group", queue,
        "--reject", "--max-messages", str(count), "--timeout-ms", "60000",
    )  # fmt: skip
    return said.split()


def redrive(workers: Workers, dead: str, *arguments: str) -> None:
    at = ("--bootstrap-server", living(workers))
    java(CONFIGS, *at, "--alter", "--topic", dead, *arguments)


def test_letters_go_back_to_work_and_die_again(two: Workers, queue: str) -> None:
    dead, other = f"dlq.{queue}", f"{queue}-other"
    create(two.address, queue, dead, other)
    alter(two.address, dead, **ENABLED)
    configure(
        two.address, queue, errors_deadletterqueue_topic_name=dead,
        errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    kcat(two, "-P", "-t", queue, "-H", "mine=x", stdin="a\nb\nc\n")
    assert reject(two, queue, 3) == ["a", "b", "c"]
    eventually(lambda: bounds(two.address, dead) == (0, 3), 60)

    redrive(two, dead, "--add-config", "kproxy.redrive.to=*,kproxy.redrive.job=first")
    eventually(lambda: bounds(two.address, queue) == (0, 6), 60)
    said = kcat(two, "-C", "-t", queue, "-o", "3", "-e", "-q", "-f", WITH_HEADERS)
    assert said == "".join(f"{word} mine=x,kproxy.redriven=1\n" for word in "abc")
    kill_owner(two, dead)
    assert reject(two, queue, 3) == ["a", "b", "c"]
    eventually(lambda: bounds(two.address, dead) == (0, 6), 60)
    assert bounds(two.address, queue) == (0, 6), "the first redrive takes no later letters"

    alter(two.address, dead, kproxy_redrive_to=other, kproxy_redrive_job="second")
    eventually(lambda: bounds(two.address, other) == (0, 6), 60)
    said = kcat(two, "-C", "-t", other, "-e", "-q", "-f", WITH_HEADERS)
    assert said.splitlines() == [
        f"{word} mine=x,kproxy.redriven={times}" for times in (1, 2) for word in "abc"
    ]
    redrive(two, dead, "--delete-config", "kproxy.redrive.to,kproxy.redrive.job")
    alter(two.address, dead, kproxy_redrive_to="*", kproxy_redrive_times_max=1)
    # Letters of the second death stay.
    eventually(lambda: bounds(two.address, queue) == (0, 9), 60)


# Waiting records, and schedules.


def test_waiting_records_are_replaced_listed_and_cancelled(two: Workers, queue: str) -> None:
    create(two.address, queue, kproxy_delay="header", kproxy_delay_replace="key")
    hour = ("-P", "-t", queue, "-K:", "-H", "kproxy.delay-ms=3600000")
    kcat(two, *hour, stdin="tea:old\nmilk:old\nsugar:old\n")
    assert [one["key"] for one in told(two, "waiting", queue)] == [
        key.encode().hex() for key in ("tea", "milk", "sugar")
    ]
    kcat(two, "-P", "-t", queue, "-K:", "-H", "kproxy.delay-ms=500", stdin="tea:new\n")
    kcat(two, "-P", "-t", queue, "-K:", "-Z", stdin="milk:\n")
    assert kcat(two, "-C", "-t", queue, "-c", "1", "-q") == "new\n"
    assert [one["key"] for one in told(two, "waiting", queue)] == [b"sugar".hex()]
    assert tool(two, "waiting", queue, "--cancel", "sugar") == "cancelled 1\n"
    for key in ("tea", "milk", "sugar"):
        done = run_kproxy("waiting", queue, "--cancel", key, "--bootstrap-server", living(two))
        assert done.returncode
        assert f"nothing waits under {key}" in done.stderr
    assert told(two, "waiting", queue) == []
    assert bounds(two.address, queue) == (0, 1)


def test_a_schedule_fires_each_time_once_while_its_worker_dies(two: Workers, queue: str) -> None:
    create(two.address, queue, kproxy_delay="header", kproxy_delay_replace="key")
    first = int(time.time() * 1000) + 1500
    kcat(
        two, "-P", "-t", queue, "-K:", "-H", "kproxy.every=1000", "-H",
        f"kproxy.deliver-at={first}", stdin="tick:go\n",
    )  # fmt: skip
    found: list[Message] = []
    with closing(consumer(two.address, queue, queue, reconnect_backoff_max_ms=200)) as reader:

        def came(count: int) -> bool:
            found.extend(one for one in reader.consume(100, 0.2) if one.error() is None)
            return len(found) >= count

        eventually(lambda: came(3), 60)
        kill_owner(two, queue)
        eventually(lambda: came(len(found) + 3), 60)
        kcat(two, "-P", "-t", queue, "-K:", "-Z", stdin="tick:\n")
        end = bounds(two.address, queue)[1]
        eventually(lambda: came(end), 60)
    assert told(two, "waiting", queue) == []
    assert [one.offset() for one in found] == list(range(end))
    assert {(one.key(), one.value()) for one in found} == {(b"tick", b"go")}
    # A time is over when the next one begins: two records of one second are one time twice.
    times = [(one.timestamp()[1] - first) // 1000 for one in found]
    assert times == sorted(set(times))
    assert times[0] >= 0


def test_the_last_records_are_kept(two: Workers, queue: str) -> None:
    create(two.address, queue, kproxy_retention_records=5)
    kcat(two, "-P", "-t", queue, stdin="".join(f"{number}\n" for number in range(20)))
    eventually(lambda: bounds(two.address, queue) == (15, 20), 60)
    assert kcat(two, "-C", "-t", queue, "-e", "-q") == "15\n16\n17\n18\n19\n"


# Queues that go by themselves.

IDLE_MS = 60_000  # the least
RACES = 300


def test_idle_queues_go_and_no_acknowledged_record_with_them(two: Workers, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(RACES)]
    kept = f"{queue}-read"
    create(two.address, kept, *names, kproxy_expire_idle_ms=IDLE_MS)
    began = time.monotonic()
    client = admin(two.address)
    ids = _ids(client, names)
    written: dict[str, int] = {}
    refused: list[str] = []

    def answered(error: Any, message: Message) -> None:
        if error is None:
            written[str(message.topic())] = int(message.offset() or 0)
        else:
            refused.append(str(message.topic()))

    random.Random(1).shuffle(names)
    sender = producer(two.address, topic_metadata_refresh_interval_ms=500)
    reader = consumer(two.address, queue, kept, allow_auto_create_topics=False)
    with closing(reader):
        for number, name in enumerate(names[: RACES // 2]):  # from 48 s to 77 s
            at = began + IDLE_MS / 1000 - 12 + number * 29 / (RACES / 2)
            while time.monotonic() < at:
                reader.poll(0.05)
                sender.poll(0)
            sender.produce(name, b"v", partition=0, on_delivery=answered)
        assert sender.flush(120) == 0
        silent = names[RACES // 2 :]
        eventually(lambda: not _ids(client, silent), 60)
        sender.produce(silent[0], b"v", partition=0, on_delivery=answered)  # it is made anew
        assert sender.flush(WAIT_S) == 0
        reader.poll(0.1)
    assert kept in client.list_topics(timeout=WAIT_S).topics
    assert silent[0] in written
    assert len(written) + len(refused) == RACES // 2 + 1
    after = _ids(client, [*written])
    assert after.keys() == written.keys()  # none of them went with its record
    assert {name for name in written if after[name] == ids[name]}, "none was there still"
    assert after[silent[0]] != ids[silent[0]]
    for name, offset in written.items():
        assert offset == 0
        assert bounds(two.address, name) == (0, 1), name


def _ids(client: Any, names: list[str]) -> dict[str, str]:
    """Return the ids of those queues that there are."""
    there = client.list_topics(timeout=WAIT_S).topics
    known = [name for name in names if name in there]
    if not known:
        return {}
    found = {}
    for name, future in client.describe_topics(TopicCollection(known)).items():
        if future.exception(WAIT_S) is None:
            found[name] = str(future.result().topic_id)
    return found
