"""Consumer groups over many queues: what takes long is done beside their members' heartbeats."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from kproxy.common.errors import Code
from kproxy.groups.assigning import subscriptions
from kproxy.groups.model import assigned_group, counters
from kproxy.groups.model.consumer_group import ConsumerGroup, by_queue
from kproxy.handlers.groups import consumer as consumer_groups
from kproxy.log.base import Ticket
from kproxy.loop.steps import AT_ONCE, Work
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker, refused_append
from tests.harness import patient, until

PARTITIONS = 4000


@asynccontextmanager
async def running_worker(**settings: Any) -> AsyncIterator[Worker]:
    """Run a worker whose groups' time passes; a test that takes 30 s has failed."""
    worker = memory_worker(**settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.groups.run)
        with anyio.fail_after(patient(30)):
            yield worker
        tasks.cancel_scope.cancel()


class Member:
    def __init__(self, worker: Worker, name: str, *topics: str, regex: str | None = None) -> None:
        self.worker, self.name, self.topics, self.regex = worker, name, topics, regex
        self.epoch = 0
        self.in_doubt = False  # its last answer was an error: it says everything again
        self.has: set[PartitionKey] = set()

    async def beat(self) -> int:
        first = self.epoch == 0
        whole = first or self.in_doubt
        owned = [
            SimpleNamespace(topic_id=SimpleNamespace(bytes=bytes(q)), partitions=indices)
            for q, indices in by_queue(self.has).items()
        ]
        body = SimpleNamespace(
            group_id="g", member_id=self.name, member_epoch=self.epoch, instance_id=None,
            rack_id=None, rebalance_timeout=timedelta(seconds=60 if whole else -0.001),
            subscribed_topic_names=self.topics if whole else None,
            subscribed_topic_regex=self.regex if whole else None,
            server_assignor=None, topic_partitions=() if first else owned,
        )  # fmt: skip
        header: Any = SimpleNamespace(client_id="c", api_version=1)
        answer = await consumer_groups.heartbeat(self.worker, Request(header=header, body=body))
        self.in_doubt = bool(answer["error_code"])
        if not answer["error_code"]:
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                self.has = {
                    (QueueId(t["topic_id"].bytes), i)
                    for t in answer["assignment"]["topic_partitions"]
                    for i in t["partitions"]
                }
        return int(answer["error_code"])


async def settled(count: int, *members: Member) -> None:
    """Let all beat until each has so many partitions."""
    while any(len(member.has) != count for member in members):
        for member in members:
            assert await member.beat() == 0
        await anyio.sleep(0.001)


def group_of(worker: Worker) -> ConsumerGroup:
    shard: Any = worker.coordinated("g")
    found = worker.groups.of(shard).find("g")
    assert isinstance(found, ConsumerGroup)
    return found


async def made(worker: Worker, *names: str, partitions: int = 1) -> None:
    for name in names:
        await worker.catalogue.create(name, partitions)[1].wait()


@asynccontextmanager
async def nothing_beside() -> AsyncIterator[None]:
    """Let all work wait that is not done at once."""
    go_on, finish = anyio.Event(), subscriptions.finish

    async def held(work: Work[Any], wanted: Callable[[], bool]) -> bool:
        await go_on.wait()
        return await finish(work, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscriptions, "finish", held)
        yield
    go_on.set()


async def test_a_big_target_is_made_beside_heartbeats() -> None:
    async with running_worker() as worker:
        await made(worker, "a", partitions=PARTITIONS)
        one, two = Member(worker, "one", "a"), Member(worker, "two", "a")
        async with nothing_beside():  # nothing goes on beside what members ask for
            assert await one.beat() == 0
            assert (group_of(worker).assigning, one.has) == (True, set())
            assert await two.beat() == 0  # the target is on its way, and nobody waits for it
            assert group_of(worker).assigning
        await until(lambda: not group_of(worker).assigning)
        await settled(PARTITIONS, one)
        group_of(worker).assign_again_at = 0
        await settled(PARTITIONS // 2, one, two)
        assert not one.has & two.has


async def test_a_target_is_for_those_who_are_there_when_it_is_made() -> None:
    """One leaves and one comes meanwhile: the target holds for who is left, the next for all."""

    async with running_worker() as worker:
        await made(worker, "a", partitions=PARTITIONS)
        members = [Member(worker, name, "a") for name in ("one", "two", "three")]
        one, two, three = members
        await settled(PARTITIONS, one)
        group = group_of(worker)
        await two.beat()
        async with nothing_beside():
            group.assign_again_at = 0
            await one.beat()
            assert group.assigning
            two.epoch = -1
            await two.beat()
            await three.beat()
        await until(lambda: not group.assigning)
        assert group.target_epoch < group.epoch
        assert len(group.members["one"].target) == PARTITIONS // 2
        assert not group.members["three"].target
        group.assign_again_at = 0
        await settled(PARTITIONS // 2, one, three)


class Counted:
    """A catalogue that counts the queues that are looked through."""

    def __init__(self, worker: Worker) -> None:
        self._lookup = worker.groups.services.lookup
        self.walked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookup, name)

    def all(self, first: str = "") -> Iterator[Queue]:
        for queue in self._lookup.all(first):
            self.walked += 1
            yield queue


async def test_regexes_are_resolved_beside_heartbeats_and_remembered() -> None:
    queues, regexes = 600, 20

    async with running_worker() as worker:
        counted: Any = Counted(worker)
        worker.groups.services = worker.groups.services._replace(lookup=counted)
        await made(worker, *(f"q{n}" for n in range(queues)))
        members = [Member(worker, f"m{n}", regex=f"q{n}.?.?") for n in range(regexes)]
        for member in members:
            assert await member.beat() == 0
        group = group_of(worker)
        while group.resolving or group.unresolved():
            for member in members:
                assert await member.beat() == 0
            await anyio.sleep(0.001)
        names = {f"q{n}" for n in range(queues)}
        assert group.subscribed() == {
            name for name in names for n in range(regexes) if name.startswith(f"q{n}")
        }
        walked = counted.walked
        for member in members:
            assert await member.beat() == 0
        assert await Member(worker, "again", regex="q1.?.?").beat() == 0
        assert counted.walked == walked


async def test_a_group_that_resolves_does_not_keep_its_members_waiting() -> None:
    """Their heartbeats are answered while there is no end to its regular expressions' work."""

    async with running_worker() as worker:
        await made(worker, *(f"q{n}" for n in range(200)))
        one, two = Member(worker, "one", regex="q.*"), Member(worker, "two", "q1")
        assert await two.beat() == 0
        group = group_of(worker)
        endless = Work(_endless())
        assert not endless.begin()
        group.resolving = True
        found = worker.groups.of(worker.coordinated("g")).subscriptions
        found.later(lambda: found._finish_refresh(group, endless, 0.0))
        for _ in range(5):
            assert await one.beat() == 0
            assert await two.beat() == 0
        assert len(two.has) == 1


def _endless() -> Iterator[None]:
    while True:
        yield


async def test_regexes_of_a_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_worker() as worker:
        monkeypatch.setattr(counters, "_REGEXES_MAX", 2)
        codes = [await Member(worker, f"m{n}", regex=f"q{n}").beat() for n in range(3)]
        assert codes == [Code.NONE, Code.NONE, Code.GROUP_MAX_SIZE_REACHED]
        assert await Member(worker, "m4", regex="q1").beat() == 0


async def test_matches_of_a_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_worker() as worker:
        monkeypatch.setattr(subscriptions, "_MATCHES_MAX", 7)
        await made(worker, *(f"q{n}" for n in range(5)))
        one, two = Member(worker, "one", regex="q.*"), Member(worker, "two", regex="q.+")
        assert [await one.beat(), await two.beat()] == [0, 0]
        assert sum(len(names) for names in group_of(worker).resolved.values()) <= 2 * 7


async def test_equal_subscriptions_are_kept_once() -> None:
    async with running_worker() as worker:
        members = [Member(worker, f"m{n}", "a", "b") for n in range(5)]
        for member in members:
            assert await member.beat() == 0
        group = group_of(worker)
        assert len({id(member.topics) for member in group.members.values()}) == 1
        assert group.subscription_counts.all() == [(("a", "b"), "")]
        members[0].epoch = -1
        await members[0].beat()
        assert group.subscribed() == {"a", "b"}


def test_work_done_at_once_is_counted() -> None:
    work = Work(_endless())
    steps = 0
    advance = work.advance

    def count() -> bool:
        nonlocal steps
        steps += 1
        return advance()

    work.advance = count  # type: ignore[method-assign]
    assert not work.begin()
    assert steps == AT_ONCE


def rows_of(worker: Worker) -> dict[str, bytes]:
    shard: Any = worker.coordinated("g")
    prefix = group_rows.member_prefix("g")
    return {k[len(prefix) :].decode(): v for k, v in shard.kv.scan(prefix, prefix + b"\xff")}


@pytest.mark.parametrize("level", [1, 2])
async def test_members_go_on_with_a_new_coordinator(level: int) -> None:
    """Members go on with any form of their rows; level 1 has JSON alone."""

    async with running_worker() as worker:
        shard: Any = worker.coordinated("g")
        shard.level.value = level
        await made(worker, "a", partitions=50)
        await made(worker, "b", partitions=7)
        one, two = Member(worker, "one", "a", "b"), Member(worker, "two", "b")
        await one.beat()
        await two.beat()
        group_of(worker).assign_again_at = 0
        while (len(one.has), len(two.has)) != (50, 7):
            assert [await one.beat(), await two.beat()] == [0, 0]
        plain = {member: data[8:9] == b"{" for member, data in rows_of(worker).items()}
        assert plain == dict.fromkeys(("one", "two"), level == 1)
        bodies = [e.body[:1] == b"{" for e in shard.log if e.kind == Kind.GROUP]
        assert set(bodies) == {level == 1}
        before = group_of(worker)
        worker.groups._by_shard.clear()
        shard.level.value = 2
        after = group_of(worker)
        assert after is not before
        for name, member in before.members.items():
            again = after.members[name]
            assert (again.assigned, again.target, again.epoch, again.topics) == (
                member.assigned, member.target, member.epoch, member.topics
            )  # fmt: skip
        assert [await one.beat(), await two.beat()] == [0, 0]
        assert (len(one.has), len(two.has)) == (50, 7)


async def test_heartbeat_without_changes_is_not_worked_on() -> None:
    """A heartbeat of a member that is where it should be walks no partitions and logs nothing."""

    async with running_worker() as worker:
        await made(worker, "a", partitions=PARTITIONS)
        one = Member(worker, "one", "a")
        await settled(PARTITIONS, one)
        await one.beat()
        shard: Any = worker.coordinated("g")
        logged, has = len(shard.log), one.has
        one.has = set()
        calls = 0

        def count(frame: Any, event: str, arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        assert await one.beat() == 0
        sys.setprofile(None)
        assert calls < 400
        assert len(shard.log) == logged
        one.has = has


@pytest.mark.parametrize("broken_at", [None, 1, 3])
async def test_oversized_assignment_is_logged_in_parts(
    monkeypatch: pytest.MonkeyPatch, broken_at: int | None
) -> None:
    """A target is in force with the last part; what ends before is decided anew."""

    async with running_worker(group_consumer_assignment_interval_ms=60000) as worker:
        await made(worker, "a", partitions=60)
        members = [Member(worker, f"m{n}", "a") for n in range(6)]
        for member in members:
            assert await member.beat() == 0
        monkeypatch.setattr(assigned_group, "_LOGGED_BYTES", 100)
        shard: Any = worker.coordinated("g")
        group, epoch, first = group_of(worker), group_of(worker).target_epoch, len(shard.log)
        group.assign_again_at = 0
        append, count = shard.append, 0

        def breaking(envelopes: list[Envelope]) -> Ticket:
            nonlocal count
            count += 1
            if count == broken_at:
                return refused_append(envelopes)
            found: Ticket = append(envelopes)
            return found

        shard.append = breaking
        assert bool(await members[0].beat()) == (broken_at is not None)
        values = [group_rows.decode_change(e.body)[0]["values"] for e in shard.log[first:]]
        assert {said["target_epoch"] for said in values[:5]} <= {epoch}
        assert (len(values) > 5) == (broken_at is None)
        assert (group_of(worker) is group) == (broken_at is None)
        group_of(worker).assign_again_at = 0
        await settled(10, *members)
        assert len(set().union(*(member.has for member in members))) == 60
