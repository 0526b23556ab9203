"""The tours of spark_examples as they stand; their jobs share the Spark of these tests."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.harness import ROOT, served
from tests.project.test_readme import MILLION, installed, run, sessions
from tests.spark import jobs

PROGRAM = ".venv/bin/python spark_examples/"
STARTED = {"first_read", "without_spark", "many_queues"}
"""Programs that are no jobs: they start as people start them, and so does the first job."""


def job_of(line: str) -> tuple[str, list[str]]:
    """Return the name and arguments of a line that starts a program of spark_examples."""
    name, *arguments = shlex.split(line.removeprefix(PROGRAM))
    return name.removesuffix(".py"), arguments


@pytest.mark.parametrize(("page", "least"), [("README", 10), ("work", 5)])
def test_the_tour_prints_what_it_says(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, least: int
) -> None:
    commands = sessions(f"spark_examples/{page}.md")
    assert len(commands) >= least
    here = tmp_path / "checkout"
    here.mkdir()
    for name in (".venv", ".tools", "spark_examples"):
        (here / name).symlink_to(ROOT / name)
    monkeypatch.chdir(here)
    started = False
    with served(tmp_path / "data") as server:
        env = installed(tmp_path) | {"KPROXY_BOOTSTRAP_SERVER": server.address}
        for command, expected in commands:
            assert MILLION not in command
            said = []
            command = command.replace("127.0.0.1:9092", server.address)
            for line in [command] if "<<" in command else command.split("\n"):
                name, arguments = job_of(line) if line.startswith(PROGRAM) else ("", [])
                if name and name not in STARTED and started:
                    # Java has a directory of its own.
                    placed = [str(here / a) if a.startswith("work/") else a for a in arguments]
                    placed = [str(ROOT / a) if a.startswith("spark_ex") else a for a in placed]
                    said += jobs.run(name, *placed, server=server.address)
                    continue
                if name not in ("", "without_spark"):
                    line += f" {'--bootstrap-server ' * (name not in STARTED)}{server.address}"
                    started = started or name not in STARTED
                done = run(line, here, env)
                assert done.returncode == 0, (line, done.stderr)
                said += done.stdout.rstrip().splitlines()
            told = [line.replace(f"{here}/", "").rstrip() for line in said]
            assert told == [line.rstrip() for line in expected.splitlines()], command
