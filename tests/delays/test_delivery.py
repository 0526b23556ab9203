"""The records that are due together: they are appended whatever they unpack to."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint

from kproxy.delays.delays import Delays
from kproxy.delays.delivery import BATCHES_AT_ONCE, UNPACKED_MAX, Plan, plan
from kproxy.delays.looker import Looker, Means
from kproxy.delays.splitting import grouped, parts, waiting_by_key
from kproxy.loop.pace import SLICE_S
from kproxy.protocol.batch import CODECS, HEADER_BYTES
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of
from kproxy.protocol.records import INSPECTED_BYTES_MAX, unpacked
from kproxy.virtual.commands.delays import Later as LaterCommand
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.rows.delays import WAITING_BATCHES
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import memory_worker
from tests.virtual.commands.delay_cases import later, waiting

KEY: PartitionKey = (QueueId(b"\1" * 16), 0)
NONE, ZSTD = 0, CODECS.index("zstd")
BEGUN_MS = 1_800_000_000_000
LARGE = bytes(100_000)
SMALL = 2**20


class Later:
    """A clock that is put forward."""

    ms = BEGUN_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return time.monotonic()


def mixed(codec: int, *records: tuple[int, bytes]) -> bytes:
    """Return a batch of (due in ms from the begin, value)."""
    bodies = [(body_of(Content(None, value), []), BEGUN_MS + due) for due, value in records]
    return batch_of_bodies(bodies, codec, min(due for _, due in bodies), mixed=True)


def large(count: int, due: int) -> list[tuple[int, bytes]]:
    return [(due + n % 5, LARGE) for n in range(count)]


async def delivered(*batches: bytes) -> tuple[int, int]:
    """Return how many records have come in the end, and the bytes of the largest envelope."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
    for data in batches:
        shard.apply(later(KEY, data))
    sizes, append = [0], shard.append

    def noted(some: Sequence[Envelope]) -> Any:
        sizes.extend(len(one.body) for one in some)
        return append(some)

    shard.append = noted
    clock: Any = Later()
    looker = Looker(shard, Means(worker.catalogue, worker.config, clock))
    for clock.ms in (BEGUN_MS, BEGUN_MS + 10_000):
        for _ in range(20):
            if not await looker.scan_once():
                break
    row = shard.state.partition(KEY)
    return 0 if row is None else row.next_offset, max(sizes)


async def test_rest_of_several_batches_can_be_unpacked_again() -> None:
    """It was one batch, of more than is unpacked: nothing of the partition came any more."""
    first = mixed(ZSTD, (-20, b"a"), *large(75, 2000))
    second = mixed(ZSTD, (-19, b"b"), *large(300, 2000))
    assert (await delivered(first, second))[0] == 377


@pytest.mark.parametrize("left", [[], [(2000, b"l")]])
async def test_packed_batch_is_packed_again(left: list[tuple[int, bytes]]) -> None:
    """It was not, behind a batch that was not: more than the cluster takes in one record."""
    first = mixed(NONE, (-20, b"a"), (-19, b"b"))
    count, size = await delivered(first, mixed(ZSTD, *large(150, -18), *left))
    assert count == 152 + len(left)
    assert size < SMALL


def test_parts() -> None:
    assert parts([10] * 5, SMALL) == [range(5)]
    assert parts([SMALL], 10) == [range(1)]
    assert parts([1, SMALL, 1, 1], 100) == [range(1), range(1, 2), range(2, 4)]
    assert [len(part) for part in parts([1] * 250_000, 1 << 40)] == [100_000, 100_000, 50_000]
    assert sum(map(len, parts([len(LARGE)] * 500, 1 << 40))) == 500


def test_a_mixed_batch_can_always_be_cut_again() -> None:
    """However badly its parts are packed: together they take no more than is sent at once."""
    most = SMALL
    body = body_of(Content(None, LARGE), [])
    made = grouped([(BEGUN_MS + n, body) for n in range(100)], ZSTD, SMALL, most, BEGUN_MS)
    assert len(made) > 1
    assert all(len(unpacked(data)) <= most // 2 for data in made)
    assert UNPACKED_MAX < INSPECTED_BYTES_MAX


async def test_nobody_steps_over_what_has_been_delivered() -> None:
    """Many are due at one time: the rows of delivered ones are still to be passed."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
    for _ in range(2 * BATCHES_AT_ONCE + 5):
        shard.apply(later(KEY, waiting(50)))
    begins: list[bytes] = []
    walk = shard.kv.walk

    def noted(start: bytes, end: bytes) -> Any:
        begins.append(start)
        return walk(start, end)

    shard.kv.walk = noted
    looker = Looker(shard, Means(worker.catalogue, worker.config, worker.clock))
    assert await looker.scan_once()
    shard.apply(later(KEY, waiting(50)))  # it comes behind them
    while await looker.scan_once():
        pass
    assert shard.state.partition(KEY).next_offset == 2 * BATCHES_AT_ONCE + 6
    assert looker.next_ms is None
    expected = [WAITING_BATCHES.key(KEY, 50, n * BATCHES_AT_ONCE) for n in (0, 1, 1, 2)]
    assert [start for start in begins if start[:1] == RowKind.WAITING.letter][:4] == expected


def test_a_fixed_delay_keeps_the_order_over_owners() -> None:
    """This one was the owner before: another one, whose clock is ahead, was it since."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
    delays = Delays(list, worker.catalogue, worker.config, worker.clock)
    assert delays.due_ms(shard, KEY, 1000, BEGUN_MS) == BEGUN_MS + 1000
    shard.apply(later(KEY, waiting(BEGUN_MS + 1000), delay_ms=1000))
    shard.apply(later(KEY, waiting(BEGUN_MS + 4000), delay_ms=1000))
    shard.claim_offset = 7
    assert delays.due_ms(shard, KEY, 1000, BEGUN_MS + 10) == BEGUN_MS + 4000
    assert delays.due_ms(shard, KEY, 1000, BEGUN_MS + 20) == BEGUN_MS + 4000
    assert delays.due_ms(shard, KEY, 500, BEGUN_MS + 20) == BEGUN_MS + 520


async def test_a_record_that_is_replaced_all_the_time_holds_up_no_other() -> None:
    """FAULT: each DUE named the replaced one as well, and was void as a whole, for ever."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
    clock: Any = Later()
    looker = Looker(shard, Means(worker.catalogue, worker.config, clock))
    append, written = shard.append, 0

    def put(name: bytes, due_ms: int) -> None:
        body = body_of(Content(name, b"v"), [])
        data = waiting_by_key(due_ms, body, scheduled=False)
        shard.apply(
            LaterCommand.envelope(
                KEY, [data], split=data[:HEADER_BYTES], time_ms=1, look_ms=1, gone=[]
            )
        )

    def late(some: Sequence[Envelope]) -> Any:
        nonlocal written
        written += 1
        put(b"restless", clock.ms)
        clock.ms += 1
        return append(some)

    for number in range(9):
        put(b"%d" % number, BEGUN_MS + number)
    put(b"restless", BEGUN_MS - 1)
    clock.ms = BEGUN_MS + 10
    shard.append = late
    for _ in range(30):
        await looker.scan_once()
    assert shard.state.partition(KEY).next_offset == 9
    assert written > 9


async def test_many_partitions_that_are_due_are_planned_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: 200 of them with 200 records each held the loop for a quarter of a second."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    for number in range(10):
        queue_id = QueueId(bytes([number]) * 16)
        shard.apply(CreateQueue(queue_id, f"q{number}", 1, {}).envelope())
        shard.apply(later((queue_id, 0), waiting(50)))
    looker = Looker(shard, Means(worker.catalogue, worker.config, worker.clock))
    turns, planned_in = 0, []

    def slow(*given: Any) -> Plan:
        planned_in.append(turns)
        time.sleep(2 * SLICE_S)
        return plan(*given)

    async def count() -> None:
        nonlocal turns
        while len(planned_in) < 10:
            turns += 1
            await checkpoint()

    monkeypatch.setattr("kproxy.delays.looker.plan", slow)
    async with create_task_group() as tasks:
        tasks.start_soon(count)
        await looker.scan_once()
    assert len(set(planned_in)) == 10
    assert shard.state.partition((QueueId(bytes(16)), 0)).next_offset == 1
