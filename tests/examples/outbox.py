"""An application that writes events into an outbox, and the relay as people run it."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import TopicPartition

from tests.clients.calls import admin
from tests.clients.transactions.calls import COMMITTED, messages, settle
from tests.examples.postgres import Postgres
from tests.harness import ROOT, eventually

OUTBOX = ROOT / "examples" / "outbox"
RELAY = OUTBOX / "relay.py"
SCHEMA = (OUTBOX / "schema.sql").read_text()
TRIM = (OUTBOX / "trim.sql").read_text()
INSERT = "INSERT INTO outbox (queue, key, payload) VALUES (%s, %s, %s)"
QUEUES, KEYS = 6, 30  # a key's events are in one queue
END_S = 60


class Relay:
    """A process. Its output is in a file: nobody has to read it while it runs."""

    def __init__(
        self, place: Postgres, database: str, address: str, *flags: str, program: Path = RELAY
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self.process = subprocess.Popen(
            [sys.executable, str(program), "--bootstrap-server", address, *flags],
            stdout=self._said, stderr=self._said,
            env=os.environ | place.env | {"PGDATABASE": database},
        )  # fmt: skip

    def said(self) -> str:
        return os.pread(self._said.fileno(), 1 << 20, 0).decode()

    def wait_said(self, words: str) -> "Relay":
        eventually(lambda: words in self.said() or self.process.poll() is not None, END_S)
        assert words in self.said(), self.said()
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_S)

    def stop(self) -> str:
        """Send SIGTERM; return its output."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(0)

    def ended(self, code: int) -> str:
        """Wait until it has ended by itself; return the last line of its output."""
        assert self.process.wait(END_S) == code, self.said()
        return self.said().strip().splitlines()[-1]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_S)
        self._said.close()


class Outbox:
    """A database with an outbox, and relays from it to one address."""

    def __init__(self, place: Postgres, address: str, prefix: str) -> None:
        self.place, self.address, self.prefix = place, address, prefix
        self.database = place.create(
            SCHEMA,
            "CREATE TABLE account (key text PRIMARY KEY, version int NOT NULL);"
            f"INSERT INTO account SELECT 'k' || n, 0 FROM generate_series(0, {KEYS - 1}) AS n",
        )
        self._relays: list[Relay] = []

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return self.place.connect(self.database, **options)

    def relay(self, *flags: str, program: Path = RELAY) -> Relay:
        self._relays.append(Relay(self.place, self.database, self.address, *flags, program=program))
        return self._relays[-1]

    def queue(self, key: str) -> str:
        return f"{self.prefix}-{int(key[1:]) % QUEUES}"

    def execute(self, statement: str, *values: Any) -> list[Any]:
        with self.connect(autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else [cursor.rowcount]

    def drain(self, *flags: str) -> None:
        """Relay until no event is behind the position."""

        def drained() -> bool:
            self.relay(*flags, "--once").ended(0)
            return self.execute("SELECT events FROM outbox_lag") == [(0,)]

        eventually(drained, END_S)

    def found(self, isolation: str = COMMITTED) -> dict[str, list[bytes]]:
        """Return the values of each key, in the order in which a reader sees them."""
        known = admin(self.address).list_topics(timeout=END_S).topics
        queues = [name for name in known if name.startswith(f"{self.prefix}-")]
        if isolation == COMMITTED:
            settle(self.address, queues, END_S)
        some = messages(self.address, [TopicPartition(one, 0, 0) for one in queues], isolation)
        by_key = defaultdict(list)
        for (queue, _), read in some.items():
            for one in read:
                key = (one.key() or b"").decode()
                assert queue == self.queue(key)
                by_key[key].append(one.value() or b"")
        return by_key

    def close(self) -> None:
        for one in self._relays:
            one.close()


class Application:
    """Threads that change accounts and write an event for each change, or roll all of it back.

    A change counts up its account's version, which the event has: a key's events are in order when
    their versions are. There are two ways to take turns at a key, each with keys of its own.
    """

    def __init__(self, outbox: Outbox, seed: int) -> None:
        self._outbox = outbox
        self._ended = threading.Event()
        self._committed: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.rolled_back = 0
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(number, random.Random(seed + number)))
            for number in range(6)
        ]

    @contextmanager
    def writing(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
        assert not self._failed, self._failed[0]

    def wanted(self) -> dict[str, list[bytes]]:
        """Return the values of each key in the order of their versions, which has no gap."""
        wanted = {}
        for key, events in self._committed.items():
            versions = [version for version, _ in sorted(events)]
            assert versions == list(range(1, len(events) + 1))
            wanted[key] = [value for _, value in sorted(events)]
        return wanted

    def _write(self, number: int, rng: random.Random) -> None:
        locks = number % 2 == 0
        try:
            with self._outbox.connect() as connection:
                if not locks:
                    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                while not self._ended.is_set():
                    keys = rng.sample(range(KEYS // 2), rng.choice((1, 1, 2, 5)))
                    self._change(connection, [f"k{2 * key + locks}" for key in keys], rng, locks)
        except BaseException as error:
            self._failed.append(error)

    def _change(
        self, connection: psycopg.Connection[Any], keys: list[str], rng: random.Random, locks: bool
    ) -> None:
        """Run one transaction, of random length."""
        events = []
        roll_back = rng.random() < 0.2
        with suppress(psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            with connection.transaction():
                if locks:  # before the first change, and so before the transaction has an xid
                    for key in sorted(keys):
                        connection.execute(
                            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [key]
                        )
                for key in sorted(keys):
                    value = rng.randbytes(6).hex().encode()
                    (version,) = connection.execute(
                        "UPDATE account SET version = version + 1 WHERE key = %s RETURNING version",
                        [key],
                    ).fetchone()  # type: ignore[misc]
                    connection.execute(INSERT, [self._outbox.queue(key), key, value])
                    events.append((key, version, value))
                    time.sleep(rng.choice((0, 0, 0, 0.02)))
                if roll_back:
                    raise psycopg.Rollback
            if not roll_back:
                for key, version, value in events:
                    self._committed[key].append((version, value))
                return
        self.rolled_back += 1
