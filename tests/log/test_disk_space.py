"""What may be written while the disk fills up, and how often it is asked."""

from pathlib import Path

import pytest

from kproxy.log.disk_space import ALL, DiskSpace
from kproxy.loop.clock import Clock
from kproxy.virtual.envelope import Kind

MIB = 1 << 20


class Disk(DiskSpace):
    """With so many bytes free, on a clock that stands."""

    def __init__(self, directory: Path, free: int) -> None:
        self.free, self.asked, self.now = free, 0, 0.0
        super().__init__(directory, 8 * MIB, Clock(monotonic=lambda: self.now))

    def free_bytes(self) -> int:
        self.asked += 1
        return self.free


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, 100 * MIB)


def test_a_disk_with_room_is_not_asked_for_each_write(disk: Disk) -> None:
    for _ in range(50):
        assert disk.allowed_kinds(MIB) is ALL
    assert disk.asked == 1
    disk.now += 0.02
    assert disk.allowed_kinds(MIB) is ALL
    assert disk.asked == 2


def test_what_is_written_meanwhile_counts(disk: Disk) -> None:
    """Nothing is let in that a look of 10 ms ago had room for, and others have taken since."""
    disk.free = 20 * MIB
    allowed = [disk.allowed_kinds(MIB) for _ in range(12)]
    disk.free = 7 * MIB
    allowed.append(disk.allowed_kinds(MIB))
    assert [kinds is ALL for kinds in allowed] == [True] * 12 + [False]
    assert Kind.APPEND not in allowed[-1]
    assert Kind.DELETE in allowed[-1]


def test_room_that_was_made_is_seen_at_once(disk: Disk) -> None:
    disk.free = 8 * MIB
    assert Kind.APPEND not in disk.allowed_kinds(MIB)
    disk.free = 100 * MIB
    assert disk.allowed_kinds(MIB) is ALL


def test_the_reserve_is_looked_after_once_for_all_shards(disk: Disk) -> None:
    for _ in range(32):
        disk.maintain_reserve()
    assert disk.asked == 1
    disk.now += 1.0
    disk.maintain_reserve()
    assert disk.asked == 2
