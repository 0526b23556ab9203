"""Transactions of franz-go and sarama (Go), and of kafkajs (Node.js); share groups of franz-go.

Each program, with its client alone: commits three transactions over three queues and aborts two
between them; copies the records of a queue in transactions with its group's offsets, the first of
which it aborts; has a second producer of its id, which fences the first in an open transaction;
and prints what a reader of committed records sees, as JSON.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.calls import create
from tests.clients.shares.members import FLAGS as SHARE_FLAGS
from tests.clients.shares.members import configure, produce, rest
from tests.clients.transactions.calls import UNCOMMITTED, committed_offsets, values
from tests.harness import need, need_program
from tests.workers import Site

pytestmark = pytest.mark.long

FLAGS = ("--group-initial-rebalance-delay-ms", "200", *SHARE_FLAGS)
GO, NODE = Path(__file__).with_name("go"), Path(__file__).with_name("node")
BUILD_S, RUN_S = 600, 120
QUEUES, TRANSACTIONS, EACH, RECORDS, BATCH = 3, 5, 10, 200, 40  # as in the programs
HERE = {"GOTOOLCHAIN": "local"}  # no other Go is fetched


def run(*command: str, directory: Path, seconds: float = RUN_S) -> str:
    done = subprocess.run(
        command, cwd=directory, env=os.environ | HERE, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return done.stdout


def need_version(program: str, argument: str, least: str) -> None:
    """Skip where a program is missing or older than what its programs here name."""
    need_program(program)
    said = run(program, argument, directory=GO.parent).strip()
    newer = version(said) >= version(least)
    need(newer, f"{program} {least} or later; its version is {said}")


def version(text: str) -> list[int]:
    """Return the first two numbers of a version somewhere in a text."""
    return [int(number) for number in re.findall(r"\d+", text)[:2]]


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the Go programs and return their directory."""
    least = re.search(r"^go (\S+)$", (GO / "go.mod").read_text(), re.MULTILINE)
    assert least
    need_version("go", "version", least[1])
    built = tmp_path_factory.mktemp("go")
    run("go", "mod", "download", directory=GO, seconds=BUILD_S)
    run(
        "go", "build", "-p", "1", "-mod=readonly", "-buildvcs=false", "-o", f"{built}/", "./...",
        directory=GO, seconds=BUILD_S,
    )  # fmt: skip
    return built


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the programs and kafkajs."""
    least = json.loads((NODE / "package.json").read_text())["engines"]["node"].removeprefix(">=")
    need_version("node", "--version", f"{least}.0")
    need_program("npm")
    directory = tmp_path_factory.mktemp("node")
    for file in NODE.iterdir():
        shutil.copy(file, directory)
    run("npm", "ci", "--no-audit", "--no-fund", directory=directory, seconds=BUILD_S)
    return directory


def exactly_once(site: Site, queue: str, fenced_error: str, *command: str, directory: Path) -> None:
    names = [f"{queue}-{number}" for number in range(QUEUES)]
    source, target, group = f"{queue}-in", f"{queue}-out", f"{queue}-group"
    create(site.address, *names, source, target)
    seen = json.loads(run(*command, site.address, queue, directory=directory))
    written = {
        number: [f"{number}.{index}" for index in range(EACH)] for number in range(TRANSACTIONS)
    }
    kept = [value for number in range(0, TRANSACTIONS, 2) for value in written[number]]
    copies = [f"out {index}" for index in range(RECORDS)]
    assert seen == {
        "read": {**{name: [*kept, "end"] for name in names}, target: [*copies, "end"]},
        "offset": RECORDS,
        "fenced": fenced_error,
    }
    # The same to librdkafka; and what was aborted had been written.
    assert committed_offsets(site.address, group, [source]) == {source: RECORDS}
    everything = [value for number in written for value in written[number]]
    fenced = {names[0]: ["of the fenced one"]}
    for name in names:
        wanted = [*everything, *fenced.get(name, []), "end"]
        assert [value.decode() for value in values(site.address, name, UNCOMMITTED)] == wanted
    copied = [value.decode() for value in values(site.address, target, UNCOMMITTED)]
    assert copied == [*copies[:BATCH], *copies, "end"]


def test_franz_go(site: Site, queue: str, go: Path) -> None:
    exactly_once(site, queue, "PRODUCER_FENCED", str(go / "franz"), directory=go)


def test_franz_go_in_a_share_group(site: Site, queue: str, go: Path) -> None:
    """The program is go/shares/main.go."""
    create(site.address, queue, partitions=3)
    configure(site.address, queue)
    produce(site.address, queue, [b"%d" % number for number in range(150)], partitions=3)
    seen = json.loads(run(str(go / "shares"), site.address, queue, queue, "150", directory=go))
    assert seen["refused"] == []
    assert seen["most"] <= 5
    assert seen["both"]
    assert seen["counts"] == {
        str(number): [1, 2] if number % 10 == 1 else [1] for number in range(150)
    }
    assert rest(site.address, queue, queue) == []


def test_sarama(site: Site, queue: str, go: Path) -> None:
    exactly_once(site, queue, "PRODUCER_FENCED", str(go / "sarama"), directory=go)


def test_kafkajs(site: Site, queue: str, node: Path) -> None:
    exactly_once(site, queue, "INVALID_PRODUCER_EPOCH", "node", "transactions.js", directory=node)
