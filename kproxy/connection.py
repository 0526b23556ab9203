"""One connection: frames in, answers out in request order, everything between bounded.

Produces overlap: each is appended as it arrives, and answered when durable. Any other request
starts when all before it have been answered, and a Produce behind it waits for it, as with Kafka,
which takes one request of a connection at a time. A long poll ends when something waits behind it:
Spark asks for offsets behind each Fetch, and with Kafka waits half a second for each.
"""

from collections import deque
from collections.abc import Callable

import anyio
import structlog
from anyio.abc import SocketStream

from kproxy.config import Config
from kproxy.dispatch import Accepted, accept
from kproxy.protocol.frames import FrameAssembler
from kproxy.protocol.varint import Malformed
from kproxy.worker import Line, Worker

_log = structlog.get_logger()

_RECEIVE_BYTES = 1 << 18
_SEND_BYTES = 1 << 18


def _pause(stream: SocketStream) -> None:
    """Read from the socket only while `receive` waits.

    anyio (4.16) leaves the stream of an accepted connection reading into a queue without a bound
    until a first `receive` has waited; it offers no public way to stop that.
    """
    transport = getattr(stream, "_transport", None)
    if transport is not None:
        transport.pause_reading()


class Connection:
    """Serves one client until it leaves, misbehaves, falls silent or the server stops."""

    def __init__(self, stream: SocketStream, worker: Worker, peer: str) -> None:
        self._stream = stream
        self._worker = worker
        self._config: Config = worker.config
        self._memory = worker.request_memory
        self._peer = peer
        self._host = "/" + peer.rpartition(":")[0]
        self._line: deque[tuple[Accepted, int]] = deque()
        self._unfinished = 0  # bytes of a request that is not whole yet
        self._serial = 0  # of the line, those that do not overlap
        self._behind = Line()
        self._more = anyio.Event()
        self._less = anyio.Event()
        self._ended = False
        self._reading = anyio.CancelScope()
        self._whole = anyio.CancelScope()
        self.active_at = anyio.current_time()
        self._sending_since: float | None = None

    async def run(self) -> None:
        _pause(self._stream)
        with self._whole:
            async with self._stream, anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                with self._reading:
                    await self._guard(self._read)
                self._ended = True
                self._more.set()
        self._memory.give_back(self._unfinished + sum(size for _, size in self._line))
        self._line.clear()

    def stop_reading(self) -> None:
        """Take no more requests; what is in line is still answered."""
        self._reading.cancel()

    def expire(self, now: float) -> None:
        """Called every so often: end a silent connection, or one that does not read."""
        if self._sending_since is not None:
            if (now - self._sending_since) * 1000 > self._config.send_stalled_ms_max:
                _log.warning("client_does_not_read", peer=self._peer)
                self._whole.cancel()
        elif self._unfinished and not self._line:
            if (now - self.active_at) * 1000 > self._config.receive_stalled_ms_max:
                _log.warning("client_stopped_inside_a_request", peer=self._peer)
                self._whole.cancel()
        elif not self._line and (now - self.active_at) * 1000 > self._config.connection_idle_ms_max:
            _log.debug("connection_idle", peer=self._peer)
            self._whole.cancel()

    # -- in

    async def _read(self) -> None:
        frames = FrameAssembler(self._config.frame_bytes_max)
        while True:
            if not frames.buffered_bytes:
                await self._memory.wait_for_room()
            data = await self._stream.receive(_RECEIVE_BYTES)
            self.active_at = anyio.current_time()
            complete = frames.feed(data)
            self._note_unfinished(frames.buffered_bytes)
            for frame in complete:
                await self._take(frame)

    def _note_unfinished(self, count: int) -> None:
        self._memory.give_back(self._unfinished)
        self._memory.take(count)
        self._unfinished = count
        if count and self._memory.exhausted:
            raise Malformed("request memory is used up (request_bytes_buffered_max)")

    async def _take(self, frame: bytes) -> None:
        while len(self._line) >= self._config.in_flight_requests_max:
            await self._wait_for_less(lambda: len(self._line))
        while self._serial:
            self._behind.press()
            await self._wait_for_less(lambda: self._serial)
        self._behind.release()
        accepted = accept(self._worker, frame, self._host, self._behind)
        self._memory.take(len(frame))
        self._line.append((accepted, len(frame)))
        if not accepted.pipelined:
            self._serial += 1
        self._more.set()

    async def _wait_for_less(self, measure: Callable[[], int]) -> None:
        before = measure()
        self._less = anyio.Event()
        if measure() == before:
            await self._less.wait()

    # -- out

    async def _write(self) -> None:
        await self._guard(self._answer_all)
        self._reading.cancel()

    async def _answer_all(self) -> None:
        while True:
            if not self._line:
                if self._ended:
                    return
                self._more = anyio.Event()
                await self._more.wait()
                continue
            accepted, size = self._line[0]
            answer = await accepted.answer()
            if answer is not None:
                await self._send(answer)
            self._line.popleft()
            self._memory.give_back(size)
            if not accepted.pipelined:
                self._serial -= 1
            self.active_at = anyio.current_time()
            self._less.set()

    async def _send(self, answer: bytes | bytearray) -> None:
        self._worker.answer_memory.take(len(answer))
        try:
            await self._send_slices(answer)
        finally:
            self._worker.answer_memory.give_back(len(answer))
            self._sending_since = None

    async def _send_slices(self, answer: bytes | bytearray) -> None:
        self._sending_since = anyio.current_time()
        if len(answer) <= _SEND_BYTES:
            await self._stream.send(answer)  # type: ignore[arg-type]  # any buffer will do
        else:
            view = memoryview(answer)
            for start in range(0, len(view), _SEND_BYTES):
                await self._stream.send(view[start : start + _SEND_BYTES])  # type: ignore[arg-type]
                self._sending_since = anyio.current_time()

    # -- the boundary

    async def _guard(self, step: Callable[[], object]) -> None:
        """A peer's faults end its connection with one log line; ours are logged with a trace."""
        try:
            await step()  # type: ignore[misc]
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except Malformed as error:
            _log.warning("request_refused", peer=self._peer, reason=str(error))
            self._fail()
        except Exception:
            _log.exception("request_failed", peer=self._peer)
            self._fail()

    def _fail(self) -> None:
        self._whole.cancel()
