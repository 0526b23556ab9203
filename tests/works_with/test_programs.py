"""kafka-go and watermill (Go), @platformatic/kafka (Node.js) and rsyslog."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.clients.calls import create
from tests.clients.transactions.calls import COMMITTED, values
from tests.harness import eventually, free_port, need_program
from tests.workers import Site
from tests.works_with.programs import BUILD_S, HERE, one_of, run, said

FLAGS = ("--group-initial-rebalance-delay-ms", "200")
RSYSLOG = """
module(load="imtcp")
module(load="omkafka")
input(type="imtcp" port="{port}" address="127.0.0.1")
template(name="plain" type="string" string="%msg%")
action(
  type="omkafka" broker=["{address}"] topic="{queue}" template="plain"
  confParam=["acks=all", "compression.codec=snappy"]
)
"""


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the Go programs and return their directory."""
    need_program("go")
    built = tmp_path_factory.mktemp("go")
    run(
        "go", "build", "-p", "1", "-mod=readonly", "-buildvcs=false", "-o", f"{built}/", "./...",
        directory=HERE / "go", seconds=BUILD_S, GOTOOLCHAIN="local",
    )  # fmt: skip
    return built


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the program and its library."""
    need_program("npm")
    directory = tmp_path_factory.mktemp("node")
    for file in (HERE / "node").iterdir():
        shutil.copy(file, directory)
    run("npm", "ci", "--no-audit", "--no-fund", directory=directory, seconds=BUILD_S)
    return directory


def test_kafka_go(site: Site, queue: str, go: Path) -> None:
    create(site.address, queue)
    assert said(run(str(go / "kafka_go"), one_of(site), queue)) == 100


def test_watermill(site: Site, queue: str, go: Path) -> None:
    create(site.address, queue, f"{queue}-out")
    found = said(run(str(go / "watermill"), one_of(site), queue))
    assert found == {"seen": 50, "failed": True}


def test_platformatic(site: Site, queue: str, node: Path) -> None:
    create(site.address, queue)
    printed = run("node", "platformatic.js", one_of(site), queue, directory=node)
    assert said(printed) == 100


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_rsyslog(site: Site, queue: str, tmp_path: Path) -> None:
    """Lines that come by TCP are records, in their order."""
    program, port = need_program("rsyslogd"), free_port()
    settings = tmp_path / "rsyslog.conf"
    settings.write_text(RSYSLOG.format(port=port, address=one_of(site), queue=queue))
    create(site.address, queue)
    process = subprocess.Popen(
        [program, "-n", "-f", str(settings), "-i", str(tmp_path / "pid")], cwd=tmp_path
    )
    try:
        eventually(lambda: listens(port), 30)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for number in range(50):
                connection.sendall(b"<13>Jan  1 00:00:00 host app: line %d\n" % number)
        expected = [b" line %d" % number for number in range(50)]
        eventually(lambda: values(site.address, queue, COMMITTED) == expected, 60)
    finally:
        process.terminate()
        process.wait(30)
