"""The reads of logs: each for its caller, though another asked for the same partition before."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import to_thread
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException

from kproxy.upstream import log_reader
from kproxy.upstream.log_reader import LogReader, Records
from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.virtual.commands.envelope import Kind
from tests.harness import patient, until
from tests.upstream.consumers import FakeConsumer, Message

UPSTREAM = Upstream(servers="nowhere", prefix="t", client={}, connectivity=Connectivity("nowhere"))


class Readers:
    """The records that came, by for whom they were read."""

    def __init__(self) -> None:
        self.found: dict[object, list[int]] = {}
        self.held: dict[object, anyio.Event] = {}

    async def deliver(self, partition: int, reader: object, records: Records) -> None:
        self.found.setdefault(reader, []).extend(offset for offset, _ in records)
        if reader in self.held:
            await self.held[reader].wait()

    async def has(self, reader: object, offsets: list[int]) -> None:
        """Wait until these have come first; a read may bring more than it was asked for."""
        await until(lambda: self.found.get(reader, [])[: len(offsets)] == offsets, 10)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "Consumer", FakeConsumer)


@asynccontextmanager
async def log_reader_of(readers: Readers) -> AsyncIterator[LogReader]:
    reader = LogReader(UPSTREAM, readers.deliver, lambda *lost: pytest.fail(str(lost)))
    try:
        yield reader
    finally:
        await to_thread.run_sync(reader.close)


async def test_a_read_asked_for_twice_goes_on() -> None:
    readers = Readers()
    async with log_reader_of(readers) as reader:
        reader.read(0, 3, 5, "one")
        reader.read(0, 3, 8, "one")
        await readers.has("one", [3, 4, 5, 6, 7])


async def test_a_read_of_a_former_life_is_not_gone_on_with() -> None:
    """FAULT S1: a shard lost and got back while it was read was made again from nothing."""

    readers = Readers()
    async with log_reader_of(readers) as reader:
        readers.held["before"] = anyio.Event()
        reader.read(0, 0, 20, "before")
        await readers.has("before", [0, 1])
        reader.read(0, 9, 12, "after")
        readers.held.pop("before").set()
        await readers.has("after", [9, 10, 11])
        assert readers.found["before"] == [0, 1]


async def test_listener_with_a_slow_disk_holds_up_nobody_else() -> None:
    """FAULT S8: one shard that could not write stopped what all others read."""

    readers = Readers()
    async with log_reader_of(readers) as reader:
        readers.held["slow"] = anyio.Event()
        reader.read(0, 0, 6, "slow")
        await readers.has("slow", [0])
        reader.read(1, 5, 9, "quick")
        await readers.has("quick", [5, 6, 7, 8])
        assert len(readers.found["slow"]) < 3
        reader.read(0, 6, 12, "slow")
        readers.held.pop("slow").set()
        await readers.has("slow", list(range(12)))


async def test_more_is_asked_for_while_the_reader_is_busy_with_all_it_asked_for() -> None:
    readers = Readers()
    async with log_reader_of(readers) as reader:
        readers.held["slow"] = anyio.Event()
        reader.read(0, 0, 1, "slow")
        await readers.has("slow", [0])
        await anyio.sleep(2 * log_reader._PATIENCE_S)
        first = len(readers.found["slow"])
        reader.read(0, first, 9, "slow")
        await anyio.sleep(2 * log_reader._LOOK_S)
        assert len(readers.found["slow"]) == first
        readers.held.pop("slow").set()
        await readers.has("slow", list(range(9)))


class Holed(FakeConsumer):
    """Offsets 5 to 9 hold no record, and the first question where the log begins fails."""

    asked = 0

    def consume(self, count: int, seconds: float) -> list[Message]:
        self._at = {one: at if not 5 <= at < 10 else 10 for one, at in self._at.items()}
        return super().consume(count, seconds)

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        Holed.asked += 1
        if Holed.asked == 1:
            raise KafkaException(UpstreamError(UpstreamError._TRANSPORT))
        return 0, self.records


async def test_records_behind_a_hole_are_not_taken_for_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hiccup while a hole was looked at: the records read meanwhile were passed over for good."""
    monkeypatch.setattr(log_reader, "Consumer", Holed)
    monkeypatch.setattr(log_reader, "_RETRY_S", 0.0)
    found: list[tuple[int, Kind]] = []

    async def deliver(partition: int, reader: object, records: Records) -> None:
        found.extend((offset, envelope.kind) for offset, envelope in records)

    reader = LogReader(UPSTREAM, deliver, lambda *lost: pytest.fail(str(lost)))
    try:
        reader.read(0, 0, 20, "one")
        with anyio.fail_after(patient(10)):
            while len(found) < 20:
                await anyio.sleep(0.002)
    finally:
        await to_thread.run_sync(reader.close)
    foreign = [Kind.FOREIGN if 5 <= offset < 10 else Kind.APPEND for offset in range(20)]
    assert found == list(enumerate(foreign))
