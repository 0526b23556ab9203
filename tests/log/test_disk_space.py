"""The writes that are allowed while the disk fills up, and how often it is asked."""

from pathlib import Path

import pytest

from kproxy.log.disk_space import ALL, DiskSpace
from kproxy.loop.clock import Clock
from kproxy.virtual.commands.envelope import Kind

MIB = 1 << 20


class Disk(DiskSpace):
    """A disk with so many bytes free, on a clock that stands."""

    def __init__(self, directory: Path, free: int) -> None:
        self.free, self.asked, self.now = free, 0, 0.0
        super().__init__(directory, 8 * MIB, Clock(monotonic=lambda: self.now))

    def taken(self, size: int) -> frozenset[Kind]:
        """Ask as a log does for a produce of this size, and write it where it may."""
        allowed = self.allowed_kinds(size)
        if allowed is ALL:
            self.count(size)
        return allowed

    def free_bytes(self) -> int:
        self.asked += 1
        return self.free


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, 100 * MIB)


def test_no_write_asks_the_file_system(disk: Disk) -> None:
    """FAULT: statvfs on the event loop, for each write that came 10 ms after another."""
    asked = disk.asked
    for _ in range(50):
        disk.now += 0.02
        assert disk.taken(MIB) is ALL
    assert disk.asked == asked


def test_bytes_written_meanwhile_count(disk: Disk) -> None:
    """Nothing is let in that the last look had room for, and others have taken since."""
    disk.free = 20 * MIB
    disk.look()
    allowed = [disk.taken(MIB) for _ in range(13)]
    assert [kinds is ALL for kinds in allowed] == [True] * 12 + [False]
    assert Kind.APPEND not in allowed[-1]
    assert Kind.DELETE in allowed[-1]


def test_room_that_was_made_is_seen_at_the_next_look(disk: Disk) -> None:
    disk.free = 8 * MIB
    disk.look()
    for _ in range(20):  # refused writes take no room
        allowed = disk.taken(MIB)
        assert Kind.APPEND not in allowed
        assert Kind.COMMIT in allowed
    disk.free = 100 * MIB
    disk.now += 1.0
    disk.look()
    assert disk.taken(MIB) is ALL


def test_an_embedded_log_asks_again_where_the_answer_is_old_or_there_was_no_room(
    disk: Disk,
) -> None:
    assert disk.is_stale(0.0)
    disk.ask(0.0)
    assert not disk.is_stale(0.005)
    assert disk.is_stale(0.02)
    disk.free = 1 * MIB
    disk.ask(0.02)
    assert not disk.is_stale(0.02)
    assert Kind.APPEND not in disk.taken(MIB)
    assert disk.is_stale(0.02)


def test_the_reserve_is_looked_after_once_for_all_shards(disk: Disk) -> None:
    asked = disk.asked
    for _ in range(32):
        disk.look()
    assert disk.asked == asked + 1
    disk.now += 1.0
    disk.look()
    assert disk.asked == asked + 2
