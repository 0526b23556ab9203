"""The findings of `kproxy check`: none in a sound directory, and each kind of damage in another."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy.config.server import load
from kproxy.shard.opening import open_local
from kproxy.shard.verification import Verification
from kproxy.store import synced
from kproxy.virtual import counts
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import CommitOffsets, OffsetCommit
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.delays import DELAY_ENTRIES, WAITING_BATCHES
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import PartitionKey, QueueId
from tests.virtual.commands.delay_cases import later, waiting
from tests.wire import batch

Q = QueueId(b"q" * 16)
KEY: PartitionKey = (Q, 0)
SEGMENT = 2000
Rows = dict[bytes, bytes | None]


def write(directory: Path, change: Callable[[Rows], None] = lambda rows: None) -> None:
    """Write a small log of several segments, with its rows; `change` has some put amiss."""
    shard = open_local(directory, load({"data_dir": directory}, None, {}))
    log = [CreateQueue(Q, "queue", 2, {}).envelope()]
    log += [Envelope(Kind.APPEND, Q, n % 2, body=batch(b"v" * 100)) for n in range(50)]
    log += [Trim(Q, 1, 3).envelope()]
    log += [later(KEY, waiting(1 << 40))]
    log += [CommitOffsets("g", "", -1, [OffsetCommit(Q, 0, 1, -1, "", False)], 1).envelope(2)]
    for log_offset, envelope in enumerate(log):
        places = shard.segments.append(log_offset, [envelope], SEGMENT)
        end = shard.segments.active, shard.segments.end
        shard._deliver(log_offset, [envelope], places, end)
    changes: Rows = {}
    change(changes)
    shard.state.put_all(changes)
    shard.commit({})
    shard.close()


def faults(directory: Path) -> list[str]:
    found = Verification(directory, whole=True)
    try:
        found.check_log(lambda count: None)
        found.check_rows(lambda count: None)
        assert found.frames or found.faults
        return found.faults
    finally:
        found.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound") / "shard-0"
    write(directory)
    return directory


def test_a_sound_directory_has_no_fault(sound: Path) -> None:
    assert faults(sound) == []
    assert len(list((sound / "log").glob("*.log"))) > 3


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda log: flip(log[1], 200), "is damaged at position"),
        (lambda log: flip(log[-1], 10), "is damaged at position 0"),
        (lambda log: truncate(log[1]), "is damaged at position"),
        (lambda log: truncate(log[-1]), "the log ends at log offset"),
        (lambda log: log[1].unlink(), "its batch is not there"),
        (lambda log: log[-1].unlink(), "is missing"),
        (lambda log: shutil.copy(log[2], log[1]), "belongs"),
    ],
)
def test_damage_of_the_log(
    sound: Path, tmp_path: Path, damage: Callable[[list[Path]], object], said: str
) -> None:
    directory = tmp_path / "shard-0"
    shutil.copytree(sound, directory)
    damage(sorted((directory / "log").glob("*.log")))
    found = faults(directory)
    assert any(said in fault for fault in found), found


def test_lost_data_that_was_on_disk_is_found(sound: Path, tmp_path: Path) -> None:
    directory = tmp_path / "shard-0"
    shutil.copytree(sound, directory)
    synced.Synced(directory / "log").note(1000, 0, 0)
    assert any("was on disk up to 1000" in fault for fault in faults(directory))


def _batch_elsewhere(found: Rows) -> None:
    found[batch_rows.batch_key(*KEY, 5)] = batch_rows.Batch(0, 300, 168, 0, 5, 1, 1, 1).encode()


def _queue_without_name(found: Rows) -> None:
    found[rows.name_key(Q)] = None


def _no_partition(found: Rows) -> None:
    found[rows.partition_key(Q, 1)] = None


def _offset_without_index(found: Rows) -> None:
    found[offset_rows.offset_by_queue_key(Q, 0, "g")] = None


def _live_bytes(found: Rows) -> None:
    found[rows.segment_key(0)] = rows.encode_live_bytes(7)


def _not_due(found: Rows) -> None:
    found[WAITING_BATCHES.key(KEY, 1 << 40, 0)] = None


def _not_filed(found: Rows) -> None:
    found[DELAY_ENTRIES.key(KEY)] = None


def _unknown_kind(found: Rows) -> None:
    found[b"~"] = b""


def _unreadable(found: Rows) -> None:
    found[RowKind.PARTITION.letter + bytes(20)] = b"\7"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_batch_elsewhere, "offset 5: its batch"),
        (_queue_without_name, "is not found by its id"),
        (_no_partition, "has no row of partition 1"),
        (_offset_without_index, "is not found by its queue"),
        (_live_bytes, "its row says 7"),
        (_not_due, "is not found by when it is due"),
        (_not_filed, "nobody looks for it"),
        (_unknown_kind, "an unknown kind '~'"),
        (_unreadable, "cannot be read"),
    ],
)
def test_rows_that_are_amiss(tmp_path: Path, change: Callable[[Rows], None], said: str) -> None:
    write(tmp_path / "shard-0", change)
    found = faults(tmp_path / "shard-0")
    assert any(said in fault for fault in found), found


def test_counts_that_are_not_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = counts.Counts.encode

    def one_more(self: counts.Counts, as_of: int) -> bytes:
        self.queues += 1
        return encode(self, as_of)

    monkeypatch.setattr(counts.Counts, "encode", one_more)
    write(tmp_path / "shard-0")
    assert any("the counts" in fault for fault in faults(tmp_path / "shard-0"))
