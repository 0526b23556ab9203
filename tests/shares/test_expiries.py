"""Records that share groups are not given any more, as a header says."""

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.shares import expiries
from kproxy.shares.dead_letter_batches import CAUSES
from kproxy.shares.expiries import Expiries, read_times
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


def test_the_memory_of_batches_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiries, "_TIMES_MAX", 10)
    known = Expiries()
    for base in range(0, 100, 5):
        known.add({base: [(base + n, 0) for n in range(5)]})
        assert len(known._by_base) <= 3


def test_a_batch_that_cannot_be_read_does_not_expire() -> None:
    data = saying((TTL, 1))[:-3] + b"\xff\xff\xff"

    class Segments:
        def batch(self, *_: int) -> bytes:
            return data

    batch = (7, 0, 0, len(data))
    times = read_times(Segments(), [batch])  # type: ignore[arg-type]
    known = Expiries()
    assert list(known.cut(7, 7, batch, 1 << 60)) == [(7, 7, batch)]
    assert known.unread == [batch]
    known.add(times)
    assert EXPIRED not in [one[2] for one in known.cut(7, 7, batch, NOW_MS)]
