"""The fold of share partitions: SHARE_SET, SHARE, SHARE_LOOK; trims and deletions."""

import pytest

from kproxy.common.errors import Code
from kproxy.loop.steps import at_once
from kproxy.virtual.commands.groups import ChangeGroup
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.commands.shares import ChangeShares, NoteShareQueues, ShareRuns
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.shares import CHUNK, COUNT_MAX, NOWHERE, SHARE_QUEUES, Owed, SharePartition
from kproxy.virtual.types import QueueId
from tests.present import present
from tests.virtual.folds.sharing import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    EARLIEST,
    GROUP,
    LATEST,
    OWED,
    Cause,
    ShareAction,
    Sharing,
    run,
)

GONE = Code.UNKNOWN_TOPIC_OR_PARTITION


# -- SHARE_SET


@pytest.mark.parametrize(("asked", "start"), [(LATEST, 9), (EARLIEST, 4), (6, 6), (0, 0)])
def test_start_of_a_share_partition(asked: int, start: int) -> None:
    shares = Sharing(records=9)
    shares.trim(4)
    shares.set(ShareAction.INITIALISE, 7, asked, time_ms=5)
    assert shares.row() == SharePartition(start, start, 0, 7, 5)
    shares.append(3)
    assert shares.row() == SharePartition(start, start, 0, 7, 5)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_existing_share_partition_is_not_initialised_again(epoch: int) -> None:
    shares = Sharing(records=9)
    shares.start(2)
    shares.share(run(0, 3), epoch=2)
    before = shares.row()
    shares.set(ShareAction.INITIALISE, epoch, LATEST)
    assert shares.row() == before


def test_a_reset_gives_another_start_and_forgets_what_was_done() -> None:
    shares = Sharing(records=2000)
    shares.start(1)
    shares.share(run(1, 700), run(900, 1000, AVAILABLE, 2))
    assert shares.chunks() == [0, 1, 2, 3]
    shares.set(ShareAction.RESET, 2, 5, time_ms=8)
    assert shares.row() == SharePartition(5, 5, 0, 2, 8)
    assert shares.chunks() == []
    assert shares.states(0, 1999) == [(AVAILABLE, 0)] * 2000
    assert shares.share(run(6, 6), epoch=1) == GONE  # an epoch before the reset
    assert shares.share(run(6, 6), epoch=2) == Code.NONE
    assert shares.stands() == (5, 7, 1)


def test_a_reset_makes_what_is_not_there() -> None:
    shares = Sharing(records=9)
    shares.set(ShareAction.RESET, 2, 3)
    assert shares.stands() == (3, 3, 0)


@pytest.mark.parametrize("action", [ShareAction.RESET, ShareAction.DROP])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_late_command_changes_nothing(action: ShareAction, epoch: int) -> None:
    shares = Sharing(records=9)
    shares.set(ShareAction.RESET, 2, 3)
    shares.share(run(4, 4), epoch=2)
    before = dict(shares.shard.kv.rows)
    shares.set(action, epoch, 7)
    assert shares.shard.kv.rows == before


def test_dropped_share_partition_leaves_nothing_behind() -> None:
    shares = Sharing(records=2000)
    before = dict(shares.shard.kv.rows)
    shares.start(1)
    shares.share(run(1, 700), run(900, 1000, AVAILABLE, 2))
    shares.set(ShareAction.DROP, 2)
    assert shares.shard.kv.rows == before
    assert shares.share(run(1, 1)) == GONE
    shares.set(ShareAction.DROP, 3)  # and what is not there
    assert shares.shard.kv.rows == before


def test_share_partition_remade_by_a_late_command_is_made_anew() -> None:
    """FAULT: a group that was deleted and made again began where the late one said, for ever."""
    shares = Sharing(records=9)
    shares.set(ShareAction.INITIALISE, 5, EARLIEST, since=3)
    shares.set(ShareAction.DROP, 7)
    shares.set(ShareAction.INITIALISE, 6, EARLIEST, since=3)  # a former coordinator's, late
    shares.share(run(0, 3), epoch=6)
    shares.append(3)
    shares.set(ShareAction.INITIALISE, 9, LATEST, since=8, time_ms=4)
    assert shares.row() == SharePartition(12, 12, 0, 9, 4)
    assert shares.chunks() == []
    assert shares.share(run(4, 5), epoch=6) == GONE
    shares.append(1)
    for late in (6, 10):
        shares.set(ShareAction.INITIALISE, late, LATEST, since=3 if late < 8 else 8)
    assert shares.row() == SharePartition(12, 12, 0, 9, 4)


def test_a_start_by_time_is_resolved_once() -> None:
    shares = Sharing(records=9)
    shares.set(ShareAction.INITIALISE, 4, LATEST, since_ms=100)
    row = present(shares.row())
    assert row.since_ms == 100
    assert shares.share(run(0, 1), epoch=4) == GONE  # nobody was given any
    assert shares.look() == (-1, -1)
    shares.set(ShareAction.RESOLVE, 3, 1)  # a look from before the reset
    shares.set(ShareAction.RESOLVE, 5, 1)
    assert shares.row() == row
    shares.set(ShareAction.RESOLVE, 4, 5)
    assert shares.row() == row._replace(start=5, end=5, since_ms=NOWHERE)
    shares.share(run(6, 6), epoch=4)
    shares.set(ShareAction.RESOLVE, 4, 2)  # another owner looked as well
    assert shares.stands() == (5, 7, 1)


@pytest.mark.parametrize("start", [LATEST, EARLIEST])
def test_a_start_by_time_may_turn_out_to_be_an_end(start: int) -> None:
    """FAULT: the fold died of an offset below 0 where no record was that young."""
    shares = Sharing(records=9)
    shares.trim(2)
    shares.set(ShareAction.INITIALISE, 4, LATEST, since_ms=100)
    shares.set(ShareAction.RESOLVE, 4, start)
    assert shares.stands() == ((9, 9, 0) if start == LATEST else (2, 2, 0))


def test_an_offset_that_is_none_does_not_stop_the_shard() -> None:
    """FAULT: `struct.error`, at each recovery again."""
    shares = Sharing(records=9)
    shares.set(ShareAction.RESET, 4, -3)
    assert present(shares.row()).start == 0


def test_nothing_is_made_for_an_absent_queue() -> None:
    shares = Sharing(records=1)
    before = dict(shares.shard.kv.rows)
    for action in ShareAction:
        shares.set(action, 1, key=(shares.key[0], 1))
        shares.set(action, 1, key=(QueueId(b"x" * 16), 0))
    assert shares.share(run(0, 0), key=(shares.key[0], 1)) == GONE
    assert shares.shard.kv.rows == before


def test_groups_and_partitions_are_by_themselves() -> None:
    shares = Sharing(records=9, partitions=2)
    other = shares.key[0], 1
    shares.append(9, other)
    shares.start(1)
    shares.start(1, group="gg")
    shares.set(ShareAction.INITIALISE, 1, EARLIEST, key=other)
    shares.share(run(0, 4))
    shares.share(run(0, 1), group="gg")
    shares.share(run(1, 1), key=other)
    assert shares.look(shares.key, other) == (5, 4, 0, 8)
    assert shares.look(group="gg") == (2, 7)


# -- SHARE


def test_only_the_owner_says_what_becomes_of_records() -> None:
    shares = Sharing(records=9, started=True)

    def claim(writer: int) -> None:
        envelope = Claim().envelope()
        envelope.writer = writer
        shares.apply(envelope)

    claim(1)
    assert shares.share(run(0, 0), writer=1) == Code.NONE
    claim(2)
    before = dict(shares.shard.kv.rows)
    assert shares.share(run(1, 1), writer=1) == Code.NOT_LEADER_OR_FOLLOWER
    assert shares.shard.kv.rows == before
    assert shares.share(run(2, 2), writer=2) == Code.NONE
    claim(1)
    assert shares.share(run(1, 1), writer=1) == Code.NONE
    assert shares.stands() == (3, 3, 0)


def test_without_a_claim_there_is_one_owner() -> None:
    shares = Sharing(records=9, started=True)
    assert shares.share(run(0, 0)) == Code.NONE


def test_each_partition_has_a_code() -> None:
    shares = Sharing(records=9, partitions=3)
    keys = [(shares.key[0], index) for index in range(3)]
    shares.append(9, keys[1])
    shares.start()
    shares.set(ShareAction.INITIALISE, 2, EARLIEST, key=keys[1])
    found = shares.change(
        [ShareRuns(keys[0], 1, [run(0, 0)]), ShareRuns(keys[1], 1, [run(0, 0)]),
         ShareRuns(keys[1], 2, [run(0, 0)]), ShareRuns(keys[2], 1, [run(0, 0)])]
    )  # fmt: skip
    assert found.code == Code.NONE
    assert found.codes == (Code.NONE, GONE, Code.NONE, GONE)
    assert shares.look(*keys) == (1, 8, 1, 8, -1, -1)


@pytest.mark.parametrize("ended", [ACKNOWLEDGED, ARCHIVED])
@pytest.mark.parametrize("late", [AVAILABLE, ACKNOWLEDGED, ARCHIVED])
def test_a_state_once_terminal_stays(
    ended: share_rows.RecordState, late: share_rows.RecordState
) -> None:
    shares = Sharing(records=9, started=True)
    shares.share(run(2, 4, ended, 2))
    assert shares.share(run(1, 5, late, 5)) == Code.NONE
    assert shares.states(1, 5) == [(late, 5), *[(ended, 2)] * 3, (late, 5)]
    assert shares.row().done == 3 + 2 * (late != AVAILABLE)  # type: ignore[union-attr]


@pytest.mark.parametrize("state", [AVAILABLE, ACKNOWLEDGED, ARCHIVED])
def test_a_count_never_falls(state: share_rows.RecordState) -> None:
    shares = Sharing(records=9, started=True)
    shares.share(run(1, 1, AVAILABLE, 3), run(2, 2, AVAILABLE, 1))
    shares.share(run(1, 3, state, 2))
    assert shares.states(1, 3) == [(state, 3), (state, 2), (state, 2)]
    shares.share(run(4, 4, AVAILABLE, 99))
    assert shares.states(4, 4) == [(AVAILABLE, COUNT_MAX)]


def test_records_before_the_start_are_passed_over() -> None:
    shares = Sharing(records=2000)
    shares.start(start=700)
    assert shares.share(run(0, 699), run(100, 701)) == Code.NONE
    assert shares.stands() == (702, 702, 0)
    assert shares.share(run(0, 701, AVAILABLE, 2)) == Code.NONE
    assert shares.stands() == (702, 702, 0)
    assert shares.chunks() == []


def test_the_start_moves_over_what_is_done() -> None:
    shares = Sharing(records=2000, started=True)
    shares.share(run(1, 511), run(513, 513))
    assert shares.stands() == (0, 514, 512)
    assert shares.chunks() == [0, 1, 2]
    shares.share(run(0, 0, AVAILABLE, 2))
    assert shares.stands() == (0, 514, 512)
    shares.share(run(0, 0, ARCHIVED, 2))
    assert shares.stands() == (512, 514, 1)
    assert shares.chunks() == [2]
    shares.share(run(512, 512))
    assert shares.stands() == (514, 514, 0)
    assert shares.chunks() == []


@pytest.mark.parametrize("first", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
@pytest.mark.parametrize("last", [CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK])
def test_windows_over_the_ends_of_chunks(first: int, last: int) -> None:
    if first > last:
        return
    shares = Sharing(records=2000)
    shares.start(start=first)
    shares.share(run(last, last))
    if first == last:
        assert shares.stands() == (last + 1, last + 1, 0)
        assert shares.chunks() == []
    else:
        assert shares.stands() == (first, last + 1, 1)
        assert shares.chunks() == [last // CHUNK]
    shares.share(run(first, last))
    assert shares.stands() == (last + 1, last + 1, 0)
    assert shares.chunks() == []


def test_a_window_of_four_thousand_records() -> None:
    shares = Sharing(records=5000)
    shares.start(start=100)
    shares.share(*(run(at, at) for at in range(101, 4100, 2)))
    assert shares.stands() == (100, 4100, 2000)
    assert shares.look() == (100, 4900 - 2000)
    assert len(shares.chunks()) == 17
    shares.share(run(100, 4099))
    assert shares.stands() == (4100, 4100, 0)
    assert shares.chunks() == []


def test_the_end_is_behind_all_that_was_delivered() -> None:
    shares = Sharing(records=9, started=True)
    shares.share(run(3, 4, AVAILABLE, 1))
    assert shares.stands() == (0, 5, 0)
    shares.share(run(2, 2, AVAILABLE, 1))
    assert shares.stands() == (0, 5, 0)


def test_a_share_without_runs_moves_the_start_to_where_the_log_begins() -> None:
    shares = Sharing(records=9, started=True)
    shares.trim(3)
    assert shares.share() == Code.NONE
    assert shares.stands() == (3, 3, 0)


# -- what dead letters are owed


def test_archived_records_are_owed_where_it_says_so() -> None:
    shares = Sharing(records=900, started=True)
    lost = Cause.REJECTED | OWED
    shares.share(
        run(2, 5, ARCHIVED, 2, lost), run(6, 6, ARCHIVED, 1), run(7, 600, ARCHIVED, 3, OWED | 2),
        run(601, 601, ACKNOWLEDGED, 3),
    )  # fmt: skip
    at = len(shares.shard.log) - 1
    assert shares.owed() == {
        (at, 0): Owed(shares.key, 2, 4, 2, Cause.REJECTED, GROUP),
        (at, 1): Owed(shares.key, 7, 594, 3, Cause.DELIVERY_LIMIT, GROUP),
    }


def test_terminal_records_are_not_owed_again() -> None:
    shares = Sharing(records=9, started=True)
    lost = Cause.REJECTED | OWED
    shares.share(run(3, 3), run(5, 5, ARCHIVED, 1, lost))
    shares.share(run(2, 6, ARCHIVED, 1, lost))
    shares.share(run(0, 6, ARCHIVED, 1, lost))
    assert [(one.first, one.records) for one in shares.owed().values()] == [
        (5, 1), (2, 1), (4, 1), (6, 1), (0, 2),
    ]  # fmt: skip


def test_trimmed_records_are_not_owed() -> None:
    shares = Sharing(records=9, started=True)
    shares.trim(4)
    shares.share(run(0, 5, ARCHIVED, 1, Cause.REJECTED | OWED))
    assert [(one.first, one.records) for one in shares.owed().values()] == [(4, 2)]


def test_each_partition_of_a_command_owes_by_itself() -> None:
    shares = Sharing(records=9, partitions=2)
    other = shares.key[0], 1
    shares.append(9, other)
    shares.start()
    shares.set(ShareAction.INITIALISE, 1, EARLIEST, key=other)
    lost = Cause.REJECTED | OWED
    shares.change(
        [ShareRuns(key, 1, [run(0, 1, ARCHIVED, 1, lost)]) for key in (shares.key, other)]
    )
    at = len(shares.shard.log) - 1
    assert {place: one.key for place, one in shares.owed().items()} == {
        (at, 0): shares.key, (at, 1): other,
    }  # fmt: skip


# -- trims, deletions


@pytest.mark.parametrize("log_start", [1, 3, 255, 256, 257, 600, 699, 700, 701, 1000, 2000])
def test_done_count_is_right_after_a_trim(log_start: int) -> None:
    shares = Sharing(records=2000, started=True)
    done = {at for at in range(1, 700) if at % 3}
    shares.share(*(run(at, at) for at in sorted(done)), run(699, 699, AVAILABLE, 1))
    done.discard(699)
    shares.trim(log_start)
    end = max(700, log_start)
    lag = 2000 - log_start - len([at for at in done if at >= log_start])
    assert shares.look() == (log_start, lag)
    shares.share(run(0, log_start - 1, AVAILABLE, 2))  # all of it is trimmed
    start = next(at for at in range(log_start, end + 1) if at not in done)
    assert shares.stands() == (start, end, len([at for at in done if at >= start]))
    assert shares.chunks() == list(range(start // CHUNK, -(-end // CHUNK)) if start < end else ())
    assert shares.look() == (start, 2000 - start - len([at for at in done if at >= start]))


def test_a_log_that_begins_far_behind_the_end_costs_no_look_at_what_lies_between() -> None:
    """FAULT: each chunk up to there was looked for, four million of them here."""
    shares = Sharing(records=1 << 30)
    shares.start()
    shares.share(run(1, 300), run(400, 400, AVAILABLE, 1))
    shares.trim((1 << 30) - 5)
    looked = count_looks(shares)
    assert shares.share(run((1 << 30) - 4, (1 << 30) - 4)) == Code.NONE
    assert len(looked) < 30
    assert shares.stands() == ((1 << 30) - 5, (1 << 30) - 3, 1)
    assert shares.chunks() == [(1 << 30) // CHUNK - 1]


def test_a_long_hole_at_the_start_is_passed_over_at_once() -> None:
    """FAULT: compaction left a hole; a row was made and dropped for each 256 offsets of it."""
    shares = Sharing(records=1 << 30)
    shares.start()
    shares.share(run(3, 300), run(302, 302, AVAILABLE, 1))
    looked = count_looks(shares)
    shares.share(run(0, (1 << 30) - 2, ARCHIVED, 0))
    assert len(looked) < 30
    assert shares.stands() == ((1 << 30) - 1, (1 << 30) - 1, 0)
    assert shares.chunks() == []
    assert shares.look() == ((1 << 30) - 1, 1)


def count_looks(shares: Sharing) -> list[bytes]:
    """Return keys of states that are looked for, or put, from now on."""
    looked: list[bytes] = []
    state = shares.shard.state
    get, put = state.get, state.put

    def counted_get(key: bytes) -> bytes | None:
        looked.append(key)
        assert len(looked) < 10_000
        return get(key)

    def counted_put(key: bytes, value: bytes | None) -> None:
        looked.append(key)
        assert len(looked) < 10_000
        put(key, value)

    state.get, state.put = counted_get, counted_put  # type: ignore[method-assign]
    return looked


def test_a_deleted_queue_takes_no_more() -> None:
    shares = Sharing(records=9, started=True)
    shares.delete()
    before = dict(shares.shard.kv.rows)
    assert shares.share(run(0, 3)) == GONE
    for action in ShareAction:
        shares.set(action, 9)
    assert shares.look() == (-1, -1)
    assert shares.shard.kv.rows == before


def test_a_queue_of_the_same_name_begins_anew() -> None:
    shares = Sharing(records=9, started=True)
    shares.share(run(0, 3))
    shares.delete()
    shares.key = shares.make()
    shares.append(2)
    assert shares.share(run(0, 0)) == GONE
    shares.start()
    assert shares.stands() == (0, 0, 0)


# -- SHARE_LOOK


def test_a_look_says_where_partitions_stand() -> None:
    shares = Sharing(records=9, partitions=3)
    keys = [(shares.key[0], index) for index in range(3)]
    shares.start(start=2)
    shares.set(ShareAction.INITIALISE, 1, LATEST, key=keys[1])
    shares.share(run(3, 4), run(6, 6, AVAILABLE, 1))
    assert shares.look(*keys) == (2, 5, 0, 0, -1, -1)
    assert shares.look(*keys[::-1]) == (-1, -1, 0, 0, 2, 5)
    assert shares.look(keys[0], group="h") == (-1, -1)
    shares.trim(4)
    assert shares.look() == (4, 4)
    shares.trim(8)
    assert shares.look() == (8, 1)
    shares.trim(-1)
    assert shares.look() == (9, 0)


def test_a_lag_is_below_zero_before_the_start_is_written() -> None:
    """FAULT: 0, where Kafka says how many are to be written before there is one."""
    shares = Sharing(records=3)
    shares.start(start=8)
    assert shares.look() == (8, -5)
    shares.append(6)
    assert shares.look() == (8, 1)


# -- SHARE_QUEUES


def test_queues_are_noted_while_the_group_is_as_it_was() -> None:
    shares = Sharing()
    queue, other = shares.key[0], QueueId(b"o" * 16)

    def noted() -> dict[bytes, int]:
        found = shares.shard.kv.scan(*SHARE_QUEUES.range(GROUP))
        return {
            SHARE_QUEUES.parts(key)[1]: share_rows.decode_initialised(value) for key, value in found
        }

    def change(after: int) -> int:
        made = ChangeGroup.encode(GROUP, after, "share", 0, {}, {}, level=2, time_ms=1)
        assert not shares.apply(at_once(made)).code
        return len(shares.shard.log) - 1

    def note(after: int, *queues: tuple[QueueId, int]) -> Code:
        return shares.apply(NoteShareQueues(GROUP, after, queues).envelope()).code

    assert note(-1, (queue, 1)) == Code.NOT_COORDINATOR
    version = change(-1)
    assert note(version, (queue, 1), (other, 7)) == Code.NONE
    assert noted() == {queue: 1, other: 7}
    assert note(version, (other, 0), (queue, 2)) == Code.NONE  # the same group still
    assert noted() == {queue: 2}
    newer = change(version)
    assert note(version, (other, 1)) == Code.NOT_COORDINATOR
    assert noted() == {queue: 2}
    assert note(newer, (queue, 0)) == Code.NONE
    assert noted() == {}


def test_a_share_is_void_by_term_before_anything_is_read_of_it() -> None:
    """Commands of a deposed owner of a later release do not stop this one."""
    shares = Sharing(records=9, started=True)
    shares.apply(Claim().envelope())
    envelope = ChangeShares(GROUP, [], 1).envelope()
    envelope.writer, envelope.body = 5, b"\2" + bytes(envelope.body)[1:]
    assert shares.apply(envelope).code == Code.NOT_LEADER_OR_FOLLOWER


def test_waiter_at_a_partition_is_told_of_its_new_start() -> None:
    shares = Sharing(records=9)
    woken: list[object] = []
    shares.shard.watchers.wake = woken.append  # type: ignore[method-assign, assignment]
    shares.start()
    shares.set(ShareAction.RESET, 2, 5)
    assert woken == [{shares.key}, {shares.key}]
