"""Lives of a server, each of which ends with a power cut in the midst of work."""

import random
import time
from collections.abc import Callable

from tests.faults.power.disk import Keep
from tests.faults.power.load import actors, check, work
from tests.faults.power.machine import KEEPS, Machine
from tests.harness import Served

FLAGS = (
    "--segment-bytes", "100000", "--rows-flush-ms-max", "100", "--keeper-period-ms", "20",
    "--compaction-check-ms", "100", "--http-listen", "off",
)  # fmt: skip
_BYTES_MAX = 600_000  # that the trace grows by in a life, at most


def at_once(server: Served) -> None:
    """Stand for a wait until a server that is ready serves."""


def at_cut(machine: Machine, at: int) -> int:
    """Say that all is there that was answered before the cut."""
    return at


def run(
    machine: Machine, seed: int, cuts: int, *flags: str, forgets: tuple[str, ...] = (),
    keeps: tuple[Keep, ...] = KEEPS, serves: Callable[[Served], None] = at_once,
    promised: Callable[[Machine, int], int] = at_cut,
) -> None:  # fmt: skip
    """Serve, work, and cut the power, so many times; each start checks what is left.

    `promised`: up to which place of the trace what was answered is to be there after a cut.
    """
    rng = random.Random(seed)
    some = actors(machine.now, rng)
    for life in range(cuts + 1):
        server = machine.serve(*FLAGS, *flags, forgets=forgets)
        serves(server)
        check(server, some)
        if life == cuts:
            break
        threads = work(server, some)
        until = machine.now() + rng.randrange(_BYTES_MAX)
        while machine.now() < until and not any(one.error for one in some):
            assert server.process.poll() is None, "".join(server.raw)
            time.sleep(0.001)
        end = machine.end()
        for thread in threads:
            thread.join(60)
        assert [one.error for one in some if one.error] == []
        at = end if rng.random() < 0.3 else rng.randrange(end)
        machine.cut(at, rng.choice(keeps), rng)
        through = promised(machine, at)
        for one in some:
            one.cut(through)
    assert machine.server.stop() == 0
    assert not machine.server.faults()
