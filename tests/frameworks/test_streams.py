"""Kafka Streams: a word count, killed and restored from its compacted changelog.

In the classic protocol and in that of streams groups (KIP-1071).
"""

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from tests.clients.calls import admin, create, producer
from tests.clients.transactions import calls as transactions
from tests.harness import KAFKA_LIBS, SHORT_LIVED_JAVA, eventually
from tests.workers import Site

FLAGS = (
    "--group-initial-rebalance-delay-ms", "200", "--compaction-check-ms", "500",
    "--group-streams-initial-rebalance-delay-ms", "200",
    "--group-streams-min-heartbeat-interval-ms", "100",
    "--group-streams-heartbeat-interval-ms", "500",
    "--group-streams-min-session-timeout-ms", "1000",
    "--group-streams-session-timeout-ms", "6000",
)  # fmt: skip
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "streams"])
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question")


class Application:
    """An instance; `said` has what it told."""

    def __init__(self, site: Site, name: str, directory: Path, *settings: str) -> None:
        command = [
            "java", "-Xmx256m", *SHORT_LIVED_JAVA,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{KAFKA_LIBS}/*",
            str(Path(__file__).with_name("WordCount.java")), site.address, name, f"{name}-in",
            f"{name}-out", str(directory), *settings,
        ]  # fmt: skip
        self.said: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        readers = ((self.process.stdout, self._told), (self.process.stderr, self._failed))
        self._readers = [threading.Thread(target=self._read, args=one) for one in readers]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, told: Any) -> None:
        for line in pipe:
            if line.endswith("\n"):  # else it was killed while it said it
                told(line)

    def _told(self, line: str) -> None:
        self.said.append(json.loads(line))

    def _failed(self, line: str) -> None:
        self.errors.append(line)

    @property
    def state(self) -> str:
        faults = [one for one in self.said if "error" in one]
        assert not faults, (faults, self.errors[-20:])
        return next((one["state"] for one in reversed(self.said) if "state" in one), "")

    def running(self) -> None:
        eventually(lambda: self.state == "RUNNING", 90)

    def look_up(self, word: str) -> int:
        """Ask an interactive query: what this instance's store has."""
        assert self.process.stdin
        count = len(self.said)
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

        def answer() -> Any:
            return [one for one in self.said[count:] if one.get("word") == word]

        return int(eventually(answer, 20)[0]["count"])

    def stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.errors[-20:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            with suppress(OSError):  # a word that was not read
                pipe.close()


@contextmanager
def application(site: Site, name: str, directory: Path, *settings: str) -> Iterator[Application]:
    running = Application(site, name, directory, *settings)
    try:
        yield running
    finally:
        running.kill()


def write(site: Site, queue: str, first: int, count: int) -> Counter[str]:
    """Write lines of words; return how often each was written."""
    client = producer(site.address, linger_ms=5)
    written: Counter[str] = Counter()
    for number in range(first, first + count):
        words = [WORDS[(number * step) % len(WORDS)] for step in range(1, 5)]
        written.update(words)
        client.produce(queue, " ".join(words), key=str(number))
    assert client.flush(30) == 0
    return written


def lag(site: Site, group: str) -> int:
    """Return records that the application has not committed, of all it reads."""
    client = admin(site.address)
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    committed = asked[group].result().topic_partitions
    ends = client.list_offsets(
        {TopicPartition(one.topic, one.partition): OffsetSpec.latest() for one in committed}
    )
    found = {(p.topic, p.partition): future.result().offset for p, future in ends.items()}
    if len({one.topic for one in committed}) < 2:
        return 1 << 30
    return sum(found[one.topic, one.partition] - one.offset for one in committed)


def settings(site: Site, queue: str) -> dict[str, str]:
    client = admin(site.address)
    resource = ConfigResource(ConfigResource.Type.TOPIC, queue)
    (future,) = client.describe_configs([resource]).values()
    return {name: entry.value for name, entry in future.result().items()}


def counted(running: Application) -> Counter[str]:
    return Counter({word: running.look_up(word) for word in WORDS})


def named(site: Site, what: str, protocol: str) -> tuple[str, str]:
    """Return the name of an application, and its setting for the protocol."""
    kind = "embedded" if hasattr(site, "process") else "workers"
    return f"{what}-{protocol}-{kind}", f"group.protocol={protocol}"


@PROTOCOLS
def test_a_word_count_restored_from_its_changelog(
    site: Site, tmp_path: Path, protocol: str
) -> None:
    name, spoken = named(site, "words", protocol)
    create(site.address, f"{name}-in", partitions=2)
    create(site.address, f"{name}-out", partitions=2)
    written = write(site, f"{name}-in", 0, 500)
    with application(site, name, tmp_path / "one", spoken) as first:
        first.running()
        eventually(lambda: counted(first) == written, 60)
        eventually(lambda: lag(site, name) == 0, 30)
        first.kill()
    changelog = f"{name}-counts-changelog"
    assert settings(site, changelog)["cleanup.policy"] == "compact"
    assert settings(site, f"{name}-counts-repartition")["cleanup.policy"] == "delete"
    written += write(site, f"{name}-in", 500, 500)
    with application(site, name, tmp_path / "two", spoken) as second:  # its state directory is new
        second.running()
        assert sum(one.get("restored", 0) for one in second.said) > 0
        eventually(lambda: counted(second) == written, 60)
        second.stop()


def counts_written(site: Site, name: str) -> dict[str, list[int]]:
    """Return each word's counts, as a reader of committed records finds them in the output."""
    found: dict[str, list[int]] = {word: [] for word in WORDS}
    parts = [TopicPartition(f"{name}-out", number, 0) for number in range(2)]
    for messages in transactions.messages(site.address, parts).values():
        for one in messages:
            found[one.key().decode()].append(int.from_bytes(one.value()))
    return found


def one_to(written: Counter[str]) -> dict[str, list[int]]:
    """Return each count once: every word was counted when it came, and never again."""
    return {word: list(range(1, written[word] + 1)) for word in WORDS}


@pytest.mark.parametrize(
    ("state", "kills"), [("kept", 1), pytest.param("lost", 3, marks=pytest.mark.long)]
)
@PROTOCOLS
def test_a_word_count_exactly_once(
    site: Site, tmp_path: Path, protocol: str, state: str, kills: int
) -> None:
    """Killed in the middle: each count is written once, none twice and none left out."""
    name, spoken = named(site, f"once-{state}", protocol)
    for queue in (f"{name}-in", f"{name}-out"):
        create(site.address, queue, partitions=2)
    once, seldom = "processing.guarantee=exactly_once_v2", "commit.interval.ms=3000"
    written: Counter[str] = Counter()

    def caught_up(running: Application) -> bool:
        return counted(running) == written

    def begun(running: Application) -> bool:
        return counted(running).total() > written.total() - 12_000 + 500

    for number in range(kills):
        # Its id is kept with its state: the next instance ends at once the transaction left open.
        directory = tmp_path / (str(number) if state == "lost" else "state")
        with application(site, name, directory, once, seldom, spoken) as killed:
            killed.running()
            eventually(lambda killed=killed: caught_up(killed), 60)
            written += write(site, f"{name}-in", 3000 * number, 3000)
            eventually(lambda killed=killed: begun(killed), 60, 0.01)
            killed.kill()
        before = sum(map(len, counts_written(site, name).values()))
        assert before < written.total(), "it was killed when it had done all"
    written += write(site, f"{name}-in", 3000 * kills, 500)
    with application(site, name, tmp_path / "state", once, spoken) as last:
        last.running()
        eventually(lambda: counts_written(site, name) == one_to(written), 90, 0.5)
        assert counted(last) == written
        last.stop()


@pytest.mark.long
@PROTOCOLS
def test_three_instances_share_the_work(site: Site, tmp_path: Path, protocol: str) -> None:
    name, spoken = named(site, "shared", protocol)
    create(site.address, f"{name}-in", partitions=6)
    create(site.address, f"{name}-out", partitions=6)
    with (
        application(site, name, tmp_path / "one", spoken) as one,
        application(site, name, tmp_path / "two", spoken) as two,
        application(site, name, tmp_path / "three", spoken) as three,
    ):
        for running in (one, two, three):
            running.running()
        written = write(site, f"{name}-in", 0, 2000)

        def together() -> Counter[str]:
            found: Counter[str] = Counter()
            for running in (one, two, three):
                if running.process.poll() is None:
                    found.update({w: max(0, c) for w, c in counted(running).items()})
            return found

        eventually(lambda: together() == written, 90)
        eventually(lambda: lag(site, name) == 0, 30)
        two.stop()
        eventually(lambda: one.state == three.state == "RUNNING", 90)
        written += write(site, f"{name}-in", 2000, 500)
        eventually(lambda: together() == written, 90)
