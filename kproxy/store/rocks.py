"""Rows in RocksDB (rocksdict): an ordered map that opens at once, whatever its size.

RocksDB's own write-ahead log is off. The rows are a fold of the shard's log. Every write is atomic
and carries the log offset it stands for, and a flush keeps a prefix of the writes. After a crash
the rows are some earlier state, and recovery folds the log from there.
"""

import ctypes
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.allocator import LARGE_BYTES, give_back
from kproxy.store import files
from kproxy.store.damage import Damage, Damaged

_MIB = 1 << 20
# Only `flush` may start a memtable flush, for the log must be on disk before the state that stands
# for it; the keeper flushes long before this size.
_MEMTABLE_BYTES_MAX = 512 * _MIB
_BEHIND_MAX = 2000  # rows
_FLUSH_LOOK_S = 0.002
_ROW_BYTES = 24  # that a memtable takes beside a row's own, about
_CHECKPOINT = struct.Struct(">QQQQQI")


def _options(cache_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES_MAX)
    options.set_max_write_buffer_number(4)
    options.set_arena_block_size(LARGE_BYTES)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * _MIB)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_target_file_size_base(16 * _MIB)
    # Rows that change all the time are settled among themselves, in a small level above the rest:
    # with one level each compaction rewrote all queues (1 M queues: 1.7 times the background CPU).
    options.set_max_bytes_for_level_base(16 * _MIB)
    options.set_level_zero_file_num_compaction_trigger(8)
    # Deleted rows are stepped over by every scan until they are compacted away: a file that is
    # mostly deletions is, at once (300,000 deleted: 100 ms a scan, and 0.2).
    options.add_compact_on_deletion_collector_factory(1000, 500, 0.5)
    options.set_stats_dump_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(cache_bytes))
    table.set_bloom_filter(10, False)
    # Indexes and filters in the cache, so that memory does not follow the number of queues, and in
    # small parts: whole ones push each other out of it (1 M queues: 100 microseconds a get).
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4096)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


class RowsFailed(Exception):
    """RocksDB does not open, or takes no more writes; the log holds all that was acknowledged."""


class RowsDamaged(Damaged, RowsFailed, KafkaError):
    """Rows on the disk are not what was written: nobody is told anything that they might say."""

    def __init__(self, reason: str) -> None:
        KafkaError.__init__(self, Code.KAFKA_STORAGE_ERROR, reason)


class RowsClosed(KafkaError):
    """The shard was given up while somebody was still at work on it."""

    def __init__(self) -> None:
        super().__init__(Code.NOT_LEADER_OR_FOLLOWER, "the shard is not held here any more")


class RocksKv:
    """`virtual.changes.Kv` on disk. Calls from the event loop touch memory and the page cache."""

    def __init__(self, path: Path, cache_bytes: int) -> None:
        files.make_directory(path)  # RocksDB forces names in it to disk, and not its own
        try:
            self._db = Rdict(str(path), _options(cache_bytes))
        except Exception as error:  # rocksdict raises nothing more precise
            raise RowsFailed(f"the rows in {path} do not open: {error}") from error
        self.damage = Damage()
        self._errors = 0
        self._shut = False
        self._abandoned = False
        self._behind: dict[bytes, bytes | None] = {}
        self._unflushed = 0  # bytes
        self._kept: RdictIter | None = None
        self._walks = 0
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore  # a property, whatever its stub says

    def get(self, key: bytes) -> bytes | None:
        if self._shut:
            raise RowsClosed
        if key in self._behind:
            return self._behind[key]
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:  # rocksdict raises nothing more precise
            self.damage.note_rows(str(error))
            raise RowsDamaged(str(error)) from error
        return value

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._shut:
            raise RowsClosed
        self.push()
        until = ReadOptions()
        until.set_iterate_upper_bound(end)  # nor are deleted rows behind it stepped over
        found = self._db.iter(until)
        found.seek(start)
        valid, key, value, next_ = found.valid, found.key, found.value, found.next
        while valid():
            yield key(), value()
            if self._shut:
                raise RowsClosed
            next_()
        self._check(found)

    def _check(self, found: RdictIter) -> None:
        """Raise RowsDamaged where an iterator has not ended, but broken off."""
        try:
            found.status()
        except Exception as error:  # as above
            self.damage.note_rows(str(error))
            raise RowsDamaged(str(error)) from error

    def walk(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Do as `scan`, for few rows; nothing else may walk before it is done.

        A new iterator costs more than a few steps of it: one is kept until rows change, or until
        `let_go`.
        """
        if self._shut:
            raise RowsClosed
        self.push()
        if self._kept is None:
            self._kept = self._db.iter(ReadOptions())
        kept = self._kept
        self._walks += 1
        walk = self._walks
        kept.seek(start)
        while kept.valid() and (key := kept.key()) < end:
            yield key, kept.value()
            assert walk == self._walks, "another walk was begun meanwhile"
            kept.next()
        if not kept.valid():
            self._check(kept)

    def let_go(self) -> None:
        """Let go of the kept iterator: it holds memory, and files that were compacted away."""
        self._kept = None

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Put changes, or with None delete, all at once.

        They gather here, for what the same rows become next, until a scan wants them, a flush, or
        until they are many: nothing is less safe for it, as what RocksDB has is in memory as well.
        """
        if self._shut:
            raise RowsClosed
        if self._behind:
            self._behind.update(changes)
        else:
            self._behind = changes  # the caller's no more
        if len(self._behind) >= _BEHIND_MAX:
            self.push()

    def push(self) -> None:
        """Hand what has gathered to RocksDB, in one piece. On the loop, as `write`."""
        if not self._behind:
            return
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in self._behind.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._unflushed += batch.size_in_bytes() + len(batch) * _ROW_BYTES
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # rocksdict raises nothing more precise
            raise RowsFailed(str(error)) from error
        self._behind = {}
        self._kept = None

    def tables(self) -> frozenset[str]:
        """Return the names of the files that have the rows on disk."""
        return frozenset(str(one["name"]).lstrip("/") for one in self._db.live_files())

    def unflushed_bytes(self) -> int:
        """Return about what a memtable takes for rows of which no flush has begun.

        RocksDB counts whole blocks of memory, of which one may be most of what a small shard has.
        """
        return self._unflushed

    def unflushed_deletions(self) -> int:
        """Return the number of deleted rows that every scan over their place steps over."""
        return self._number("num-deletes-active-mem-table")

    def begin_flush(self) -> None:
        """Begin to put on disk what was written so far, and nothing that is written from now on."""
        self.push()
        self.let_go()
        self._errors = self._number("background-errors")
        try:
            self._db.flush(False)
        except Exception as error:  # rocksdict raises nothing more precise
            raise RowsFailed(str(error)) from error
        self._unflushed = 0

    def finish_flush(self) -> None:
        """Wait until that is on disk, with fsync. Blocks, other threads can run.

        The memory that rows had is free then, in pieces that fit nobody: it is given back.
        """
        while self._number("num-immutable-mem-table"):
            if self._number("background-errors") > self._errors:
                raise RowsFailed("the rows could not be put on disk")
            time.sleep(_FLUSH_LOOK_S)
        give_back()

    def flush(self) -> None:
        """Put all that was written on disk, and wait for it."""
        self.begin_flush()
        self.finish_flush()

    def disk_bytes(self) -> int:
        """Return the bytes that the rows take on disk; from any thread."""
        return 0 if self._shut else self._number("total-sst-files-size")

    def _number(self, name: str) -> int:
        return self._db.property_int_value(f"rocksdb.{name}") or 0

    def shut(self) -> None:
        """Let nobody read or write from now on: it is about to be closed, on another thread."""
        self._shut = True
        self.let_go()

    def last_write(self, changes: dict[bytes, bytes | None]) -> None:
        """Write for the caller that closes it."""
        self._behind |= changes
        self.push()

    def abandon(self) -> None:
        """Put nothing on disk any more, not even at a close: the log is not where the rows are.

        RocksDB would at its end, so it is never ended; the process is about to.
        """
        self._behind = {}
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))
        self._abandoned = True

    def close(self) -> None:
        """Close the rows. Raises RowsFailed: they are not all on disk, and the log has the rest."""
        self.let_go()
        if self._abandoned:
            return
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises nothing more precise
            raise RowsFailed(str(error)) from error


class Checkpoint(NamedTuple):
    """The `m` row: what the rows stand for, where the log goes on, and which envelope was last."""

    next_offset: int = 0
    segment: int = 0
    position: int = 0
    writer: int = 0
    counter: int = 0
    crc: int = 0  # CRC-32C of its body

    @property
    def last_envelope(self) -> tuple[int, int, int]:
        """Writer, counter and CRC-32C of the body."""
        return self.writer, self.counter, self.crc

    def moved(self, next_offset: int, segment: int, position: int) -> "Checkpoint":
        """Return the checkpoint further on in the log; the last envelope is the same."""
        return self._replace(next_offset=next_offset, segment=segment, position=position)

    def encode(self) -> bytes:
        return _CHECKPOINT.pack(*self)


def decode_checkpoint(data: bytes) -> Checkpoint:
    return Checkpoint._make(_CHECKPOINT.unpack(data))
