"""Damage anywhere in a log is refused where it would cost what was on disk; a torn tail is cut off.

Every byte of a small log is changed in turn, and the log is cut at every length.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from kproxy.log.base import Deliver
from kproxy.log.disk_space import DiskSpace
from kproxy.log.local import LocalLog
from kproxy.shard.opening import open_local
from kproxy.shard.shard import Shard
from kproxy.store import files, synced, tail
from kproxy.store.segments import DamagedLog, Segments
from kproxy.virtual.commands import envelope as envelopes
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.types import ShardId
from tests.fakes import DictKv
from tests.shard.test_shard import QUEUES, config, put, running
from tests.wire import batch

Files = dict[str, bytes]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Force nothing to disk: there is no power cut here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(files, "sync_data", lambda fd: None)


def recovered(directory: Path) -> int:
    """Recover a log without rows; where it goes on. Raises DamagedLog."""
    settings = config()
    segments = Segments(directory / "log", marked=True)
    disk_space = DiskSpace(directory, 1)

    def log(deliver: Deliver) -> LocalLog:
        return LocalLog(
            segments, deliver, sync=settings.sync_policy, segment_bytes=1 << 20,
            commit_bytes_max=1 << 20, disk_space=disk_space,
        )  # fmt: skip

    kv: Any = DictKv()
    shard = Shard(
        shard=ShardId(0), shards=1, kv=kv, segments=segments, disk_space=disk_space,
        config=settings, log=log, shared=False,
    )  # fmt: skip
    try:
        shard.recover()
    finally:
        segments.close()
    return shard.log.next_offset


async def written(directory: Path, sync: str, segment_bytes: int = 1 << 20) -> tuple[Files, int]:
    """Return a small log as a kill leaves it, and up to which log offset it was forced to disk."""
    settings = {"sync": sync, "segment_bytes": segment_bytes}
    async with running(directory, **settings, queues=1) as shard:
        for i in range(3):
            await put(shard, QUEUES[0], b"%d" % i)
        await shard.log.sync()
        one = Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"together"))
        await shard.append([one, one]).wait()
        through = shard.log.next_offset if sync == "always" else 4
        for i in range(2):
            await put(shard, QUEUES[0], b"behind-%d" % i)
            through = shard.log.next_offset if sync == "always" else through
        found = {path.name: path.read_bytes() for path in (directory / "log").iterdir()}
    return found, through


def laid_out(directory: Path, contents: Files) -> Path:
    """Put the files of a log in a directory of their own."""
    log = directory / "log"
    log.mkdir(parents=True, exist_ok=True)
    for path in log.iterdir():
        path.unlink()
    for name, data in contents.items():
        (log / name).write_bytes(data)
    return directory


def damages(contents: Files) -> Iterator[tuple[str, Files]]:
    for name, data in contents.items():
        if name == synced.NAME:
            continue
        for at in range(len(data)):
            flip = 0x01 if at % 2 else 0xFF
            changed = bytearray(data)
            changed[at] ^= flip
            yield f"{name} at {at} ^ {flip}", contents | {name: bytes(changed)}
            yield f"{name} cut to {at}", contents | {name: data[:at]}
            if at % 7 == 0:
                zeros = data[:at] + bytes(len(data) - at)
                yield f"{name} zero from {at}", contents | {name: zeros}


def check_kept(directory: Path, contents: Files, what: str) -> None:
    """Check that the recovered records are the written ones."""
    for path in (directory / "log").glob("*.log"):
        assert contents[path.name].startswith(path.read_bytes()), what


@pytest.mark.parametrize("segment_bytes", [1 << 20, 400])
@pytest.mark.parametrize("sync", ["always", "interval:1000000", "never"])
async def test_damage_anywhere_costs_nothing_that_was_on_disk(
    tmp_path: Path, fast: None, sync: str, segment_bytes: int
) -> None:
    contents, through = await written(tmp_path / "live", sync, segment_bytes)
    if segment_bytes == 1 << 20:
        assert synced.read(tmp_path / "live" / "log") is not None
    whole = recovered(laid_out(tmp_path / "copy", contents))
    assert whole == 8
    refused = cut = 0
    for what, damaged in damages(contents):
        directory = laid_out(tmp_path / "copy", damaged)
        try:
            found = recovered(directory)
        except DamagedLog:
            refused += 1
            continue
        cut += 1
        assert found >= through, what
        check_kept(directory, contents, what)
    assert refused
    assert cut or sync == "always"


async def test_without_its_mark_a_log_still_tells_damage_before_the_last_commit(
    tmp_path: Path, fast: None
) -> None:
    contents, _ = await written(tmp_path / "live", "always")
    del contents[synced.NAME]
    last = _ends(contents)[-2]
    for what, damaged in damages(contents):
        if "^" not in what:
            continue
        directory = laid_out(tmp_path / "copy", damaged)
        at = int(what.split()[2])
        if at >= last:
            assert recovered(directory) == 7, what
        else:
            with pytest.raises(DamagedLog):
                recovered(directory)


def _ends(contents: Files) -> list[int]:
    (name,) = [name for name in contents if name.endswith(".log")]
    data, position, ends = contents[name], 0, []
    while position < len(data):
        position += 8 + struct.unpack_from(">I", data, position)[0]
        ends.append(position)
    return ends


async def test_a_commit_torn_out_of_order_is_no_damage(tmp_path: Path, fast: None) -> None:
    """The disk wrote the second frame of a commit, and not the first."""

    contents, _ = await written(tmp_path / "live", "always")
    ends = _ends(contents)
    (name,) = [name for name in contents if name.endswith(".log")]
    data = bytearray(contents[name][: ends[5]])  # up to the commit of two
    data[ends[3] : ends[4]] = bytes(ends[4] - ends[3])
    marked = synced.Synced(tmp_path)
    marked.note(4, 0, ends[3])
    marked.close()
    mark = (tmp_path / synced.NAME).read_bytes()
    directory = laid_out(tmp_path / "copy", {name: bytes(data), synced.NAME: mark})
    assert recovered(directory) == 4


def _forged(log_offset: int, forced: int) -> bytes:
    """Return a frame as a client could put it into its records."""
    envelope = Envelope(Kind.APPEND, QUEUES[0], 0, body=b"x", counter=forced)
    content = struct.pack(">Q", log_offset) + envelope.head() + envelope.body
    return struct.pack(">II", len(content), crc32c(content)) + content


async def forged_frames_prove_nothing(directory: Path, envelope: Envelope) -> None:
    """Cut a log off, or change it, within an envelope that has frames in it."""
    async with running(directory / "live", queues=1) as shard:
        await put(shard, QUEUES[0], b"first")
        begin = shard.segments.end
        buffers, _, _ = shard.segments.frame(2, [envelope])
        data = shard.segments.path(0).read_bytes() + b"".join(buffers)
    name = f"{0:020d}.log"
    for torn in (*range(begin + 1, len(data), 37), len(data) - 1):
        copied = laid_out(directory / "copy", {name: data[:torn]})
        if torn < begin + 16 + envelopes.HEAD_BYTES + 12:
            assert recovered(copied) == 2
        else:
            assert tail.proof_of_damage(copied / "log" / name, begin, 2) is None, torn
    changed = bytearray(data)
    changed[-1] ^= 1
    assert recovered(laid_out(directory / "copy", {name: bytes(changed)})) == 2


async def test_frames_that_clients_forge_inside_their_records_prove_nothing(
    tmp_path: Path, fast: None
) -> None:
    body = batch(b"".join(_forged(n, n) for n in range(2, 50)))
    await forged_frames_prove_nothing(tmp_path, Envelope(Kind.APPEND, QUEUES[0], body=body))


@pytest.mark.parametrize(
    "filler", [b"\0", _forged(5, 4)[8:18] + b"\0" * 6, _forged(5, 4)[:-1], b"\x01\x02"]
)
def test_the_search_for_proof_is_bounded(tmp_path: Path, filler: bytes) -> None:
    """Fillers that clients can write are the worst; counted in frames tried, not in seconds."""
    path = tmp_path / "tail"
    path.write_bytes((filler * (4_000_000 // len(filler) + 1))[:4_000_000])
    tried = 0

    class Counted:
        def unpack_from(self, data: Any, position: int) -> Any:
            nonlocal tried
            tried += 1
            return real.unpack_from(data, position)

    real = tail._START
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "_START", Counted())
        assert tail.proof_of_damage(path, 0, 3) is None
    assert tried <= 4_000_000 * tail._TRIES_PER_BYTE + 1001


async def test_cut_off_bytes_are_kept_and_the_line_says_where(tmp_path: Path) -> None:
    async with running(tmp_path, queues=1):
        pass
    path = tmp_path / "log" / f"{0:020d}.log"
    end = path.stat().st_size
    for number in range(6):
        torn = b"torn-%d" % number * 20
        with path.open("ab") as file:
            file.write(torn)
        with capture_logs() as lines:
            open_local(tmp_path, config()).close()
        (line,) = [line for line in lines if line["event"] == "log_tail_cut"]
        kept = Path(line["kept"])
        assert kept.read_bytes() == torn
        assert path.stat().st_size == end
        os.utime(kept, (number, number))
        kept.rename(kept.with_suffix(f".cut-{number}"))
    assert len(list(path.parent.glob("*.cut-*"))) <= 4


async def test_a_refusal_says_what_can_be_done_and_it_can(tmp_path: Path) -> None:
    contents, _ = await written(tmp_path / "live", "always")
    ends = _ends(contents)
    (name,) = [name for name in contents if name.endswith(".log")]
    data = bytearray(contents[name])
    data[ends[1] + 30] ^= 1
    directory = laid_out(tmp_path / "copy", contents | {name: bytes(data)})
    with pytest.raises(DamagedLog, match=f"truncate -s {ends[1]}") as refused:
        open_local(directory, config())
    text = str(refused.value)
    assert str(directory / "log" / name) in text
    assert "log offset 2" in text
    os.truncate(directory / "log" / name, ends[1])
    with pytest.raises(DamagedLog, match="delete synced") as refused:
        open_local(directory, config())
    (directory / "log" / synced.NAME).unlink()
    shard = open_local(directory, config())
    assert shard.log.next_offset == 2
    shard.close()


async def test_a_log_of_an_earlier_kproxy_is_read_as_before(tmp_path: Path) -> None:
    """It has no mark, and its frames say of nothing that it was on disk."""

    async with running(tmp_path, queues=1) as shard:
        frames = [envelope for _, envelope, _, _ in shard.segments.replay(0, 0)]
        one = Envelope(Kind.APPEND, QUEUES[0], 0, body=batch(b"old"))
        for number in range(3):
            shard.segments.append(number + 1, [one], 1 << 20)
    assert frames
    (tmp_path / "log" / synced.NAME).unlink()
    path = tmp_path / "log" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    again = open_local(tmp_path, config())
    assert again.log.next_offset == 3
    again.close()
