"""Shards taken away while everything that works on them is at it: nothing but that piece ends."""

import random
import threading
import weakref
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from kproxy.cluster import publisher, rebuild, shard_owner
from kproxy.cluster.shard_owner import ShardOwner
from kproxy.common.errors import Code
from kproxy.groups.coordinator import GroupServices
from kproxy.groups.coordinators import Coordinators
from kproxy.groups.model.classic_member import ClassicMember
from kproxy.loop import pace
from kproxy.loop.garbage import GarbageNet
from kproxy.loop.steps import at_once
from kproxy.metadata.catalogue import QueueIds
from kproxy.shard import housekeeper
from kproxy.shard.shard import Shard
from kproxy.store.rocks import RocksKv, RowsClosed
from kproxy.virtual.commands.envelope import COPIED, Envelope, Kind
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.rows.groups import encode_change
from kproxy.virtual.rows.kinds import PUBLISHED_BYTES
from kproxy.virtual.rows.queues import Partition, partition_key
from kproxy.virtual.snapshot import AS_OF_KEY, Anchors, encode_as_of
from kproxy.virtual.types import QueueId, ShardId
from tests.commands import command
from tests.fakes import DictKv, as_served
from tests.harness import patient, until
from tests.present import present
from tests.simulation.workers.cluster import World
from tests.simulation.workers.offset_topic import SimRowsWriter
from tests.simulation.workers.sim_worker import Life
from tests.wire import batch

GROUPS = 400
OFFSETS = 10  # for each
ROUNDS = 8
OTHER = 1 << 40  # a writer


async def served(life: Life) -> Shard:
    with anyio.fail_after(patient(20)):
        while (shard := life.shards.serving(0)) is None:
            await anyio.sleep(0.001)
    return shard


def take_away(life: Life) -> None:
    """Give the shard to another worker, which claims it."""
    life.shards.assigned(frozenset())
    life.world.land(0, Claim(writer=OTHER).envelope())


async def fill(shard: Shard, queue_id: QueueId) -> None:
    """Make many groups, each with a member and offsets on one queue."""
    values: dict[str, Any] = {"name": "q", "partitions": OFFSETS, "configs": {}}
    commands = [command(Kind.CREATE, queue_id, values=values)]
    member = ClassicMember("m", None, "client", "/here", 60.0, 60.0, ()).row(1)
    for number in range(GROUPS):
        group = f"g{number}"
        values = {"group": group, "after": -1, "kind": "classic", "members": 1, "values": {}}
        body = at_once(encode_change(values, {"m": member}, packed=number % 2 == 0))
        commands.append(Envelope(Kind.GROUP, body=body))
        offsets = [[queue_id.hex(), index, 1, -1, "", False] for index in range(OFFSETS)]
        values = {"group": group, "member": "m", "epoch": 1, "offsets": offsets}
        commands.append(command(Kind.COMMIT, values=values))
    for start in range(0, len(commands), 100):
        outcomes = await shard.append(commands[start : start + 100]).wait()
        assert outcomes[0].code == Code.NONE


@pytest.fixture
async def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Life]:
    """Yield one worker on a simulated cluster, on a real disk and in real time."""
    world = World(random.Random(1), 1, tmp_path)
    world.calm = True
    monkeypatch.setattr(world, "delay", lambda: 0.0)
    monkeypatch.setattr(publisher, "RowsWriter", SimRowsWriter)
    monkeypatch.setattr(rebuild, "read_to_end", world.read_to_end)
    monkeypatch.setattr(shard_owner, "_AGAIN_S", 0.01)
    life = Life(world, "w0", 1, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.run)
        await checkpoint()
        yield life
        await life.crash()
        tasks.cancel_scope.cancel()


async def test_a_shard_is_taken_away_from_all_that_works_on_it(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT B5: the whole worker ended, as if its disk could not be written."""
    touched = []
    scan = RocksKv.scan

    def noted(self: RocksKv, start: bytes, end: bytes) -> Any:
        touched.append(start[:1])
        return scan(self, start, end)

    with structlog.testing.capture_logs() as said:
        queue_id = QueueIds(1).new(ShardId(0))
        life.shards.assigned(frozenset({0}))
        await fill(await served(life), queue_id)
        monkeypatch.setattr(RocksKv, "scan", noted)
        monkeypatch.setattr(pace, "SLICE_S", 0.0)
        monkeypatch.setattr(housekeeper, "_ROWS_AT_ONCE", 20)
        coordinators = Coordinators(
            life.shards.all, GroupServices(life.config, life.cache, life.now_ms)
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(coordinators.run)
            for turns in range(ROUNDS):
                life.shards.assigned(frozenset({0}))
                shard = await served(life)
                life.remote_cleanup.queue_gone(QueueIds(1).new(ShardId(0)))
                assert shard.tasks is not None
                shard.tasks.start_soon(life.remote_cleanup.look_at, shard, [queue_id], [])
                coordinators.of(shard)
                for _ in range(turns * 3):
                    await checkpoint()
                take_away(life)
                await life.remote_cleanup.round()
                with anyio.fail_after(patient(20)):
                    while life.shards.serving(0) is not None:
                        await checkpoint()
            tasks.cancel_scope.cancel()
        assert {b"u", b"r"} <= set(touched)

    assert not [line for line in said if line["log_level"] in ("warning", "error")]


async def test_a_shard_is_served_until_another_worker_claims_it(life: Life) -> None:
    life.shards.assigned(frozenset({0}))
    shard = await served(life)
    claim = shard.claim_offset
    life.shards.assigned(frozenset())
    await fill(shard, QueueIds(1).new(ShardId(0)))  # it answers while nobody else could
    assert life.shards.serving(0) is shard
    take_away(life)
    with anyio.fail_after(patient(20)):
        await until(lambda: life.shards.serving(0) is None)
        await until(lambda: shard.tasks is None)
    await anyio.sleep(2 * shard_owner._CLAIM_AGAIN_S)
    writers = [one.writer for one in life.world.logs[0] if one.kind == Kind.CLAIM]
    assert writers == [life.writer, OTHER]  # and it claimed no more
    assert life.world.logs[0][claim].kind == Kind.CLAIM


async def test_a_shard_that_comes_back_before_it_was_claimed_is_kept(life: Life) -> None:
    life.shards.assigned(frozenset({0}))
    shard = await served(life)
    life.shards.assigned(frozenset())
    await checkpoint()
    life.shards.assigned(frozenset({0}))
    await fill(shard, QueueIds(1).new(ShardId(0)))
    assert life.shards.serving(0) is shard
    life.world.land(0, Claim(writer=OTHER).envelope())  # a late one: the group says it is ours
    await until(lambda: life.shards.serving(0) not in (shard, None) or shard.claim_offset >= 2, 20)
    writers = [one.writer for one in life.world.logs[0] if one.kind == Kind.CLAIM]
    assert writers == [life.writer, OTHER, life.writer]


async def test_request_to_a_given_up_shard_is_sent_elsewhere(life: Life) -> None:
    life.shards.assigned(frozenset({0}))
    shard = await served(life)
    await fill(shard, QueueIds(1).new(ShardId(0)))
    rows = shard.kv.scan(b"g", b"h")
    next(rows)
    take_away(life)
    with anyio.fail_after(patient(20)):
        while life.shards.serving(0) is not None or shard.tasks is not None:
            await checkpoint()
    for touch in (lambda: shard.kv.get(b"m"), lambda: next(rows), lambda: shard.commit({})):
        with pytest.raises(RowsClosed) as refused:
            touch()
        assert refused.value.code == Code.NOT_LEADER_OR_FOLLOWER


async def test_little_is_left_of_shards_that_were_given_up(life: Life) -> None:
    """Python does not look for what has lived long: a shard's caches would stay for ever."""
    given_up: list[weakref.ref[Shard]] = []

    async def give_up(life: Life) -> None:
        life.shards.assigned(frozenset({0}))
        shard = await served(life)
        if not given_up:
            await fill(shard, QueueIds(1).new(ShardId(0)))
        assert shard.state.queue("q") is not None
        given_up.append(weakref.ref(shard))
        take_away(life)
        with anyio.fail_after(patient(20)):
            while life.shards.serving(0) is not None or shard.tasks is not None:
                await checkpoint()

    sizes = (4**number for number in count(20))
    net = GarbageNet(lambda: next(sizes), lambda: 1 << 30)  # as if memory doubled each time
    with as_served():
        await give_up(life)
        await until(lambda: (left := given_up[0]()) is None or not left.state.cached, 20)
        with anyio.fail_after(
            patient(30)
        ):  # a loop's variable may hold one, timers hold the latest
            while sum(shard() is not None for shard in given_up) > len(given_up) - 3:
                await give_up(life)
                assert present(net.look(0)).everything
                await anyio.sleep(0.01)


def publish(world: World) -> None:
    """Publish all rows of the one shard, as of its log's end."""
    kv = DictKv(world.folded[0].rows)
    anchors = Anchors(kv)
    changes: dict[bytes, bytes | None] = {
        key: anchors.encode(key, value)
        for key, value in kv.rows.items()
        if key[0] in PUBLISHED_BYTES
    }
    as_of = encode_as_of(len(world.logs[0]))
    world.published[0].commit(changes | {AS_OF_KEY: as_of}, 0.0)


async def test_a_log_that_is_trimmed_while_its_rows_are_read_is_not_believed(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 70 of `tests/simulation/workers/test_workers.py`: a copied batch was gone."""
    key = QueueIds(1).new(ShardId(0)), 0

    def trimmed_meanwhile(world: World) -> Any:
        def read_to_end(*asked: Any, **_: Any) -> Any:
            found = list(world.read_to_end(*asked))
            if not world.starts[0]:
                publish(world)
                world.starts[0] = 3
            return iter(found)

        return read_to_end

    values = {"name": "q", "partitions": 1, "configs": {}}
    body = batch(b"v")
    copied = COPIED.pack(1, len(body), 0) + body
    for envelope in (
        command(Kind.CREATE, key[0], values=values),
        Envelope(Kind.APPEND, *key, body=body, number=2**50),
        Envelope(Kind.COPY, *key, body=copied),
    ):
        life.world.land(0, envelope)
    publish(life.world)
    life.world.land(0, Envelope(Kind.COPY, *key, body=copied))
    monkeypatch.setattr(rebuild, "read_to_end", trimmed_meanwhile(life.world))
    life.shards.assigned(frozenset({0}))
    shard = await served(life)
    assert life.world.starts == [3]
    assert shard.state.batch_at(key, 0) is not None


async def test_a_log_that_cannot_be_read_is_said_and_tried_again(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the rebuild waited for ever, and kept others from being opened."""
    monkeypatch.setattr(shard_owner, "_FAILED_AGAIN_S", 0.01)
    queue_id = QueueIds(1).new(ShardId(0))
    row = Partition()
    row.next_offset = 1
    published: dict[bytes, bytes | None] = {
        AS_OF_KEY: encode_as_of(1),
        partition_key(queue_id, 0): bytes(32) + row.encode(),
    }

    with structlog.testing.capture_logs() as said:
        life.world.published[0].commit(published, 0.0)
        life.world.logs[0].append(Envelope(Kind.APPEND, queue_id, 0, body=b"no batch", writer=9))
        life.shards.assigned(frozenset({0}))
        with anyio.fail_after(patient(20)):
            while len([line for line in said if line["event"] == "shard_failed"]) < 2:
                await checkpoint()


async def test_a_shard_that_failed_once_is_tried_again_at_once(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any failure of a kind that nobody had thought of left it unserved for 30 s."""
    hold_once, failures = ShardOwner._hold_once, [ValueError("odd"), OSError("odd"), ValueError()]
    waits: list[float] = []

    async def held(self: ShardOwner) -> None:
        if failures:
            raise failures.pop()
        await hold_once(self)

    later = ShardOwner._later
    monkeypatch.setattr(ShardOwner, "_hold_once", held)
    monkeypatch.setattr(ShardOwner, "_later", lambda self: waits.append(later(self)) or waits[-1])
    life.shards.assigned(frozenset({0}))
    await served(life)
    assert waits == [0.01, 0.02, 0.04]
    (owner,) = life.shards.owners()
    assert later(owner) == 0.01
    assert [later(owner) for _ in range(20)][-1] <= shard_owner._FAILED_AGAIN_S


async def test_a_copy_that_is_opened_for_nobody_any_more_is_closed(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: it stayed open, and its lock kept the shard from being opened again."""
    life.shards.assigned(frozenset({0}))
    await served(life)
    take_away(life)
    await until(lambda: not life.shards.owners(), 20)
    recover, began, go_on = Shard.recover, threading.Event(), threading.Event()

    def slow(self: Shard, check: Any) -> int:
        found = recover(self, check)
        began.set()
        go_on.wait(20)  # nothing looks behind here whether it is still wanted
        return found

    with structlog.testing.capture_logs() as said, as_served():
        with monkeypatch.context() as patched:
            patched.setattr(Shard, "recover", slow)
            life.shards.assigned(frozenset({0}))
            await until(began.is_set, 20)
            life.shards.assigned(frozenset())
            await anyio.sleep(0.01)
            go_on.set()
            await until(lambda: not life.shards.owners(), 20)
        life.shards.assigned(frozenset({0}))
        await served(life)
    assert not [line for line in said if line["log_level"] in ("warning", "error")]
