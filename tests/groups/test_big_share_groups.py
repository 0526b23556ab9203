"""Share groups over many queues, and over shards of which one is away: beside heartbeats."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kproxy.common.errors import Code
from kproxy.groups.model.share_group import ShareGroup
from kproxy.groups.upkeep import share_initialisation
from kproxy.handlers.shares import groups as share_groups
from kproxy.log.base import Ticket
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.shares import SET_MAX, SetShares
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker, refused_append
from tests.harness import patient, until
from tests.held import HELD_S, held_by, slowness

MANY = 100_000


class Member:
    def __init__(self, worker: Worker, name: str, topics: Sequence[str]) -> None:
        self.worker, self.name, self.topics = worker, name, topics
        self.epoch = 0
        self.has = 0  # partitions

    async def beat(self) -> int:
        body = SimpleNamespace(
            group_id="g", member_id=self.name, member_epoch=self.epoch, rack_id=None,
            subscribed_topic_names=None if self.epoch else self.topics,
        )  # fmt: skip
        header: Any = SimpleNamespace(client_id="c", api_version=1)
        answer = await share_groups.heartbeat(self.worker, Request(header=header, body=body))
        if not answer["error_code"]:
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                parts = answer["assignment"]["topic_partitions"]
                self.has = sum(len(topic["partitions"]) for topic in parts)
                while parts:  # as a connection lets go of a long answer
                    del parts[-1000:]
                    await checkpoint()
        return int(answer["error_code"])


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.groups.run)
        with anyio.fail_after(patient(120)):
            yield
        tasks.cancel_scope.cancel()


def create(worker: Worker, name: str, partitions: int = 1) -> None:
    shard: Any = worker.any_shard()
    queue_id = QueueId(name.encode().rjust(16, b"."))
    made = CreateQueue(queue_id, name, partitions, {})
    assert not shard.apply(made.envelope()).code


def group_of(worker: Worker) -> ShareGroup:
    found = worker.groups.of(worker.any_shard()).find("g")
    assert isinstance(found, ShareGroup)
    return found


async def settled(count: int, *members: Member) -> None:
    """Let all beat until each has so many partitions."""
    while any(member.has != count for member in members):
        for member in members:
            assert await member.beat() == 0
        await anyio.sleep(0.001)


async def test_many_partitions_are_made_beside_heartbeats() -> None:
    worker = memory_worker(group_share_assignment_interval_ms=0)
    create(worker, "q", SET_MAX + 1)
    one = Member(worker, "one", ["q"])
    assert await one.beat() == 0  # nothing runs yet beside what members ask for
    assert (group_of(worker).initialising, one.epoch, one.has) == (True, 2, 0)
    async with running(worker):
        await settled(SET_MAX + 1, one)
    shard: Any = worker.any_shard()
    sets = [len(SetShares.decode(e).changes) for e in shard.log if e.kind == Kind.SHARE_SET]
    assert sets == [SET_MAX, 1]


class Landing:
    """Three shards, of which some are away. They keep what lands."""

    shards = 3

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.landed: list[tuple[int, PartitionKey]] = []

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        if index in self.away:
            return refused_append(envelopes, Code.REQUEST_TIMED_OUT)
        ticket = Ticket(list(envelopes))
        for envelope in envelopes:
            self.landed += [(index, one.key) for one in SetShares.decode(envelope).changes]
        ticket.set_outcomes([worker_outcome() for _ in envelopes])
        return ticket


def worker_outcome() -> Any:
    return SimpleNamespace(code=Code.NONE, message=None)


async def test_a_shard_that_is_away_holds_up_its_own_partitions_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_initialisation, "_AGAIN_S", 0.001)
    worker = memory_worker(group_share_assignment_interval_ms=0)
    landing: Any = Landing()
    worker.groups.services = worker.groups.services._replace(landing=landing)
    names = [f"q{number}" for number in range(6)]
    for name in names:
        create(worker, name, 2)
    landing.away = {1}
    there = [name for name in names if 1 not in (shard_of(name, 3, 0), shard_of(name, 3, 1))]
    assert 0 < len(there) < len(names)
    one = Member(worker, "one", names)
    assert await one.beat() == 0
    async with running(worker):
        await settled(2 * len(there), one)
        landing.away.clear()
        await settled(2 * len(names), one)
        await until(lambda: not group_of(worker).initialising)
    for name in names:
        queue_id = QueueId(name.encode().rjust(16, b"."))
        for index in range(2):
            assert (shard_of(name, 3, index), (queue_id, index)) in landing.landed


async def test_queues_subscribed_to_meanwhile_are_made_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: who was at it went by what was lacking when it began."""
    monkeypatch.setattr(share_initialisation, "_AGAIN_S", 0.001)
    worker = memory_worker(group_share_assignment_interval_ms=0)
    create(worker, "q", SET_MAX + 1)
    create(worker, "r")
    one, two = Member(worker, "one", ["q"]), Member(worker, "two", ["r"])
    assert await one.beat() == 0
    assert group_of(worker).initialising
    assert await two.beat() == 0
    async with running(worker):
        await settled(1, two)
        await settled(SET_MAX + 1, one)
        await until(lambda: not group_of(worker).initialising)


async def test_a_group_of_a_hundred_thousand_queues_holds_nobody_up() -> None:
    slow = slowness()
    worker = memory_worker(group_share_assignment_interval_ms=0)
    names = [f"q{number:06}" for number in range(MANY)]
    for name in names:
        create(worker, name)
    shard: Any = worker.any_shard()
    sorted_rows = Rows(shard.kv.rows)
    shard.kv.scan = sorted_rows.scan
    one, two = Member(worker, "one", names), Member(worker, "two", names)

    async def joined() -> None:
        async with running(worker):
            await settled(MANY, one)
            await two.beat()
            await settled(MANY // 2, one, two)

    _, held = await held_by(joined())
    assert held < HELD_S * slow
    logged = len(shard.log)
    for _ in range(3):
        assert [await one.beat(), await two.beat()] == [0, 0]
    assert len(shard.log) == logged
    worker.groups._by_shard.clear()  # the next coordinator
    sorted_rows.renew()

    async def taken_over() -> None:
        async with running(worker):
            assert [await one.beat(), await two.beat()] == [0, 0]
            await until(lambda: not (group_of(worker).unchecked or group_of(worker).initialising))

    _, held = await held_by(taken_over())
    assert held < HELD_S * slow
    assert len(group_of(worker).initialised) == MANY

    async def left() -> None:
        async with running(worker):
            for member in (one, two):
                member.epoch = -1
                assert await member.beat() == 0

    _, held = await held_by(left())
    assert held < HELD_S * slow
    sorted_rows.renew()
    code, held = await held_by(worker.groups.of(worker.any_shard()).delete("g"))
    assert code == Code.NONE
    assert held < HELD_S * slow
    assert not [key for key in shard.kv.rows if key[:1] in (b"R", b"S")]


class Rows:
    """The rows in the order of keys, without sorting all of them at each scan, as RocksDB's."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows
        self.renew()

    def renew(self) -> None:
        self._keys = sorted(self._rows)

    def scan(self, start: bytes, end: bytes) -> Any:
        for at in range(bisect_left(self._keys, start), bisect_left(self._keys, end)):
            value = self._rows.get(self._keys[at])
            if value is not None:
                yield self._keys[at], value
