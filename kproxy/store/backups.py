"""The files of a backup: which there are, how they are copied or linked, and how they come back.

A backup is a directory with the data directory's `meta.json`, its log and its rows. `backup.json`
is written last: without it a backup is not whole. Full segments and RocksDB's tables never change,
so a backup on the same file system links them. Files that are still written are copied, as far as
they go.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kproxy.store import files

NAME = "backup.json"
UNFINISHED = "RESTORING"
"""A file in a data directory whose restore is not done."""
SHARD = "shard-0"
META = "meta.json"
ON_KAFKA = (
    "on a Kafka cluster all that is durable is in its topics: back those up; a worker's data"
    " directory is a copy that can be deleted"
)
UNSTEADY = "the rows change too fast to be backed up: try again"
_FORMAT = 1
_CHUNK_BYTES = 4 << 20
SEGMENT_SUFFIX = ".log"
_TABLES = ".sst"
_ROWS_LEFT_OUT = ("LOCK", "LOG")


class BadBackup(Exception):
    """A directory is no backup that can be restored; one line for a person."""


class Source(NamedTuple):
    """A file of a data directory, as a backup has it."""

    path: Path
    name: str  # relative to the data directory
    size: int  # bytes that belong to it
    fixed: bool  # never written again: it may be linked


class Manifest(NamedTuple):
    """The content of `backup.json`. `files`: their bytes, by their paths in the backup."""

    release: str
    time_ms: int
    cluster_id: str
    files: dict[str, int]

    def write(self, directory: Path) -> None:
        """Put it in place, durably: the backup is whole from then on."""
        draft = directory / f"{NAME}.new"
        with draft.open("w") as file:
            json.dump({"format": _FORMAT, **self._asdict()}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(directory / NAME)
        files.sync_directory(directory)


def read_manifest(directory: Path) -> Manifest:
    """Read a backup's manifest. Raises BadBackup."""
    try:
        values = json.loads((directory / NAME).read_text())
        if values.pop("format") != _FORMAT:
            raise BadBackup(f"{directory / NAME} was written by a later kproxy")
        manifest = Manifest(**values)
        for name in manifest.files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise BadBackup(f"{directory / NAME} names a file outside of it: {name!r}")
        return manifest
    except FileNotFoundError:
        raise BadBackup(
            f"{directory} is no whole backup: it has no {NAME}, which is written last"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadBackup(f"cannot read {directory / NAME}: {error}") from None


def link_log(source: Path, target: Path) -> dict[str, int]:
    """Link a log's segments into a directory, while it is written; the bytes of each.

    None is deleted meanwhile. The last one may grow: what comes later is not the backup's.
    """
    target.mkdir(parents=True)
    names = sorted(path.name for path in source.glob(f"*{SEGMENT_SUFFIX}"))
    for name in names:
        os.link(source / name, target / name)
    return {name: (target / name).stat().st_size for name in names}


def link_rows(source: Path, target: Path, tables: frozenset[str]) -> None:
    """Link RocksDB's tables into a directory, and copy what else it needs.

    RocksDB may have noted further tables meanwhile: the copy is whole only if it opens. Raises
    FileNotFoundError where a table has gone.
    """
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix != _TABLES and not path.name.startswith(_ROWS_LEFT_OUT):
            (target / path.name).write_bytes(path.read_bytes())
    for name in tables:
        os.link(source / name, target / name)


def sources(directory: Path, log: dict[str, int] | None = None) -> list[Source]:
    """Return the files of a backup of this directory, which nobody serves or a server has linked.

    `log`: the bytes of its segments, where they may grow.
    """
    found = [_source(directory / META, META)]
    logs = sorted((directory / SHARD / "log").glob(f"*{SEGMENT_SUFFIX}"))
    for path in logs:
        size = path.stat().st_size if log is None else log[path.name]
        found.append(Source(path, f"{SHARD}/log/{path.name}", size, path != logs[-1]))
    for path in sorted((directory / SHARD / "rows").iterdir()):
        if not path.name.startswith(_ROWS_LEFT_OUT):
            found.append(_source(path, f"{SHARD}/rows/{path.name}"))
    return found


def _source(path: Path, name: str) -> Source:
    return Source(path, name, path.stat().st_size, path.suffix == _TABLES)


def put(source: Source, directory: Path, *, link: bool, told: Callable[[int], None]) -> None:
    """Link or copy a file into a directory, durably. Raises OSError.

    `told`: of the bytes that are there.
    """
    target = directory / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if link and source.fixed:
        try:
            os.link(source.path, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
        else:
            told(source.size)
            return
    _copy(source, target, told)


def _copy(source: Source, target: Path, told: Callable[[int], None]) -> None:
    with source.path.open("rb", buffering=0) as file, target.open("xb", buffering=0) as copy:
        for count in _chunks(source.size):
            data = file.read(count)
            if len(data) < count:
                raise OSError(errno.EIO, f"{source.path} ends before {source.size} bytes")
            rest = memoryview(data)
            while rest:
                rest = rest[copy.write(rest) :]
            told(count)
        os.fsync(copy.fileno())


def _chunks(size: int) -> Iterator[int]:
    while size > 0:
        yield min(size, _CHUNK_BYTES)
        size -= _CHUNK_BYTES


def sync_directories(directory: Path) -> None:
    """Make the names of all files under a directory durable."""
    for found, _, _ in os.walk(directory):
        files.sync_directory(found)


def files_of(backup: Path, manifest: Manifest) -> list[Source]:
    """Return a backup's files. Raises BadBackup where one is missing or has another size."""
    found = []
    for name, size in manifest.files.items():
        path = backup / name
        try:
            there = path.stat().st_size
        except OSError as error:
            raise BadBackup(f"{path} of the backup is missing: {error.strerror}") from None
        if there != size:
            raise BadBackup(f"{path} has {there} bytes, and the backup's had {size}")
        found.append(Source(path, name, size, False))
    return found


def refuse_unfinished(directory: Path) -> None:
    """Raise ValueError if a restore into a data directory was begun and not ended."""
    if (directory / UNFINISHED).exists():
        raise ValueError("a restore into it was not finished: run kproxy restore again")
