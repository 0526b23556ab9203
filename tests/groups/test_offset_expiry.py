"""Offsets and records that run out, under a clock that the test moves."""

import json
from collections.abc import Callable
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from kproxy.groups.upkeep.offset_expiry import _OFFSETS_MAX, OffsetExpiry
from kproxy.metadata.catalogue import StateLookup
from kproxy.protocol.batch import control_batch
from kproxy.shard.retention import _ROWS_AT_ONCE, Retention
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import ExpireOffsets, OffsetCommit
from kproxy.virtual.commands.transactions import (
    End,
    Enlist,
    InitProducer,
    Marker,
    TransactionCommit,
)
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.groups import decode_group, group_key
from kproxy.virtual.rows.transactions import Participant
from kproxy.virtual.types import QueueId
from tests.commands import command
from tests.fakes import memory_worker
from tests.wire import batch

MINUTE = 60_000
WEEK = 7 * 24 * 60 * MINUTE
DAY = WEEK // 7


async def nobody(group: str) -> None:
    """Return None: nobody is a member."""


class Stage:
    """A shard with a clock; queue `q` and `other`."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000_000_000_000
        self.worker = memory_worker(**settings)
        self.shard: Any = self.worker.any_shard()
        self.lookup = StateLookup(self.shard.state)
        self.ids: dict[str, QueueId] = {}
        for name in ("q", "other"):
            self.create(name)

    def create(self, name: str, **configs: str) -> None:
        self.ids[name] = QueueId(name.encode().ljust(16, b"."))
        values = {"name": name, "partitions": 1,
                  "configs": {k.replace("_", "."): v for k, v in configs.items()}}  # fmt: skip
        self.shard.apply(command(Kind.CREATE, self.ids[name], values=values))

    def commit(self, group: str, offset: int, name: str = "q", **more: Any) -> None:
        item = [self.ids[name].hex(), 0, offset, -1, "", False]
        values = {"group": group, "offsets": [item], **more}
        self.shard.apply(command(Kind.COMMIT, time_ms=self.now, values=values))

    def offset(self, group: str, name: str = "q") -> int | None:
        found = self.shard.state.committed(group, (self.ids[name], 0))
        return None if found is None else found.offset

    def members(self, group: str, count: int, after: int = -1, time_ms: int | None = None) -> int:
        row = {"epoch": 1}
        values = {"group": group, "after": after, "kind": "classic", "members": count,
                  "values": {}, "rows": {f"m{i}": row for i in range(count)}}  # fmt: skip
        return int(self.shard.apply(command(Kind.GROUP, time_ms=self.now, values=values)).number)

    async def expire(self, subscribed: frozenset[str] | None = frozenset()) -> int:
        """Expire offsets; return how often others could run meanwhile."""
        turns = 0

        class Group:
            def subscribed(self) -> frozenset[str] | None:
                return subscribed

        async def load(group: str) -> Any:
            return Group()

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await checkpoint()

        expiry = OffsetExpiry(
            self.shard, self.worker.config, self.lookup, lambda: self.now, load, lambda g: False,
            self.worker.groups.of(self.shard).forget_gone_queues,
        )  # fmt: skip
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            while await expiry.scan_once():
                pass
            tasks.cancel_scope.cancel()
        return turns

    def group_is_there(self, group: str) -> bool:
        return self.shard.kv.get(group_key(group)) is not None

    def looks(self) -> int:
        return len(list(self.shard.kv.scan(b"e", b"f")))


async def test_offsets_of_a_group_without_members_run_out_after_their_commits() -> None:
    stage = Stage()
    stage.commit("g", 1)
    stage.now += WEEK // 2
    stage.commit("g", 2, "other")
    stage.now += WEEK // 2
    await stage.expire()
    assert (stage.offset("g"), stage.offset("g", "other")) == (1, 2)
    stage.now += 1
    await stage.expire()
    assert (stage.offset("g"), stage.offset("g", "other")) == (None, 2)
    stage.now += WEEK // 2
    await stage.expire()
    assert stage.offset("g", "other") is None
    assert not stage.group_is_there("g")
    assert stage.looks() == 0


async def test_a_new_commit_puts_it_off() -> None:
    stage = Stage()
    stage.commit("g", 1)
    stage.now += WEEK - 1
    stage.commit("g", 1)
    stage.now += 2
    await stage.expire()
    assert stage.offset("g") == 1
    stage.now += WEEK
    await stage.expire()
    assert stage.offset("g") is None


async def test_offsets_of_a_group_with_members_stay_while_the_queue_is_read() -> None:
    stage = Stage()
    version = stage.members("g", 1)
    stage.commit("g", 1, member="m0", epoch=1)
    stage.commit("g", 2, "other", member="m0", epoch=1)
    stage.now += 2 * WEEK
    await stage.expire(None)  # members that only know themselves what they use
    assert stage.offset("g", "other") == 2
    stage.now += 2 * WEEK
    await stage.expire(frozenset({"q"}))
    assert (stage.offset("g"), stage.offset("g", "other")) == (1, None)
    stage.members("g", 0, after=version)
    stage.now += WEEK - 1
    await stage.expire()
    assert stage.offset("g") == 1  # since the last member left
    stage.now += WEEK
    await stage.expire()
    assert not stage.group_is_there("g")


def test_changed_offsets_stay() -> None:
    stage = Stage()
    stage.commit("g", 1)
    data = stage.shard.kv.get(group_key("g"))
    version = json.loads(data)[0]
    looked_at = [[stage.ids["q"].hex(), 0, stage.now]]
    stage.now += 5
    stage.commit("g", 9)
    values = {"group": "g", "after": version, "offsets": looked_at, "nothing_left": True}
    assert not stage.shard.apply(command(Kind.EXPIRE, number=stage.now, values=values)).code
    assert stage.offset("g") == 9
    stage.members("g", 1, after=version)
    values["offsets"] = [[stage.ids["q"].hex(), 0, stage.now]]
    assert stage.shard.apply(command(Kind.EXPIRE, number=stage.now, values=values)).code
    assert stage.offset("g") == 9


async def test_a_group_that_commits_again_before_it_goes_stays() -> None:
    stage = Stage()
    stage.commit("g", 1)
    stage.now += WEEK + 1
    looked: list[Envelope] = []
    expiry = OffsetExpiry(
        stage.shard, stage.worker.config, stage.lookup, lambda: stage.now, nobody, lambda g: False,
        stage.worker.groups.of(stage.shard).forget_gone_queues,
    )  # fmt: skip

    async def judge() -> None:
        head = decode_group(stage.shard.kv.get(group_key("g")))
        looked.append((await expiry._evaluate("g", head, stage.now - WEEK))[0])

    await judge()
    assert not stage.shard.apply(looked[0]).code
    await judge()
    stage.commit("g", 5)
    assert stage.shard.apply(looked[1]).code
    assert stage.group_is_there("g")
    assert stage.offset("g") == 5


async def test_offsets_of_deleted_queues_run_out_at_the_first_look() -> None:
    stage = Stage()
    stage.commit("g", 1)
    stage.commit("g", 1, "other")
    stage.now += WEEK
    stage.commit("g", 1, "other")
    stage.shard.apply(command(Kind.DELETE, stage.ids["q"]))
    stage.now += 1
    await stage.expire()
    assert (stage.offset("g"), stage.offset("g", "other")) == (None, 1)


def put(stage: Stage, name: str, age_ms: int, look_ms: int = 0, size: int = 10) -> None:
    body = batch(b"x" * size, times=(stage.now - age_ms,))
    stage.shard.apply(Envelope(Kind.APPEND, stage.ids[name], number=look_ms, body=body))


async def retain(stage: Stage) -> None:
    retention = Retention(stage.shard, stage.worker.config, stage.lookup, lambda: stage.now)
    while await retention.scan_once():
        pass


def start(stage: Stage, name: str) -> int:
    return int(stage.shard.state.partition((stage.ids[name], 0)).log_start)


def due(stage: Stage) -> list[tuple[int, Any]]:
    return [rows.retention_due_of(key) for key, _ in stage.shard.kv.scan(b"c", b"d")]


async def test_a_partition_is_filed_once_and_looked_at_when_due() -> None:
    stage = Stage(retention_check_ms=1000)
    stage.create("short", retention_ms="60000")
    put(stage, "short", 0, stage.now + MINUTE)
    put(stage, "short", -5000)
    assert len(due(stage)) == 1
    stage.now += MINUTE
    await retain(stage)
    assert start(stage, "short") == 0
    stage.now += 1001
    await retain(stage)
    assert start(stage, "short") == 1
    assert [at for at, _ in due(stage)] == [stage.now + 5000 - 1000]
    stage.now += 5000
    await retain(stage)
    assert start(stage, "short") == 2
    assert due(stage) == []
    put(stage, "short", 0, stage.now + MINUTE)
    assert len(due(stage)) == 1


async def test_it_is_looked_at_once_a_day_at_least_and_once_only() -> None:
    stage = Stage()
    put(stage, "q", 0, stage.now + DAY)
    for _ in range(20):
        stage.now += DAY + 1
        stage.shard.apply(command(Kind.CONFIGURE, stage.ids["q"],
                                  values={"set": {}, "drop": [], "all": False}))  # fmt: skip
        await retain(stage)
        await retain(stage)
        assert len(due(stage)) == (1 if start(stage, "q") == 0 else 0) or len(due(stage)) <= 2
    assert start(stage, "q") == 1  # two weeks


async def test_a_gone_queue_leaves_nothing_to_look_at() -> None:
    stage = Stage()
    put(stage, "q", 0, stage.now + MINUTE)
    stage.shard.apply(command(Kind.DELETE, stage.ids["q"]))
    stage.now += DAY
    await retain(stage)
    assert due(stage) == []
    assert not list(stage.shard.kv.scan(b"n", b"o"))


def test_rewinds_are_judged_in_log_order() -> None:
    stage = Stage()

    def attempt(offset: int, metadata: str = "") -> int:
        item = [stage.ids["q"].hex(), 0, offset, -1, metadata, True]
        values = {"group": "g", "offsets": [item]}
        outcome = stage.shard.apply(command(Kind.COMMIT, time_ms=stage.now, values=values))
        return int(outcome.codes[0])

    assert [attempt(o) for o in (5, 4, 5, 6, 0)] == [0, 44, 0, 0, 44]
    assert attempt(1, "allow-rewind") == 0
    assert attempt(0) == 44
    forgotten = {"group": "g", "partitions": [[stage.ids["q"].hex(), 0]]}
    stage.shard.apply(command(Kind.DELETE_OFFSETS, values=forgotten))
    assert attempt(0) == 0
    version = json.loads(stage.shard.kv.get(group_key("g")))[0]
    version = stage.members("g", 0, after=version)
    attempt(7)
    assert attempt(3) == 0  # a group that members use: an administrator's reset


def test_two_racing_commits_cannot_slip_through() -> None:
    stage = Stage()
    racing = []
    for offset in (9, 3):
        item = [stage.ids["q"].hex(), 0, offset, -1, "", True]
        values = {"group": "g", "offsets": [item]}
        racing.append(command(Kind.COMMIT, time_ms=stage.now, values=values))
    assert [int(stage.shard.apply(e).codes[0]) for e in racing] == [0, 44]
    assert stage.offset("g") == 9


async def test_keys_of_a_clock_that_was_ahead_are_looked_at() -> None:
    """FAULT: offsets of a queue that was gone were kept till the clock was there again."""
    stage = Stage()
    right = stage.now
    stage.now += 365 * DAY
    for number in range(250):
        stage.commit(f"g{number}", 1)
    stage.shard.apply(command(Kind.DELETE, stage.ids["q"]))
    stage.now = right
    stage.commit("now", 1, "other")
    await stage.expire()
    assert not any(stage.group_is_there(f"g{number}") for number in range(250))
    assert stage.offset("now", "other") == 1
    assert stage.looks() == 1


async def test_checked_groups_are_not_stepped_over_again() -> None:
    """RocksDB keeps deleted rows for a while: looks from the first on would take N * N steps."""
    stage = Stage()
    starts: list[bytes] = []
    scan = stage.shard.kv.scan

    def scanned(start: bytes, end: bytes) -> Any:
        starts.append(start)
        return scan(start, end)

    for number in range(450):
        stage.create(f"queue-{number}")
        put(stage, f"queue-{number}", age_ms=0)
    stage.shard.kv.scan = scanned
    await retain(stage)
    stage.shard.kv.scan = scan
    *looks, late = [start for start in starts if start[:1] == b"c"]
    assert late > rows.retention_due_key(stage.now + DAY, b"", 0)
    assert len(looks) == -(-450 // _ROWS_AT_ONCE)
    assert looks[1] > rows.retention_due_key(0, b"", 0)
    assert looks == sorted(set(looks))
    assert not [filed for filed in due(stage) if filed[0] <= stage.now]


async def test_a_group_of_very_many_offsets_runs_out_in_slices_and_pauses() -> None:
    stage = Stage()
    count = 2 * _OFFSETS_MAX + 500
    stage.ids["wide"] = QueueId(b"wide".ljust(16, b"."))
    values = {"name": "wide", "partitions": count, "configs": {}}
    stage.shard.apply(command(Kind.CREATE, stage.ids["wide"], values=values))
    items = [[stage.ids["wide"].hex(), index, 1, -1, "", False] for index in range(count)]
    stage.shard.apply(
        command(Kind.COMMIT, time_ms=stage.now, values={"group": "g", "offsets": items})
    )
    stage.now += WEEK // 2
    stage.commit("g", 1, "other")
    stage.now += WEEK // 2 + 1
    appended = len(stage.shard.log)
    turns = await stage.expire()
    expired = [len(ExpireOffsets.decode(one).offsets) for one in stage.shard.log[appended:]]
    assert sum(expired) == count
    assert max(expired) <= _OFFSETS_MAX
    assert turns >= count / 500
    assert stage.offset("g", "other") == 1
    assert stage.looks() == 1
    stage.now += WEEK
    await stage.expire()
    assert not stage.group_is_there("g")


def stage_offset(stage: Stage, offset: int, name: str = "q") -> Callable[[], None]:
    """Commit an offset in a transaction that stays open; returns how to abort it."""
    shard, txn = stage.shard, "t"
    made = shard.apply(InitProducer(txn, 60_000, -1, -1, stage.now).envelope())
    taking = [Participant(0, group="g")]
    number = shard.apply(Enlist(txn, made.number, 0, 2, taking, stage.now).envelope()).number
    asked = OffsetCommit(stage.ids[name], 0, offset, -1, "", False)
    commit = TransactionCommit("g", "", -1, made.number, 0, [asked], stage.now)
    assert not shard.apply(commit.envelope(NEWEST)).code

    def abort() -> None:
        end = End(txn, made.number, 0, 2, False, number, stage.now)
        assert not shard.apply(end.envelope()).code
        control = control_batch(made.number, 1, commit=False, time_ms=stage.now)
        marker = Marker(control, made.number, 0, number, False, (), ["g"], stage.now)
        assert not shard.apply(marker.envelope()).code

    return abort


async def test_an_offset_does_not_expire_while_a_transaction_has_staged_another() -> None:
    stage = Stage()
    stage.commit("g", 10)
    stage.commit("g", 20, "other")
    stage.now += WEEK + 1
    abort = stage_offset(stage, 11)
    logged = len(stage.shard.log)
    await stage.expire()
    assert (stage.offset("g"), stage.offset("g", "other")) == (10, None)
    await stage.expire()
    assert len(stage.shard.log) == logged + 1, "looked at again, but not at once"
    abort()
    assert stage.offset("g") == 10
    stage.now += stage.worker.config.offsets_check_ms + 1
    await stage.expire()
    assert stage.offset("g") is None


async def test_an_offset_that_is_staged_after_the_look_keeps_the_committed_one() -> None:
    stage = Stage()
    stage.commit("g", 10)
    version = decode_group(stage.shard.kv.get(group_key("g"))).version
    offsets = [(stage.ids["q"], 0, stage.now), (stage.ids["other"], 0, stage.now)]
    expiry = ExpireOffsets("g", version, False, offsets, stage.now)
    stage_offset(stage, 11)
    assert not stage.shard.apply(expiry.envelope(NEWEST)).code
    assert stage.offset("g") == 10


async def test_a_group_whose_offsets_all_wait_is_looked_at_later() -> None:
    """FAULT: EXPIRE was logged again and again, as fast as the disk took it."""
    stage = Stage()
    shard = stage.shard
    stage_offset(stage, 5)
    stage.now += WEEK + 1
    logged = len(shard.log)
    with anyio.fail_after(5):
        await stage.expire()
    assert len(shard.log) == logged + 1
    await stage.expire()
    assert len(shard.log) == logged + 1, "not before another week"
    assert stage.group_is_there("g")
