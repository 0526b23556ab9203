"""A worker that nobody asks anything: what it takes of a core."""

import time
from pathlib import Path

from benchmarks.figures import Samples
from benchmarks.servers import Server, embedded, kafka, on_kafka
from benchmarks.works import Sizes

_SHARDS = 32


def idle(directory: Path, sizes: Sizes, found: Samples) -> None:
    """Measure servers of its own: others are busy with leftovers of their loads."""
    with embedded(directory / "own", "never") as server:
        _measure(server, sizes, found)
    with kafka(directory / "broker") as broker:
        with on_kafka(broker, directory / "copy", "idle", _SHARDS) as server:
            _measure(server, sizes, found)


def _measure(server: Server, sizes: Sizes, found: Samples) -> None:
    time.sleep(sizes.idle_s)  # until what a start leaves to do is done
    for _ in range(sizes.runs):
        before = server.cpu()
        time.sleep(sizes.idle_s)
        found["idle"][server.name].append(100 * (server.cpu() - before) / sizes.idle_s)
