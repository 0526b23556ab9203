"""A disk that hangs under a server: others are served, nothing acknowledged is lost."""

import http.client
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproxy.observe.health import DISK_STUCK_S
from kproxy.protocol.api_keys import ApiKey
from kproxy.virtual.partitioner import shard_of
from tests.forked import AS_INSTALLED, fork_in
from tests.harness import Served, eventually, free_port, need_program
from tests.real_kafka import Kafka
from tests.wire import Wire, batch
from tests.workers import Workers

SHIM = Path(__file__).with_name("hang.c")
LOG = "shard-0/log"
SERVED_S = 60.0  # on a busy machine; a call that hangs does so for 300 s


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "hang.so"
    subprocess.run(
        [need_program("gcc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"],
        check=True,
    )
    fork_in(os.environ | AS_INSTALLED | {"LD_PRELOAD": str(library)})
    return library


class Disk:
    """The disk of servers that are started with `env`."""

    def __init__(self, directory: Path, shim: Path) -> None:
        self._control = directory / "hang"
        self._seen = directory / "hang.seen"
        self.env = {"LD_PRELOAD": str(shim), "HANG_CONTROL": str(self._control)}
        self.servers: list[Served] = []

    def hang(self, *calls: str, path: str = LOG) -> None:
        """Have these calls hang, where a path has this part; calls that hang already stay so."""
        before = self._control.read_text() if self._control.exists() else ""
        new = self._control.with_name("hang.new")
        new.write_text(before + "".join(f"{call} {path}\n" for call in calls))
        new.rename(self._control)

    def hangs(self, call: str, path: str = LOG) -> bool:
        """Whether such a call has hung."""
        seen = self._seen.read_text().splitlines() if self._seen.exists() else []
        return any(one.startswith(f"{call} ") and path in one for one in seen)

    def recover(self) -> None:
        self._control.unlink(missing_ok=True)
        self._seen.unlink(missing_ok=True)


@pytest.fixture
def disk(shim: Path, tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path, shim)
    yield made
    made.recover()
    for server in made.servers:
        server.kill()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SERVED_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def check_served(server: Served, http_port: int, queue: str, records: int) -> None:
    """Check that what needs no write is answered as ever."""
    for _ in range(3):
        with within(SERVED_S), Wire(server.host, server.port, SERVED_S) as wire:
            assert wire.fetch(queue, 0).high_watermark == records
            assert wire.list_offset(queue, -1).offset == records
            assert not wire.metadata(queue, create=False).topics[0].error_code
            status, text = page(http_port, "/metrics")
            assert status == 200
            assert float(re.search(r"^kproxy_disk_free_bytes (\S+)", text, re.M)[1]) > 0  # type: ignore[index]
        time.sleep(0.1)


class Pending(threading.Thread):
    """Produces one record each over connections of their own, which wait for their answers."""

    def __init__(self, server: Served, queue: str, values: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._server, self._queue, self._values = server, queue, values
        self.offsets: dict[int, bytes] = {}
        self.start()

    def run(self) -> None:
        try:
            with Wire(self._server.host, self._server.port, seconds=200) as wire:
                for value in self._values:
                    answer = wire.produce(self._queue, batch(value))
                    if not answer.error_code:
                        self.offsets[answer.base_offset] = value
        except OSError:  # it was killed
            pass


def start(disk: Disk, data_dir: Path, *flags: str) -> tuple[Served, int]:
    port = free_port()
    flags = ("--http-listen", f"127.0.0.1:{port}", "--keeper-period-ms", "50", *flags)
    server = Served(data_dir, *flags, env=disk.env)
    disk.servers.append(server)
    return server.wait_ready(), port


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_reads_are_served_while_commits_hang(disk: Disk, data_dir: Path, killed: bool) -> None:
    """FAULT: metrics hung with statvfs."""
    server, http_port = start(disk, data_dir, "--rows-flush-ms-max", "100")
    with Wire(server.host, server.port) as wire:
        for number in range(3):
            assert wire.produce("q", batch(b"%d" % number)).base_offset == number
        began = time.monotonic()
        disk.hang("fdatasync", "fsync", "pwritev")
        disk.hang("statvfs", path=str(data_dir))
        pending = [Pending(server, "q", [b"p%d" % number]) for number in range(5)]
        eventually(lambda: disk.hangs("statvfs", str(data_dir)))
        check_served(server, http_port, "q", 3)
        lives = page(http_port, "/livez")[0] == 200  # the disk may still answer
        assert lives or time.monotonic() - began > DISK_STUCK_S
        assert not any(one.offsets for one in pending)
        if killed:
            server.kill()
            disk.recover()
            server, http_port = start(disk, data_dir)
        else:
            disk.recover()
            for one in pending:
                one.join(200)
            assert sorted(at for one in pending for at in one.offsets) == [3, 4, 5, 6, 7]
    with Wire(server.host, server.port) as wire:
        assert wire.fetch("q", 0).high_watermark >= (3 if killed else 8)
        assert wire.produce("q", batch(b"after")).base_offset >= 3
    assert server.stop() == 0
    assert not server.faults()


@pytest.mark.long
@pytest.mark.parametrize("sync", ["interval:50", "never"])
def test_commits_without_an_fsync_go_on(disk: Disk, data_dir: Path, sync: str) -> None:
    """FAULT: a flush forced the log to disk on the event loop, which stood still."""
    flags = ("--sync", sync, "--rows-flush-ms-max", "100")
    server, http_port = start(disk, data_dir, *flags)
    with Wire(server.host, server.port) as wire:
        assert wire.produce("q", batch(b"0")).base_offset == 0
        disk.hang("fdatasync", "fsync")
        assert wire.produce("q", batch(b"1")).base_offset == 1
        eventually(lambda: disk.hangs("fdatasync"))
        check_served(server, http_port, "q", 2)
        disk.hang("pwritev")  # a system whose file system waits for the disk as well
        pending = Pending(server, "q", [b"2"])
        eventually(lambda: disk.hangs("pwritev"))
        check_served(server, http_port, "q", 2)
        disk.recover()
        pending.join(200)
        assert pending.offsets == {2: b"2"}
    assert server.stop() == 0
    assert not server.faults()


@pytest.mark.long
def test_livez_tells_and_a_client_that_tries_again_is_stored_once(
    disk: Disk, data_dir: Path
) -> None:
    server, http_port = start(disk, data_dir)
    with Wire(server.host, server.port) as wire:
        pid = wire.producer_id()
        assert wire.produce("q", batch(b"0", producer_id=pid, epoch=0, sequence=0)).base_offset == 0
    used = server.rss()
    disk.hang("fdatasync")
    data = batch(bytes(500_000), producer_id=pid, epoch=0, sequence=1)
    began = time.monotonic()
    while page(http_port, "/livez")[0] == 200:  # clients give up, connect anew and try again
        with Wire(server.host, server.port, seconds=1) as wire, pytest.raises(TimeoutError):
            wire.produce("q", data)
        assert time.monotonic() - began < DISK_STUCK_S + 10
    assert time.monotonic() - began >= DISK_STUCK_S - 1
    status, text = page(http_port, "/livez")
    assert (status, "the disk has not answered for" in text) == (503, True)
    assert server.rss() - used < 100 << 20
    disk.recover()
    eventually(lambda: page(http_port, "/livez")[0] == 200)
    with Wire(server.host, server.port) as wire:
        assert wire.produce("q", data).base_offset == 1
        assert wire.list_offset("q", -1).offset == 2
    assert server.stop() == 0
    assert not server.faults()


def name_of(shard: int, shards: int) -> str:
    return next(f"q{n}" for n in range(100) if shard_of(f"q{n}", shards) == shard)


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_other_shards_are_served_while_the_files_of_one_hang(
    kafka: Kafka, disk: Disk, tmp_path: Path, killed: bool
) -> None:
    """FAULT: the event loop stood still, and with it all shards of the worker."""
    flags = ("--rows-flush-ms-max", "100", "--keeper-period-ms", "50", "--segment-bytes", "64KiB")
    hung, other = name_of(0, 2), name_of(1, 2)
    with Workers(kafka, tmp_path, *flags, count=1, shards=2, env=disk.env).running() as workers:
        worker = workers.workers[0]
        with worker.wire(other) as wire:
            for queue in (hung, other):
                eventually(lambda queue=queue: not wire.produce(queue, batch(b"0")).error_code)  # type: ignore[misc]
            disk.hang("fdatasync", "fsync")
            eventually(lambda: wire.produce(hung, batch(b"1")) and disk.hangs("fdatasync"))
            disk.hang("pwritev")
            pending = Pending(worker, hung, [b"%d" % n * 1000 for n in range(5)])
            eventually(lambda: disk.hangs("pwritev"))
            for number in range(1, 6):
                with within(SERVED_S):
                    assert wire.produce(other, batch(b"x")).base_offset == number
                    assert wire.fetch(other, number).high_watermark == number + 1
                    assert not wire.fetch(hung, 0).error_code
                    assert wire.call(ApiKey.DESCRIBE_LOG_DIRS, 1, {"topics": None}).results
        if killed:
            worker.kill()
            disk.recover()
            worker = workers.again(0).wait_ready()
        disk.recover()
        pending.join(60)
        assert not pending.is_alive()
        with worker.wire(hung) as wire:
            eventually(lambda: not wire.produce(hung, batch(b"after")).error_code, 30)
            for offset, value in pending.offsets.items():
                assert value in wire.fetch(hung, offset).records
