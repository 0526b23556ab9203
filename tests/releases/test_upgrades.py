"""A release and the next under load: forward, back, killed in between, forward for good.

No error reaches a default producer, of librdkafka or Java; nothing is lost, doubled or out of
order. The earlier release is taken from the repository's history.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproxy.virtual.levels import NEWEST
from tests.forked import ROOT
from tests.forked import run_kproxy as kproxy
from tests.harness import Served, free_port, need
from tests.on_kafka.load import JavaLoad, Load
from tests.real_kafka import Kafka
from tests.workers import Workers

pytestmark = [pytest.mark.long, pytest.mark.limit(1800)]

RELEASES = {"0.1.0": "b17567e1", "0.2.0": "8e1da18"}
"""The last commits of releases."""
QUEUES = [f"queue-{number}" for number in range(12)]
JAVA = "java"
_START_S = 100
"""The time that a start may take on a busy machine; a producer gives up after 120."""
Env = dict[str, str] | None
"""The environment in which a kproxy starts: None for this one."""


@pytest.fixture(params=RELEASES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the environment of an earlier release."""
    where, commit = tmp_path / "old", RELEASES[request.param]
    where.mkdir()
    made = subprocess.run(
        ["git", "archive", commit, "kproxy"], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    need(made.returncode == 0, f"commit {commit} of this repository")
    subprocess.run(["tar", "-x", "-C", str(where)], input=made.stdout, check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(where)], check=True)
    return {"PYTHONPATH": str(where), "PYTHONSAFEPATH": "1"}


@contextmanager
def load_on(address: str, directory: Path) -> Iterator[tuple[Load, JavaLoad]]:
    """Yield the load of both producers; check it after the block."""
    with Load(address, QUEUES, 500) as load, JavaLoad(address, JAVA, directory) as java:
        yield load, java
    load.check()
    java.check()


def go_on(load: Load, java: JavaLoad) -> None:
    load.wait_for(1500, 120)
    java.wait_for(300)


def finalize(address: str) -> None:
    done = kproxy("upgrade", "--finalize", "--bootstrap-server", address)
    assert f"level {NEWEST}" in done.stdout or "nothing is left to do" in done.stdout, done.stderr


def begun(workers: Workers) -> Workers:
    """Start those again that ended: 0.1.0 does where a broker does not know a new topic yet."""
    for index, worker in enumerate(workers.workers):
        try:
            worker.wait_ready(_START_S)
        except AssertionError:
            workers.again(index)
    return workers


def swap(workers: Workers, index: int, env: Env, *, kill: bool = False) -> None:
    """Replace a worker by one of another release."""
    before = workers.workers[index]
    if kill:
        before.kill()
        workers.wait_served(60)
    else:
        assert before.stop(200) == 0, "".join(before.raw[-30:])
    assert not before.faults(), before.faults()
    workers.env = env
    workers.again(index).wait_ready(_START_S)
    workers.wait_balanced(_START_S)


def test_workers_go_forward_back_and_forward(
    kafka: Kafka, tmp_path: Path, old: dict[str, str]
) -> None:
    drained = ("--drain-ms-max", "20000")
    workers = begun(Workers(kafka, tmp_path, *drained, count=2, shards=8, env=old))
    with workers.running(_START_S), load_on(workers.address, tmp_path) as (load, java):
        go_on(load, java)
        swap(workers, 0, None)
        go_on(load, java)  # one of each
        swap(workers, 1, None, kill=True)
        go_on(load, java)  # both new, at the old level
        swap(workers, 0, old)
        go_on(load, java)
        swap(workers, 1, old, kill=True)
        go_on(load, java)
        for index in range(2):
            swap(workers, index, None)
        go_on(load, java)
        finalize(workers.address.partition(",")[0])
        go_on(load, java)
        swap(workers, 0, None, kill=True)
        go_on(load, java)


def test_a_server_goes_forward_back_and_forward(tmp_path: Path, old: dict[str, str]) -> None:
    port = free_port()
    server = Served(tmp_path / "data", port=port, env=old).wait_ready(_START_S)
    with load_on(server.address, tmp_path) as (load, java):
        go_on(load, java)
        for env, kill in ((None, False), (old, False), (None, True), (old, True), (None, False)):
            if kill:
                server.kill()
            else:
                assert server.stop() == 0, "".join(server.raw[-30:])
            assert not server.faults(), server.faults()
            server = Served(tmp_path / "data", port=port, env=env).wait_ready(_START_S)
            go_on(load, java)
        finalize(server.address)
        go_on(load, java)
        server.kill()
        server = Served(tmp_path / "data", port=port).wait_ready(_START_S)
        go_on(load, java)
    assert server.stop() == 0
    assert not server.faults()
