"""FORWARD, AIM_FORWARD, SETTLE_FORWARD; share groups and who sweeps, compacts and deletes."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.shard.housekeeper import Housekeeper
from kproxy.virtual.commands.records import Compact
from kproxy.virtual.commands.shares import DEAD_LETTERS, AimForward, Forward, SettleForward
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import FORWARD_TARGETS, FORWARDED, Position
from kproxy.virtual.types import PartitionKey, QueueId
from tests.present import present
from tests.virtual.folds.sharing import ARCHIVED, OWED, Cause, ShareAction, Sharing, run
from tests.wire import batch

SOURCE: PartitionKey = (QueueId(b"s" * 16), 3)
OTHER: PartitionKey = (QueueId(b"s" * 16), 4)


def forward(
    shares: Sharing, first: Position, last: Position | None = None, *,
    source: PartitionKey = SOURCE, group: str = "g", stream: int = DEAD_LETTERS,
    key: PartitionKey | None = None,
) -> Outcome:  # fmt: skip
    records = (last or first).offset - first.offset + 1
    body = batch(*[b"dead"] * records)
    made = Forward(key or shares.key, stream, source, group, first, last or first, body, 7)
    return shares.apply(made.envelope())


def ends(shares: Sharing) -> tuple[int, int]:
    row = present(shares.shard.state.partition(shares.key))
    return row.log_start, row.next_offset


def voids(shares: Sharing) -> list[bytes]:
    return [key for key, _ in shares.shard.kv.scan(*RowKind.NO_EFFECT.range())]


@pytest.mark.parametrize("shared", [False, True])
def test_records_are_taken_once(shared: bool) -> None:
    shares = Sharing(shared=shared)
    assert forward(shares, Position(9, 0, 4)) == Outcome(Code.NONE, 0)
    assert forward(shares, Position(9, 0, 5), Position(9, 1, 7)) == Outcome(Code.NONE, 1)
    before, log = dict(shares.shard.kv.rows), len(shares.shard.log)
    for again in (Position(9, 0, 4), Position(9, 0, 5), Position(9, 1, 7), Position(8, 5, 99)):
        outcome = forward(shares, again)
        assert (outcome.code, outcome.number, outcome.numbers) == (Code.NONE, -1, (9, 1, 7))
    half = forward(shares, Position(9, 1, 7), Position(10, 0, 9))
    assert (half.number, half.numbers) == (-1, (9, 1, 7))
    assert ends(shares) == (0, 4)
    noted = [rows.no_effect_key(offset) for offset in range(log, log + 5)]
    assert voids(shares) == (noted if shared else [])
    assert shares.shard.kv.rows.items() >= before.items()
    assert forward(shares, Position(10, 0, 9)).number == 4


def test_streams_are_told_apart() -> None:
    shares = Sharing(partitions=2)
    at = Position(9, 0, 4)
    for more in (
        {}, {"source": OTHER}, {"group": "gg"}, {"stream": 2}, {"key": (shares.key[0], 1)},
    ):  # fmt: skip
        asked: Any = more
        assert forward(shares, at, **asked).number >= 0
        assert forward(shares, at, **asked).number == -1
    assert ends(shares) == (0, 4)


def test_a_queue_that_is_gone_takes_nothing() -> None:
    shares = Sharing(shared=True)
    forward(shares, Position(9, 0, 4))
    shares.delete()
    assert forward(shares, Position(9, 0, 5)).code == Code.UNKNOWN_TOPIC_ID
    taken = FORWARDED.key(shares.key, DEAD_LETTERS, SOURCE, "g")
    assert FORWARDED.decode(present(shares.shard.state.get(taken))) == Position(9, 0, 4)


def test_taken_batch_is_like_others() -> None:
    """Only the batch of the body is the queue's, and its retention is looked at."""
    shares = Sharing()
    shares.shard.kv.write(
        dict.fromkeys(key for key, _ in shares.shard.kv.scan(*RowKind.RETENTION_DUE.range()))
    )
    body = batch(b"dead", b"letters", times=(5, 6))
    at = Position(9, 0, 4)
    made = Forward(shares.key, DEAD_LETTERS, SOURCE, "a-group", at, at, body, 7).envelope()
    place = len(shares.shard.segments.data)
    shares.apply(made)
    found = present(shares.shard.state.batch_at(shares.key, 1))
    assert (found.position, found.length, found.last_delta) == (place, len(body), 1)
    assert bytes(shares.shard.segments.data[place : place + found.length]) == body
    assert (found.max_time_ms, found.max_time_through_ms, found.size_through) == (6, 6, len(body))
    row = present(shares.shard.state.partition(shares.key))
    assert (row.size, row.max_time_ms, row.max_time_offset) == (len(body), 6, 1)
    due = [rows.retention_due_of(key) for key, _ in
           shares.shard.kv.scan(*RowKind.RETENTION_DUE.range())]  # fmt: skip
    assert due == [(7, shares.key)]
    shares.start()
    assert shares.look() == (0, 2)


def test_dead_letter_target_is_kept_until_the_share_partition_is_dropped() -> None:
    shares = Sharing(records=1, started=True)
    key = FORWARD_TARGETS.key(shares.key, "g")

    shares.apply(AimForward(shares.key, "g", SOURCE).envelope())
    aimed = present(shares.shard.state.get(key))
    assert SOURCE[0] in aimed
    shares.set(ShareAction.RESET, 2, 0)
    assert shares.shard.state.get(key) == aimed
    shares.set(ShareAction.DROP, 3)
    assert shares.shard.state.get(key) is None
    gone = (shares.key[0], 1)
    shares.apply(AimForward(gone, "g", SOURCE).envelope())
    assert shares.shard.state.get(FORWARD_TARGETS.key(gone, "g")) is None


def test_pending_dead_letters_are_settled() -> None:
    shares = Sharing(records=9, started=True)
    lost = Cause.REJECTED | OWED
    shares.share(run(0, 0, ARCHIVED, 1, lost), run(2, 2, ARCHIVED, 1, lost))
    (one, other) = shares.owed()
    shares.apply(SettleForward([one, (99, 0)]).envelope())
    assert list(shares.owed()) == [other]
    shares.apply(SettleForward([one, other]).envelope())
    assert shares.owed() == {}


async def test_a_deleted_queue_leaves_nothing_of_share_groups_behind() -> None:
    """But what it owes: that is sent, as far as it can be."""
    shares = Sharing(records=900)
    kept = shares.make()
    shares.append(900, kept)
    for key in (shares.key, kept):
        shares.set(ShareAction.INITIALISE, 1, -2, key=key)
        shares.share(run(1, 700, ARCHIVED, 1, Cause.REJECTED | OWED), key=key)
        forward(shares, Position(9, 0, 4), key=key)
        shares.apply(AimForward(key, "g", SOURCE).envelope())
    shares.delete()
    shard: Any = shares.shard
    await Housekeeper(shard, Config())._sweep()
    left = [
        key for key in shares.shard.kv.rows
        if key[:1] in (b"S", b"C", b"M", b"W") and shares.key[0] in key
    ]  # fmt: skip
    assert left == []
    theirs = sorted(bytes(key[:1]) for key in shares.shard.kv.rows if kept[0] == key[1:17])
    assert [kind for kind in theirs if kind in b"SCMW"] == [*[b"C"] * 3, b"M", b"S", b"W"]
    assert len(shares.owed()) == 2


async def test_leftovers_of_a_trim_are_not_of_share_groups() -> None:
    shares = Sharing(records=900, started=True)
    shares.share(run(1, 700))
    shares.trim(600)
    before = {key: value for key, value in shares.shard.kv.rows.items() if key[:1] in b"SC"}
    shard: Any = shares.shard
    await Housekeeper(shard, Config())._sweep()
    after = {key: value for key, value in shares.shard.kv.rows.items() if key[:1] in b"SC"}
    assert after == before
    assert shares.look() == (600, 900 - 701)


def test_compaction_leaves_share_partitions_as_they_are() -> None:
    """A reader archives the records that are not there any more."""
    shares = Sharing()
    for _ in range(5):
        shares.append(3)
    shares.start()
    shares.share(run(1, 2))
    removed = [(last, batch_row.generation)
               for last, batch_row in shares.shard.state.batches(shares.key, 3, 12)]  # fmt: skip
    shares.apply(Compact(*shares.key, removed).envelope())
    assert shares.stands() == (0, 3, 2)
    shares.share(run(3, 11, ARCHIVED, 0), run(12, 12))
    assert shares.stands() == (0, 13, 12)
    shares.share(run(0, 0))
    assert shares.stands() == (13, 13, 0)
    assert shares.look() == (13, 2)


def test_dead_letters_are_passed_on_by_routes_where_they_say_so() -> None:
    shares = Sharing()
    for at, on in ((Position(9, 0, 4), True), (Position(9, 0, 5), False)):
        made = Forward(shares.key, DEAD_LETTERS, SOURCE, "g", at, at, batch(b"dead"), 7, on)
        offset = shares.apply(made.envelope()).number
        assert present(shares.shard.state.batch_at(shares.key, offset)).routed is not on
