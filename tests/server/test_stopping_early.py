"""A server that is told to stop before it serves: it ends at once, whatever it waits for."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from kproxy.config.server import Config
from kproxy.server.listener import Server
from kproxy.shard.shard import Shard
from kproxy.upstream.topics import Topics

SOON_S = 5


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a cluster that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def ends(server: Server, starting: Callable[[], object]) -> None:
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            while not starting():
                await anyio.sleep(0.002)
            server.drain()


async def test_a_worker_ends_while_its_cluster_is_silent(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM was heeded once the cluster answered: never, where it did not."""
    asked: list[int] = []
    prepare = Topics.prepare

    def noted(self: Topics) -> None:
        asked.append(1)
        prepare(self)

    monkeypatch.setattr(Topics, "prepare", noted)
    config = Config(
        data_dir=tmp_path, listen="127.0.0.1:0", bootstrap_servers=silent, http_listen="off"
    )
    await ends(Server(config), lambda: asked)


async def test_a_server_ends_while_it_reads_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: list[Shard] = []

    def recover(self: Shard, check: Any) -> int:
        reading.append(self)
        while True:
            check()

    monkeypatch.setattr(Shard, "recover", recover)
    config = Config(data_dir=tmp_path, listen="127.0.0.1:0", http_listen="off")
    await ends(Server(config), lambda: reading)
