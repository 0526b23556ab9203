"""The fold's decisions for partitions that take part in transactions: Kafka 4.3.1's."""

import pytest

from kproxy.common.errors import Code
from kproxy.protocol.batch import CONTROL_BATCH_BYTES, read_header
from kproxy.virtual import producers
from kproxy.virtual.commands.queues import DeleteQueue
from kproxy.virtual.commands.records import Compact
from kproxy.virtual.commands.transactions import EndCause, ExpireTransaction
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import Participant
from kproxy.virtual.types import PartitionKey
from tests.present import present
from tests.virtual.folds.transactional import ID, Shards, opened

NONE, INVALID = Code.NONE, Code.INVALID_TXN_STATE
OLD_EPOCH, OUT_OF_ORDER = Code.INVALID_PRODUCER_EPOCH, Code.OUT_OF_ORDER_SEQUENCE_NUMBER
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def again(shards: Shards, pid: int, epoch: int, *keys: PartitionKey, version: int = 1) -> int:
    """Begin the producer's next transaction."""
    parts = [Participant(0, key) for key in keys]
    outcome = shards.enlist(pid, epoch, *parts, version=version)
    assert outcome.code == NONE
    return outcome.number


def offsets(shards: Shards, key: PartitionKey) -> list[tuple[int, bool]]:
    """Return (last offset, whether it is a marker) of each batch."""
    state, found = shards.all[0].state, []
    for last, one in state.batches(key, 0, 1 << 40):
        body = shards.all[0].segments.data[one.position : one.position + one.length]
        found.append((last, bool(read_header(bytes(body)).attributes & 0x20)))
    return found


# -- BEGIN


def test_a_begin_opens_what_is_there_and_is_said_any_number_of_times() -> None:
    shards = Shards()
    key, absent = shards.keys[0], (shards.keys[0][0], 5)
    for _ in range(2):
        assert shards.begin(7, 0, 100, [key, absent], ["g"]) == NONE
    assert len(shards.of(RowKind.OPEN_TRANSACTION)) == 1
    assert len(shards.of(RowKind.OPEN_GROUP)) == 1
    assert not shards.append(key, 7, 0, 0).code
    assert shards.begin(7, 0, 100, [key]) == NONE  # it does not forget its records
    assert shards.ends(key) == (0, 1)


@VERSIONS
def test_a_begin_that_comes_too_late_opens_nothing(version: int) -> None:
    shards = Shards()
    key, other = shards.keys[0], shards.make()
    pid, epoch, number = shards.open(key, version=version)
    shards.append(key, pid, epoch, 0)
    after = shards.end(pid, epoch, version=version).epoch
    shards.finish()
    before = dict(shards.all[0].kv.rows)
    for late in (number, number - 1):
        assert shards.begin(pid, epoch, late, [key, other], ["g"], version=version) == INVALID
    assert shards.all[0].kv.rows == before
    if version == 2:  # that epoch is over, whatever its number
        assert shards.begin(pid, epoch, number + 99, [key]) == INVALID
    assert shards.begin(pid, after, number + 99, [key]) == NONE


def test_a_late_begin_does_not_take_the_place_of_a_later_one() -> None:
    shards = Shards()
    key = shards.keys[0]
    shards.begin(7, 0, 100, [key])
    shards.begin(7, 0, 90, [key])
    assert present(shards.all[0].fold._participants.open_of(key, 7)).number == 100


# -- APPEND


def test_a_batch_needs_a_transaction_of_its_epoch() -> None:
    shards = Shards()
    key, other = shards.keys[0], shards.make()
    assert shards.append(key, 7, 0, 0).code == INVALID
    shards.begin(7, 3, 100, [key])
    for epoch in (2, 4):
        assert shards.append(key, 7, epoch, 0).code == INVALID
    assert shards.append(key, 8, 3, 0).code == INVALID
    assert shards.append(other, 7, 3, 0).code == INVALID
    assert shards.append(key, 7, 3, 0)[:2] == (NONE, 0)
    assert shards.append(key, 7, 2, 0).code == OLD_EPOCH
    assert shards.append(key, 7, 4, 0).code == INVALID
    assert shards.append((key[0], 5), 7, 3, 0).code == Code.UNKNOWN_TOPIC_ID


@VERSIONS
def test_a_repetition_is_answered_until_the_end(version: int) -> None:
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, _ = shards.open(key, version=version)
    assert shards.append(key, pid, epoch, 0, 3)[:2] == (NONE, 0)
    for _ in range(2):
        assert shards.append(key, pid, epoch, 0, 3)[:2] == (NONE, 0)
    assert shards.append(key, pid, epoch, 0, 2).code == OUT_OF_ORDER
    assert shards.append(key, pid, epoch, 5).code == OUT_OF_ORDER
    shards.end(pid, epoch, version=version)
    assert shards.append(key, pid, epoch, 0, 3)[:2] == (NONE, 0)  # it does not know yet
    shards.finish()
    refused = INVALID if version == 1 else OLD_EPOCH
    assert shards.append(key, pid, epoch, 0, 3).code == refused
    assert shards.ends(key) == (4, 4)


def test_sequences_go_on_without_kip_890_and_begin_anew_with_it() -> None:
    shards, key, pid, epoch = opened()
    shards.append(key, pid, epoch, 0, 3)
    shards.end(pid, epoch)
    shards.finish()
    again(shards, pid, epoch, key)
    for sequence in (0, 2, 4):
        assert shards.append(key, pid, epoch, sequence).code == OUT_OF_ORDER
    assert shards.append(key, pid, epoch, 3).code == NONE
    shards.end(pid, epoch, version=2)
    shards.finish()
    again(shards, pid, epoch + 1, key, version=2)
    assert shards.append(key, pid, epoch, 4).code == OLD_EPOCH
    assert shards.append(key, pid, epoch + 1, 4).code == OUT_OF_ORDER
    assert shards.append(key, pid, epoch + 1, 0).code == NONE
    assert shards.append(key, pid, epoch + 1, 1).code == NONE
    shards.end(pid, epoch + 1, version=1)  # ended as the older version does: they go on
    shards.finish()
    again(shards, pid, epoch + 1, key, version=2)
    assert shards.append(key, pid, epoch + 1, 5).code == OUT_OF_ORDER
    assert shards.append(key, pid, epoch + 1, 2).code == NONE


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sequence", [0, 5])
def test_a_producer_unknown_here_begins_at_0_with_kip_890(version: int, sequence: int) -> None:
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, _ = shards.open(key, version=version)
    refused = version == 2 and sequence
    assert shards.append(key, pid, epoch, sequence).code == (OUT_OF_ORDER if refused else NONE)
    assert len(shards.of(RowKind.OPEN_TRANSACTION)) == 1


def test_a_batch_outside_its_producers_transaction() -> None:
    shards = Shards()
    key, other = shards.keys[0], shards.make()
    pid, epoch, _ = shards.open(key)
    shards.append(key, pid, epoch, 0)
    assert shards.append(key, pid, epoch, 1, attributes=0).code == INVALID
    assert shards.append(other, pid, epoch, 0, attributes=0).code == NONE
    assert shards.append(key, 99, 0, 0, attributes=0).code == NONE
    assert shards.append(key, -1, -1, -1, attributes=0).code == NONE
    shards.end(pid, epoch)
    shards.finish()
    assert shards.append(key, pid, epoch, 1, attributes=0).code == NONE
    assert shards.ends(other) == (1, 1)


def test_a_transactional_batch_of_nobody_is_an_ordinary_one() -> None:
    shards = Shards()
    assert shards.append(shards.keys[0], -1, -1, -1).code == NONE
    assert shards.ends(shards.keys[0]) == (1, 1)


# -- MARKER


@VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_takes_an_offset_where_there_are_records(commit: bool, version: int) -> None:
    shards = Shards(shared=True)
    key, empty = shards.keys[0], shards.make()
    pid, epoch, _ = shards.open(key, empty, version=version)
    shards.append(key, pid, epoch, 0, 2)
    shards.append(key, 99, 0, 0, attributes=0)
    assert shards.ends(key) == (0, 3)
    shards.end(pid, epoch, commit=commit, version=version)
    at = len(shards.all[0].log)
    row = shards.row()
    shards.marker(row, [empty, key])
    assert shards.ends(key) == (4, 4)
    assert shards.ends(empty) == (0, 0)
    assert offsets(shards, key) == [(1, False), (2, False), (3, True)]
    assert shards.aborted(key) == ([] if commit else [(3, pid, 0)])
    assert shards.partition(key).any_aborted != commit
    batch = present(shards.all[0].state.batch_at(key, 3))
    assert (batch.length, batch.log_offset, batch.last_delta) == (CONTROL_BATCH_BYTES, at, 0)
    assert batch.size_through == shards.partition(key).size
    assert not shards.of(RowKind.OPEN_TRANSACTION, RowKind.OPEN_FIRST)
    assert shards.of(RowKind.NO_EFFECT)[-1] == (rows.no_effect_key(at), b"\x01")
    before = shards.partition(key).encode()
    shards.marker(row, [empty, key])  # said again
    assert shards.partition(key).encode() == before
    assert shards.of(RowKind.NO_EFFECT)[-1][1] == b"\x03"


def test_a_marker_of_another_transaction_ends_nothing() -> None:
    shards, key, pid, epoch = opened()
    shards.append(key, pid, epoch, 0)
    shards.end(pid, epoch)
    first = shards.finish()
    number = again(shards, pid, epoch, key)
    shards.append(key, pid, epoch, 1)
    before = shards.partition(key).encode()
    shards.marker(first, [key])
    shards.marker(first, [key], number=number + 1)
    shards.marker(first, [key], number=number, ending_producer_id=pid + 1)
    assert shards.partition(key).encode() == before
    assert shards.ends(key) == (2, 3)
    # A marker of a later number, though it found nothing, says that earlier ones are over.
    assert shards.begin(pid, epoch, number + 1, [shards.make()]) == INVALID
    shards.marker(first, [key], number=number)
    assert shards.ends(key) == (4, 4)


def test_a_marker_of_a_queue_that_is_gone_or_there_again() -> None:
    shards = Shards(shared=True)
    key = shards.keys[0]
    pid, epoch, _ = shards.open(key)
    shards.append(key, pid, epoch, 0)
    shards.apply(0, DeleteQueue(key[0]).envelope())
    other = shards.make()
    assert shards.append(other, pid, epoch, 0).code == INVALID
    assert shards.append(key, pid, epoch, 1).code == Code.UNKNOWN_TOPIC_ID
    shards.end(pid, epoch)
    row = shards.row()
    shards.finish()
    shards.marker(row, [key, other])
    assert shards.ends(other) == (0, 0)
    assert not shards.of(RowKind.OPEN_TRANSACTION, RowKind.BATCH)[1:]
    assert shards.all[0].state.partition(key) is None


def test_a_marker_fences_the_epoch_of_its_transaction_where_it_has_none_of_its_records() -> None:
    shards = Shards()
    key, other = shards.keys[0], shards.make()
    pid, epoch, number = shards.open(key)
    shards.append(key, pid, epoch, 0)
    assert shards.init().code == Code.CONCURRENT_TRANSACTIONS
    shards.finish()
    assert shards.append(key, pid, epoch, 1).code == OLD_EPOCH
    assert shards.append(other, pid, epoch, 0).code == INVALID
    assert shards.begin(pid, epoch, number + 5, [other]) == INVALID
    assert shards.append(other, pid, epoch, 0).code == INVALID


def test_a_marker_clears_sequences_of_a_producer_with_a_row_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_INLINE", 1)
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, _ = shards.open(key, version=2)
    shards.append(key, pid, epoch, 0)
    shards.append(key, 99, 0, 0, attributes=0)
    assert shards.of(RowKind.PRODUCER)
    shards.end(pid, epoch, version=2)
    shards.finish()
    row = shards.partition(key)
    found = dict(producers.remembered(shards.all[0].state, key, row))
    assert (found[pid].epoch, found[pid].batches) == (epoch + 1, ())
    again(shards, pid, epoch + 1, key, version=2)
    assert shards.append(key, pid, epoch + 1, 1).code == OUT_OF_ORDER
    assert shards.append(key, pid, epoch + 1, 0).code == NONE


def test_the_last_stable_offset_is_that_of_the_earliest_open_transaction() -> None:
    shards = Shards()
    key = shards.keys[0]
    opened = {}
    for name in "abc":
        pid, epoch, _ = shards.open(key, name=name)
        opened[name] = pid, epoch
    for name in "bac":
        shards.append(key, *opened[name], 0, 2)
    assert shards.ends(key) == (0, 6)
    for name, stable in (("a", 0), ("b", 4), ("c", 10)):
        shards.append(key, 99, 0, 0, attributes=0)
        shards.end(*opened[name], commit=False, name=name)
        shards.finish(name)
        assert shards.ends(key)[0] == stable
    assert shards.ends(key)[1] == 10
    first = {name: opened[name][0] for name in "abc"}
    found = shards.aborted(key)
    assert [(pid, start) for _, pid, start in found] == [
        (first["a"], 2), (first["b"], 0), (first["c"], 4),
    ]  # fmt: skip
    left_stable = [one.last_stable for _, one in shards.all[0].state.aborted(key, 0, 99)]
    assert left_stable == [0, 4, 10]
    # Transactions whose markers lie before the read part do not matter, nor those that begin
    # behind.
    assert shards.aborted(key, found[1][0] + 1) == found[2:]
    assert shards.aborted(key, 0, 2) == [found[1]]


def test_a_trim_may_pass_an_open_transaction() -> None:
    shards, key, pid, epoch = opened()
    shards.append(key, pid, epoch, 0, 3)
    shards.append(key, 99, 0, 0, 3, attributes=0)
    shards.trim(key, 2)
    assert shards.ends(key) == (2, 6)
    shards.trim(key, -1)
    assert shards.ends(key) == (6, 6)
    shards.append(key, pid, epoch, 3)
    assert shards.ends(key) == (6, 7)
    shards.end(pid, epoch, commit=False)
    shards.finish()
    assert shards.ends(key) == (8, 8)
    assert shards.aborted(key, 6) == [(7, pid, 0)]


def test_a_marker_in_a_partition_without_records_is_seen_to_by_retention() -> None:
    shards, key, pid, epoch = opened()
    shards.append(key, pid, epoch, 0)
    shards.trim(key, -1)
    (due,) = shards.of(RowKind.RETENTION_DUE)
    shards.all[0].commit({due[0]: None})
    shards.end(pid, epoch)
    shards.finish()
    assert shards.ends(key) == (2, 2)
    assert len(shards.of(RowKind.RETENTION_DUE)) == 1


def test_live_bytes_count_a_marker_once_for_each_partition() -> None:
    shards = Shards()
    keys = [shards.make() for _ in range(3)]
    pid, epoch, _ = shards.open(*keys)
    for key in keys[:2]:
        shards.append(key, pid, epoch, 0)
    before = shards.all[0].state.live_bytes(0)
    shards.end(pid, epoch)
    shards.finish()
    each = CONTROL_BATCH_BYTES + 102
    assert abs(shards.all[0].state.live_bytes(0) - before - 2 * each) < 20


# -- other shards


def test_partitions_of_other_shards_take_part_by_what_their_logs_say() -> None:
    shards = Shards(3)
    home, other = shards.home, (shards.home + 1) % 3
    keys = shards.keys
    pid = shards.init().number
    parts = [Participant(shard, keys[shard]) for shard in (home, other)]
    number = shards.enlist(pid, 0, *parts, Participant(other, group="g")).number
    assert shards.append(keys[home], pid, 0, 0, shard=home).code == NONE
    assert shards.append(keys[other], pid, 0, 0, shard=other).code == INVALID
    shards.begin(pid, 0, number, [keys[other]], ["g"], shard=other)
    assert shards.append(keys[other], pid, 0, 0, shard=other).code == NONE
    assert shards.commit_offsets("g", pid, 0, (keys[0], 5), shard=other).codes == (NONE,)
    shards.end(pid, 0)
    shards.finish()
    for shard in (home, other):
        assert shards.ends(keys[shard], shard) == (2, 2)
    assert shards.committed("g", keys[0], other) == 5
    late = (home + 2) % 3  # never told of anything
    assert shards.begin(pid, 0, number, [keys[late]], shard=late) == NONE
    shards.marker(shards.row()._replace(ending_producer_id=pid, ending_epoch=0, marker_epoch=0),
                  [keys[late]], shard=late)  # fmt: skip
    assert shards.ends(keys[late], late) == (0, 0)


# -- what a shard remembers of producers


def test_a_producer_is_filed_once_and_forgotten_where_it_was_not_used_since() -> None:
    shards, key, pid, epoch = opened()
    used = []
    for sequence in range(3):
        again(shards, pid, epoch, key)
        shards.append(key, pid, epoch, sequence)
        shards.end(pid, epoch)
        used.append(shards.now_ms)
        shards.finish()
    assert len(shards.of(RowKind.PRODUCER_DUE)) == len(shards.of(RowKind.TRANSACTIONAL_PRODUCER))

    def expire(used_ms: int, producer_id: int = pid) -> Code:
        return shards.apply(0, ExpireTransaction("", producer_id, used_ms).envelope()).code

    assert expire(used[1]) == expire(used[2], pid + 1) == INVALID
    assert expire(used[2]) == NONE
    assert not shards.of(RowKind.TRANSACTIONAL_PRODUCER)
    assert shards.row().producer_id == pid  # the id itself is not forgotten
    again(shards, pid, epoch, key)
    assert shards.append(key, pid, epoch, 3).code == NONE


def test_a_timeout_ends_what_has_records() -> None:
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, number = shards.open(key)
    shards.append(key, pid, epoch, 0)
    shards.end(pid, epoch, commit=False, number=number, cause=EndCause.TIMEOUT)
    shards.finish()
    assert shards.ends(key) == (2, 2)
    assert shards.aborted(key) == [(1, pid, 0)]
    assert shards.row(ID).epoch == epoch + 1


# -- found by fresh eyes


@VERSIONS
def test_a_producer_is_not_forgotten_while_its_transaction_is_open(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """FAULT: a batch that was sent again, its answer lost, was stored twice."""
    monkeypatch.setattr(producers, "PRODUCERS_REMEMBERED", 10)
    monkeypatch.setattr(producers, "_FORGOTTEN_AT_ONCE", 3)
    shards = Shards()
    key = shards.keys[0]
    pid, epoch, _ = shards.open(key, version=version)
    assert shards.append(key, pid, epoch, 0).number == 0
    for other in range(50):
        assert not shards.append(key, 1_000_000 + other, 0, 0, attributes=0).code
    assert shards.append(key, pid, epoch, 0).number == 0, "it repeats the first"
    assert shards.append(key, pid, epoch, 1).number == 51
    assert shards.partition(key).spilled <= 13


def test_compaction_takes_the_row_of_an_aborted_transaction_with_its_marker() -> None:
    shards, key, pid, epoch = opened()
    shards.append(key, pid, epoch, 0)
    shards.end(pid, epoch, commit=False)
    shards.finish()
    assert shards.aborted(key)
    shards.apply(0, Compact(*key, [(0, 0)]).envelope())
    assert shards.aborted(key), "its marker is there"
    shards.apply(0, Compact(*key, [(1, 0)]).envelope())
    assert not shards.aborted(key)
