"""One wheel, in an environment of its own: it serves, and what it brings along is told."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kproxy import __version__
from tests.harness import ROOT, eventually, free_port

EPOCH = "1700000000"
SBOM = ROOT / "tools" / "sbom.py"


def run(*command: str | Path, directory: Path | None = None, given: str = "") -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KPROXY"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=directory, input=given, capture_output=True,
        text=True, timeout=600, check=False, env=environment | {"SOURCE_DATE_EPOCH": EPOCH},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of the commit that is there."""
    archive = tmp_path_factory.mktemp("commit") / "source.tar"
    run("git", "archive", "-o", archive, "HEAD", directory=ROOT)
    return archive


def build(archive: Path, directory: Path) -> Path:
    """Build a wheel from a copy of its own."""
    source = directory / "source"
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory, source)
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(archive, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment that has the wheel and what it asks for."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", directory)
    constraints = ROOT / "constraints.txt"
    run(directory / "bin" / "pip", "install", "-q", "-c", constraints, f"{wheel}[console]")
    return directory / "bin"


@contextmanager
def served(programs: Path, directory: Path) -> Iterator[str]:
    """Serve by the installed command, and end it as an operator does."""
    address = f"127.0.0.1:{free_port()}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "kproxy", "serve", "--listen", address, "--data-dir", directory / "data"],
            cwd=directory, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        health = [programs / "kproxy", "health", "--listen", address]
        eventually(lambda: subprocess.run(health, check=False, capture_output=True).returncode == 0)
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(30)


def test_it_serves(environment: Path, tmp_path: Path) -> None:
    kproxy = environment / "kproxy"
    assert run(kproxy, "--version", directory=tmp_path).split()[-1] == __version__
    for expected in ("hello\n", "hello\nhello\n"):  # the second time on the data of the first
        with served(environment, tmp_path) as address:
            at = ("--bootstrap-server", address)
            run(kproxy, "produce", "q", *at, directory=tmp_path, given="hello\n")
            assert run(kproxy, "consume", "q", *at, directory=tmp_path) == expected
            assert "q" in run(kproxy, "queues", *at, directory=tmp_path)


def test_the_same_commit_gives_the_same_bytes(archive: Path, wheel: Path, tmp_path: Path) -> None:
    again = build(archive, tmp_path)
    assert again.name == wheel.name == f"kproxy-{__version__}-py3-none-any.whl"
    digests = {hashlib.sha256(one.read_bytes()).hexdigest() for one in (wheel, again)}
    assert len(digests) == 1


def test_a_document_names_all_that_it_brings(environment: Path) -> None:
    told = [json.loads(run(environment / "python", "-I", SBOM)) for _ in range(2)]
    assert told[0] == told[1]
    document: dict[str, Any] = told[0]
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/kproxy@{__version__}"
    listed = run(environment / "pip", "list", "--format=json")
    installed = {
        one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(listed)
    }
    found = {one["purl"].split("/")[1].split("@")[0]: one["version"]
             for one in document["components"]}  # fmt: skip
    tools = {"pip", "setuptools", "wheel", "kproxy"}
    assert found == {name: v for name, v in installed.items() if name not in tools}
    needs = {one["ref"]: one["dependsOn"] for one in document["dependencies"]}
    mine = needs[f"pkg:pypi/kproxy@{__version__}"]
    assert {"pkg:pypi/kio", "pkg:pypi/starlette"} <= {one.split("@")[0] for one in mine}
    references = {one["bom-ref"] for one in document["components"]}
    assert {ref for refs in needs.values() for ref in refs} <= references
    assert all(one.get("licenses") for one in document["components"] if one["name"] == "kio")
