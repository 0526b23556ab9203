"""The transactional outbox of examples/outbox, from a real PostgreSQL into queues.

Relays are killed while an application writes; then every committed event is in its queue, in the
order of its key: once, or once and perhaps again.
"""

import importlib.util
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from psycopg.rows import class_row

from tests.clients.calls import admin
from tests.clients.transactions.calls import UNCOMMITTED
from tests.clients.transactions.exactly_once import problems
from tests.examples.outbox import INSERT, RELAY, TRIM, Application, Outbox
from tests.examples.postgres import Postgres, postgres
from tests.harness import ROOT, Served, eventually, need_program
from tests.project.test_readme import sessions
from tests.real_kafka import Kafka
from tests.workers import Workers

EXACTLY, AT_LEAST = ("--exactly-once",), ()
MODES = pytest.mark.parametrize("mode", [EXACTLY, AT_LEAST], ids=["exactly-once", "at-least-once"])
KILLED_S, KILLED_LONG_S, KILLED_AT_WORK = 10, 90, 3
HORIZON = "AND xid < pg_snapshot_xmin(pg_current_snapshot())"
ORDERED = "ORDER BY outbox.xid, outbox.id"
BEHIND = "(xid, id) > (%(xid)s::text::xid8, %(id)s)"


@pytest.fixture(scope="module")
def place() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def outbox(place: Postgres, server: Served, queue: str) -> Iterator[Outbox]:
    made = Outbox(place, server.address, queue)
    yield made
    made.close()


def kill_relays(
    outbox: Outbox, mode: tuple[str, ...], seconds: float, rng: random.Random,
    disturb: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Write, kill relays and delete old rows; then check which records came."""
    flags = (*mode, "--name", f"{outbox.prefix}.relay", "--batch", "10", "--poll-ms", "2")
    trim = TRIM.replace("'outbox'", f"'{flags[-5]}'").replace("1 day", "0")
    application = Application(outbox, rng.randrange(1 << 32))
    until, at_work, trimmed = time.monotonic() + seconds, 0, 0
    with application.writing():
        while time.monotonic() < until or at_work < KILLED_AT_WORK or not trimmed:
            relay = outbox.relay(*flags)
            if rng.random() < 0.7:  # else perhaps before it began
                relay.wait_said("forwards")
            time.sleep(rng.uniform(0, 1.5))
            relay.kill()
            at_work += "forwards" in relay.said()
            trimmed += outbox.execute(trim)[0]
            disturb()
    outbox.drain(*flags)
    wanted, found = application.wanted(), outbox.found()
    events, seen = (sum(map(len, one.values())) for one in (wanted, found))
    written = sum(map(len, outbox.found(UNCOMMITTED).values()))
    print(f"{at_work} kills, {events} events, {seen} seen, {written} written, {trimmed} trimmed")  # noqa: T201
    assert application.rolled_back
    if not mode:
        found = {key: list(dict.fromkeys(values)) for key, values in found.items()}
    assert sorted(found) == sorted(wanted)
    assert problems(wanted, found) == []


@MODES
def test_killed_at_random(outbox: Outbox, mode: tuple[str, ...]) -> None:
    kill_relays(outbox, mode, KILLED_S, random.Random(23))


@pytest.mark.long
@MODES
def test_killed_at_random_on_kafka(
    kafka: Kafka, place: Postgres, tmp_path: Path, queue: str, mode: tuple[str, ...]
) -> None:
    """Workers die too."""
    rng = random.Random(29)
    with ExitStack() as stack:
        workers = Workers(kafka, tmp_path)
        stack.enter_context(workers.running())

        def disturb() -> None:
            if rng.random() < 0.1:
                index = rng.randrange(len(workers.workers))
                workers.workers[index].kill()
                workers.again(index).wait_ready(60)

        outbox = Outbox(place, workers.address, queue)
        stack.callback(outbox.close)
        kill_relays(outbox, mode, KILLED_LONG_S, rng, disturb)


def naive(directory: Path, *, by_id: bool) -> Path:
    """Make a relay that does not wait for transactions with a lower xid, as most first ones."""
    text = RELAY.read_text()
    changes = {HORIZON: ""}
    if by_id:
        changes |= {BEHIND: "id > %(id)s AND %(xid)s::text IS NOT NULL", ORDERED: "ORDER BY id"}
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = directory / "naive.py"
    path.write_text(text)
    return path


def commit_out_of_order(outbox: Outbox, flags: tuple[str, ...], program: Path = RELAY) -> list:
    """Return the forwarded ones of two events, where the lower one appears behind the other.

    First the transaction with the lower xid and id commits last. Then one has the lower xid and the
    other the lower id, and the lower xid commits last.
    """
    key, queue = "k0", outbox.queue("k0")

    def insert(connection: psycopg.Connection, value: str) -> None:
        connection.execute(INSERT, [queue, key, value.encode()])

    def forward() -> None:
        outbox.relay(*flags, "--once", program=program).ended(0)

    with outbox.connect() as one, outbox.connect() as other:
        insert(one, "a")
        insert(other, "b")
        other.commit()
        forward()
        one.commit()
        forward()
        one.execute("SELECT pg_current_xact_id()")
        insert(other, "c")
        insert(one, "d")
        other.commit()
        forward()
        one.commit()
    eventually(lambda: no_other_transaction(outbox))
    forward()
    return outbox.found()[key]


def no_other_transaction(outbox: Outbox) -> bool:
    """Whether there is none: autovacuum has an xid at times."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
    return outbox.execute(asked) == [(0,)]


@MODES
def test_ids_that_appear_out_of_order(
    outbox: Outbox, mode: tuple[str, ...], tmp_path: Path
) -> None:
    flags = (*mode, "--name", f"{outbox.prefix}.relay")
    assert commit_out_of_order(outbox, flags) == [b"a", b"b", b"d", b"c"]


@pytest.mark.parametrize(("by_id", "lost"), [(True, [b"a"]), (False, [b"a", b"d"])])
def test_naive_relay_loses_records(
    outbox: Outbox, tmp_path: Path, by_id: bool, lost: list[bytes]
) -> None:
    """The same events, so that the test above is known to see it."""
    flags = ("--name", f"{outbox.prefix}.relay")
    found = commit_out_of_order(outbox, flags, naive(tmp_path, by_id=by_id))
    assert sorted({b"a", b"b", b"c", b"d"} - set(found)) == lost


@pytest.mark.parametrize("locks", [True, False])
def test_the_order_of_a_key_is_that_of_its_lock(outbox: Outbox, locks: bool) -> None:
    """Without it a transaction may be the second to write a key, and have the lower xid."""
    flags = ("--name", f"{outbox.prefix}.relay")

    def change(connection: psycopg.Connection) -> None:
        connection.execute(
            "WITH changed AS (UPDATE account SET version = version + 1 WHERE key = 'k0'"
            "                 RETURNING version)"
            "INSERT INTO outbox (queue, key, payload)"
            "SELECT %s, 'k0', version::text::bytea FROM changed", [outbox.queue("k0")],
        )  # fmt: skip
        connection.commit()

    with outbox.connect() as one, outbox.connect() as other:
        lock = "SELECT pg_try_advisory_xact_lock(7)"
        if locks:
            assert other.execute(lock).fetchone() == (True,)
            assert one.execute(lock).fetchone() == (False,)  # it would wait, and has no xid yet
        else:
            one.execute("SELECT pg_current_xact_id()")
        change(other)
        change(one)
    outbox.drain(*flags)
    assert outbox.found()["k0"] == ([b"1", b"2"] if locks else [b"2", b"1"])


def relay_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("relay", RELAY)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fill(outbox: Outbox, count: int, key: str = "k1") -> list[bytes]:
    """Write events of one key, each in a transaction of its own; return their values."""
    values = [b"%d" % number for number in range(count)]
    with outbox.connect(autocommit=True) as connection:
        for value in values:
            connection.execute(INSERT, [outbox.queue(key), key, value])
    return values


@MODES
def test_a_second_relay_stands_by_and_takes_over(outbox: Outbox, mode: tuple[str, ...]) -> None:
    flags = (*mode, "--name", f"{outbox.prefix}.relay")
    first = outbox.relay(*flags).wait_said("forwards")
    second = outbox.relay(*flags).wait_said("stands by")
    values = fill(outbox, 100)
    eventually(lambda: outbox.execute("SELECT events FROM outbox_lag") == [(0,)])
    first.kill()
    second.wait_said("forwards")
    values += fill(outbox, 100)
    eventually(lambda: outbox.execute("SELECT events FROM outbox_lag") == [(0,)])
    assert second.stop() == f"{outbox.prefix}.relay ends, events forwarded: 100"
    assert outbox.found()["k1"] == values


def test_a_relay_that_lost_its_lock_is_fenced(outbox: Outbox) -> None:
    """It stands still within a transaction; PostgreSQL drops it, another goes on, and it wakes."""
    flags = (*EXACTLY, "--name", f"{outbox.prefix}.relay", "--batch", "7")
    values = fill(outbox, 2000)
    first = outbox.relay(*flags).wait_said("forwards")
    eventually(lambda: outbox.execute("SELECT events < 2000 FROM outbox_lag") == [(True,)])
    first.process.send_signal(signal.SIGSTOP)
    second = outbox.relay(*flags).wait_said("stands by")
    left = outbox.execute("SELECT events FROM outbox_lag")[0][0]
    outbox.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        "  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    second.wait_said("forwards")
    first.process.send_signal(signal.SIGCONT)
    last = first.ended(1)
    assert "took over" in last or "PostgreSQL: " in last
    eventually(lambda: outbox.execute("SELECT events FROM outbox_lag") == [(0,)], 60)
    second.stop()
    assert 0 < left < 2000
    assert outbox.found()["k1"] == values


@MODES
def test_dead_between_the_queues_and_the_position(outbox: Outbox, mode: tuple[str, ...]) -> None:
    """A batch is in its queues, and PostgreSQL was not told."""
    relay, name = relay_module(), f"{outbox.prefix}.relay"
    values = fill(outbox, 5)
    with outbox.connect(row_factory=class_row(relay.Event)) as connection:
        asked = {"xid": "0", "id": 0, "count": 3}
        events = connection.execute(relay.UNREAD, asked).fetchall()
    target = (relay.ExactlyOnce if mode else relay.AtLeastOnce)(outbox.address, name)
    assert target.position() == relay.START
    target.forward(events)
    outbox.drain(*mode, "--name", name)
    assert outbox.found()["k1"] == (values if mode else values[:3] + values)


@pytest.mark.parametrize("within", [True, False])
def test_the_fence(outbox: Outbox, within: bool) -> None:
    """Another relay takes over within a transaction of the first, or between two."""
    relay = relay_module()
    name = f"{outbox.prefix}.relay"
    first, second = (
        relay.Event(xid, 1, outbox.queue("k1"), "k1", b"%d" % xid, {}, 0) for xid in (7, 8)
    )
    one, other = relay.ExactlyOnce(outbox.address, name), relay.ExactlyOnce(outbox.address, name)
    assert one.position() == relay.START
    one.forward([first])
    if within:
        one.begin([second])
        assert one._producer.flush(30) == 0  # it is in its queue, and not committed
    assert other.position() == (7, 1)
    go_on = partial(one.commit, relay.Position(8, 1)) if within else partial(one.forward, [second])
    with pytest.raises((relay.RelayError, KafkaException), match=r"took over|fenced"):
        go_on()
    other.forward([second])
    assert relay.ExactlyOnce(outbox.address, name).position() == (8, 1)
    assert outbox.found()["k1"] == [b"7", b"8"]
    assert len(outbox.found(UNCOMMITTED)["k1"]) == 2 + within


def test_the_mode_may_be_changed(outbox: Outbox) -> None:
    name = ("--name", f"{outbox.prefix}.relay")
    values = []
    for mode in (AT_LEAST, EXACTLY, AT_LEAST, EXACTLY):
        values += fill(outbox, 10)
        outbox.drain(*mode, *name)
    assert outbox.found()["k1"] == values


@MODES
def test_an_event_that_is_refused(outbox: Outbox, mode: tuple[str, ...]) -> None:
    """It is named, nothing goes past it, and without it all goes on."""
    flags = (*mode, "--name", f"{outbox.prefix}.relay", "--once")
    queue = outbox.queue("k1")
    small = NewTopic(queue, 1, 1, config={"max.message.bytes": "1000"})
    client = admin(outbox.address)  # it has to live until it has answered
    client.create_topics([small])[queue].result(30)
    values = fill(outbox, 3)
    outbox.drain(*flags)
    outbox.execute(INSERT, queue, "k1", bytes(5000))
    for _ in range(2):
        said = outbox.relay(*flags).ended(1)
        assert said == f"Error: event 4 for queue {queue}: Broker: Message size too large"
    assert outbox.execute("SELECT events FROM outbox_lag") == [(1,)]
    outbox.execute("DELETE FROM outbox WHERE id = 4")
    values += fill(outbox, 3)
    outbox.drain(*flags)
    assert outbox.found()["k1"] == values


@pytest.mark.parametrize(("queue_name", "size"), [("a/b", 1), ("", 1), ("..", 1), ("a", 900_001)])
def test_table_refuses_what_no_queue_takes(outbox: Outbox, queue_name: str, size: int) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        outbox.execute(INSERT, queue_name, "k1", bytes(size))


def test_a_record_has_what_the_row_has(outbox: Outbox) -> None:
    outbox.execute(
        "INSERT INTO outbox (queue, headers, created_at)"
        """VALUES (%s, '{"type": "gone"}', '2026-01-02 03:04:05.678+00')""",
        f"{outbox.prefix}-0",
    )
    outbox.drain("--name", f"{outbox.prefix}.relay")
    need_program("kcat")
    printed = subprocess.run(
        ["kcat", "-b", outbox.address, "-C", "-t", f"{outbox.prefix}-0", "-e", "-q", "-f",
         "%K %S %h %T"], capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert printed == "-1 -1 outbox-id=1,type=gone 1767323045678"


def test_mistakes_are_one_line(outbox: Outbox) -> None:
    name = f"{outbox.prefix}.relay"

    def said(*flags: str) -> str:
        relay = outbox.relay("--name", name, *EXACTLY, *flags)
        line = relay.ended(1)
        assert [line] == [one for one in relay.said().splitlines() if " forwards " not in one]
        return line

    assert said("--bootstrap-server", "127.0.0.1:1").startswith("Error: 127.0.0.1:1: ")
    assert said("--database", "host=/nowhere").startswith("Error: PostgreSQL: connection ")
    assert said("--database", "dbname=postgres") == (
        'Error: PostgreSQL: relation "outbox_position" does not exist: see schema.sql'
    )
    outbox.execute("INSERT INTO outbox_position VALUES (%s, '1000000', 1)", name)
    assert "has forwarded transaction 1000000, this database is at" in said()


def test_the_readme_prints_what_it_says(place: Postgres, server: Served, tmp_path: Path) -> None:
    need_program("kcat")
    need_program("psql")
    env = os.environ | place.env | {"PGDATABASE": place.create()}
    for name in (".venv", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = sessions("examples/outbox/README.md")
    assert len(commands) >= 4
    for command, expected in commands:
        there = command.replace("127.0.0.1:9092", server.address)
        if "relay.py" in there:
            there += f" --bootstrap-server {server.address}"
        done = subprocess.run(
            ["bash", "-c", there], capture_output=True, text=True, cwd=tmp_path, timeout=60,
            check=False, env=env,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.rstrip() == expected.rstrip(), (command, done.stderr)
