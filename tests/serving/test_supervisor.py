"""The supervisor: what its workers are told, and how."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.abc import Process

from kproxy import supervisor
from kproxy.admin_socket.client import asking
from kproxy.config.server import Config
from kproxy.protocol.responses import Broker
from kproxy.server import listener
from kproxy.server.listener import Server
from kproxy.store.directory_lock import wait_unlocked
from kproxy.supervisor import Supervisor
from tests.fakes import memory_worker
from tests.harness import patient, until

WORKER = """
import os, pathlib, sys
line = os.read(0, 1 << 16).decode()
told = pathlib.Path(sys.argv[1], str(os.getpid()))
told.with_suffix(".new").write_text(" ".join(sys.argv) + "\\n" + line)
told.with_suffix(".new").rename(told)
while os.read(0, 4096):
    pass
"""


def config(**more: Any) -> Config:
    return Config(bootstrap_servers="hidden.example:9", workers=3, listen="127.0.0.1:700", **more)


async def test_workers_are_told_their_settings_by_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command line is for all users of the machine to see."""
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-c", WORKER, str(tmp_path)))

    keeper = Supervisor(config(data_dir=tmp_path / "data", advertise="name:800"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.run)
        await until(lambda: sum("." not in name for name in os.listdir(tmp_path)) == 4, 20)
        keeper._stop_all()
    told = {}
    for path in filter(Path.is_file, tmp_path.iterdir()):
        arguments, line = path.read_text().split("\n", 1)
        assert "hidden" not in arguments
        values = json.loads(line)
        assert values["together"] == [["name", 800], ["name", 801], ["name", 802]]
        found = Config(**values["settings"])
        assert (found.bootstrap_servers, found.workers) == ("hidden.example:9", 1)
        told[found.listen] = (found.advertise, found.data_dir)
    assert told == {
        f"127.0.0.1:{700 + i}": (f"name:{800 + i}", tmp_path / "data" / f"worker-{i}")
        for i in range(3)
    }


async def test_a_worker_that_begins_amid_a_stop_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: nobody sent it a signal, and the supervisor waited for it for good."""
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-c", WORKER, str(tmp_path)))
    keeper, begin = Supervisor(config(data_dir=tmp_path / "data")), anyio.open_process

    async def begun(*given: Any, **more: Any) -> Process:
        process = await begin(*given, **more)
        keeper._stop_all()
        return process

    monkeypatch.setattr(anyio, "open_process", begun)
    try:
        with anyio.fail_after(patient(20)):
            await keeper.run()
    finally:
        for process in keeper._processes.values():
            if process.returncode is None:
                process.kill()


async def test_a_stop_does_not_wait_until_a_worker_would_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-c", "raise SystemExit(7)"))
    monkeypatch.setattr(supervisor, "_RESTART_S", 1000.0)
    keeper = Supervisor(config(data_dir=tmp_path / "data"))
    with anyio.fail_after(patient(60)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            await until(lambda: [p.returncode for p in keeper._processes.values()] == [7] * 3, 40)
            keeper._stop_all()


SERVES_ONCE = """
import os, pathlib, sys, time
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + ".")
if len(starts.read_text()) == 1:
    time.sleep(0.5)
elif len(starts.read_text()) == 4:
    os.read(0, 1 << 16), os.read(0, 1)
raise SystemExit(2)
"""


async def test_a_worker_that_has_served_may_refuse_a_later_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: it ended all the others, whose clients it did not keep from anything."""
    (starts := tmp_path / "starts").write_text("")
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-c", SERVES_ONCE, str(starts)))
    monkeypatch.setattr(supervisor, "_STEADY_S", 0.4)
    monkeypatch.setattr(supervisor, "_RESTART_S", 0.01)
    keeper = Supervisor(config(data_dir=tmp_path / "data").model_copy(update={"workers": 1}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.run)
        await until(lambda: len(starts.read_text()) == 4, 60)
        keeper._stop_all()


def test_a_worker_finds_all_its_settings(tmp_path: Path) -> None:
    given = config(kafka_config=tmp_path / "f", sync="interval:7", segment_bytes="1MiB")
    code = (
        "from kproxy.supervisor import instructed; c, t = instructed();"
        "print(c.model_dump_json()); print(t)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=supervisor.instructions(given, 1),
        capture_output=True, check=True,
    )  # fmt: skip
    settings, together = done.stdout.decode().splitlines()
    found = Config(**json.loads(settings))
    assert (found.sync, found.segment_bytes, found.kafka_config) == (
        "interval:7", 1 << 20, tmp_path / "f",
    )  # fmt: skip
    assert together == "[('127.0.0.1', 700), ('127.0.0.1', 701), ('127.0.0.1', 702)]"


def test_a_worker_takes_the_listeners_that_its_supervisor_took() -> None:
    """FAULT: it was told defaults as if somebody had set them, and refused some."""
    listeners = [{"name": "INSIDE", "listen": "127.0.0.1:750"}]
    given = Config(**config().model_dump(exclude_unset=True), listeners=listeners)
    told = json.loads(supervisor.instructions(given, 1))["settings"]
    (found,) = Config(**told).listeners
    assert (found.name, found.listen) == ("INSIDE", "127.0.0.1:751")


def test_a_worker_without_instructions_ends_with_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kproxy", "serve", "--supervised"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "kproxy: the supervisor has gone\n")


class Growing:
    """A cluster in which one more worker serves each time it is looked at."""

    def __init__(self, nodes: list[Broker]) -> None:
        self._nodes = nodes
        self.looks = 0

    @property
    def brokers(self) -> tuple[Broker, ...]:
        self.looks += 1
        return tuple(self._nodes[: self.looks])


@pytest.mark.parametrize(("others", "looks"), [(0, 1), (2, 3)])
async def test_nobody_is_answered_until_those_started_together_serve(
    others: int, looks: int
) -> None:
    worker: Any = memory_worker()
    nodes = [Broker(number, "h", 100 + number) for number in range(5)]
    worker.cluster = Growing(nodes)
    together = [(node.host, node.port) for node in nodes[: others + 1]] if others else ()
    await Server(Config(), together)._wait_for_others(worker)
    assert worker.cluster.looks == looks


async def test_absent_worker_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "_TOGETHER_S", 0.2)
    worker: Any = memory_worker()
    one = Server(Config(), [("nobody", 1)])

    with anyio.fail_after(patient(20)):
        await one._wait_for_others(worker)


async def test_drain_stops_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, "-c", WORKER, str(tmp_path)))
    directory = tmp_path / "data"
    keeper = Supervisor(config(data_dir=directory))

    def drain() -> list[Any]:
        with asking(directory, "drain") as answers:
            return list(answers.progress())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.run)
        with anyio.fail_after(patient(20)):
            await until(lambda: sum("." not in name for name in os.listdir(tmp_path)) == 4)
            assert await to_thread.run_sync(drain) == []
    assert all(process.returncode is not None for process in keeper._processes.values())
    assert wait_unlocked(directory, 5)
