"""A million queues: what they take of memory, and how soon they are served again."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks import loads
from benchmarks.figures import Samples
from benchmarks.servers import EMBEDDED, ON_KAFKA, Server, embedded, kafka, on_kafka
from benchmarks.works import QUEUES_A_PRODUCER, Sizes
from kproxy.virtual.producers import PRODUCERS_INLINE
from tests.wire import Wire

Serve = Callable[[], AbstractContextManager[Server]]
_PREFIX = "million-"
_QUEUES_A_PROGRAM = 100_000  # more would fill the memory of Java's producers
_HOT = 1_000
_PRODUCERS_BEFORE = PRODUCERS_INLINE + 1
_SETTLE_S = 300
_QUIET_FOR_S = 15  # longer than the time between two publishings
_QUIET = 0.05  # a part of a core


def million(directory: Path, sizes: Sizes, found: Samples) -> None:
    """Measure servers of its own: the data of others would be in their memory."""
    _measure(EMBEDDED, lambda: embedded(directory / "own", "never"), sizes, found)
    shutil.rmtree(directory / "own")
    with kafka(directory / "broker") as broker:
        copy = directory / "copy"
        _measure(ON_KAFKA, lambda: on_kafka(broker, copy, "million"), sizes, found)
        for _ in range(sizes.runs):
            shutil.rmtree(copy)
            with on_kafka(broker, copy, "million") as server:
                found["rebuild"][ON_KAFKA].append(_envelopes(sizes) / _until_served(server))
    shutil.rmtree(directory / "broker")


def _envelopes(sizes: Sizes) -> int:
    """Return the number of envelopes:

    a CREATE and an APPEND for each queue, and those of _costs.
    """
    hot = 2 * (_PRODUCERS_BEFORE + sizes.runs * sizes.hot_rounds)
    return 2 * sizes.million + _HOT + hot * _HOT


def _measure(name: str, serve: Serve, sizes: Sizes, found: Samples) -> None:
    with serve() as server:
        few = median(_costs(server, sizes))
        for part, first in enumerate(range(0, sizes.million, _QUEUES_A_PROGRAM)):
            count = min(_QUEUES_A_PROGRAM, sizes.million - first)
            list(loads.wide(server.address, f"{_PREFIX}{part}-", count, 1, QUEUES_A_PRODUCER))
        found["memory"][name].append(server.rss_mb())
        _settle(server)
        found["cost"][name] += [many / few for many in _costs(server, sizes)]
    for _ in range(sizes.runs):
        began = time.monotonic()
        with serve() as server:
            _ask(server)
            answered = time.monotonic() - began  # with the start of Python
            found["restart"][name].append(_until_served(server) if name == ON_KAFKA else answered)


def _costs(server: Server, sizes: Sizes) -> Iterator[float]:
    """Yield seconds of CPU of producing to each of some queues, again and again; for each run.

    Each run has new producers, and a queue's row remembers the last ones: it is full before.
    """
    for _ in range(_PRODUCERS_BEFORE):
        list(loads.wide(server.address, "hot-", _HOT, 1, _HOT // 4))
    for _ in range(sizes.runs):
        before = server.cpu()
        list(loads.wide(server.address, "hot-", _HOT, sizes.hot_rounds, _HOT // 4))
        yield server.cpu() - before


def _settle(server: Server) -> None:
    """Let what creating so many queues left to do be done: rows are put in order, published."""
    end = time.monotonic() + _SETTLE_S
    before = server.cpu()
    while time.monotonic() < end:
        time.sleep(_QUIET_FOR_S)
        now = server.cpu()
        if now - before < _QUIET * _QUIET_FOR_S:
            return
        before = now


def _ask(server: Server) -> None:
    """Get the answer about a queue."""
    host, _, port = server.address.rpartition(":")
    with Wire(host, int(port)) as wire:
        if wire.list_offset(f"{_PREFIX}0-7", -1).offset != 1:
            raise RuntimeError("a queue has lost its record")


def _until_served(server: Server) -> float:
    """Return the seconds from the assignment of shards until the last of them is served."""
    times = {}
    for event in server.events("shards_assigned", "shard_served"):
        times[event["event"]] = datetime.fromisoformat(event["timestamp"])
    return float((times["shard_served"] - times["shards_assigned"]).total_seconds())
