"""Queues with numbered records, and the members of a share group that work on them and die.

All record what they do (`tests/histories`).
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Message, TopicPartition

from tests.clients.calls import WAIT_S, create, producer
from tests.clients.transactions.calls import UNCOMMITTED, messages
from tests.faults.servers import Servers
from tests.harness import KAFKA_JAVA, KAFKA_LIBS, ROOT, need_program
from tests.histories.operations import Operation, Recorder, Sends, load

JAVA_PROGRAM = ROOT / "tests/clients/shares/Shares.java"
_DESCRIBE_OFFSETS = 90
_BATCH = 10  # records of a partition that are written at once


class Work:
    """The records of a group's work, its members, and what they record."""

    def __init__(
        self, servers: Servers, group: str, directory: Path, queues: int, partitions: int,
        keys: int = 0,
    ) -> None:  # fmt: skip
        """Begin; `keys`: records have so many, by their numbers; 0: they have none."""
        self._keys = keys
        self._servers, self.group = servers, group
        self.queues = [f"{group}-{number}" for number in range(queues)]
        self.partitions = partitions
        self.dead_letters = f"dlq.{group}"
        self.directory = directory
        self.killed = self.ended = self.written = 0
        self._log = directory / "members.log"
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._clients: dict[str, str] = {}
        self._born: dict[str, float] = {}
        self._incarnations = 0
        self._seen: dict[Path, int] = {}
        self._lines = 0
        self.histories = directory / "history"
        self.recorder = Recorder(self.histories / "test.jsonl", "test")
        create(servers.address, *self.queues, self.dead_letters, partitions=partitions)

    # -- records

    def fill(self, records: int) -> None:
        """Write so many more, in small batches."""
        client = producer(
            self._servers.address, enable_idempotence=True, linger_ms=5, batch_num_messages=_BATCH,
            retry_backoff_ms=20, reconnect_backoff_max_ms=200,
        )  # fmt: skip

        first = self.written
        sends = Sends(self.recorder, f"filler {first}")
        guessed: list[Any] = []
        for number in range(first, first + records):
            batch = number // _BATCH
            queue = self.queues[batch % len(self.queues)]
            partition = batch // len(self.queues) % self.partitions
            note = sends.add([queue, partition, None, str(number)])

            def delivered(error: Any, message: Message, note: Any = note) -> None:
                assert error is None, error
                note(error, message)
                self.written += 1
                if message.offset() is None:  # nobody said so: later ones were written
                    guessed.append((message.topic(), message.partition(), message.value()))

            key = b"%d" % (number % self._keys) if self._keys else None
            client.produce(
                queue, b"%d" % number, partition=partition, key=key, on_delivery=delivered
            )
        assert client.flush(4 * WAIT_S) == 0
        sends.close()
        assert not guessed
        assert self.written == first + records

    def lag(self) -> int:
        """Return the lag by the group's coordinator; negative where it is unknown."""
        try:
            with self._servers.wire(self.group) as wire:
                asked = {"groups": [{"group_id": self.group, "topics": None}]}
                (answer,) = wire.call(_DESCRIBE_OFFSETS, 1, asked).groups
        except (OSError, KeyError):  # while a shard has no owner
            return -1
        parts = [part for topic in answer.topics for part in topic.partitions]
        if answer.error_code or len(parts) < len(self.queues) * self.partitions:
            return -1
        lags = [-1 if part.error_code else part.lag for part in parts]
        return -1 if min(lags) < 0 else sum(lags)

    def look_for_letters(self) -> None:
        """Record the dead letters that are there."""
        parts = [TopicPartition(self.dead_letters, index, 0) for index in range(self.partitions)]
        looking, found = self.recorder.invoke("letters"), []
        for (_, partition), some in messages(self._servers.address, parts, UNCOMMITTED).items():
            for one in some:
                said = {name: bytes(value or b"").decode() for name, value in one.headers() or ()}
                about = {name.removeprefix("__dlq.errors."): value for name, value in said.items()}
                assert about["group"] == self.group
                assert int(about["partition"]) == partition
                found.append([
                    about["topic"], partition, int(about["offset"]), one.value(),
                    about["kproxy.dlq.cause"], int(about["delivery.count"]),
                ])  # fmt: skip
        looking.ok(found)

    # -- members

    def start(self, client: str, count: int) -> None:
        for _ in range(count):
            slot = f"{client}-{len(self._members)}"
            self._clients[slot] = client
            self._begin(slot)

    def _begin(self, slot: str) -> None:
        self._incarnations += 1
        if self._clients[slot] == "java":
            command = [
                need_program("java"), "-Xmx64m", *KAFKA_JAVA,
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
                "-cp", f"{KAFKA_LIBS}/*:{self.directory}", "Shares", "work",
            ]  # fmt: skip
        else:
            command = [sys.executable, "-m", "tests.clients.shares.work"]
        process = f"{slot}.{self._incarnations}"
        command += [
            self._servers.address, self.group, str(self.histories / f"{process}.jsonl"), process,
            str(self._incarnations), *self.queues,
        ]  # fmt: skip
        with self._log.open("ab") as out:
            self._members[slot] = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
        self._born[slot] = time.monotonic()

    @property
    def slots(self) -> list[str]:
        return list(self._members)

    def kill(self, *slots: str) -> None:
        for slot in slots:
            self._members[slot].kill()
        self.killed += len(slots)

    def pause(self, slot: str, seconds: float) -> None:
        self._members[slot].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._members[slot].send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """Start again who has ended, by itself or not, but none twice in a second."""
        for slot, process in self._members.items():
            if process.poll() is not None and time.monotonic() > self._born[slot] + 1:
                self.ended += 1
                self._begin(slot)

    def close(self) -> None:
        for process in self._members.values():
            process.kill()
            process.wait(30)

    # -- what they recorded

    def events(self) -> int:
        """Return the number of events that members have recorded so far."""
        for path in self.histories.glob("*.[0-9]*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._seen.get(path, 0))
                more = file.read()
            self._seen[path] = self._seen.get(path, 0) + len(more)
            self._lines += more.count(b"\n")
        return self._lines

    def history(self) -> list[Operation]:
        return load(self.histories)

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]
