"""The power of an embedded server's machine is cut again and again, under all kinds of work.

`--sync always` loses nothing that was answered or read; the other modes lose nothing but a tail,
and nothing that a sync of the log covered.
"""

import random

import pytest

from tests.faults.power.cuts import run
from tests.faults.power.disk import NOTHING
from tests.faults.power.machine import Machine
from tests.harness import eventually
from tests.wire import Wire, batch

_CUTS, _CUTS_LONG = 3, 60
_SEEDS = range(1, 6)
_LIVES = 12  # until a mistake must have been seen


def test_nothing_acknowledged_is_lost(machine: Machine) -> None:
    run(machine, 1, _CUTS)


@pytest.mark.long
@pytest.mark.parametrize("seed", _SEEDS)
def test_nothing_acknowledged_is_lost_in_many_cuts(machine: Machine, seed: int) -> None:
    run(machine, seed, _CUTS_LONG)


FORGOTTEN = {
    "a segment": "*/log/*.log",
    "the names of segments": "*/log",
    "the name of the shard": "/data",
    "the name of the log": "*/shard-0",
    "the tables of rows": "*.sst",
    "which tables there are": "*/rows/MANIFEST-*",
    "the names of tables": "*/rows",
}


@pytest.mark.parametrize(
    "what",
    ["a segment", *(pytest.param(one, marks=pytest.mark.long) for one in [*FORGOTTEN][1:])],
)
def test_a_forgotten_fsync_is_seen(machine: Machine, what: str) -> None:
    with pytest.raises(AssertionError):
        run(machine, 1, _LIVES, forgets=(FORGOTTEN[what],), keeps=(NOTHING,))


def _at_sync(machine: Machine, at: int) -> int:
    """Say that all is there that was answered before the last sync of the log began."""
    return machine.log_synced_at


@pytest.mark.long
@pytest.mark.parametrize("sync", ["never", "interval:20"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_only_a_tail_is_lost_without_a_sync(machine: Machine, sync: str, seed: int) -> None:
    run(machine, seed, _CUTS_LONG // 3, "--sync", sync, promised=_at_sync)


def written(machine: Machine, *flags: str) -> int:
    """Write some records, and return the place in the trace where all were answered."""
    server = machine.serve("--rows-flush-ms-max", "60000", "--http-listen", "off", *flags)
    with Wire(server.host, server.port) as wire:
        for number in range(20):
            assert wire.produce("q", batch(b"%d" % number)).error_code == 0
    return machine.now()


def left(machine: Machine) -> int:
    """Cut the power, and return the number of records that are left."""
    machine.cut(machine.end(), NOTHING, random.Random(1))
    server = machine.serve("--http-listen", "off")
    with Wire(server.host, server.port) as wire:
        count = int(wire.list_offset("q", -1).offset)
    assert server.stop() == 0
    return count


def test_an_interval_syncs_without_being_asked(machine: Machine) -> None:
    done = written(machine, "--sync", "interval:50")
    eventually(lambda: machine.play().log_synced_at >= done)
    assert left(machine) == 20


def test_never_loses_so_these_tests_can_fail(machine: Machine) -> None:
    written(machine, "--sync", "never")
    assert left(machine) < 20
