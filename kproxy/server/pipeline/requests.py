"""The order of one connection's requests and answers, without I/O.

Theory of operation. Bytes come in by `data_received`; whole frames become requests by
`Actions.accept`, and answers leave by `Actions.send`. The pipeline opens no socket, reads no clock
and starts no task, so a test plays every order of events against it.

Order. Answers leave in the order of their requests. A request is of one of two kinds:

- An *overlapping* request (a Produce) is under way as soon as it is accepted, and the log calls
  back when it is settled. Many are under way at once. All that settle in one turn of the loop
  leave in one write: `settle` asks for `flush` in the next turn. No request has a task of its own
  (measured: one step of a task costs more than the rest of a small Produce).
- An *exclusive* request (any other) begins when all before it are answered, and nothing behind it
  is accepted until it is answered. Kafka takes one request of a connection at a time. The shell
  answers it, and then calls `answered`. Arrivals behind it are signalled, so that a long poll can
  end: Spark asks for offsets behind each Fetch.

Bounds. A connection has at most `in_flight_max` requests accepted. Frames behind them wait, and the
socket is not read meanwhile. The bytes of frames are counted in the memory that all connections
share. If that has no room, the socket is not read until there is some; a frame that has begun is
read to its end, up to twice the limit, of which nobody has all. While the client does not read, no
answer is made.

A client that is to wait (quotas) is *muted*: nothing more of it is accepted before that is over,
and its socket is not read, but for a frame that has begun. A request that comes from one who is to
wait already is *held*: it waits among the frames.

States. A connection is OPEN, then DRAINING (no more input is taken, what was accepted is
answered), then CLOSED (nothing leaves any more, the socket is closing or gone). A malformed request
goes from any state to CLOSED: answers that are ready leave first.

Callers. The transport calls `data_received` (or fills `room`), `pause_writing`, `resume_writing`,
`end_input` and `lost`; the log `settle`; the loop `flush`; who answers exclusive requests
`answered` and `fail`.
Actions may call back at once: `accept` may settle a request before it returns.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from kproxy.common.memory_budget import MemoryBudget
from kproxy.protocol.frames import SHORTEST_REQUEST_BYTES, Frame, FrameAssembler
from kproxy.protocol.varint import Malformed
from kproxy.server.pipeline.actions import Actions, Held, NextRequest, PipelinedRequest

Data = TypeVar("Data")


class Phase(Enum):
    """The state of a connection."""

    OPEN = auto()
    DRAINING = auto()
    CLOSED = auto()


class Exclusive(Enum):
    """The exclusive request: nothing is accepted behind it."""

    NONE = auto()
    WAITING = auto()  # for the answers before it
    BEGUN = auto()
    MUTED = auto()  # there is none, and the client is to wait


class RequestPipeline:
    """One connection's requests. `memory` counts the bytes of their frames."""

    __slots__ = (
        "_actions", "_assembler", "_exclusive", "_flush_asked", "_frames", "_in_flight_max",
        "_memory", "_muted", "_next", "_phase", "_pumping", "_reading", "_requests", "_unfinished",
        "_writable",
    )  # fmt: skip

    def __init__(
        self, actions: Actions, next_request: NextRequest, memory: MemoryBudget, *,
        frame_bytes_max: int, in_flight_max: int,
    ) -> None:  # fmt: skip
        self._actions = actions
        self._next = next_request
        self._memory = memory
        self._in_flight_max = in_flight_max
        self._assembler = FrameAssembler(frame_bytes_max)
        self._unfinished = 0  # bytes of a frame that is not whole yet
        self._frames: deque[Frame] = deque()  # whole, not accepted yet
        self._requests: deque[PipelinedRequest] = deque()  # accepted, not answered yet
        self._exclusive = Exclusive.NONE
        self._phase = Phase.OPEN
        self._reading = self._writable = True
        self._flush_asked = self._pumping = self._muted = False

    def expect(self, frame_bytes_max: int, shortest: int = SHORTEST_REQUEST_BYTES) -> None:
        """Take frames of another size from the next one on."""
        self._assembler.expect(frame_bytes_max, shortest)

    def hold_in(self, memory: MemoryBudget) -> None:
        """Count its frames elsewhere from now on: it is known whose they are."""
        held = self._unfinished + sum(map(len, self._frames))
        held += sum(request.size for request in self._requests)
        before, self._memory = self._memory, memory
        memory.take(held)
        before.wait_no_more(self._take)
        before.give_back(held)

    @property
    def closed(self) -> bool:
        return self._phase is Phase.CLOSED

    @property
    def idle(self) -> bool:
        """Whether no request waits for its answer."""
        return not self._requests

    @property
    def reading(self) -> bool:
        """Whether the socket is read: else nobody is told that its client leaves."""
        return self._reading

    @property
    def muted(self) -> bool:
        return self._muted

    @property
    def inside_frame(self) -> bool:
        return self._unfinished > 0 and not self._muted

    # -- events

    def room(self) -> memoryview | None:
        """Return where the next bytes can be put, or None: give them to `data_received`."""
        return self._assembler.room()

    def room_filled(self, count: int) -> None:
        """Take so many bytes that came and were put into `room`."""
        self._received(self._assembler.filled, count)

    def data_received(self, data: bytes | memoryview) -> None:
        """Take bytes that came; the rest of a frame is copied."""
        self._received(self._assembler.feed, data)

    def _received(self, take: Callable[[Data], list[Frame]], what: Data) -> None:
        assembler, memory = self._assembler, self._memory
        try:
            frames = take(what)
            buffered = assembler.buffered_bytes
            if buffered != self._unfinished:
                self._note_unfinished(buffered)
        except Malformed as error:
            self.fail(error)
            return
        if frames:
            memory.take(sum(map(len, frames)))
            self._frames += frames
            self._take()

    def settle(self, request: PipelinedRequest) -> None:
        """Note that an overlapping request is durable or refused."""
        request.settled = True
        if not self._flush_asked and not self.closed:
            self._flush_asked = True
            self._actions.flush_soon()

    def flush(self) -> None:
        self._flush_asked = False
        self._advance()

    def answered(self) -> None:
        """Go on after the exclusive request's answer was handed to the transport."""
        self._exclusive = Exclusive.MUTED if self._muted else Exclusive.NONE
        self._memory.give_back(self._requests.popleft().size)
        if self._muted and not self._unfinished:
            self._pause_reading()
        self._advance()

    def mute(self) -> None:
        """Accept nothing more before `unmute`. Accepted requests are answered."""
        self._muted = True
        if self._exclusive is Exclusive.NONE:
            self._exclusive = Exclusive.MUTED

    def unmute(self) -> None:
        self._muted = False
        if self._exclusive is Exclusive.MUTED:
            self._exclusive = Exclusive.NONE
        if not self.closed:
            self._take()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._advance()

    def end_input(self) -> None:
        """End the input; sent requests are still answered, at once where they wait."""
        if self._phase is Phase.OPEN:
            self._phase = Phase.DRAINING
        self._next.arrive()
        self._close_when_drained()

    def stop(self) -> None:
        """Accept no more; what was accepted is still answered."""
        unused = sum(map(len, self._frames))
        self._frames.clear()
        self._memory.give_back(unused)
        self._pause_reading()
        self.end_input()

    def fail(self, error: Exception) -> None:
        """End the connection; what was ready by then is sent, unless the client does not read.

        Not for one that is closed already.
        """
        self._actions.report(error)
        try:
            self._send_settled()
        except Exception as another:
            if not isinstance(another, Malformed):
                self._actions.report(another)
        self._phase = Phase.CLOSED
        if self._writable:
            self._actions.close()
        else:
            self._actions.abort()

    def lost(self) -> None:
        """Let everything go when the socket is gone, so that no cycle of objects is left."""
        self._phase = Phase.CLOSED
        held = sum(map(len, self._frames)) + sum(request.size for request in self._requests)
        self._frames.clear()
        self._requests.clear()
        self._memory.wait_no_more(self._take)
        self._memory.give_back(self._unfinished + held)
        self._unfinished = 0
        del self._actions

    # -- in

    def _note_unfinished(self, count: int) -> None:
        if count > self._unfinished:
            self._memory.take(count - self._unfinished)
        else:  # nothing is given back that is taken again: who waits would be told of room
            self._memory.give_back(self._unfinished - count)
        self._unfinished = count
        if count and self._memory.exhausted:
            raise Malformed("request memory is used up (request_bytes_buffered_max)")

    def _take(self) -> None:
        """Accept frames while that is allowed; read on once none waits."""
        if self._pumping:
            return  # called back by what is under way, which goes on here itself
        self._pumping = True
        try:
            self._accept_frames()
        except Exception as error:
            self.fail(error)
            return
        finally:
            self._pumping = False
        if self.closed:
            return
        if self._frames or self._phase is Phase.DRAINING:
            self._pause_reading()
            self._close_when_drained()
        elif self._muted and not self._unfinished:
            self._pause_reading()
        elif self._unfinished or self._memory.has_room:
            if not self._reading:
                self._reading = True
                self._actions.resume_reading()
        else:
            self._pause_reading()
            self._memory.when_room(self._take)

    def _accept_frames(self) -> None:
        frames, requests = self._frames, self._requests
        while frames and not self.closed:
            if self._exclusive is not Exclusive.NONE:
                self._next.arrive()
                return
            if len(requests) >= self._in_flight_max:
                return
            if self._phase is Phase.OPEN:
                self._next.reset()
            frame = frames.popleft()
            try:
                request = self._actions.accept(frame)
            except Held:
                frames.appendleft(frame)
                continue
            except Exception:
                self._memory.give_back(len(frame))
                raise
            requests.append(request)
            if request.exclusive:
                self._exclusive = Exclusive.WAITING
                self._send_and_begin()
            else:
                request.add_done_callback(partial(self.settle, request))

    def _pause_reading(self) -> None:
        if self._reading and not self.closed:
            self._reading = False
            self._actions.pause_reading()

    def _close_when_drained(self) -> None:
        if self._phase is Phase.DRAINING and not self._requests and not self._frames:
            self._phase = Phase.CLOSED
            self._actions.close()

    # -- out

    def _advance(self) -> None:
        """Answer from the front what can be, then accept what waits behind."""
        if self._pumping or self.closed:
            return
        self._pumping = True
        try:
            self._send_and_begin()
        except Exception as error:
            self.fail(error)
            return
        finally:
            self._pumping = False
        if self._frames or not self._reading or self._phase is Phase.DRAINING:
            self._take()

    def _send_and_begin(self) -> None:
        self._send_settled()
        if self._exclusive is Exclusive.WAITING and self._writable:
            first = self._requests[0]
            if first.exclusive:
                self._exclusive = Exclusive.BEGUN
                self._actions.begin(first)

    def _send_settled(self) -> None:
        """Send the answers that are ready, also where the next one ends the connection."""
        requests = self._requests
        frames, sizes = [], 0
        try:
            while requests and self._writable and requests[0].settled:
                frame = requests[0].response()
                if frame is not None:
                    frames.append(frame)
                sizes += requests.popleft().size
        finally:
            if frames:
                self._actions.send(frames)
            if sizes:
                self._memory.give_back(sizes)
