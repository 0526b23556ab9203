"""A TCP relay that does to connections what networks do.

It makes bytes late or slow, loses them one way, cuts a connection off within a frame, refuses, and
forgets connections without a word. It stands before one server, on a thread of its own.
"""

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from enum import Enum
from typing import Any

from tests.harness import free_port

_READ_BYTES = 1 << 16
_PIECES_PER_S = 50
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


class Way(Enum):
    """A direction of a connection."""

    THERE = "to the server"
    BACK = "to the client"


BOTH = (Way.THERE, Way.BACK)


class Frames:
    """A reader of lengths, by which the bytes of one direction are divided into frames."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def starts(self, data: bytes) -> Iterator[int]:
        """Yield where in the next bytes frames begin."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                if not self._head:
                    yield at
                step = min(4 - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                if len(self._head) == 4:
                    self._left, self._head = int.from_bytes(self._head), b""
            at += step


class _Pair:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.forgotten = False

    def ends(self, way: Way) -> tuple[socket.socket, socket.socket]:
        assert self.server is not None
        ends = self.client, self.server
        return ends if way is Way.THERE else ends[::-1]

    def reset(self) -> None:
        for one in (self.client, self.server):
            if one is not None and one.fileno() >= 0:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.close()


class Relay:
    """The relay before a server. Its faults hold for all connections, from any thread."""

    def __init__(self, server_port: int, port: int | None = None) -> None:
        self.port = port or free_port()
        self._server_port = server_port
        self._delay_s = 0.0
        self._bytes_per_s = 0
        self._dropped: set[Way] = set()
        self._refusing = False
        self._cuts: dict[Way, deque[int]] = {way: deque() for way in Way}
        self.made_cuts = 0
        self._pairs: dict[_Pair, asyncio.Task[None]] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        self._on_loop(self._listen)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self._on_loop(self._refuse)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # -- faults

    def delay(self, seconds: float) -> None:
        """Bring what is sent later, each way."""
        self._delay_s = seconds

    def throttle(self, bytes_per_s: int) -> None:
        """Let so little pass of each connection, each way."""
        self._bytes_per_s = bytes_per_s

    def drop(self, *ways: Way) -> None:
        """Lose what is sent these ways, without a word: TCP sends it again once healed.

        Nobody connects meanwhile.
        """
        self._dropped = set(ways)

    def forget(self) -> None:
        """Lose what is sent over the connections that there are, for ever; new ones work."""
        self._on_loop(self._forget)

    def cut(self, way: Way, at: int) -> None:
        """Reset the connection whose next frame begins, behind so many bytes of it."""
        self._cuts[way].append(at)

    def refuse(self) -> None:
        """Reset all connections and take none."""
        self._refusing = True
        self._on_loop(self._refuse)

    def heal(self) -> None:
        """End all that can be ended of these."""
        self._delay_s, self._bytes_per_s, self._dropped = 0.0, 0, set()
        for cuts in self._cuts.values():
            cuts.clear()
        self._on_loop(self._changes)
        if self._refusing:
            self._refusing = False
            self._on_loop(self._listen)

    # -- on the loop

    def _on_loop(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    async def _listen(self) -> None:
        listening = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        listening.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(listening))

    async def _refuse(self) -> None:
        tasks = list(self._pairs.values())
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()  # each closes what is its own
        await asyncio.gather(*tasks, return_exceptions=True)
        for pair in self._pairs:  # their tasks had not begun
            pair.reset()
        self._pairs.clear()

    async def _forget(self) -> None:
        for pair in self._pairs:
            pair.forgotten = True

    async def _changes(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, listening: socket.socket) -> None:
        with listening:
            while True:
                client, _ = await self._loop.sock_accept(listening)
                pair = _Pair(client)
                self._pairs[pair] = self._loop.create_task(self._between(pair))

    async def _between(self, pair: _Pair) -> None:
        try:
            while self._dropped or pair.forgotten:
                await self._changed.wait()
            pair.server = socket.socket()
            pair.server.setblocking(False)
            for one in (pair.client, pair.server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(pair.server, ("127.0.0.1", self._server_port))
            async with asyncio.TaskGroup() as pumps:
                for way in BOTH:
                    pumps.create_task(self._pump(pair, way))
        except* OSError:
            for way in BOTH:  # a reset is lost as all else is
                await self._passable(pair, way)
        finally:
            self._pairs.pop(pair, None)
            pair.reset()

    async def _passable(self, pair: _Pair, way: Way) -> None:
        while way in self._dropped or pair.forgotten:
            await self._changed.wait()

    async def _pump(self, pair: _Pair, way: Way) -> None:
        """Pass on what comes one way. Raises OSError where the connection ends by a reset."""
        source, sink = pair.ends(way)
        frames, left = Frames(), None
        while data := await self._loop.sock_recv(source, _READ_BYTES):
            for start in frames.starts(data):
                if left is None and self._cuts[way]:
                    left = start + self._cuts[way].popleft()
            if left is not None:
                data, left = data[:left], left - len(data)
            await asyncio.sleep(self._delay_s)
            await self._send(pair, way, sink, data)
            if left is not None and left <= 0:
                self.made_cuts += 1
                raise ConnectionResetError
        await self._passable(pair, way)
        sink.shutdown(socket.SHUT_WR)

    async def _send(self, pair: _Pair, way: Way, sink: socket.socket, data: bytes) -> None:
        while data:
            await self._passable(pair, way)
            step = len(data)
            if self._bytes_per_s:
                step = max(1, self._bytes_per_s // _PIECES_PER_S)
            await self._loop.sock_sendall(sink, data[:step])
            data = data[step:]
            if self._bytes_per_s:
                await asyncio.sleep(1 / _PIECES_PER_S)
