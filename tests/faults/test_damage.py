"""Bits are flipped under a served process: who reads gets an error, or the right bytes."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Served, eventually, served
from tests.wire import Wire, batch, batches

CORRUPT_MESSAGE = 2
FLAGS = (
    "--segment-bytes", "20000", "--rows-flush-ms-max", "50", "--keeper-period-ms", "20",
    "--rows-cache-bytes", "64KiB", "--rows-cached-max", "10",
)  # fmt: skip
QUEUES, RECORDS = 6, 30


def write(server: Served, rng: random.Random, queues: int = QUEUES) -> dict[str, list[bytes]]:
    """Return the batches of each queue, as a reader gets them."""
    written: dict[str, list[bytes]] = {f"q{number}": [] for number in range(queues)}
    with Wire(server.host, server.port) as wire:
        for number in range(RECORDS):
            for queue, some in written.items():
                made = batch(b"%s %d " % (queue.encode(), number) + rng.randbytes(200))
                assert wire.produce(queue, made).error_code == 0
                some.append(made[16:])  # an answer has its own before that
    return written


def fetched(server: Served, queue: str, offset: int) -> tuple[int, dict[int, bytes]]:
    """Return the code of a Fetch, and what came; a connection that ends is an error as well."""
    with suppress(OSError), Wire(server.host, server.port) as wire:
        part = wire.fetch(queue, offset, partition_max_bytes=1000)
        return part.error_code, dict(batches(part.records))
    return -1, {}


def test_a_damaged_batch_holds_up_its_partition_alone(data_dir: Path) -> None:
    """FAULT: it was sent as it lay there, and damage was no event and in no counter."""
    with served(data_dir, *FLAGS) as server:
        written = write(server, random.Random(1))
        (segment,) = [
            path for path in (data_dir / "shard-0" / "log").glob("*.log")
            if b"q3 7 " in path.read_bytes()
        ]  # fmt: skip
        with segment.open("r+b") as file:
            file.seek(segment.read_bytes().index(b"q3 7 ") + 20)
            file.write(b"\0\1\2")
        assert fetched(server, "q3", 7) == (-1, {})
        assert [fetched(server, "q3", 7) for _ in range(2)] == [(CORRUPT_MESSAGE, {})] * 2
        for queue, some in written.items():
            for offset in range(1, RECORDS, 6):
                if (queue, offset) != ("q3", 7):
                    code, found = fetched(server, queue, offset)
                    assert code == 0
                    assert found[offset][16:] == some[offset]
        said = eventually(lambda: [one for one in server.events if one["event"] == "batch_damaged"])
        assert [one["segment"] for one in said] == [int(segment.stem)]


def flip(path: Path, rng: random.Random) -> None:
    """Change three bits of a file, if it is still there."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        size = path.stat().st_size
        for _ in range(3 if size else 0):
            at = rng.randrange(size)
            file.seek(at)
            byte = file.read(1) or b"\0"
            file.seek(at)
            file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


def refused(server: Served, written: dict[str, list[bytes]], seed: int) -> int:
    """Return how many Fetches got an error; the others got what was written, and all of it."""
    count = 0
    for queue, some in written.items():
        for offset in range(0, RECORDS, 7):
            code, found = fetched(server, queue, offset)
            count += code != 0
            for at, data in found.items():
                assert data[16:] == some[at], (seed, queue, at)
            assert code or offset in found, (seed, queue, offset)
    return count


@pytest.mark.parametrize("seeds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_flipped_bits_anywhere_change_no_answer(tmp_path: Path, seeds: int) -> None:
    failed = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        server = Served(tmp_path / str(seed), *FLAGS).wait_ready()
        try:
            written = write(server, rng)
            files = sorted((tmp_path / str(seed) / "shard-0").rglob("*.log"))
            files += sorted((tmp_path / str(seed) / "shard-0").rglob("*.sst"))
            for path in rng.sample(files, min(5, len(files))):
                flip(path, rng)
            failed += refused(server, written, seed)
        finally:
            server.kill()
    assert failed


def test_a_server_over_damaged_rows_says_so_and_answers_nothing_wrong(data_dir: Path) -> None:
    """FAULT: a Fetch found nothing more, as at the end of the queue, and nobody was told."""
    with served(data_dir, *FLAGS) as server:
        written = write(server, random.Random(1), 60)  # their rows are too many for caches
    server = Served(data_dir, *FLAGS).wait_ready()
    try:
        for table in (data_dir / "shard-0" / "rows").glob("*.sst"):
            with table.open("r+b") as file:
                for at in range(200, table.stat().st_size * 3 // 4, 512):
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 1]))
        eventually(lambda: refused(server, written, 1))
        eventually(lambda: server.event("rows_damaged"))
        assert not server.faults()  # no trace for each request of each client
    finally:
        server.kill()
