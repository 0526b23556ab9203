"""Where the published form of a partition says that its batches are counted from."""

from collections.abc import Iterator

from kproxy.virtual import rows
from kproxy.virtual.rows import Batch, Partition
from kproxy.virtual.snapshot import Anchors, RowCapture
from kproxy.virtual.types import QueueId
from tests.fakes import DictKv

PARTITION = (QueueId(b"q" * 16), 0)
KEY = rows.partition_key(*PARTITION)
BATCHES, COPIED = 20_000, 15_000


class Counted(DictKv):
    """Counts what is read by scans."""

    read = 0

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for pair in super().scan(start, end):
            self.read += 1
            yield pair


def stored(batches: int, copied: int) -> Counted:
    kv = Counted()
    kv.write(
        {
            rows.batch_key(*PARTITION, last_offset): Batch(
                7, last_offset * 300, 200, 0, last_offset, (last_offset + 1) * 200, 1, 1,
                last_offset < copied,
            ).encode()
            for last_offset in range(batches)
        }
    )  # fmt: skip
    row = Partition()
    row.next_offset, row.size = batches, batches * 200
    kv.write({KEY: row.encode()})
    return kv


def trim(kv: Counted, log_start: int, *, swept: bool) -> bytes:
    row = rows.decode_partition(kv.rows[KEY])
    row.log_start = log_start
    kv.write({KEY: row.encode()})
    if swept:
        kv.write({rows.batch_key(*PARTITION, offset): None for offset in range(log_start)})
    return kv.rows[KEY]


def test_copies_are_passed_over_in_steps_and_once() -> None:
    """FAULT: each publication of a partition read all of its copies in one turn of the loop."""
    kv = stored(BATCHES, COPIED)
    anchors, most = Anchors(kv), 0
    before = kv.read
    for _ in anchors.look_ahead([KEY]):
        most, before = max(most, kv.read - before), kv.read
    assert most <= 1000
    assert kv.read < COPIED + 2000
    kv.read = 0
    capture = RowCapture(kv, {KEY}, anchors)
    assert not capture.take_some(1)
    assert kv.read <= 1000
    assert capture.taken == {KEY: Anchors(kv).encode(KEY, kv.rows[KEY])}


def test_what_was_passed_over_is_not_believed_of_another_partition() -> None:
    kv = stored(BATCHES, COPIED)
    anchors = Anchors(kv)
    list(anchors.look_ahead([KEY]))
    for log_start, swept in ((100, False), (100, True), (COPIED - 1, True), (COPIED + 5, True)):
        value = trim(kv, log_start, swept=swept)
        assert anchors.encode(KEY, value) == Anchors(kv).encode(KEY, value)
    other = stored(3000, 1)
    kv.rows = (
        other.rows
    )  # the same id again: nothing of the sort happens, and nothing would be lost
    kv.write({})
    value = kv.rows[KEY]
    assert anchors.encode(KEY, value) == Anchors(kv).encode(KEY, value)
