"""Everything that the READMEs show on a terminal, run as it stands there."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import ROOT, SPARK_ENV, SPARK_JARS, need, need_program, served

MILLION, HERE = "1000000", "20000"
"""What README makes of queues, and what is made here."""
_PATIENCE_S = 30


def sessions(readme: str) -> list[tuple[str, str]]:
    """(command, expected output) of each console block, in order."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", (ROOT / readme).read_text(), re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.split("\n")
            command = [lines.pop(0)]
            while lines and lines[0].startswith("> "):
                command.append(lines.pop(0)[2:])
            found.append(("\n".join(command), "\n".join(lines)))
    return found


def only_reads(command: str) -> bool:
    """Whether it may be run again: what it looks for may be on its way."""
    return command.startswith("kcat ") and " -C " in command


@pytest.mark.parametrize(
    ("readme", "least"),
    [("README.md", 8), ("spark_examples/README.md", 8), ("docs/operations.md", 1)],
)
def test_the_readme_prints_what_it_says(tmp_path: Path, readme: str, least: int) -> None:
    need_program("kcat")
    need_program("java")
    need(SPARK_JARS.exists(), "Spark's Kafka jars: make spark-jars")
    commands = sessions(readme)
    assert len(commands) >= least
    here = tmp_path / "checkout"
    here.mkdir()
    for name in (".venv", ".tools", "spark_examples"):
        (here / name).symlink_to(ROOT / name)
    with served(tmp_path / "data") as server:
        for command, expected in commands:
            there = command.replace("127.0.0.1:9092", server.address).replace(MILLION, HERE)
            if "first_read.py" in there:
                there += f" {server.address}"
            elif "spark_examples/" in there:
                there += f" --bootstrap-server {server.address}"
            wanted, until = expected.rstrip().replace(MILLION, HERE), time.monotonic() + _PATIENCE_S
            while True:
                done = run(there, here)
                said = done.stdout.rstrip()
                if said == wanted or not only_reads(command) or time.monotonic() > until:
                    break
            assert done.returncode == 0, (command, done.stderr)
            assert said == wanted, (command, done.stderr)


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=directory, timeout=120,
        check=False, env={**os.environ, **SPARK_ENV},
    )  # fmt: skip
