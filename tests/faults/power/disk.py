"""A disk as a power cut leaves it, made of what the recorder saw (`recorder.c`).

An fsync of a file keeps its bytes and its size, not its name. A random part of the rest stays: some
earlier state of each 4 KiB page, by 512 bytes now and then; some size that the file had; any names
of a directory that do not rest on another that is lost.
"""

import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

PAGE, SECTOR = 4096, 512
CREATE, WRITE, SIZE, SYNC_BEGIN, SYNC_END, DIR_BEGIN, DIR_END = range(1, 8)
RENAME, LINK, UNLINK, MKDIR, RMDIR = range(8, 13)
_HEAD = struct.Struct("=IIQq")
Tree = dict[str, bytes | None]
"""The files of a directory by their paths; a directory's is None."""


class Record(NamedTuple):
    """A record of the trace, and where it ends there."""

    end: int
    kind: int
    inode: int
    number: int
    data: bytes


class Keep(NamedTuple):
    """The chances of what was not synced."""

    names: float
    pages: float


ALL, NOTHING = Keep(1, 1), Keep(0, 0)


class Bytes(NamedTuple):
    """A write at a position; or, without data, a change of the size to it."""

    number: int
    position: int
    data: bytes | None


@dataclass(eq=False)
class File:
    """A file: what of it is on disk, and what came later."""

    synced: bytes = b""
    later: list[Bytes] = field(default_factory=list)

    def sync(self, through: int) -> None:
        covered = [one for one in self.later if one.number <= through]
        if covered:
            self.synced = _written(self.synced, covered)
            self.later = self.later[len(covered) :]

    def left(self, keep: Keep, rng: random.Random) -> bytes:
        """Return its bytes after a cut."""
        if not self.later:
            return self.synced
        sizes, size = [len(self.synced)], len(self.synced)
        for one in self.later:
            size = one.position if one.data is None else max(size, one.position + len(one.data))
            sizes.append(size)
        size = sizes[-1] if rng.random() < keep.pages else rng.choice(sizes)
        if keep == NOTHING:
            size = sizes[0]
        data = bytearray(self.synced.ljust(max(sizes), b"\0"))
        counts = _touched(self.later, len(data))
        kept = {page: _kept(count, keep, rng) for page, count in counts.items()}
        seen = dict.fromkeys(counts, 0)
        for one in self.later:
            for page in _pages(one, len(data)):
                first, second, tear = kept[page]
                at, turn = page * PAGE, seen[page]
                seen[page] += 1
                for start, end, count in (at, at + tear, first), (at + tear, at + PAGE, second):
                    if turn < count and start < end:
                        _put(data, one, start, min(end, len(data)))
        return bytes(data[:size])


def _kept(count: int, keep: Keep, rng: random.Random) -> tuple[int, int, int]:
    """Return how many of a page's writes are kept before a place in it, and behind it."""

    def some() -> int:
        if rng.random() < keep.pages:
            return count
        return rng.randrange(count) if keep.pages > 0 else 0

    first = some()
    if rng.random() < 0.9:
        return first, first, PAGE
    return first, some(), rng.randrange(1, PAGE // SECTOR) * SECTOR


def _pages(one: Bytes, size: int) -> range:
    end = size if one.data is None else one.position + len(one.data)
    return range(one.position // PAGE, (end + PAGE - 1) // PAGE)


def _touched(changes: list[Bytes], size: int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for one in changes:
        for page in _pages(one, size):
            counts[page] = counts.get(page, 0) + 1
    return counts


def _put(data: bytearray, one: Bytes, start: int, end: int) -> None:
    """Do what a change does to the bytes from `start` to `end`."""
    start = max(start, one.position)
    if one.data is None:
        if start < end:
            data[start:end] = bytes(end - start)
        return
    end = min(end, one.position + len(one.data))
    if start < end:
        data[start:end] = one.data[start - one.position : end - one.position]


def _written(before: bytes, changes: list[Bytes]) -> bytes:
    data = bytearray(before)
    for one in changes:
        if one.data is None:
            del data[one.position :]
            data += bytes(one.position - len(data))
        else:
            data += bytes(max(0, one.position - len(data)))
            data[one.position : one.position + len(one.data)] = one.data
    return bytes(data)


@dataclass(eq=False)
class Directory:
    """A directory: its names now, those on disk, and what was done to names since."""

    now: dict[str, "File | Directory"] = field(default_factory=dict)
    synced: dict[str, "File | Directory"] = field(default_factory=dict)
    later: list[tuple[int, dict[str, "File | Directory | None"]]] = field(default_factory=list)

    def change(self, number: int, names: dict[str, "File | Directory | None"]) -> None:
        self.later.append((number, names))
        _rename(self.now, names)

    def sync(self, through: int) -> None:
        while self.later and self.later[0][0] <= through:
            _rename(self.synced, self.later.pop(0)[1])

    def left(self, keep: Keep, rng: random.Random) -> dict[str, "File | Directory"]:
        """Return its names after a cut."""
        found, lost = dict(self.synced), set[str]()
        for _, names in self.later:
            if lost.isdisjoint(names) and rng.random() < keep.names:
                _rename(found, names)
            else:
                lost |= names.keys()
        return found


def _rename(
    names: dict[str, "File | Directory"], changed: dict[str, "File | Directory | None"]
) -> None:
    for name, node in changed.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def records(trace: Path, start: int = 0) -> Iterator[Record]:
    """Yield the records from this place on: a kill may have cut the last one."""
    with trace.open("rb") as file:
        file.seek(start)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, kind, inode, number = _HEAD.unpack(head)
            data = file.read(length - _HEAD.size)
            if len(data) < length - _HEAD.size:
                return
            start += length
            yield Record(start, kind, inode, number, data)


class Disk:
    """The disk under a directory, all of whose files are on it at the start."""

    def __init__(self, root: Path) -> None:
        self._path = str(root)
        self._files: dict[int, File] = {}
        self._root = self._found(root)
        self._number = self.played = 0
        self._syncs: dict[int, tuple[int, int]] = {}
        self.log_synced_at = -1

    def _found(self, path: Path) -> Directory:
        directory = Directory()
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                directory.synced[entry.name] = self._found(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                file = self._files.setdefault(entry.inode(), File())
                file.synced = Path(entry.path).read_bytes()
                directory.synced[entry.name] = file
        directory.now = dict(directory.synced)
        return directory

    def play(self, trace: Path, until: int | None = None) -> None:
        """Go on in the trace, to its end or to the last record that ends before `until`."""
        for record in records(trace, self.played):
            if until is not None and record.end > until:
                return
            self._take(record)
            self.played = record.end

    def _take(self, record: Record) -> None:
        self._number += 1
        kind, text = record.kind, record.data
        if kind in (WRITE, SIZE):
            file = self._files.get(record.inode)
            assert file is not None, record[:4]
            data = text if kind == WRITE else None
            file.later.append(Bytes(self._number, record.number, data))
        elif kind in (SYNC_BEGIN, DIR_BEGIN):
            self._syncs[record.number] = self._number, record.end
        elif kind == SYNC_END:
            through, place = self._syncs.pop(record.number)
            self._files[record.inode].sync(through)
            if fnmatch(text.decode(), "*/log/*.log"):
                self.log_synced_at = max(place, self.log_synced_at)
        elif kind == DIR_END:
            self._directory(text.decode()).sync(self._syncs.pop(record.number)[0])
        else:
            self._name(record)

    def _name(self, record: Record) -> None:
        kind, (text, _, other) = record.kind, record.data.decode().partition("\0")
        directory, name = self._place(text)
        if kind == CREATE:
            file = self._files[record.inode] = File()
            directory.change(self._number, {name: file})
        elif kind == LINK:
            directory.change(self._number, {name: self._files[record.inode]})
        elif kind == MKDIR:
            directory.change(self._number, {name: Directory()})
        elif kind == RENAME:
            target, new = self._place(other)
            assert target is directory, "a name goes to another directory"
            directory.change(self._number, {name: None, new: directory.now[name]})
        elif name in directory.now:  # else a socket
            directory.change(self._number, {name: None})

    def _place(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        return self._directory(above), name

    def _directory(self, path: str) -> Directory:
        found = self._root
        for name in path.removeprefix(self._path).split("/"):
            if name:
                below = found.now[name]
                assert isinstance(below, Directory)
                found = below
        return found

    def cut(self, keep: Keep, rng: random.Random) -> Tree:
        """Return what a power cut now leaves."""
        tree: Tree = {}
        left: dict[File, bytes] = {}

        def walk(directory: Directory, path: str) -> None:
            for name, node in directory.left(keep, rng).items():
                if isinstance(node, Directory):
                    tree[path + name] = None
                    walk(node, f"{path}{name}/")
                else:
                    if node not in left:
                        left[node] = node.left(keep, rng)
                    tree[path + name] = left[node]

        walk(self._root, "")
        return tree


def found(root: Path) -> Tree:
    """Return what is in a directory."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_dir() or path.is_file()
    }


def put(tree: Tree, root: Path) -> None:
    """Have a directory hold that, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, data in sorted(tree.items()):
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)
