"""Records that share groups are not given any more, as a header says."""

from array import array

import anyio
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.shares import expiries, share_partition
from kproxy.shares.dead_letter_batches import CAUSES
from kproxy.shares.expiries import Expiries, Times, read_times
from kproxy.shares.taking import EXPIRED
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.commands.shares import Cause, ChangeShares
from tests.bodies import change
from tests.shares.test_polls import Member, a_queue, row
from tests.wire import produce_values

TOPIC = 2
NOW_MS = 1_000_000


def saying(*said: tuple[str, object] | None, codec: int = 0, time_ms: int = NOW_MS) -> bytes:
    return batch_of_bodies(
        [
            (body_of(Content(b"k", b"v"), [] if one is None else [header(one[0], str(one[1]))]),
             time_ms)
            for one in said
        ],
        codec,
    )  # fmt: skip


AT, TTL = "kproxy.expires-at", "kproxy.ttl-ms"


class Stage:
    """A member of a group on a queue, at a time of its own."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    async def begin(self, mode: str = "header") -> "Stage":
        self.client = await a_queue()
        if mode:
            asked = change(TOPIC, "q", ("kproxy.ttl", 0, mode))
            assert not (await self.client.call(44, 1, asked)).responses[0].error_code
        self.client.worker.shares.now_ms = lambda: self.now_ms
        self.member = Member(self.client)
        return self

    async def put(self, data: bytes) -> None:
        answer = await self.client.call(ApiKey.PRODUCE, 9, produce_values("q", data))
        assert not answer.responses[0].partition_responses[0].error_code

    def expired(self) -> int:
        return self.client.worker.counters.share_archived["expired"]


@pytest.mark.anyio
@pytest.mark.parametrize("codec", [0, 4])
async def test_an_expired_record_is_archived_and_the_others_are_given(codec: int) -> None:
    stage = await Stage().begin()
    await stage.put(
        saying(None, (AT, NOW_MS), (AT, NOW_MS + 1), (TTL, 0), (TTL, -5), (TTL, 1), codec=codec)
    )
    assert await stage.member.given() == [(0, 0, 1), (2, 2, 1), (5, 5, 1)]
    assert stage.expired() == 3
    await stage.member.says((0, 0, (1,)), (2, 2, (1,)), (5, 5, (1,)))
    assert row(stage.client).start == 6


@pytest.mark.anyio
async def test_a_released_record_that_expires_meanwhile_is_not_given_again() -> None:
    stage = await Stage().begin()
    await stage.put(saying((TTL, 100)))
    assert await stage.member.given() == [(0, 0, 1)]
    await stage.member.says((0, 0, (2,)))
    stage.now_ms += 99
    assert await stage.member.given() == [(0, 0, 2)]
    await stage.member.says((0, 0, (2,)))
    stage.now_ms += 1
    assert await stage.member.given() == []
    assert stage.expired() == 1
    shares = [e for e in stage.client.worker.any_shard().log if e.kind == Kind.SHARE]  # type: ignore[attr-defined]
    runs = [run for one in ChangeShares.decode(shares[-1]).partitions for run in one.runs]
    assert [cause for _, _, _, cause in runs] == [Cause.EXPIRED]


@pytest.mark.anyio
async def test_without_the_setting_a_record_does_not_expire_and_a_change_counts_at_once() -> None:
    stage = await Stage().begin("")
    await stage.put(saying((TTL, -1), (TTL, -1)))
    assert await stage.member.given(records=1) == [(0, 1, 1)]
    await stage.member.says((0, 1, (2,)))
    asked = change(TOPIC, "q", ("kproxy.ttl", 0, "header"))
    assert not (await stage.client.call(44, 1, asked)).responses[0].error_code
    assert await stage.member.given() == []
    assert stage.expired() == 2


@pytest.mark.anyio
async def test_a_header_that_is_no_number_says_nothing() -> None:
    stage = await Stage().begin()
    await stage.put(saying((TTL, "x"), (AT, ""), (AT, "1e3")))
    assert await stage.member.given() == [(0, 2, 1)]


def test_each_cause_has_its_words() -> None:
    assert set(CAUSES) == set(Cause) - {Cause.NONE}


def known_of(base: int, count: int) -> dict[int, Times]:
    offsets = array("q", range(base, base + count))
    return {base: Times(base, 1 << 62, offsets, array("q", [0] * count))}


def test_the_memory_of_batches_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiries, "_TIMES_MAX", 10)
    known = Expiries()
    for base in range(0, 100, 5):
        known.begin()
        known.add(known_of(base, 5))
        assert list(known.cut(base, base + 4, (base, 0, 0, 9), 1)) == [(base, base + 4, EXPIRED)]
        known.settle()
        assert len(known._by_base) <= 3


@pytest.mark.anyio
async def test_a_look_that_knows_more_than_is_kept_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: what was read first was forgotten for what was read next, again and again: with a
    batch of 100,001 records and 50 behind it nobody was given a record any more."""
    monkeypatch.setattr(expiries, "_TIMES_MAX", 20)
    monkeypatch.setattr(share_partition, "_TIMED_MAX", 2)
    stage = await Stage().begin()
    await stage.put(saying(*[(TTL, 1000)] * 50))
    for _ in range(5):
        await stage.put(saying((TTL, 1000)))
    with anyio.fail_after(10):
        assert await stage.member.given(records=40) == [(0, 49, 1)]
        await stage.member.says((0, 47, (1,)), (48, 49, (2,)))
        assert [one[:2] for one in await stage.member.given()] == [(48, 49), (50, 54)]


@pytest.mark.anyio
async def test_very_many_records_that_have_expired_are_archived_in_few_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: one run of the log for each, and all of a batch in one turn of the loop."""
    monkeypatch.setattr(expiries, "_OF_BATCH_MAX", 11_000)
    stage = await Stage().begin()
    await stage.put(saying(*[(TTL, -1)] * 12_000, None, (TTL, -1), codec=4))
    assert await stage.member.given() == [(12_000, 12_000, 1)]
    assert stage.expired() == 12_001
    shares = [e for e in stage.client.worker.any_shard().log if e.kind == Kind.SHARE]  # type: ignore[attr-defined]
    runs = [len(one.runs) for e in shares for one in ChangeShares.decode(e).partitions]
    assert sum(runs) < 20


def test_a_batch_that_cannot_be_read_does_not_expire() -> None:
    data = saying((TTL, 1))[:-3] + b"\xff\xff\xff"

    class Segments:
        def batch(self, *_: int) -> bytes:
            return data

    batch = (7, 0, 0, len(data))
    times = read_times(Segments(), [(batch, 7)])  # type: ignore[arg-type]
    known = Expiries()
    assert list(known.cut(7, 7, batch, 1 << 60)) == [(7, 7, batch)]
    assert known.unread == [(batch, 7)]
    known.add(times)
    assert EXPIRED not in [one[2] for one in known.cut(7, 7, batch, NOW_MS)]


@pytest.mark.anyio
async def test_a_look_at_more_than_is_remembered_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: what the look had need of was forgotten for what it read next, so it never ended."""
    monkeypatch.setattr(expiries, "_TIMES_MAX", 10)
    monkeypatch.setattr(share_partition, "_TIMED_MAX", 1)
    stage = await Stage().begin()
    for _ in range(5):
        await stage.put(saying(*[(TTL, 100)] * 8))
    with anyio.fail_after(20):
        assert await stage.member.given() == [(0, 39, 1)]


def test_records_in_a_row_that_have_expired_are_one_stretch() -> None:
    """FAULT: each was archived by a run of its own: a batch of 30,000 held the loop."""
    known, batch = Expiries(), (0, 0, 0, 100)
    gone = array("q", (0, 1, 2, 4, 6, 7))
    known.add({0: Times(0, 1 << 62, gone, array("q", [5] * len(gone)))})
    assert list(known.cut(0, 9, batch, 5)) == [
        (0, 2, EXPIRED), (3, 3, batch), (4, 4, EXPIRED), (5, 5, batch), (6, 7, EXPIRED),
        (8, 9, batch),
    ]  # fmt: skip
    assert next(known.cut(1, 7, batch, 5)) == (1, 2, EXPIRED)
    assert list(known.cut(6, 7, batch, 5)) == [(6, 7, EXPIRED)]
