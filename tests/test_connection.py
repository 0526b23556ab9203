"""A connection and its transport: what depends on the order within one turn of the loop."""

import asyncio
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from kproxy import connection
from kproxy.protocol.codec import encode_request
from tests.fakes import memory_worker


class House:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def admit(self, one: connection.Connection) -> bool:
        self.tasks.append(asyncio.get_running_loop().create_task(one.run()))
        return True

    def left(self, one: connection.Connection) -> None:
        pass


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("size", [10, 5 << 20])
def test_an_answer_is_ready_in_the_turn_the_client_leaves(
    monkeypatch: pytest.MonkeyPatch, new_loop: Any, size: int
) -> None:
    """Its answer goes nowhere, and that is no fault. Seen as consumers of many queues left."""

    async def leave() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def answer(*_: object) -> bytes:
            asked.set()
            await answered.wait()
            return bytes(size)

        monkeypatch.setattr(connection, "answer", answer)
        house, made = House(), []

        def make() -> connection.Connection:
            made.append(connection.Connection(memory_worker(), house))
            return made[0]

        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(encode_request(18, 0, 1, {}))
        await asked.wait()
        made[0].abort()
        answered.set()
        await asyncio.wait_for(house.tasks[0], 5)
        writer.close()
        server.close()

    with capture_logs() as lines, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(leave())
    assert not lines
