"""The ends of partitions at known times, for `kproxy.retention.from=arrival`, and to look rarely
at those of which so many records or bytes are kept, while nothing comes to them.

No batch says when it came. At each look retention notes the time and the partition's end in a row
of its own: what lies before the end of a mark was there by then. A partition has about ten marks.

A clock may jump. Marks that it made while it was behind earlier ones are not believed once it is
right; until then each counts by itself, as the earlier ones may be of a clock that was ahead.

The rows are this worker's alone, and no log has them. A worker that takes a shard over begins anew,
so records are kept longer there, and never shorter.
"""

import struct
from itertools import accumulate

from kproxy.virtual.changes import Kv
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Partition
from kproxy.virtual.types import PartitionKey

_KEY = struct.Struct(">16sI")
_MARK = struct.Struct(">QQ")  # time (ms), the partition's end by then
_MARKS_MAX = 32


def _marks_key(partition: PartitionKey) -> bytes:
    return RowKind.RETENTION_MARKS + _KEY.pack(*partition)


class RetentionMarks:
    """The marks of one shard's partitions."""

    def __init__(self, kv: Kv) -> None:
        self._kv = kv

    def kept_from(
        self, partition: PartitionKey, row: Partition, retention_ms: int, now: int,
        changes: dict[bytes, bytes | None],
    ) -> int:  # fmt: skip
        """Return the offset before which all came more than `retention_ms` ago; -1: never.

        `changes` gets the row with a mark for now.
        """
        key = _marks_key(partition)
        data = self._kv.get(key) or b""
        marks: list[tuple[int, int]] = list(_MARK.iter_unpack(data))
        latest = list(accumulate((at for at, _ in marks), max))
        if latest and latest[-1] <= now:
            marks = [(at, end) for at, (_, end) in zip(latest, marks, strict=True)]
        if not marks or marks[-1][1] < row.next_offset:
            marks.append((now, row.next_offset))
        start = row.log_start
        for time_ms, end in marks:
            if 0 <= retention_ms < now - time_ms:
                start = max(start, end)
        # The mark at the start stays until the TRIM has come so far: a route may hold it back.
        kept = [mark for mark in marks if mark[1] >= start and mark[1] > row.log_start]
        changes[key] = b"".join(_MARK.pack(*mark) for mark in kept[-_MARKS_MAX:]) or None
        return min(start, row.next_offset)

    def ends_there_since(
        self, partition: PartitionKey, row: Partition, now: int,
        changes: dict[bytes, bytes | None],
    ) -> int:  # fmt: skip
        """Return since when a partition is known to end where it does, by its last mark.

        `changes` gets the row with a mark for now, where there is none, or another end.
        """
        key = _marks_key(partition)
        data = (changes[key] if key in changes else self._kv.get(key)) or b""
        if data:
            time_ms, end = _MARK.unpack(data[-_MARK.size :])
            if end == row.next_offset and time_ms <= now:
                return int(time_ms)
        if key not in changes:
            changes[key] = _MARK.pack(now, row.next_offset)
        return now

    def drop(self, partition: PartitionKey, changes: dict[bytes, bytes | None]) -> None:
        """Have the row of a partition without records removed, if it has one."""
        if self._kv.get(key := _marks_key(partition)) is not None:
            changes[key] = None
