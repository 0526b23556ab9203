"""Everything that the READMEs show on a terminal, run as it stands there."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness import ROOT, SPARK_ENV, SPARK_JARS, need, need_program, served


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
            there = command.replace("127.0.0.1:9092", server.address)
            if "first_read.py" in there:
                there += f" {server.address}"
            elif "spark_examples/" in there:
                there += f" --bootstrap-server {server.address}"
            done = subprocess.run(
                ["bash", "-c", there], capture_output=True, text=True, cwd=here, timeout=120,
                check=False, env={**os.environ, **SPARK_ENV},
            )  # fmt: skip
            assert done.returncode == 0, (command, done.stderr)
            assert done.stdout.rstrip() == expected.rstrip(), (command, done.stderr)
