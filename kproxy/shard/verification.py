"""The check of a shard's directory against itself: each frame's CRC, and each row against the log.

Nobody may write meanwhile. Nothing is changed. Rows stand for a log offset, the checkpoint; what
the log has behind it has no rows yet, and is only read.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from kproxy.protocol.batch import HEADER, read_header
from kproxy.store import synced
from kproxy.store.backups import SEGMENT_SUFFIX
from kproxy.store.frames import FrameReader
from kproxy.store.rocks import Checkpoint, decode_checkpoint
from kproxy.store.rows_reader import RowsReader
from kproxy.virtual import counts
from kproxy.virtual.commands.envelope import COPY_BYTES
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import delays as delay_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.delays import DELAY_ENTRIES, WAITING_BATCHES
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey

_OPEN_MAX = 64
_CRC_AT, _CRC_FROM, _LENGTH_AT, _LENGTH_FROM = 17, 21, 8, 12
_KINDS = frozenset(kind.byte for kind in RowKind)
_ALL = b"", b"\xff"
Told = Callable[[int], None]


class Verification:
    """The verification of one shard's directory. `faults` has a line for each, for a person."""

    def __init__(self, directory: Path, *, whole: bool) -> None:
        """Take `whole`: the shard is the only one, and has all partitions of its queues.

        Raises RowsFailed, OSError.
        """
        self._log = directory / "log"
        self._whole = whole
        found = sorted(self._log.glob(f"*{SEGMENT_SUFFIX}"))
        self._sizes = {int(path.stem): path.stat().st_size for path in found}
        self.faults: list[str] = []
        self.frames = self.rows = self.batches = 0
        self._rows = RowsReader(directory / "rows")
        data = self._rows.get(rows.CHECKPOINT_KEY)
        self._checkpoint = decode_checkpoint(data) if data else Checkpoint()
        self._readers: OrderedDict[int, FrameReader] = OrderedDict()
        self._live: Counter[int] = Counter()

    @property
    def log_bytes(self) -> int:
        return sum(self._sizes.values())

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._rows.close()

    def _path(self, segment: int) -> Path:
        return self._log / f"{segment:020d}{SEGMENT_SUFFIX}"

    # -- the log

    def check_log(self, told: Told) -> None:
        """Check each frame of each segment. `told` hears the number of bytes that were read."""
        if self._checkpoint.segment not in self._sizes and (self._sizes or self._checkpoint.crc):
            self.faults.append(f"segment {self._path(self._checkpoint.segment)} is missing")
        end = 0
        for segment, size in self._sizes.items():
            end = self._check_segment(segment, size, told)
        mark = synced.read(self._log)
        if mark is not None and mark.through > end:
            self.faults.append(
                f"the log ends at log offset {end}, but was on disk up to {mark.through}"
            )
        if end < self._checkpoint.next_offset:
            self.faults.append(
                f"the log ends at log offset {end}, and the rows at {self._checkpoint.next_offset}"
            )

    def _check_segment(self, segment: int, size: int, told: Told) -> int:
        """Check a segment; return the log offset behind it."""
        expected, position, path = segment, 0, self._path(segment)
        last, checkpoint = max(self._sizes), self._checkpoint
        begins_there = checkpoint.segment != segment or not checkpoint.position
        with FrameReader(path, segment, size) as reader:
            for log_offset, _, _, after in reader.frames(0):
                if log_offset != expected:
                    self.faults.append(
                        f"{path} holds log offset {log_offset} at position {position} where"
                        f" {expected} belongs"
                    )
                    expected = log_offset
                self.frames += 1
                expected += 1
                told(after - position)
                position = after
                if checkpoint.segment == segment and checkpoint.position == position:
                    begins_there = expected == checkpoint.next_offset
        # The rest of a commit that a kill interrupted may be cut off, where it was written last.
        torn = segment == last and (segment, position) >= (checkpoint.segment, checkpoint.position)
        if position < size and not torn:
            self.faults.append(f"{path} is damaged at position {position}, log offset {expected}")
        elif not begins_there:
            self.faults.append(
                f"{path} has no frame at position {checkpoint.position}, where the rows say that"
                f" log offset {checkpoint.next_offset} is"
            )
        told(size - position)
        return expected

    # -- rows

    def check_rows(self, told: Told) -> None:
        """Check each row. `told` hears the number of rows that were looked at."""
        partition: PartitionKey | None = None
        previous = -1
        for key, value in self._rows.scan(*_ALL):
            self.rows += 1
            told(1)
            try:
                if key[0] not in _KINDS:
                    self.faults.append(f"a row of an unknown kind {chr(key[0])!r}")
                elif RowKind.BATCH.of(key):
                    if rows.partition_of(key) != partition:
                        partition, previous = rows.partition_of(key), -1
                    previous = self._check_batch(key, value, partition, previous)
                elif (check := _CHECKS.get(key[0])) is not None:
                    check(self, key, value)
            except (ValueError, IndexError, KeyError) as error:
                self.faults.append(f"a row of kind {chr(key[0])!r} cannot be read: {error}")
        self._check_live()
        self._check_counts()

    def _check_batch(self, key: bytes, value: bytes, partition: PartitionKey, previous: int) -> int:
        """Check a batch's row; return its last offset.

        `previous`: the last offset of the batch before.
        """
        batch, last = batch_rows.decode_batch(value), batch_rows.batch_key_offset(key)
        self.batches += 1
        self._live[batch.segment] += batch.length + COPY_BYTES
        name = f"{_shown(partition)}, offset {last}"
        if last - batch.last_delta <= previous:
            self.faults.append(f"{name}: its batch overlaps with the one before")
        data = self._rows.get(rows.partition_key(*partition))
        if data is not None:
            row = rows.decode_partition(data)
            if last >= row.next_offset or batch.size_through > row.size:
                self.faults.append(f"{name}: its batch lies behind the partition's end")
            elif last < row.log_start:
                return last  # trimmed, and not swept yet: its bytes may be gone
            self._check_bytes(name, batch)
            if partition[1] & rows.HIDDEN:
                self._check_waiting(name, delay_rows.shown(partition), batch, last)
        return last

    def _check_waiting(self, name: str, key: PartitionKey, batch: Batch, last: int) -> None:
        if self._rows.get(WAITING_BATCHES.key(key, batch.max_time_ms, last)) is None:
            self.faults.append(f"{name}: it waits, and is not found by when it is due")
        if self._rows.get(DELAY_ENTRIES.key(key)) is None:
            self.faults.append(f"{name}: it waits, and nobody looks for it")

    def _check_bytes(self, name: str, batch: Batch) -> None:
        data = self._bytes(batch.segment, batch.position, batch.length)
        where = f"{self._path(batch.segment)}, position {batch.position}"
        if data is None or len(data) < HEADER.size:
            self.faults.append(f"{name}: its batch is not there ({where})")
            return
        header = read_header(data)
        length = int.from_bytes(data[_LENGTH_AT:_LENGTH_FROM], "big") + _LENGTH_FROM
        if length != batch.length or crc32c(data[_CRC_FROM:]) != int.from_bytes(
            data[_CRC_AT:_CRC_FROM], "big"
        ):
            self.faults.append(f"{name}: its batch is damaged ({where})")
        elif (header.last_offset_delta, header.max_timestamp) != (
            batch.last_delta, batch.max_time_ms,
        ):  # fmt: skip
            self.faults.append(f"{name}: another batch lies in its place ({where})")

    def _bytes(self, segment: int, position: int, length: int) -> bytes | None:
        reader = self._readers.get(segment)
        if reader is None:
            if segment not in self._sizes:
                return None
            while len(self._readers) >= _OPEN_MAX:
                self._readers.popitem(last=False)[1].close()
            reader = FrameReader(self._path(segment), segment, self._sizes[segment])
            self._readers[segment] = reader
        self._readers.move_to_end(segment)
        return reader.part(position, length)

    def _check_queue(self, key: bytes, value: bytes) -> None:
        name = rows.name_of(key)
        queue = rows.decode_queue(name, value)
        if self._rows.get(rows.name_key(queue.queue_id)) != name.encode():
            self.faults.append(f"queue {name} is not found by its id")
        if self._whole:
            for index in range(queue.wanted):
                if self._rows.get(rows.partition_key(queue.queue_id, index)) is None:
                    self.faults.append(f"queue {name} has no row of partition {index}")

    def _check_name(self, key: bytes, value: bytes) -> None:
        data = self._rows.get(rows.queue_key(value.decode()))
        if data is None or rows.decode_queue(value.decode(), data).queue_id != rows.queue_id_of(
            key
        ):
            self.faults.append(f"an id is that of queue {value.decode()}, which has another")

    def _check_partition(self, key: bytes, value: bytes) -> None:
        row = rows.decode_partition(value)
        if not 0 <= row.log_start <= row.next_offset:
            self.faults.append(f"{_shown(rows.partition_of(key))}: its start is behind its end")

    def _check_offset(self, key: bytes, value: bytes) -> None:
        offset_rows.decode_committed(value)
        group, partition = offset_rows.group_of_offset(key), offset_rows.partition_of_offset(key)
        if self._rows.get(offset_rows.offset_by_queue_key(*partition, group)) is None:
            self.faults.append(f"group {group}'s offset is not found by its queue")

    def _check_live(self) -> None:
        for segment in {*self._live, *self._sizes}:
            data = self._rows.get(rows.segment_key(segment))
            live = 0 if data is None else rows.decode_live_bytes(data)
            if live != self._live[segment]:
                self.faults.append(
                    f"{self._path(segment)} has {self._live[segment]} live bytes, and its row says"
                    f" {live}"
                )

    def _check_counts(self) -> None:
        known = counts.restored(self._rows, self._checkpoint.next_offset)
        if known is not None and known.values() != counts.counted(self._rows).values():
            self.faults.append("the counts of what the shard has are not right")


_CHECKS: dict[int, Callable[[Verification, bytes, bytes], None]] = {
    RowKind.QUEUE.byte: Verification._check_queue,
    RowKind.NAME.byte: Verification._check_name,
    RowKind.PARTITION.byte: Verification._check_partition,
    RowKind.OFFSET.byte: Verification._check_offset,
}


def _shown(partition: PartitionKey) -> str:
    queue_id, index = partition
    return f"queue {queue_id.hex()}, partition {index}"
