"""Everything that the README shows on a terminal, run as it stands there."""

import re
import subprocess
from pathlib import Path

from tests.harness import ROOT, SPARK_JARS, need, need_program, served


def sessions() -> list[tuple[str, str]]:
    """(command, expected output) of each console block, in order."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.split("\n")
            command = [lines.pop(0)]
            while lines and lines[0].startswith("> "):
                command.append(lines.pop(0)[2:])
            found.append(("\n".join(command), "\n".join(lines)))
    return found


def test_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    need_program("kcat")
    need_program("java")
    need(SPARK_JARS.exists(), "Spark's Kafka jars: make spark-jars")
    commands = sessions()
    assert len(commands) >= 8
    with served(tmp_path / "data") as server:
        for command, expected in commands:
            here = command.replace("127.0.0.1:9092", server.address)
            if "first_read.py" in here:
                here += f" {server.address}"
            done = subprocess.run(
                ["bash", "-c", here], capture_output=True, text=True, cwd=ROOT, timeout=120,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, (command, done.stderr)
            assert done.stdout.rstrip() == expected.rstrip(), command
