"""The effect of RESTORED: holders of later knowledge are fenced, and numbers begin far ahead."""

import pytest

from kproxy.common.errors import Code
from kproxy.virtual.commands.producers import AllocateProducerId
from kproxy.virtual.commands.restore import OFFSETS_PER_MS, Restored, first_offset
from kproxy.virtual.rows.transactions import Participant, TransactionState
from tests.virtual.folds.transactional import Shards

NONE, FENCED = Code.NONE, Code.PRODUCER_FENCED


def restored(shards: Shards) -> int:
    """Restore just now; return the log offset."""
    log_offset = len(shards.all[0].log)
    assert shards.apply(0, Restored(5_000).envelope()).number == log_offset
    return log_offset


@pytest.mark.parametrize("version", [1, 2])
def test_producer_of_an_earlier_id_is_fenced_and_a_new_one_is_given(version: int) -> None:
    shards = Shards()
    first = shards.init()
    pid, epoch = first.number, first.epoch
    at = restored(shards)
    part = Participant(0, shards.keys[0])
    assert shards.enlist(pid, epoch, part, version=version).code == FENCED
    assert shards.end(pid, epoch, version=version).code == FENCED
    assert shards.init((pid, epoch)).code == FENCED
    later = shards.init()
    assert (later.code, later.epoch) == (NONE, 0)
    assert later.number > at
    again = shards.init((later.number, 0))
    assert (again.code, again.number, again.epoch) == (NONE, later.number, 1)


def test_open_transaction_is_aborted() -> None:
    shards = Shards()
    first = shards.init()
    shards.init(name="idle")
    restored(shards)
    assert shards.row().state == TransactionState.EMPTY
    later = shards.init()
    key = shards.keys[0]
    enlisted = shards.enlist(later.number, 0, Participant(0, key))
    assert enlisted.code == NONE
    assert shards.append(key, later.number, 0, 0).code == NONE
    restored(shards)
    row = shards.row()
    assert row.state == TransactionState.PREPARE_ABORT
    assert shards.end(later.number, 0, number=enlisted.number).code == FENCED
    assert shards.init().code == Code.CONCURRENT_TRANSACTIONS
    assert first.number < later.number == row.ending_producer_id


def test_ids_are_those_of_log_offsets_behind_it() -> None:
    shards = Shards()
    before = shards.apply(0, AllocateProducerId().envelope()).number
    at = restored(shards)
    assert before < at < shards.apply(0, AllocateProducerId().envelope()).number


def test_a_log_goes_on_where_none_was() -> None:
    now_ms = 1_800_000_000_000
    assert first_offset(10, now_ms) == now_ms * OFFSETS_PER_MS
    earlier = first_offset(10, now_ms - 1)  # another restore of it, with 2000 envelopes since
    assert first_offset(10, now_ms) >= earlier + 2000
    assert first_offset(1 << 62, now_ms) == 1 << 62
    assert first_offset(0, 4_000_000_000_000) < 1 << 53  # in the year 2096, too
