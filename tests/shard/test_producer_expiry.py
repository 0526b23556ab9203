"""Idempotent producers of one partition: however many there are, each is known for as long as it is
said, and then forgotten.
"""

from pathlib import Path
from typing import Any

import pytest

from kproxy.common.counters import Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.shard.producer_expiry import ProducerExpiry
from kproxy.virtual import producers, snapshot
from kproxy.virtual.commands.delays import Later
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.producers import ForgetProducers
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.transactions import Begin
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.producers import PRODUCERS_INLINE, remembered
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.snapshot import Anchors
from kproxy.virtual.types import QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.shard.test_shard import config, running
from tests.wire import batch

KEY = (QueueId(b"q" * 16), 0)
CREATE = CreateQueue(KEY[0], "q", 1, {}).envelope()
DAY_MS, CHECK_MS = 86_400_000, 600_000
TRANSACTIONAL = 0x10


class Clock:
    now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


CLOCK = Clock()


def record(pid: int, sequence: int = 0, attributes: int = 0) -> bytes:
    return batch(b"v", producer_id=pid, epoch=0, sequence=sequence, attributes=attributes)


def append(shard: Any, pid: int, sequence: int = 0, *, at: int = 0, attributes: int = 0) -> Outcome:
    """Append at this time; 0: as an earlier kproxy did."""
    body = record(pid, sequence, attributes)
    return shard.apply(Envelope(Kind.APPEND, *KEY, time_ms=at, body=body))  # type: ignore[no-any-return]


def partition(shard: Any) -> Partition:
    return present(shard.state.partition(KEY))


def known(shard: Any) -> set[int]:
    return {pid for pid, _ in remembered(shard.state, KEY, partition(shard))}


def filed(shard: Any) -> list[int]:
    found = shard.kv.scan(*RowKind.PRODUCERS_DUE.range())
    return [rows.producers_due_of(key)[0] for key, _ in found]


def looks(shard: Any, clock: Clock, counters: Counters | None = None) -> ProducerExpiry:
    settings = config(producer_id_expiration_ms=DAY_MS)
    return ProducerExpiry(shard, settings, clock, counters or Counters())


async def look(shard: Any, now: int, counters: Counters | None = None) -> None:
    clock = Clock()
    clock.now = now
    one = looks(shard, clock, counters)
    while await one.scan_once():
        pass


def made() -> MemoryShard:
    shard = MemoryShard()
    shard.apply(CREATE)
    return shard


def test_a_retry_of_many_producers_is_not_stored_again_and_a_gap_is_noticed() -> None:
    """FAULT: of more than about 1,100 producers a partition forgot those used before."""
    shard, count = made(), 1500
    for pid in range(count):
        assert append(shard, pid, at=5).number == pid
    again = [append(shard, pid, at=6).number for pid in range(count)]
    assert again == list(range(count))
    gaps = {append(shard, pid, 7, at=7).code for pid in range(count)}
    assert gaps == {Code.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert partition(shard).next_offset == count


def test_a_producer_of_a_queue_with_delays_is_known_by_when_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: one whose records wait has no offset, and counted as used before all others."""
    monkeypatch.setattr(producers, "PRODUCERS_REMEMBERED", 4)
    monkeypatch.setattr(producers, "_FORGOTTEN_AT_ONCE", 1)
    shard = made()
    for pid in range(100, 110):
        append(shard, pid, at=4)
    later = Later.envelope(
        KEY, [record(7)], delay_ms=9, time_ms=5, look_ms=5, by_time=True
    )  # fmt: skip
    assert shard.apply(later).code == Code.NONE
    for pid in range(6):
        append(shard, pid, at=6)
    before = shard.state.counts.waiting
    assert shard.apply(later).code == Code.NONE
    assert shard.state.counts.waiting == before == 1, "it was put aside again"


async def test_a_producer_is_forgotten_a_day_after_it_was_used() -> None:
    shard, counters = made(), Counters()
    for pid in range(20):
        append(shard, pid, at=1000 + pid)
    append(shard, 3, 1, at=5000)
    assert filed(shard) == [1000 + PRODUCERS_INLINE]
    await look(shard, DAY_MS + 1003, counters)
    assert known(shard) == set(range(20))
    await look(shard, DAY_MS + 1010, counters)
    idle = {0, 1, 2, 4, 5, 6}  # 3 has come again, 7 was pushed out of the row by 11
    assert known(shard) == set(range(20)) - idle
    assert counters.producers_forgotten == len(idle)
    assert append(shard, 3, 1, at=6000).number == 20, "a repetition"
    assert append(shard, 0, 5, at=6000).code == Code.NONE, "it may start anywhere"
    assert filed(shard) == [1010 + CHECK_MS], "Kafka does not look more often either"
    await look(shard, 3 * DAY_MS)
    assert len(known(shard)) == PRODUCERS_INLINE
    assert (partition(shard).spilled, partition(shard).by_time, filed(shard)) == (0, False, [])
    append(shard, 50, at=3 * DAY_MS)
    assert filed(shard) == [3 * DAY_MS], "and from then on"


async def test_a_partition_is_looked_at_again_when_its_idlest_producer_is_due() -> None:
    shard = made()
    for number, pid in enumerate([*range(5), *range(5, 10)]):
        append(shard, pid, at=1000 + (number > 4) * 10 * CHECK_MS)
    await look(shard, DAY_MS + 1000)
    assert filed(shard) == [1000 + 10 * CHECK_MS]


async def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    shard = made()
    shard.apply(Begin(7, 0, 1, 3, b"tag of t", [KEY], [], 9).envelope())
    append(shard, 7, at=1000, attributes=TRANSACTIONAL)
    for pid in range(100, 110):
        append(shard, pid, at=1000)
    await look(shard, 2 * DAY_MS)
    assert known(shard) == {7, *range(106, 110)}
    assert append(shard, 7, at=2 * DAY_MS, attributes=TRANSACTIONAL).number == 0
    assert filed(shard), "it is looked at again"


async def test_producers_that_an_earlier_release_remembered_are_forgotten_a_day_later() -> None:
    shard = made()
    for pid in range(10):
        append(shard, pid)
    assert (partition(shard).by_time, filed(shard)) == (False, [])
    append(shard, 10, at=1000)
    assert filed(shard) == [1000]
    await look(shard, DAY_MS + 999)
    assert known(shard) == set(range(11))
    await look(shard, DAY_MS + 1000)
    assert known(shard) == set(range(7, 11))


def test_a_producer_that_was_used_since_is_not_forgotten() -> None:
    shard = made()
    for pid in range(6):
        append(shard, pid, at=1000)
    late = ForgetProducers(KEY, [(0, 1000), (1, 1000), (99, 1000)]).envelope()
    append(shard, 0, 1, at=1001)
    for pid in range(10, 14):
        append(shard, pid, at=1002)
    assert shard.apply(late).number == 1
    assert known(shard) == {0, *range(2, 6), *range(10, 14)}
    assert shard.apply(ForgetProducers((KEY[0], 9), [(0, 1)]).envelope()).code


async def test_producers_are_known_after_a_restart(tmp_path: Path) -> None:
    """Rows on disk, those that only the log has, and the index of what is to be looked at."""
    count = 300

    async def send(shard: Any, sequence: int, at: int) -> list[Outcome]:
        envelopes = [
            Envelope(Kind.APPEND, *KEY, time_ms=at, body=record(pid, sequence))
            for pid in range(count)
        ]
        return await shard.append(envelopes).wait()  # type: ignore[no-any-return]

    async with running(tmp_path, sync="never") as shard:
        await shard.append([CREATE]).wait()
        await send(shard, 0, 1000)
        shard.kv.flush()
        await send(shard, 1, 2000)
    async with running(tmp_path, sync="never", rows_cached_max=1) as shard:
        again = await send(shard, 1, 3000)
        assert [outcome.number for outcome in again] == [*range(count, 2 * count)]
        gaps = await send(shard, 3, 3000)
        assert {outcome.code for outcome in gaps} == {Code.OUT_OF_ORDER_SEQUENCE_NUMBER}
        assert filed(shard) == [1000]
        await look(shard, 2000 + DAY_MS)
        assert len(known(shard)) == PRODUCERS_INLINE


def test_a_rebuilt_partition_is_looked_at() -> None:
    """When it was filed is not published."""
    shard = made()
    for pid in range(PRODUCERS_INLINE + 2):
        append(shard, pid, at=1000)
    key = rows.partition_key(*KEY)
    published = Anchors(shard.kv).encode(key, present(shard.kv.get(key)))
    assert (rows.producers_due_key(0, KEY), b"") in list(snapshot.decode(key, published))


async def test_a_look_after_a_rebuild_forgets_nobody_whose_time_is_not_known() -> None:
    shard = made()
    for pid in range(10):
        append(shard, pid)
    append(shard, 10, at=1000)
    shard.commit({rows.producers_due_key(1000, KEY): None, rows.producers_due_key(0, KEY): b""})
    now = 10 * DAY_MS
    await look(shard, now)
    assert known(shard) == set(range(6)) | set(range(7, 11)), "6 was pushed out at 1000"
    assert filed(shard) == [now]


async def test_a_log_that_takes_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, clock = made(), Clock()
    for pid in range(10):
        append(shard, pid, at=1000)
    clock.now = 2 * DAY_MS
    one = looks(shard, clock)

    def full(envelopes: Any) -> Any:
        raise KafkaError(Code.KAFKA_STORAGE_ERROR, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(shard, "append", full)
        assert not await one.scan_once()
        assert filed(shard) == [1000]
    while await one.scan_once():
        pass
    assert len(known(shard)) == PRODUCERS_INLINE


async def test_below_level_8_who_is_forgotten_early_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_REMEMBERED", 10)
    monkeypatch.setattr(producers, "_FORGOTTEN_AT_ONCE", 2)
    shard, counters = made(), Counters()
    for pid in range(20):
        append(shard, pid)
    looks(shard, CLOCK, counters)._tell_forgotten()
    assert counters.producers_forgotten_early == 20 - len(known(shard)) > 0


def test_few_producers_need_no_rows_of_their_own() -> None:
    shard = made()
    for sequence in range(3):
        for pid in range(PRODUCERS_INLINE):
            append(shard, pid, sequence, at=1000)
    assert not list(shard.kv.scan(*RowKind.PRODUCER.range()))
    assert not filed(shard)
