"""CPU of an entrance: one record to each of many queues, in one process, without clients.

    python -m benchmarks.entrance [--queues N] [--rounds N] [--cached N] [--native auto|off]
        [--instructions]

prints what a record costs from its append to the entrance until it has landed: the first one of
each queue, and one more; in CPU, or with `--instructions` in what the processor executes, as
valgrind counts it: that does not depend on what else the machine does. To compare two versions of
kproxy, run it in both trees.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import anyio
import anyio.lowlevel

from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.native import lane
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.rows.queues import Queue
from kproxy.worker.embedded import embedded
from kproxy.worker.worker import Worker

_BATCH = 100  # records
_VALUE = b"x" * 100
_ENTRANCE = {"kproxy.route.to": "to-{key}", "kproxy.route.unroutable": "lost"}
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.M)


async def _round(worker: Worker, queue: Queue, batches: list[bytes], queues: int) -> None:
    shard, landed = worker.any_shard(), worker.counters.routed + queues
    tickets: list[Ticket] = []
    for made in batches:
        tickets.append(shard.append([Envelope(Kind.APPEND, queue.queue_id, 0, body=made)]))
        await anyio.lowlevel.checkpoint()
    for ticket in tickets:
        await ticket.wait()
    while worker.counters.routed < landed:  # noqa: ASYNC110  a counter tells nobody
        await anyio.sleep(0.02)


class CpuTime:
    """The CPU of this process, in microseconds."""

    def __init__(self) -> None:
        self._begun = 0.0

    def begin(self) -> None:
        self._begun = time.process_time()

    def end(self) -> float:
        return (time.process_time() - self._begun) * 1e6


async def _run(
    config: Config, queues: int, rounds: int, measure: "CpuTime | Instructions"
) -> list[float]:
    """Return what each round takes, a record."""
    taken = []
    async with embedded(config, ("127.0.0.1", 1)) as worker:
        queue, ticket = worker.catalogue.create("in", 1, _ENTRANCE)
        await ticket.wait()
        now = worker.now_ms()
        keyed = [body_of(Content(b"%d" % number, _VALUE), ()) for number in range(queues)]
        batches = [
            batch_of_bodies([(one, now) for one in keyed[at : at + _BATCH]])
            for at in range(0, queues, _BATCH)
        ]
        for _ in range(rounds):
            measure.begin()
            await _round(worker, queue, batches, queues)
            taken.append(measure.end() / queues)
    return taken


_REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""


class Instructions:
    """The instructions of all threads of this process: callgrind counts in rounds alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._requests = ctypes.CDLL(str(directory / "requests.so"))
        self._ended = 0

    def begin(self) -> None:
        self._requests.begin()

    def end(self) -> float:
        self._requests.end()
        self._ended += 1
        told = (self._directory / f"out.{self._ended}").read_text()
        return float(_TOTALS.findall(told)[-1])


def _counted(arguments: list[str]) -> None:
    """Run this again under valgrind. Raise CalledProcessError."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "requests.c")
        source.write_text(_REQUESTS)
        made = ["gcc", "-shared", "-fPIC", "-O2", "-o", f"{directory}/requests.so", str(source)]
        subprocess.run(made, check=True)
        command = [
            "valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={directory}/out",
            "--instr-atstart=no", sys.executable, "-m", "benchmarks.entrance", *arguments,
            "--under", directory,
        ]  # fmt: skip
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "0"})


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--queues", type=int)
    asked.add_argument("--rounds", type=int, default=3, help="rounds of known queues")
    asked.add_argument("--cached", type=int, default=125_000, help="rows that kproxy caches")
    asked.add_argument("--native", default="auto", choices=("auto", "off"))
    asked.add_argument("--instructions", action="store_true")
    asked.add_argument("--under", help=argparse.SUPPRESS)
    arguments = asked.parse_args()
    if arguments.instructions and not arguments.under:
        _counted(sys.argv[1:])
        return
    measure, unit = (
        (Instructions(Path(arguments.under)), "instructions")
        if arguments.under
        else (CpuTime(), "us of CPU")
    )
    queues = arguments.queues or (2000 if arguments.under else 20_000)
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            data_dir=Path(directory), sync="never", keeper_period_ms=60_000,
            rows_cached_max=arguments.cached, native=arguments.native,
        )  # fmt: skip
        new, *known = anyio.run(_run, config, queues, 1 + arguments.rounds, measure)
    told = f"new queues {new:,.1f} {unit} a record, known ones {median(known):,.1f}"
    print(f"{lane().name}: {told}")  # noqa: T201


if __name__ == "__main__":
    main()
