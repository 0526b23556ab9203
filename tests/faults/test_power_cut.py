"""A power cut: what was not synced is gone. `--sync always` loses nothing acknowledged or read."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import AS_INSTALLED, fork_in
from tests.harness import Served, eventually, need_program
from tests.real_kafka import Kafka
from tests.wire import Wire, batch, batches

SHIM = Path(__file__).with_name("powercut.c")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "powercut.so"
    subprocess.run(
        [need_program("gcc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"],
        check=True,
    )
    fork_in(os.environ | AS_INSTALLED | {"LD_PRELOAD": str(library)})
    return library


def serve(shim: Path, data_dir: Path, *flags: str) -> Served:
    env = {"LD_PRELOAD": str(shim), "POWERCUT_DIR": str(data_dir.resolve())}
    return Served(data_dir, *flags, env=env).wait_ready()


def cut_power(server: Served) -> None:
    """End the process, and take every file back to what was synced."""
    server.kill()
    for folder, _, names in os.walk(server.data_dir):
        for name in names:
            path = Path(folder) / name
            if path.suffix == ".synced":
                continue
            side = path.with_name(path.name + ".synced")
            synced = int(side.read_text() or 0) if side.exists() else 0
            if path.stat().st_size > synced:
                os.truncate(path, synced)


def test_a_worker_serves_no_copy_with_holes(shim: Path, tmp_path: Path, kafka: Kafka) -> None:
    """FAULT: full segments were never forced to disk: what they held could not be read any more."""
    data_dir, count = tmp_path / "worker", 40
    flags = (
        "--bootstrap-servers", kafka.address, "--topic-prefix", "power-cut", "--shards", "1",
        "--allow-single-replica", "--segment-bytes", "1MiB", "--rows-flush-ms-max", "500",
        "--keeper-period-ms", "100",
    )  # fmt: skip
    server = serve(shim, data_dir, *flags)
    with Wire(server.host, server.port) as wire:
        eventually(lambda: wire.produce("q", batch(b"first")).error_code == 0, 30)
        for _ in range(count):
            assert wire.produce("q", batch(bytes(100_000))).error_code == 0
        logs = data_dir / "shard-0" / "log"
        full = sorted(logs.glob("*.log"))[:-1]
        assert len(full) >= 3
        eventually(lambda: all(p.with_name(p.name + ".synced").exists() for p in full), 30)
    cut_power(server)
    server = serve(shim, data_dir, *flags)
    try:
        with Wire(server.host, server.port) as wire:
            eventually(lambda: wire.fetch("q", 0).error_code == 0, 30)
            read = 0
            while read <= count:
                part = wire.fetch("q", read)
                assert part.error_code == 0
                read += len(list(batches(part.records)))
    finally:
        server.stop()


class Writer(threading.Thread):
    """A writer of numbered records until the server is gone; it notes those read, too."""

    def __init__(self, server: Served, queue: str) -> None:
        super().__init__(daemon=True)
        self.server, self.queue = server, queue
        self.acknowledged: list[tuple[int, bytes]] = []
        self.read = 0

    def run(self) -> None:
        try:
            with Wire(self.server.host, self.server.port) as wire:
                for i in range(100_000):
                    value = b"%s-%d" % (self.queue.encode(), i)
                    answer = wire.produce(self.queue, batch(value))
                    if answer.error_code == 0:
                        self.acknowledged.append((answer.base_offset, value))
                    self.read = wire.fetch(self.queue, 0).high_watermark
        except (ConnectionError, OSError):
            pass


def run_and_cut(shim: Path, data_dir: Path, *flags: str) -> list[Writer]:
    server = serve(shim, data_dir, *flags)
    writers = [Writer(server, f"q{i}") for i in range(4)]
    for writer in writers:
        writer.start()
    eventually(lambda: all(len(writer.acknowledged) > 40 for writer in writers), seconds=60)
    cut_power(server)
    for writer in writers:
        writer.join(10)
    return writers


def survivors(shim: Path, data_dir: Path, *queues: str) -> list[dict[int, bytes]]:
    """Return the batches of each queue by their offsets, as a new start finds them."""
    server = serve(shim, data_dir)
    try:
        with Wire(server.host, server.port) as wire:
            return [_batches_of(wire, queue) for queue in queues]
    finally:
        server.stop()


def _batches_of(wire: Wire, queue: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while True:
        part = wire.fetch(queue, len(found))
        if part.error_code or not part.records:
            return found
        found.update(batches(part.records))


def with_survivors(
    shim: Path, data_dir: Path, writers: list[Writer]
) -> Iterator[tuple[Writer, dict[int, bytes]]]:
    """Return each writer with the records left in its queue."""
    found = survivors(shim, data_dir, *(writer.queue for writer in writers))
    return zip(writers, found, strict=True)


@pytest.mark.parametrize("flush", ["60000", "50"])
def test_sync_always_loses_nothing_acknowledged_or_read(
    shim: Path, data_dir: Path, flush: str
) -> None:
    flags = ("--rows-flush-ms-max", flush, "--keeper-period-ms", "20")
    for _ in range(3):
        writers = run_and_cut(shim, data_dir, "--sync", "always", *flags)
        for writer, found in with_survivors(shim, data_dir, writers):
            assert len(found) >= writer.read
            for offset, value in writer.acknowledged:
                assert value in found[offset]


def test_sync_never_does_lose_so_this_test_can_fail(shim: Path, data_dir: Path) -> None:
    writers = run_and_cut(shim, data_dir, "--sync", "never", "--rows-flush-ms-max", "60000")
    lost = 0
    for writer, found in with_survivors(shim, data_dir, writers):
        lost += sum(value not in found.get(offset, b"") for offset, value in writer.acknowledged)
    assert lost > 0


@pytest.mark.parametrize("sync", ["never", "interval:20"])
def test_lost_part_is_a_tail(shim: Path, data_dir: Path, sync: str) -> None:
    """Rows that are flushed never speak of what the log has lost: it starts, with all before."""
    flags = ("--sync", sync, "--rows-flush-ms-max", "10", "--keeper-period-ms", "10")
    for _ in range(4):
        writers = run_and_cut(shim, data_dir, *flags)
        for writer, found in with_survivors(shim, data_dir, writers):
            assert sorted(found) == list(range(len(found)))
            kept = [value in found[o] for o, value in writer.acknowledged if o in found]
            assert all(kept)


def test_sync_interval_loses_no_more_than_its_interval(shim: Path, data_dir: Path) -> None:
    server = serve(shim, data_dir, "--sync", "interval:50")
    with Wire(server.host, server.port) as wire:
        for i in range(20):
            wire.produce("q", batch(b"old-%d" % i))
    segment = next((data_dir / "shard-0" / "log").glob("*.log"))
    side = segment.with_name(segment.name + ".synced")
    eventually(lambda: side.exists() and int(side.read_text()) == segment.stat().st_size)
    cut_power(server)
    (found,) = survivors(shim, data_dir, "q")
    assert len(found) == 20
