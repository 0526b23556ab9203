"""A group goes as a whole: in slices where it has many offsets, and whoever ends on the way."""

from typing import Any

import anyio

from kproxy.common.errors import Code
from kproxy.groups.coordinator import Coordinator
from kproxy.log.base import Ticket
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.offsets import ExpireOffsets
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker, refused_append
from tests.groups.test_classic_groups import Member, running_worker
from tests.handlers.long.test_requests import call, commit_values, make, shard_of
from tests.harness import patient
from tests.present import present


def coordinator_of(worker: Worker) -> Coordinator:
    return worker.groups.of(worker.any_shard())


async def test_a_group_of_many_offsets_is_deleted_in_slices() -> None:
    worker = memory_worker()
    make(worker, "q", 3000)
    await call(worker, 8, 8, commit_values("q", range(3000)))
    answer = await call(worker, 42, 2, {"groups_names": ["g", "g", "none"]})
    assert [(r.group_id, r.error_code) for r in answer.results] == [("g", 0), ("none", 69)]
    expired = [len(ExpireOffsets.decode(e).offsets) for e in shard_of(worker).log
               if e.kind == Kind.EXPIRE]  # fmt: skip
    assert expired == [500] * 5
    assert not [key for key in shard_of(worker).kv.rows if key[:1] in b"geo" + b"t"]
    assert not coordinator_of(worker).going("g")


async def test_a_group_whose_deletion_was_broken_off_goes_as_a_whole() -> None:
    """FAULT: a kill midway left the group there, with a part of its offsets."""

    worker = memory_worker()
    make(worker, "q", 3000)
    await call(worker, 8, 8, commit_values("q", range(3000)))
    shard, append, left = shard_of(worker), shard_of(worker).append, 3

    def ending(envelopes: Any) -> Ticket:
        nonlocal left
        left -= 1
        if left >= 0:
            return append(envelopes)
        return refused_append(envelopes, Code.NOT_COORDINATOR)

    shard.append = ending  # type: ignore[method-assign]
    answer = await call(worker, 42, 2, {"groups_names": ["g"]})
    assert answer.results[0].error_code
    shard.append = append  # type: ignore[method-assign]
    assert 500 < len([key for key in shard.kv.rows if key[:1] == b"o"]) < 3000
    worker.groups._by_shard.clear()  # the next coordinator
    wanted = {"groups": [{"group_id": "g", "topics": None}], "require_stable": False}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.groups.run)
        said = await call(worker, 9, 8, wanted)
        assert (said.groups[0].error_code, said.groups[0].topics) == (14, ())
        with anyio.fail_after(patient(20)):
            while said.groups[0].error_code:
                await anyio.sleep(0.01)
                said = await call(worker, 9, 8, wanted)
        tasks.cancel_scope.cancel()
    assert said.groups[0].topics == ()
    assert not [key for key in shard.kv.rows if key[:1] in b"geo" + b"t"]


async def test_a_deletion_that_was_broken_off_is_found_without_anybody_asking() -> None:
    worker = memory_worker(offsets_check_ms=50)
    make(worker, "q", 1100)
    await call(worker, 8, 8, commit_values("q", range(1100)))
    shard, deletions = shard_of(worker), coordinator_of(worker).deletions
    assert await deletions._mark_going("g", present(coordinator_of(worker).head("g"))) == 0
    deletions._under_way.clear()
    expiry = ExpireOffsets("g", len(shard.log) - 1, False, [])
    assert not shard.apply(expiry.envelope(2)).code
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.groups.run)
        with anyio.fail_after(patient(20)):
            while coordinator_of(worker).head("g") is not None:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert not [key for key in shard.kv.rows if key[:1] in b"geo" + b"t"]


async def test_join_of_a_group_under_deletion_has_to_wait() -> None:
    worker = memory_worker()
    make(worker, "q")
    coordinator_of(worker).deletions._under_way.add("g")
    answer = await call(worker, 8, 8, commit_values("q", [0]))
    assert answer.topics[0].partitions[0].error_code == 14
    described = await call(worker, 15, 5, {
        "groups": ["g"], "include_authorized_operations": False,
    })  # fmt: skip
    assert described.groups[0].error_code == 14


async def test_a_group_that_is_just_empty_goes_though_its_rows_do_not_say_so_yet() -> None:
    async with running_worker() as worker:
        one = Member(worker)
        with anyio.fail_after(patient(20)):
            assert await one.join() == 0
            assert (await one.sync(one))[0] == 0
            assert await one.leave() == 0
            async with anyio.create_task_group() as tasks:
                group = coordinator_of(worker).groups["g"]
                tasks.start_soon(coordinator_of(worker).log, group)  # as is about to be
                answer = await call(worker, 42, 2, {"groups_names": ["g"]})
        assert [r.error_code for r in answer.results] == [0]
        assert not [key for key in shard_of(worker).kv.rows if key[:1] in b"geou"]
