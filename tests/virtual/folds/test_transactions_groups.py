"""The fold's decisions for offsets that are committed with transactions: Kafka 4.3.1's."""

import pytest

from kproxy.common.errors import Code
from kproxy.loop.steps import at_once
from kproxy.virtual.commands.groups import ChangeGroup, DeleteGroup
from kproxy.virtual.commands.offsets import DeleteOffsets, ExpireOffsets, OffsetCommit
from kproxy.virtual.commands.queues import DeleteQueue
from kproxy.virtual.commands.transactions import TransactionCommit
from kproxy.virtual.fold import Fold
from kproxy.virtual.folds import groups as group_fold
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.outcome import LogLocation
from kproxy.virtual.rows.groups import decode_group, group_key
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import Participant
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, ShardId
from tests.fakes import DictKv
from tests.present import present
from tests.virtual.folds.transactional import Shards

NONE, INVALID = Code.NONE, Code.INVALID_TXN_STATE
UNKNOWN_MEMBER, ILLEGAL = Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION
GROUP = "g"


def opened(
    name: str = "t", partitions: int = 1, level: int = NEWEST
) -> tuple[Shards, PartitionKey, int, int]:
    shards = Shards(level=level)
    key = shards.make(partitions=partitions)
    pid, epoch, _ = shards.open(groups=[GROUP], name=name)
    return shards, key, pid, epoch


def ended(shards: Shards, pid: int, epoch: int, *, commit: bool, name: str = "t") -> None:
    assert shards.end(pid, epoch, commit=commit, name=name).code == NONE
    shards.finish(name)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_wait_for_the_end(commit: bool) -> None:
    shards, key, pid, epoch = opened(partitions=2)
    other = key[0], 1
    shards.commit_plainly(GROUP, (key, 1))
    assert shards.commit_offsets(GROUP, pid, epoch, (key, 7), (other, 8)).codes == (NONE, NONE)
    assert shards.commit_offsets(GROUP, pid, epoch, (key, 3)).codes == (NONE,)  # and back
    assert shards.pending() == 2
    assert (shards.committed(GROUP, key), shards.committed(GROUP, other)) == (1, None)
    ended(shards, pid, epoch, commit=commit)
    assert shards.pending() == 0
    after = (3, 8) if commit else (1, None)
    assert (shards.committed(GROUP, key), shards.committed(GROUP, other)) == after
    assert not shards.of(RowKind.OPEN_GROUP)
    assert shards.commit_offsets(GROUP, pid, epoch, (key, 9)).code == INVALID


def test_members_that_may_commit_with_a_transaction() -> None:
    shards, key, pid, epoch = opened()
    for other in ((pid, epoch + 1), (pid, epoch - 1), (pid + 1, epoch), (-1, -1)):
        assert shards.commit_offsets(GROUP, *other, (key, 1)).code == INVALID
    assert shards.commit_offsets("other", pid, epoch, (key, 1)).code == INVALID
    assert shards.pending() == 0
    absent = key[0], 9
    outcome = shards.commit_offsets(GROUP, pid, epoch, (absent, 1), (key, 2))
    assert outcome.codes == (Code.UNKNOWN_TOPIC_ID, NONE)
    assert shards.pending() == 1
    assert shards.commit_offsets(GROUP, pid, epoch).code == NONE


def member_group(shards: Shards, kind: str) -> None:
    row = {
        "epoch": 3, "protocols": [], "assigned": b"", "target": b"", "client_id": "c",
    }  # fmt: skip
    encoding = ChangeGroup.encode(GROUP, -1, kind, 1, {}, {"m": row}, level=2, time_ms=1)
    assert shards.apply(0, at_once(encoding)).code == NONE


@pytest.mark.parametrize("kind", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("member", "generation", "code"),
    [
        ("", -1, NONE),
        ("m", 3, NONE),
        ("m", 2, ILLEGAL),
        ("m", 4, ILLEGAL),
        ("m", -1, ILLEGAL),
        ("n", 3, UNKNOWN_MEMBER),
        ("", 3, UNKNOWN_MEMBER),
    ],
)
def test_members_commit_with_their_generation(
    kind: str, member: str, generation: int, code: Code
) -> None:
    shards = Shards()
    member_group(shards, kind)
    pid, epoch, _ = shards.open(groups=[GROUP])
    outcome = shards.commit_offsets(
        GROUP, pid, epoch, (shards.keys[0], 5), member=member, generation=generation
    )
    assert outcome.code == code
    assert shards.pending() == (code == NONE)


@pytest.mark.parametrize(("generation", "code"), [(-1, NONE), (0, ILLEGAL), (3, ILLEGAL)])
def test_a_group_that_is_not_there_has_no_generation(generation: int, code: Code) -> None:
    """As Kafka says it (`OffsetMetadataManager.validateTransactionalOffsetCommit`)."""
    shards, key, pid, epoch = opened()
    outcome = shards.commit_offsets(GROUP, pid, epoch, (key, 5), member="m", generation=generation)
    assert outcome.code == code


@pytest.mark.parametrize("level", [7, 8])
@pytest.mark.parametrize("commit", [True, False])
def test_a_later_plain_commit_wins(commit: bool, level: int) -> None:
    shards, key, pid, epoch = opened(level=level)
    shards.commit_offsets(GROUP, pid, epoch, (key, 10))
    shards.commit_plainly(GROUP, (key, 5))
    assert (shards.committed(GROUP, key), shards.pending()) == (5, 1)
    ended(shards, pid, epoch, commit=commit)
    assert (shards.committed(GROUP, key), shards.pending()) == (5, 0)


def test_a_transactional_commit_after_a_plain_one_wins() -> None:
    shards, key, pid, epoch = opened()
    shards.commit_offsets(GROUP, pid, epoch, (key, 10))
    shards.commit_plainly(GROUP, (key, 5))
    shards.commit_offsets(GROUP, pid, epoch, (key, 30))
    ended(shards, pid, epoch, commit=True)
    assert shards.committed(GROUP, key) == 30


def test_a_plain_commit_of_another_group_or_partition_supersedes_nothing() -> None:
    shards, key, pid, epoch = opened(partitions=2)
    shards.commit_offsets(GROUP, pid, epoch, (key, 10))
    shards.commit_plainly("gg", (key, 5))
    shards.commit_plainly(GROUP, ((key[0], 1), 5))
    ended(shards, pid, epoch, commit=True)
    assert shards.committed(GROUP, key) == 10


@pytest.mark.parametrize("level", [7, 8])
@pytest.mark.parametrize("first_ends", ["a", "b"])
@pytest.mark.parametrize("later", ["commits", "aborts"])
def test_later_commit_of_two_producers_wins(first_ends: str, later: str, level: int) -> None:
    shards = Shards(level=level)
    key = shards.keys[0]
    a, b = (shards.open(groups=[GROUP], name=name)[:2] for name in "ab")
    shards.commit_offsets(GROUP, *a, (key, 1))
    shards.commit_offsets(GROUP, *b, (key, 2))
    for name in (first_ends, "b" if first_ends == "a" else "a"):
        commit = name == "a" or later == "commits"
        ended(shards, *(a if name == "a" else b), commit=commit, name=name)
    assert shards.committed(GROUP, key) == (2 if later == "commits" else 1)
    assert shards.pending() == 0


@pytest.mark.parametrize("commit", [True, False])
def test_many_offsets_are_settled_in_lots(commit: bool) -> None:
    shards, key, pid, epoch = opened(partitions=1300)
    keys = [(key[0], i) for i in range(1300)]
    for start in range(0, 1300, 500):
        some = [(one, 7) for one in keys[start : start + 500]]
        assert set(shards.commit_offsets(GROUP, pid, epoch, *some).codes) == {NONE}
    assert shards.pending() == 1300
    shards.end(pid, epoch, commit=commit)
    row = shards.row()
    for left in (800, 300, 0):
        assert shards.marker(row, (), [GROUP]) == left
        assert shards.pending() == left
    assert shards.marker(row, (), [GROUP]) == 0
    assert {shards.committed(GROUP, one) for one in keys} == {7 if commit else None}
    assert not shards.of(RowKind.OPEN_GROUP)


def staged_by(shards: Shards, count: int) -> list[tuple[str, int, int]]:
    """Return (transactional id, producer id, epoch) of producers that commit 1, 2, 3 and so on."""
    found = []
    for number in range(count):
        name = f"t{number}"
        pid, epoch, _ = shards.open(groups=[GROUP], name=name)
        shards.commit_offsets(GROUP, pid, epoch, (shards.keys[0], number + 1))
        found.append((name, pid, epoch))
    return found


def folded_in_one(shards: Shards) -> dict[bytes, bytes]:
    """Return the rows of the same log where nothing is written before its end."""
    state = State(DictKv())
    fold = Fold(state, ShardId(0), 1, shared=False)
    for log_offset, envelope in enumerate(shards.all[0].log):
        fold.apply(log_offset, envelope, LogLocation(0, 0, len(envelope.body)))
    kv = DictKv()
    kv.write(state.drain())
    return kv.rows


def without_places(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {k: v for k, v in rows.items() if not RowKind.LIVE_BYTES.of(k)}


@pytest.mark.parametrize("level", [7, 8])
def test_no_commit_goes_back_however_many_producers_wait(level: int) -> None:
    shards = Shards(level=level)
    producers = staged_by(shards, 1_003)
    shards.commit_plainly(GROUP, (shards.keys[0], 5_000))
    for name, pid, epoch in (*producers[:3], *producers[-3:]):
        ended(shards, pid, epoch, commit=True, name=name)
    assert shards.committed(GROUP, shards.keys[0]) == 5_000
    assert without_places(shards.all[0].kv.rows) == without_places(folded_in_one(shards))


def test_deleting_offsets_drops_those_that_wait_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_fold, "_FORGOTTEN_MAX", 4)
    shards = Shards()
    staged_by(shards, 10)
    deletion = DeleteOffsets(GROUP, [shards.keys[0]]).envelope(2)
    assert [(shards.apply(0, deletion).number, shards.pending()) for _ in range(3)] == [
        (1, 6), (1, 2), (0, 0),
    ]  # fmt: skip


def test_deleting_offsets_says_so_where_others_wait_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: who has nothing waiting there took the place of who has, and all seemed done."""
    monkeypatch.setattr(group_fold, "_FORGOTTEN_MAX", 2)
    shards, key, *first = opened("a", partitions=3)
    second = shards.open(groups=[GROUP], name="b")[:2]
    keys = [(key[0], index) for index in range(3)]
    assert first[0] < second[0], "the first is looked at first"
    shards.commit_offsets(GROUP, *first, (keys[0], 1))
    shards.commit_offsets(GROUP, *second, *[(one, 1) for one in keys[1:]])
    deletion = DeleteOffsets(GROUP, keys).envelope(2)
    assert [(shards.apply(0, deletion).number, shards.pending()) for _ in range(2)] == [
        (1, 1), (0, 0),
    ]  # fmt: skip


def test_an_offset_keeps_its_log_offset_only_while_others_wait() -> None:
    shards, key, pid, epoch = opened()
    shards.commit_plainly(GROUP, (key, 1))
    plain = shards.all[0].state.committed(GROUP, key)
    shards.commit_offsets(GROUP, pid, epoch, (key, 10))
    shards.commit_plainly(GROUP, (key, 2))
    beside = shards.all[0].state.committed(GROUP, key)
    assert plain is not None
    assert beside is not None
    assert (plain.log_offset, beside.log_offset) == (-1, len(shards.all[0].log) - 1)


def test_a_marker_of_another_transaction_settles_nothing() -> None:
    shards, key, pid, epoch = opened()
    shards.commit_offsets(GROUP, pid, epoch, (key, 1))
    shards.end(pid, epoch, commit=True)
    first = shards.finish()
    shards.enlist(pid, epoch, Participant(0, group=GROUP))
    shards.commit_offsets(GROUP, pid, epoch, (key, 2))
    shards.marker(first, (), [GROUP])
    assert (shards.committed(GROUP, key), shards.pending()) == (1, 1)
    ended(shards, pid, epoch, commit=False)
    assert shards.committed(GROUP, key) == 1


def test_a_group_begins_again_only_behind_the_end_of_its_offsets() -> None:
    """While some are left to settle a late BEGIN does not begin it anew."""
    shards, key, pid, epoch = opened(partitions=600)
    for start in (0, 300):
        some = [((key[0], i), 7) for i in range(start, start + 300)]
        shards.commit_offsets(GROUP, pid, epoch, *some)
    shards.end(pid, epoch, commit=True)
    row = shards.row()
    assert shards.marker(row, (), [GROUP]) == 100
    assert shards.begin(pid, epoch, row.number, (), [GROUP]) == NONE
    assert shards.pending() == 100
    assert shards.marker(row, (), [GROUP]) == 0
    assert shards.begin(pid, epoch, row.number, (), [GROUP]) == INVALID
    assert shards.pending() == 0


# -- deletions


def test_deleting_a_group_drops_what_waits() -> None:
    shards, key, pid, epoch = opened(partitions=2)
    shards.commit_offsets(GROUP, pid, epoch, (key, 7), ((key[0], 1), 8))
    assert shards.apply(0, DeleteGroup(GROUP).envelope()).code == NONE
    assert shards.pending() == 0
    ended(shards, pid, epoch, commit=True)
    assert shards.committed(GROUP, key) is None
    assert not shards.of(RowKind.OPEN_GROUP, RowKind.GROUP, RowKind.OFFSET)


def test_a_deleted_group_may_get_offsets_of_the_same_transaction_again() -> None:
    shards, key, pid, epoch = opened()
    shards.commit_offsets(GROUP, pid, epoch, (key, 7))
    shards.apply(0, DeleteGroup(GROUP).envelope())
    assert shards.commit_offsets(GROUP, pid, epoch, (key, 8)).code == NONE
    assert shards.pending() == 1
    ended(shards, pid, epoch, commit=True)
    assert (shards.committed(GROUP, key), shards.pending()) == (8, 0)


def test_deleting_offsets_drops_those_that_wait_of_all_producers() -> None:
    shards = Shards()
    key = shards.make(partitions=2)
    other = key[0], 1
    a, b = (shards.open(groups=[GROUP], name=name)[:2] for name in "ab")
    for producer in (a, b):
        shards.commit_offsets(GROUP, *producer, (key, 1), (other, 2))
    shards.commit_plainly(GROUP, (key, 9))
    assert shards.pending() == 4
    assert shards.apply(0, DeleteOffsets(GROUP, [key, key]).envelope(2)).code == NONE
    assert shards.pending() == 2
    for name, producer in (("a", a), ("b", b)):
        ended(shards, *producer, commit=True, name=name)
    assert (shards.committed(GROUP, key), shards.committed(GROUP, other)) == (None, 2)
    assert shards.pending() == 0


def test_offsets_of_a_queue_that_is_gone_go_with_the_end() -> None:
    shards, key, pid, epoch = opened()
    shards.commit_offsets(GROUP, pid, epoch, (key, 7))
    shards.apply(0, DeleteQueue(key[0]).envelope())
    ended(shards, pid, epoch, commit=True)
    assert (shards.committed(GROUP, key), shards.pending()) == (None, 0)
    assert not shards.of(RowKind.OFFSET, RowKind.OFFSET_BY_QUEUE)


def test_a_group_with_waiting_offsets_does_not_expire() -> None:
    shards, key, pid, epoch = opened()
    shards.commit_offsets(GROUP, pid, epoch, (key, 7))

    def expire() -> None:
        data = present(shards.all[0].state.get(group_key(GROUP)))
        command = ExpireOffsets(GROUP, decode_group(data).version, True, [], 99)
        assert shards.apply(0, command.envelope(2)).code == NONE

    for _ in range(3):
        expire()
    assert shards.of(RowKind.GROUP)
    ended(shards, pid, epoch, commit=False)
    for _ in range(2):
        expire()
    assert not shards.of(RowKind.GROUP)


def test_offsets_that_nobody_settled_are_counted_with_the_next_transaction() -> None:
    """No coordinator leaves any; a fold that fails would stop the shard."""
    shards, key, pid, epoch = opened()
    shards.commit_offsets(GROUP, pid, epoch, (key, 7))
    number = len(shards.all[0].log) + 1
    assert shards.begin(pid, epoch, number, (), [GROUP]) == NONE
    assert shards.pending() == 1
    shards.apply(0, DeleteOffsets(GROUP, [key]).envelope(2))
    assert shards.pending() == 0


def test_a_queue_that_denies_rewinds_denies_them_to_transactions() -> None:
    """FAULT: found by fresh eyes."""
    shards, key, pid, epoch = opened()
    shards.commit_plainly(GROUP, (key, 10))

    def commit(offset: int, deny: bool, metadata: str = "") -> Code:
        asked = OffsetCommit(*key, offset, -1, metadata, deny)
        command = TransactionCommit(GROUP, "", -1, pid, epoch, [asked], 1)
        outcome = shards.apply(0, command.envelope(shards.level))
        assert not outcome.code
        return outcome.codes[0]

    assert commit(3, deny=True) == Code.POLICY_VIOLATION
    assert commit(10, deny=True) == NONE
    assert commit(3, deny=True, metadata="allow-rewind") == NONE
    assert commit(3, deny=False) == NONE


def test_a_commit_looks_at_who_waits_for_its_partition_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: it looked up all producers of the group for each offset: 70 ms of a turn for 100."""
    shards = Shards(level=7)
    key = shards.make(partitions=60)
    for number in range(60):
        pid, epoch, _ = shards.open(groups=[GROUP], name=f"t{number}")
        shards.commit_offsets(GROUP, pid, epoch, ((key[0], number), 5))
    asked: list[bytes] = []
    kv = shards.all[0].kv
    get = kv.get
    monkeypatch.setattr(kv, "get", lambda found: (asked.append(found), get(found))[1])
    shards.commit_plainly(GROUP, *(((key[0], number), 7) for number in range(0, 60, 6)))
    pending = [found for found in asked if RowKind.PENDING_OFFSET.of(found)]
    assert len(pending) == 10
    assert shards.committed(GROUP, (key[0], 6)) == 7
