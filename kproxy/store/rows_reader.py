"""Rows of a directory that nobody writes, to be looked at."""

from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, ReadOptions

from kproxy.store.rocks import RowsFailed


class RowsReader:
    """A reader of rows as they are on disk, which changes nothing."""

    def __init__(self, path: Path) -> None:
        """Open the rows. Raises RowsFailed."""
        options = Options(raw_mode=True)
        options.set_max_open_files(256)
        try:
            read_only = AccessType.read_only(error_if_log_file_exist=False)
            self._db = Rdict(str(path), options, access_type=read_only)
        except Exception as error:  # rocksdict raises nothing more precise
            raise RowsFailed(f"the rows in {path} do not open: {error}") from error

    def get(self, key: bytes) -> bytes | None:
        """Return a row. Raises RowsFailed where a table is damaged."""
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:  # as above
            raise RowsFailed(str(error)) from error
        return found

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < end. Raises RowsFailed where a table is damaged."""
        try:
            found = self._db.iter(ReadOptions())
            found.seek(start)
            while found.valid() and (key := found.key()) < end:
                yield key, found.value()
                found.next()
            found.status()  # it may have broken off
        except Exception as error:  # as above
            raise RowsFailed(str(error)) from error

    def close(self) -> None:
        self._db.close()
