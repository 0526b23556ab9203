"""Fresh seeds of all simulations, round robin: `make soak MINUTES=60`.

Seeds are drawn anew each time. A seed that fails is shown with the command that repeats it, and the
others go on. A commit's record is kept: a later run adds to it, and `make prove` puts it into
docs/proofs.md. In the end a table says how often which condition was reached: one that a
simulation is there for, and that many seeds never reached, is a failure.
"""

import gc
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
import pytest
import structlog

from tests.running.record import RESULTS, head, read_lines, state
from tests.simulation import every
from tests.simulation.conditions import REACHED

BATCH_S = 20.0
"""The CPU of a batch, which is a process: it leaves nothing to the next."""
SEED_S_MAX = 120.0
"""The CPU after which a seed counts as one that never ends."""
ENOUGH = 200
"""The seeds that reach all conditions of a simulation, or some branch of it is dead."""
_SEED_MAX = 10**9
_TINY = [f"{name}-tiny" for name in every.SIMULATIONS if name not in ("crashes", "shared-log")]
NAMES = [*every.SIMULATIONS, *_TINY]


@dataclass(slots=True, kw_only=True)
class Batch:
    """Consecutive seeds of one simulation, as they were run."""

    simulation: str
    commit: str = ""
    date: str = ""
    first: int
    seeds: int = 0
    cpu_s: float = 0.0
    failed: list[int] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return self.first + self.seeds - 1

    def take(self, cpu_s: float, reached: dict[str, int]) -> None:
        self.seeds += 1
        self.cpu_s += cpu_s
        for name, count in reached.items():
            self.reached[name] = self.reached.get(name, 0) + count


def results() -> Path:
    """Return the file with the batches of what HEAD has; exits where that has been changed."""
    return RESULTS / f"soak-{state()}.jsonl"


def read(file: Path) -> list[Batch]:
    """Return the batches that were run."""
    return [Batch(**one) for one in read_lines(file)]


def command(name: str, first: int, seeds: int = 1) -> str:
    """Return the command that repeats seeds."""
    more = f" --seeds {seeds}" if seeds > 1 else ""
    return f"PYTHONHASHSEED=0 .venv/bin/python -m tests.running.soak --seed {first}{more} {name}"


# -- running, in a process of its own


def _never_ends(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"a seed takes more than {SEED_S_MAX:.0f} s of CPU")


def run(name: str, first: int, seeds: int, seconds: float, out: Connection | None = None) -> int:
    """Run seeds one after the other until the time is over; return how many have failed.

    `out` is told of each as it begins and ends.
    """
    signal.signal(signal.SIGPROF, _never_ends)
    failed, end = 0, time.process_time() + seconds
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        simulation = every.prepared(name, patch, Path(directory))
        for seed in range(first, first + seeds):
            begun, reached, fault = time.process_time(), dict[str, int](), ""
            if out is not None:
                out.send(seed)
            signal.setitimer(signal.ITIMER_PROF, SEED_S_MAX)
            try:
                reached = dict(simulation(seed))
            except BaseException:
                fault = traceback.format_exc()
                failed += 1
            signal.setitimer(signal.ITIMER_PROF, 0)
            if out is None:
                click.echo(f"{name} {seed}: {fault or 'holds'}")
            else:
                out.send((time.process_time() - begun, reached, fault))
            for path in Path(directory).iterdir():
                shutil.rmtree(path, ignore_errors=True)
            if time.process_time() > end:
                break
    return failed


class Running:
    """A batch in a process, and what is heard of it."""

    def __init__(self, name: str, seeds: int, seconds: float) -> None:
        self.batch = Batch(simulation=name, first=random.SystemRandom().randrange(_SEED_MAX))
        self.seed = self.batch.first
        context = multiprocessing.get_context("fork")
        self.heard, out = context.Pipe(duplex=False)
        self._process = context.Process(
            target=run, args=(name, self.batch.first, seeds, seconds, out), daemon=True
        )
        self._process.start()
        out.close()

    def hear(self) -> bool:
        """Take the next that it says; return whether there may be more."""
        try:
            said = self.heard.recv()
        except EOFError:
            self._process.join()
            if self._process.exitcode:
                self._fails(f"the process ended with {self._process.exitcode}")
            return False
        if isinstance(said, int):
            self.seed = said
            return True
        cpu_s, reached, fault = said
        self.batch.take(cpu_s, reached)
        if fault:
            self._fails(fault)
        return True

    def _fails(self, fault: str) -> None:
        name, first = self.batch.simulation, self.batch.first
        self.batch.failed.append(self.seed)
        click.echo(f"{name} {self.seed} FAILS\n{fault}\n{command(name, self.seed)}")
        if self.seed > first:
            click.echo(f"if not alone: {command(name, first, self.seed - first + 1)}")


# -- the record


@dataclass(slots=True)
class Total:
    """The seeds of one simulation, of all batches."""

    seeds: int = 0
    cpu_s: float = 0.0
    failed: list[int] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    commit: str = ""
    date: str = ""

    def missing(self, name: str) -> list[str]:
        """Return the conditions that were not reached, where enough seeds have run."""
        if self.seeds < ENOUGH:
            return []
        return [one for one in REACHED.get(name, ()) if not self.reached[one]]


def totals(batches: list[Batch]) -> dict[str, Total]:
    """Return the sums by simulation, in the order of `NAMES`."""
    found = {name: Total() for name in NAMES}
    for batch in batches:
        total = found.setdefault(batch.simulation, Total())
        total.seeds += batch.seeds
        total.cpu_s += batch.cpu_s
        total.failed += batch.failed
        total.reached.update(batch.reached)
        total.commit, total.date = batch.commit, batch.date
    return found


def tables(found: dict[str, Total]) -> list[str]:
    """Return the lines of two tables: seeds, and conditions."""
    lines = [
        "| simulation | seeds | failed | CPU of one, ms | CPU of 10,000, h | commit | date |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for name, total in found.items():
        if total.seeds:
            each_s = total.cpu_s / total.seeds
            failed = f"**{len(total.failed)}**" if total.failed else "0"
            lines.append(
                f"| {name} | {total.seeds:,} | {failed} | {1000 * each_s:.0f} "
                f"| {each_s * 10_000 / 3600:.1f} | {total.commit} | {total.date} |"
            )
    lines += ["", "| simulation | how often which condition was reached |", "|---|---|"]
    for name, conditions in REACHED.items():
        if not found[name].seeds:
            continue
        reached = found[name].reached
        told = (f"{one} {reached[one]:,}" if reached[one] else f"**{one} 0**"
                for one in conditions)  # fmt: skip
        lines.append(f"| {name} | {' · '.join(told)} |")
    return lines


def shown() -> list[str]:
    """Return the tables of what was done on this code; none where nothing was."""
    batches = read(results())
    return tables(totals(batches)) if batches else []


def soak(minutes: float, seeds: int, jobs: int, names: list[str]) -> dict[str, Total]:
    """Run batches in turn until the time is over or each simulation has had so many seeds."""
    RESULTS.mkdir(exist_ok=True)
    record, end = results(), time.monotonic() + 60 * minutes
    commit, found = head(), totals(read(record))
    under_way: Counter[str] = Counter()
    running: dict[Connection, Running] = {}
    turns = cycle(names)
    gc.freeze()

    def start() -> None:
        left_s = end - time.monotonic()
        for name in (next(turns) for _ in names):
            left = seeds - found[name].seeds - under_way[name]
            if left > 0 and left_s > 0:
                started = Running(name, left, min(BATCH_S, max(1.0, left_s)))
                under_way[name] += left
                started.batch.commit = commit
                started.batch.date = datetime.now(UTC).strftime("%Y-%m-%d")
                running[started.heard] = started
                return

    for _ in range(jobs):
        start()
    while running:
        for heard in wait(list(running)):
            assert isinstance(heard, Connection)
            one = running[heard]
            if one.hear():
                continue
            del running[heard]
            del under_way[one.batch.simulation]
            with record.open("a") as file:
                file.write(json.dumps(asdict(one.batch)) + "\n")
            found = totals(read(record))
            start()
    return found


@click.command()
@click.option("--minutes", type=float, default=60.0, show_default=True)
@click.option("--seeds", type=int, help="The most of each simulation on this code: 10,000.")
@click.option("--seed", type=int, help="Run this seed, and --seeds of them from there on.")
@click.option("--jobs", type=int, default=2, show_default=True, help="Processes side by side.")
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
def main(
    minutes: float, seeds: int | None, seed: int | None, jobs: int, names: tuple[str, ...]
) -> None:
    """Run fresh seeds of simulations, all or those of NAMES."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("set PYTHONHASHSEED=0: the order of sets is a part of a seed's history")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if seed is not None:
        sys.exit(sum(run(name, seed, seeds or 1, float("inf")) for name in names) > 0)
    found = soak(minutes, seeds or 10_000, jobs, list(names) or NAMES)
    click.echo("\n".join(tables(found)))
    missing = [f"{name}: {one}" for name, total in found.items() for one in total.missing(name)]
    if missing:
        click.echo("\n  ".join(("never reached:", *missing)))
    if missing or any(total.failed for total in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
