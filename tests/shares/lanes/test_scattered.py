"""Records of lanes that lie scattered: whose they are, and what is said of many at once."""

from kproxy.common.errors import Code
from kproxy.shares.lanes.batch_ends import BatchEnds
from kproxy.shares.leases import Lease, Leases, Scattered
from kproxy.virtual.rows.batches import Batch, batch_key
from kproxy.virtual.types import QueueId
from tests.handlers.test_handlers import Client
from tests.shares.lanes.test_lanes import ORDERED, with_lanes
from tests.shares.test_polls import ACCEPT, REJECT, RELEASE, Member, row, share_of

KEY = QueueId(bytes(16)), 0


def test_leases_that_scattered_records_share() -> None:
    leases = Leases()
    one, two = (Lease(0, 9, member, until, 1) for member, until in (("a", 5.0), ("b", 3.0)))
    leases.scatter([1, 4, 9], one)
    leases.scatter([2, 5], two)
    assert (leases.held, leases.due, len(leases)) == (5, 3.0, 5)
    assert list(leases.holders(2, 4)) == ["b", "a"]
    assert leases.take_scattered("a", [1, 2]) is None
    assert leases.take_scattered("a", [1, 3]) is None
    assert leases.held == 5
    assert leases.take_scattered("a", [1, 9]) == [Scattered(one, [1, 9])]
    late = leases.take(lambda lease: lease.deadline <= 3.0)
    assert [(part.first, part.last, part.member) for part in late] == [(2, 2, "b"), (5, 5, "b")]
    (part,) = leases.cut(0, 8)
    assert (part.first, part.last, part.deadline) == (4, 4, 5.0)
    assert not leases


def test_a_trim_drops_scattered_records() -> None:
    leases = Leases()
    leases.scatter([1, 4], Lease(1, 4, "a", 5.0, 1))
    leases.trim(2)
    assert list(leases.holders(0, 9)) == ["a"]


async def held() -> tuple[Client, Member]:
    """Return a member that holds every second of ten records, one of each lane."""
    keys = [b"%d" % (at // 2) for at in range(10)]
    client = await with_lanes(ORDERED, *keys)
    member = Member(client)
    assert await member.given() == [(at, at, 1) for at in range(0, 10, 2)]
    return client, member


def said(kind: int, *offsets: int) -> list[tuple[int, int, tuple[int]]]:
    return [(at, at, (kind,)) for at in offsets]


async def test_many_are_acknowledged_with_one_command() -> None:
    client, member = await held()
    log = client.worker.any_shard().log
    before = len(log)
    assert await member.says(*said(ACCEPT, 0, 2, 4), *said(RELEASE, 6), *said(REJECT, 8)) == 0
    assert len(log) == before + 1
    assert row(client)[:3] == (1, 9, 3)
    assert await member.given() == [(1, 1, 1), (3, 3, 1), (5, 5, 1), (6, 6, 2), (9, 9, 1)]


async def test_nothing_is_done_where_one_of_many_is_not_held() -> None:
    client, member = await held()
    before = len(client.worker.any_shard().log)
    assert await member.says(*said(ACCEPT, 0, 2, 3, 4)) == Code.INVALID_RECORD_STATE
    assert await member.says(*said(ACCEPT, 0, 2, 2)) == Code.INVALID_RECORD_STATE
    assert await Member(client, "other").says(*said(ACCEPT, 0, 2)) != 0
    assert len(client.worker.any_shard().log) == before
    assert share_of(client).window.held == 5
    assert await member.says(*said(ACCEPT, 0, 2, 4)) == 0


def test_a_batch_is_found_by_its_end_or_not_at_all() -> None:
    rows: dict[bytes, bytes] = {}
    ends = BatchEnds()
    for base, last in ((0, 9), (10, 10), (11, 40)):
        row_of = Batch(1, base, 50, last - base, 0, 0, 0, 0)
        rows[batch_key(*KEY, last)] = row_of.encode()
        ends.note(base, last)
    assert ends.span_of(rows.get, KEY, 5) == ((0, 1, 0, 50), 9)
    assert ends.span_of(rows.get, KEY, 10) == ((10, 1, 10, 50), 10)
    assert ends.span_of(rows.get, KEY, 40) == ((11, 1, 11, 50), 40)
    ends.trim(41)
    assert ends.size == 0
    assert ends.span_of(rows.get, KEY, 20) is None
