"""Classic groups over time: debounce, silent members, bounds. Real seconds, few of them."""

import gc
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.handlers.groups import classic as classic_groups
from kproxy.worker.request import Request
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker
from tests.harness import patient, until


@asynccontextmanager
async def running_worker(**settings: Any) -> AsyncIterator[Worker]:
    """Run a worker whose groups' time passes; a test that takes two minutes has failed."""
    worker = memory_worker(
        **{"group_session_ms_min": 1, "group_initial_rebalance_delay_ms": 0, **settings}
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.groups.run)
        with anyio.fail_after(patient(120)):
            yield worker
        tasks.cancel_scope.cancel()


def request(version: int, **body: Any) -> Request:
    header: Any = SimpleNamespace(client_id="c", api_version=version)
    return Request(header=header, body=SimpleNamespace(**body))


class Member:
    def __init__(self, worker: Worker, group: str = "g", rebalance_ms: int = 300) -> None:
        self.worker, self.group, self.rebalance_ms = worker, group, rebalance_ms
        self.id, self.generation, self.leader = "", -1, ""
        self.instance: str | None = None

    async def join(self, version: int = 3, session_ms: int = 60_000) -> int:
        answer = await classic_groups.join(self.worker, request(
            version, group_id=self.group, member_id=self.id, group_instance_id=self.instance,
            session_timeout=timedelta(milliseconds=session_ms),
            rebalance_timeout=timedelta(milliseconds=self.rebalance_ms),
            protocol_type="consumer",
            protocols=(SimpleNamespace(name="range", metadata=b"m"),),
        ))  # fmt: skip
        if not answer["error_code"]:
            self.id, self.generation = answer["member_id"], answer["generation_id"]
            self.leader = answer["leader"]
        return int(answer["error_code"])

    async def sync(self, *others: "Member") -> tuple[int, bytes]:
        given = [SimpleNamespace(member_id=m.id, assignment=m.id.encode()) for m in others]
        answer = await classic_groups.sync(self.worker, request(
            3, group_id=self.group, generation_id=self.generation, member_id=self.id,
            group_instance_id=self.instance, assignments=given,
        ))  # fmt: skip
        return int(answer["error_code"]), answer["assignment"]

    async def leave(self) -> int:
        leaving = SimpleNamespace(member_id=self.id, group_instance_id=self.instance)
        answer = await classic_groups.leave(self.worker, request(
            3, group_id=self.group, members=(leaving,),
        ))  # fmt: skip
        return int(answer["members"][0]["error_code"])

    async def beat(self) -> int:
        answer = await classic_groups.heartbeat(self.worker, request(
            3, group_id=self.group, generation_id=self.generation, member_id=self.id,
            group_instance_id=self.instance,
        ))  # fmt: skip
        return int(answer["error_code"])


async def test_a_new_group_waits_for_those_who_come_a_little_later() -> None:
    async with running_worker(group_initial_rebalance_delay_ms=1000) as worker:
        members = [Member(worker, rebalance_ms=5000) for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(member.join)
                await anyio.sleep(0.4)  # each within the delay after the one before
        assert [member.generation for member in members] == [1] * 4
        assert {member.leader for member in members} == {members[0].id}


async def test_member_that_does_not_rejoin_in_time_is_left_out() -> None:
    async with running_worker() as worker:
        one, two = Member(worker), Member(worker)
        await one.join()
        await one.sync(one)
        started = anyio.current_time()
        assert await two.join() == 0
        assert anyio.current_time() - started >= 0.25
        assert (two.generation, two.leader) == (2, two.id)
        assert await one.beat() == 25
        assert await two.sync(two) == (0, two.id.encode())


async def test_a_leader_that_never_assigns_is_left_out() -> None:
    async with running_worker() as worker:
        one, two = Member(worker), Member(worker)
        await one.join()
        await one.sync(one)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.join)
            await anyio.sleep(0.05)
            tasks.start_soon(one.join)
        assert one.leader == two.leader == one.id
        assert (await two.sync())[0] == 27
        assert await two.join() == 0
        assert two.leader == two.id
        assert await two.sync(two) == (0, two.id.encode())
        assert await one.beat() == 25


async def test_a_silent_member_runs_out_and_a_static_one_keeps_its_place_meanwhile() -> None:
    async with running_worker(group_initial_rebalance_delay_ms=150) as worker:
        one, two = Member(worker, rebalance_ms=5000), Member(worker, rebalance_ms=5000)
        one.instance = "i"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.join, 5, 10_000)
            await anyio.sleep(0.05)
            tasks.start_soon(two.join, 3, 60_000)
        leader, follower = (one, two) if one.leader == one.id else (two, one)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follower.sync)
            await leader.sync(one, two)
        back = Member(worker, rebalance_ms=5000)
        back.instance = "i"
        assert await back.join(5, 2000) == 0  # at once, in the same generation
        assert back.generation == two.generation
        assert await two.beat() == 0
        await anyio.sleep(2.2)
        assert await two.beat() == 27  # it has run out: the others share anew


async def test_ids_given_out_and_groups_are_bounded() -> None:
    async with running_worker(group_members_max=3, groups_joined_max=4) as worker:
        codes = [await Member(worker).join(5) for _ in range(5)]
        assert codes == [79, 79, 79, 81, 81]
        codes = [await Member(worker, f"g{i}").join(5) for i in range(4)]
        assert codes == [79, 79, 15, 15]  # nobody has the last quarter


async def test_a_new_member_runs_out_within_its_session() -> None:
    """Before its first answer it has minutes; from then on what it asked for."""

    async with running_worker() as worker:
        one = Member(worker)
        await one.join(session_ms=1200)
        await one.sync(one)
        await anyio.sleep(0.7)
        assert await one.beat() == 0
        await anyio.sleep(0.7)
        assert await one.beat() == 0
        await anyio.sleep(1.4)
        assert await one.beat() == 25


MONTH_MS = 2**31 - 1  # the session of consumers that have no limit


def coordinator_of(worker: Worker) -> Coordinator:
    return worker.groups.of(worker.coordinated("g"))


async def test_groups_that_are_gone_leave_nothing_behind() -> None:
    """Kafka bounds sessions, but no rebalance timeouts: they may ask for any time."""

    async with running_worker() as worker:

        async def come_and_go(group: str) -> None:
            one = Member(worker, group, rebalance_ms=MONTH_MS)
            assert await one.join(session_ms=1_800_000) == 0
            assert await one.sync(one) == (0, one.id.encode())
            assert await one.leave() == 0

        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(come_and_go, f"g{number}")
        await until(lambda: not coordinator_of(worker).groups)
        assert len(coordinator_of(worker).timers) <= 200
        gc.collect()
        assert sum(isinstance(found, ClassicGroup) for found in gc.get_objects()) <= 100


async def test_rounds_that_are_over_leave_nothing_behind() -> None:
    async with running_worker() as worker:
        one = Member(worker, rebalance_ms=MONTH_MS)
        await one.join(session_ms=1_800_000)
        for _ in range(500):
            await one.sync(one)
            assert await one.join(session_ms=1_800_000) == 0
            assert await Member(worker).join(5) == 79  # an id that is given out, and not used
            for reserved in list(coordinator_of(worker).groups["g"]._pending):  # type: ignore[union-attr]
                leaver = Member(worker)
                leaver.id = reserved
                assert await leaver.leave() == 0
        assert one.generation == 501
        assert len(coordinator_of(worker).timers) <= 200


async def test_heartbeats_that_wait_while_the_loop_stands_still_count() -> None:
    async with running_worker() as worker:
        one = Member(worker)
        await one.join(session_ms=1000)
        await one.sync(one)
        read, write = os.pipe()
        codes: list[int] = []

        async def heartbeat() -> None:
            await anyio.wait_readable(read)
            for _ in range(3):  # as of a connection: a request goes through some turns of the loop
                await checkpoint()
            codes.append(await one.beat())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heartbeat)
            await anyio.sleep(0.05)
            os.write(write, b"x")
            time.sleep(1.5)  # noqa: ASYNC251
        os.close(read)
        os.close(write)
        assert codes == [0]
        await anyio.sleep(0.2)
        assert await one.beat() == 0
