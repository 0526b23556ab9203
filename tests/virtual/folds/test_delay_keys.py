"""Waiting records that replace one another by their keys, and are cancelled."""

import random

import pytest

from kproxy.common.errors import Code
from kproxy.delays.splitting import Split, split
from kproxy.metadata.delay_settings import DelaySettings
from kproxy.protocol.batch import BadBatch, read_header, stamped
from kproxy.protocol.records import unpacked
from kproxy.virtual.commands.delays import KEYED_EPOCH, Due, Later
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.delays import hidden, waiting_in, waiting_range
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.virtual.commands import delay_cases
from tests.wire import batch, keyed

KEY: PartitionKey = (QueueId(bytes(16)), 0)
NOW = 1000


class Stage:
    """A shard with a queue whose records wait, and replace one another."""

    def __init__(self, fixed_ms: int = 60) -> None:
        self.shard = MemoryShard()
        self.shard.apply(CreateQueue(KEY[0], "q", 1, {}).envelope())
        self.delay = DelaySettings(fixed_ms, True, 1 << 40, 1 << 40, True)

    def put(self, *records: tuple[bytes | None, bytes | None], now_ms: int = NOW) -> Outcome:
        data = keyed(*records, time_ms=1)
        made = split(read_header(data), data, unpacked(data), self.delay, now_ms, 1 << 20)
        assert made is not None
        return self.shard.apply(self.envelope(made, now_ms))

    def envelope(self, made: Split, now_ms: int) -> Envelope:
        return Later.envelope(
            KEY, made.later, now=made.now, split=made.header_bytes, time_ms=now_ms, look_ms=2,
            gone=made.gone,
        )  # fmt: skip

    def waiting(self) -> list[tuple[bytes, int]]:
        """Return (value's last bytes, when it is due) of what waits."""
        found = []
        for last in self.offsets():
            one = self.shard.state.batch_at(hidden(KEY), last)
            assert one is not None
            data = bytes(self.shard.segments.data[one.position : one.position + one.length])
            found.append((data[-2:-1], one.max_time_ms))
        assert waiting_in(self.shard.state.get, KEY).records == len(found)
        assert waiting_in(self.shard.state.get, KEY).batches == len(found)
        return found

    def offsets(self) -> list[int]:
        found = self.shard.kv.scan(*waiting_range(KEY))
        return [int.from_bytes(key[-8:], "big") for key, _ in found]

    def deliver(self, *offsets: int, time_ms: int = NOW + 60) -> Outcome:
        due = Due.envelope(KEY, offsets, [batch(b"d")] * len(offsets), time_ms=time_ms, look_ms=1)
        return self.shard.apply(due)


def test_a_later_record_of_a_key_replaces_the_one_that_waits() -> None:
    stage = Stage()
    assert not stage.put((b"a", b"1"), (b"b", b"2")).code
    assert stage.waiting() == [(b"1", NOW + 60), (b"2", NOW + 60)]
    stage.put((b"a", b"3"), now_ms=NOW + 5)
    assert stage.waiting() == [(b"2", NOW + 60), (b"3", NOW + 65)]
    stage.put((b"b", b"4"), (b"b", b"5"), (b"c", b"6"))
    assert [value for value, _ in stage.waiting()] == [b"5", b"6", b"3"]


def test_a_record_without_a_value_cancels_and_the_answer_says_whether_it_has() -> None:
    stage = Stage()
    stage.put((b"a", b"1"), (b"b", b"2"))
    assert stage.put((b"a", None)).code == Code.NONE
    assert stage.waiting() == [(b"2", NOW + 60)]
    again = stage.put((b"a", None))
    assert again.code == Code.INVALID_RECORD
    assert "nothing waits" in str(again.message)
    assert stage.put((b"b", None), (b"c", None), (b"d", b"4")).code == Code.INVALID_RECORD
    assert stage.waiting() == [(b"2", NOW + 60)]  # refused as a whole


def test_one_that_is_cancelled_as_it_is_due_is_delivered_or_cancelled_and_never_both() -> None:
    for cancelled_first in (True, False):
        stage = Stage()
        stage.put((b"a", b"1"))
        (offset,) = stage.offsets()
        if cancelled_first:
            assert not stage.put((b"a", None)).code
            assert stage.deliver(offset).number == -1
        else:
            assert stage.deliver(offset).number == 1
            assert stage.put((b"a", None)).code == Code.INVALID_RECORD
        row = stage.shard.state.partition(KEY)
        assert row is not None
        assert row.next_offset == (not cancelled_first)
        assert stage.waiting() == []
        assert not any(RowKind.WAITING_KEY.of(key) for key in stage.shard.kv.rows)


def test_a_record_that_does_not_wait_takes_the_place_of_the_one_that_does() -> None:
    stage = Stage(fixed_ms=0)
    stage.delay = stage.delay._replace(fixed_ms=60)
    stage.put((b"a", b"1"))
    stage.delay = stage.delay._replace(fixed_ms=0)
    assert not stage.put((b"a", b"2"), (b"z", b"3")).code
    row = stage.shard.state.partition(KEY)
    assert row is not None
    assert row.next_offset == 2
    assert stage.waiting() == []


def test_a_record_without_a_key_is_refused() -> None:
    with pytest.raises(BadBatch, match="record 1: it has no key"):
        Stage().put((b"a", b"1"), (None, b"2"))
    with pytest.raises(BadBatch, match="at most 1000 keys"):
        Stage().put(*[(b"%d" % n, b"v") for n in range(1001)])


def test_a_clients_batch_does_not_pass_for_one_that_replaces_others() -> None:
    shard = Stage().shard
    forged = bytearray(stamped(batch(b"v"), 50))
    forged[12:16] = KEYED_EPOCH.to_bytes(4, "big")
    envelope = delay_cases.later(KEY, bytes(forged))
    ((at, _),) = Later.decode(envelope).later
    assert read_header(envelope.body, at).leader_epoch == -1
    assert not shard.apply(envelope).code


@pytest.mark.parametrize("seed", range(10))
def test_as_a_dictionary_does(seed: int) -> None:
    rng, stage = random.Random(seed), Stage()
    model: dict[bytes, bytes] = {}
    for _ in range(60):
        if rng.random() < 0.2 and (offsets := stage.offsets()):
            gone = rng.choice(offsets)
            before = dict(stage.waiting())
            stage.deliver(gone, time_ms=1 << 50)
            left = dict(stage.waiting())
            (value,) = before.keys() - left.keys()
            model = {key: one for key, one in model.items() if one != value}
            continue
        key, value = rng.choice((b"a", b"b", b"c")), bytes([rng.randrange(256)])
        if value in model.values():
            continue
        if rng.random() < 0.3:
            assert (stage.put((key, None)).code == Code.NONE) == (key in model)
            model.pop(key, None)
        else:
            assert not stage.put((key, value), now_ms=NOW + rng.randrange(50)).code
            model[key] = value
        assert {one for one, _ in stage.waiting()} == set(model.values())
