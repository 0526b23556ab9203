"""Classic groups of many members: what is done for all of them is done in pieces."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kproxy.groups.requests import classic_rebalance
from kproxy.handlers.groups import admin as group_admin
from kproxy.handlers.groups import classic as classic_groups
from kproxy.handlers.groups import offset_fetch, offsets
from kproxy.loop import pace
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.rows import groups as group_rows
from kproxy.worker.worker import Worker
from tests.commands import command
from tests.fakes import memory_worker
from tests.groups.test_classic_groups import Member, coordinator_of, request, running_worker


async def test_many_who_join_are_answered_in_pieces() -> None:
    """Between two pieces others are served: no turn of the loop answers them all."""
    count = 1000

    async with running_worker(group_initial_rebalance_delay_ms=300) as worker:
        members = [Member(worker, rebalance_ms=60_000) for _ in range(count)]
        joined: list[int] = []
        turns: list[int] = []

        async def join(member: Member) -> None:
            await member.join()
            joined.append(1)

        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(join, member)
            while len(joined) < count:
                turns.append(len(joined))
                await checkpoint()
        turns.append(count)
        assert max(b - a for a, b in itertools.pairwise(turns)) <= 200
        assert {member.generation for member in members} == {1}
        synced: list[bytes] = []

        async def sync(member: Member) -> None:
            given = members if member.id == member.leader else ()
            code, assignment = await member.sync(*given)
            assert (code, assignment) == (0, member.id.encode())
            synced.append(assignment)

        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(sync, member)


class Turns:
    """Counts what is done in one turn of the loop."""

    def __init__(self) -> None:
        self.most = self._now = 0

    def count(self) -> None:
        self._now += 1
        self.most = max(self.most, self._now)

    async def run(self) -> None:
        while True:
            self._now = 0
            await checkpoint()


async def test_many_who_leave_are_gone_through_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: lists of all of them, 249,000 at most, held the loop for 200 ms."""
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    turns = Turns()

    class Leaving(tuple[Any, ...]):
        def __iter__(self) -> Iterator[Any]:
            for one in super().__iter__():
                turns.count()
                yield one

    async with running_worker() as worker:
        names = [f"m{n}" for n in range(500)]
        some = Leaving(SimpleNamespace(member_id=n, group_instance_id=None) for n in names)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.run)
            answer = await classic_groups.leave(worker, request(3, group_id="g", members=some))
            tasks.cancel_scope.cancel()
        assert [one["member_id"] for one in answer["members"]] == names
        assert turns.most <= 10


async def test_the_members_that_the_leader_is_told_of_are_listed_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: what is done for each of 10,000 members in one turn held the loop for 80 ms."""
    turns, listed = Turns(), classic_rebalance._listed

    def counting(member: Any, protocol: str | None) -> dict[str, Any]:
        turns.count()
        return listed(member, protocol)

    monkeypatch.setattr(classic_rebalance, "_listed", counting)

    async with running_worker(group_initial_rebalance_delay_ms=300) as worker:
        members = [Member(worker, rebalance_ms=60_000) for _ in range(1000)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.run)
            async with anyio.create_task_group() as joining:
                for member in members:
                    joining.start_soon(member.join)
            tasks.cancel_scope.cancel()
        assert {member.generation for member in members} == {1}
        assert turns.most <= 250


def fill(worker: Worker, count: int) -> None:
    """Put rows of a group as an earlier coordinator has left them."""
    row = {
        "epoch": 5, "instance": None, "client_id": "c", "host": "", "session_s": 60.0,
        "rebalance_s": 60.0, "protocols": [["range", ""]], "assignment": "AAE=",
    }  # fmt: skip
    values = {
        "group": "g", "after": -1, "kind": "classic", "members": count,
        "values": {"generation": 5, "protocol_type": "consumer", "protocol": "range",
                   "leader": "m0"},
        "rows": {f"m{n}": row for n in range(count)},
    }  # fmt: skip
    shard: Any = worker.coordinated("g")
    shard.apply(command(Kind.GROUP, values=values))


async def test_a_big_group_is_read_in_slices_by_a_new_coordinator() -> None:
    """Others are served meanwhile, who asks for the group waits, and it is read once."""
    count = 4000

    async with running_worker() as worker:
        fill(worker, count)
        members = [Member(worker) for _ in range(3)]
        for number, member in enumerate(members):
            member.id, member.generation = f"m{number}", 5
        codes: list[int] = []

        async def beat(member: Member) -> None:
            codes.append(await member.beat())

        turns = 0
        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(beat, member)
            while len(codes) < 3:
                await checkpoint()
                turns += 1
        assert codes == [0, 0, 0]
        assert turns >= 5
        group = coordinator_of(worker).groups["g"]
        assert len(group.members) == count
        assert len(coordinator_of(worker).timers) == count
        assert members[0].id == group.leader  # type: ignore[union-attr]


@pytest.mark.parametrize("by", ["commit", "fetch", "describe"])
async def test_first_request_for_a_big_group_has_it_read_in_slices(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the first commit after a takeover held the loop until 10,000 members were read."""
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    count, turns, decode = 4000, Turns(), group_rows.decode_member

    def counting(data: bytes) -> dict[str, Any]:
        turns.count()
        return decode(data)

    monkeypatch.setattr(group_rows, "decode_member", counting)

    async def ask(worker: Worker) -> int:
        if by == "commit":
            part = SimpleNamespace(
                partition_index=0, committed_offset=1, committed_metadata="",
                committed_leader_epoch=-1,
            )  # fmt: skip
            answer = await offsets.commit(worker, request(
                8, group_id="g", member_id="m1", generation_id_or_member_epoch=5,
                topics=[SimpleNamespace(name="q", partitions=[part])],
            ))  # fmt: skip
            return int(answer["topics"][0]["partitions"][0]["error_code"])
        if by == "fetch":
            asked = SimpleNamespace(group_id="g", member_id="m1", member_epoch=5, topics=None)
            body = await offset_fetch.handle(worker, request(9, groups=[asked]))
            return int.from_bytes(body[-4:-2], "big")  # the group's code, and no tags behind it
        answer = await group_admin.describe(worker, request(5, groups=["g"]))
        return int(answer["groups"][0]["error_code"])

    async def test(worker: Worker) -> None:
        await worker.catalogue.create("q", 1)[1].wait()
        coordinator_of(worker)  # it takes nothing up
        fill(worker, count)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.run)
            assert await ask(worker) == 0
            tasks.cancel_scope.cancel()
        assert len(coordinator_of(worker).groups["g"].members) == count
        assert turns.most <= 500

    await test(memory_worker(group_session_ms_min=1))
