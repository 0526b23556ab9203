"""The counts of `--cpu-table`."""

import subprocess
import sys
import time
from pathlib import Path

from tests.running.cpu import table, tree_cpu

BUSY = "import time\nwhile time.process_time() < 0.5: pass\n"


def test_counts_living_and_ended_descendants(tmp_path: Path) -> None:
    own, before = time.process_time(), tree_cpu()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    ended = tree_cpu()
    assert ended - before > 0.4
    code = BUSY + "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        assert child.stdout.readline()
        assert tree_cpu() - ended > 0.4
        child.communicate(b"\n")
    own = time.process_time() - own
    assert 0.9 < tree_cpu() - before < 2 + own


def test_table_has_folders_by_cost_their_sum_and_starts() -> None:
    costs = {
        "a": {"tests": 1, "wall": 9.0, "cpu": 2.0, "own": 1.0},
        "b": {"tests": 2, "wall": 3.0, "cpu": 5.0, "own": 1.0},
    }
    assert table(costs, {"Kafka": {"count": 2, "cpu": 12.0}})[2:] == [
        "| b | 2 | 3 | 5 | 1 | 0 |",
        "| a | 1 | 9 | 2 | 1 | 7 |",
        "| **all** | 3 | 12 | 7 | 2 | 7 |",
        "| of it Kafka starts | 2 | | 12 | 6.00 each | |",
    ]
