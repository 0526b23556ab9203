"""The whole suite several times, its files in another order each time: `make test-shuffled`.

A test that fails only after some other, or only now and then, shows here. Each run prints its
seed; `pytest --shuffle SEED` has that order again.
"""

import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

RUNS = 5


def failed(report: Path) -> list[str]:
    """Return the tests that a report of pytest says failed."""
    return [
        f"{case.get('classname')}::{case.get('name')}"
        for case in ElementTree.parse(report).iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


def main(arguments: list[str]) -> int:
    """Run the suite and report each test that failed. `arguments` are for pytest."""
    found: dict[str, list[int]] = defaultdict(list)
    broken = []
    for _ in range(RUNS):
        seed = random.randrange(1_000_000)
        print(f"--shuffle {seed}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.xml"
            command = [
                sys.executable, "-m", "pytest", f"--junitxml={report}", f"--shuffle={seed}",
                *arguments,
            ]  # fmt: skip
            status = subprocess.run(command, check=False).returncode
            names = failed(report) if report.exists() else []
        for name in names:
            found[name].append(seed)
        if status and not names:
            broken.append(seed)
    for name, seeds in sorted(found.items(), key=lambda one: -len(one[1])):
        print(f"{len(seeds)} of {RUNS}: {name}, with --shuffle {', '.join(map(str, seeds))}")
    for seed in broken:
        print(f"pytest itself failed with --shuffle {seed}")
    print(f"{len(found)} tests failed in {RUNS} runs")
    return bool(found or broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
