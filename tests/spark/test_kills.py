"""The archive under kills of its driver, Java and all, at random points of its micro-batches."""

import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness import served
from tests.spark import jobs

RECORDS, BATCH = 40_000, 100
START_S, BATCHES_S = 120, 5


@pytest.mark.parametrize("kills", [5, 50])
def test_an_archive_has_every_record_once(spark: Any, tmp_path: Path, kills: int) -> None:
    """Half of the kills come once it has begun a batch; the others as soon as it starts, or later.

    The queues are so long that no run comes to their end before the last kill.
    """
    chance = random.Random(kills)
    directory = tmp_path / "archive"
    asked = (
        directory, "--subscribe-pattern", "arc-.*", "--batch-records", BATCH, "--files-max", 3,
    )  # fmt: skip
    values: dict[str, list[bytes]] = {f"arc-{i}": [] for i in range(10)}
    records = []
    for i in range(RECORDS * kills // 50):
        values[f"arc-{i % 10}"].append(b"v%d" % i)
        records.append((f"arc-{i % 10}", b"k", b"v%d" % i, 1_700_000_000_000 + i * 10_000))
    offsets = directory / "_checkpoint" / "offsets"
    batches = []
    with served(tmp_path / "data") as server:
        jobs.write(server.address, records)
        for kill in range(kills):
            before = latest(offsets)
            job = jobs.start("archive", *asked, server=server.address)
            until = time.monotonic() + START_S
            while kill % 2 and latest(offsets) == before and time.monotonic() < until:
                assert job.poll() is None, job.communicate()
                time.sleep(0.02)
            time.sleep(chance.uniform(0, BATCHES_S if kill % 2 else 4 * BATCHES_S))
            assert job.poll() is None, job.communicate()
            # Java ends when Python, whose end of the pipe it watches, is gone: kill it first.
            subprocess.run(["pkill", "-9", "-P", str(job.pid)], check=False)
            job.kill()
            job.communicate(timeout=30)
            batches.append(latest(offsets))
        rest = jobs.run("archive", *asked, "--batch-records", 100_000, server=server.address)
    print(f"{kills} kills, after the batches {batches}; {rest[-1]} at last")  # noqa: T201
    assert len(set(batches)) > kills // 3
    found: dict[str, list[tuple[int, bytes]]] = {queue: [] for queue in values}
    for row in spark.read.format("delta").load(str(directory)).collect():
        found[row.queue].append((row.offset, bytes(row.value)))
    for queue, said in found.items():
        assert sorted(said) == list(enumerate(values[queue]))


def latest(offsets: Path) -> int:
    """Return the number of the newest batch that a stream began, or -1."""
    names = [path.name for path in offsets.glob("*")] if offsets.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
