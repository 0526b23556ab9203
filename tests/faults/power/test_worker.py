"""The power of a worker's machine is cut: its copy is whole afterwards, or made again."""

import pytest

from tests.faults.power.cuts import run
from tests.faults.power.machine import Machine
from tests.harness import Served, eventually
from tests.real_kafka import Kafka

_CUTS, _CUTS_LONG = 2, 40
_EVER = 1 << 62


def _in_the_log(machine: Machine, at: int) -> int:
    """Say that the cluster has all that was answered, whatever the worker's disk has."""
    return _EVER


@pytest.mark.parametrize("cuts", [_CUTS, pytest.param(_CUTS_LONG, marks=pytest.mark.long)])
def test_no_copy_is_wrong_and_nothing_is_lost(machine: Machine, kafka: Kafka, cuts: int) -> None:
    """FAULT: full segments were never forced to disk: what they held could not be read any more."""
    flags = (
        "--bootstrap-servers", kafka.address, "--topic-prefix", f"power-{cuts}", "--shards", "1",
        "--allow-single-replica",
    )  # fmt: skip

    def serves(server: Served) -> None:
        eventually(lambda: server.served_shards() == {0}, 120)

    run(machine, 1, cuts, *flags, serves=serves, promised=_in_the_log)
