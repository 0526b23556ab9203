"""One order of events played against a request pipeline, and what must hold after each."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kproxy.common.memory_budget import MemoryBudget
from kproxy.protocol.varint import Malformed
from kproxy.server.pipeline.actions import Held, PipelinedRequest
from kproxy.server.pipeline.requests import Exclusive, Phase, RequestPipeline
from tests.present import present

MEMORY_BYTES = 1000
IN_FLIGHT_MAX = 2


@dataclass(frozen=True)
class Case:
    """The requests of a client, by letters, and other events, each once, at any time.

    o: overlapping; O: settled as it is accepted; n: overlapping and not answered; x: exclusive;
    m: refused as it is accepted; r: overlapping, its response raises; e: exclusive, it fails;
    b: exclusive, a bug; q: overlapping, and muted as it is accepted; h: overlapping, and held
    once: its client is to wait already. `mute` happens while an
    exclusive one is answered; who is muted may always be unmuted. A `|` ends what arrives at once,
    a `/` cuts a frame in the middle.
    """

    requests: str
    happens: tuple[str, ...] = ()


@dataclass
class Fake:
    """A request that was accepted."""

    kind: str
    number: int
    size: int
    settled: bool = False
    callback: Callable[[], None] | None = None

    @property
    def exclusive(self) -> bool:
        return self.kind in "xeb"

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        if self.kind == "O":
            callback()

    def response(self) -> bytes | None:
        assert self.settled
        if self.kind == "r":
            raise Malformed("acks=0 failed")
        return None if self.kind == "n" else b"%d" % self.number


@dataclass
class Play:
    """One order of events; an implementation of the pipeline's actions that checks each."""

    case: Case
    make: type[RequestPipeline] = RequestPipeline
    sent: list[int] = field(default_factory=list)
    accepted: list[Fake] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # close or abort
    reports: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = MemoryBudget(MEMORY_BYTES)
        self.pipeline = self.make(
            self, self, self.memory, frame_bytes_max=100, in_flight_max=IN_FLIGHT_MAX
        )
        self.chunks = deque(chunks_of(self.case.requests))
        self.kinds = [letter for letter in self.case.requests if letter not in "|/"]
        self.to_happen = list(self.case.happens)
        self.reading = self.writable = True
        self.flush_asked = self.arrived = self.gone = self.ended = self.muted = False
        self.held: set[int] = set()
        self.elsewhere = 0  # memory that other connections have
        self.unfinished = 0
        self.begun: Fake | None = None

    # -- actions

    def accept(self, frame: bytes) -> PipelinedRequest:
        assert not self.ends, "accepted after the end"
        assert not self.begun, "accepted behind an exclusive request"
        assert not self.muted, "accepted while it is muted"
        kind, number = chr(frame[0]), frame[1]
        assert number == len(self.accepted), "accepted out of order"
        waiting = [one for one in self.accepted if one.number not in self.done]
        assert len(waiting) < IN_FLIGHT_MAX
        assert not any(one.exclusive for one in waiting)
        if kind == "m":
            raise Malformed("no such API")
        if kind == "h" and number not in self.held:
            self.held.add(number)
            self.muted = True
            self.pipeline.mute()
            raise Held
        if kind == "q":
            self.muted = True
            self.pipeline.mute()
        self.accepted.append(Fake(kind, number, len(frame)))
        return self.accepted[-1]

    def begin(self, request: PipelinedRequest) -> None:
        assert self.begun is None
        assert isinstance(request, Fake)
        assert request.exclusive
        assert self.writable, "begun while the client does not read"
        assert self.done >= set(range(request.number)), "begun before all others are answered"
        self.begun = request

    def flush_soon(self) -> None:
        assert not self.flush_asked
        self.flush_asked = True

    def send(self, frames: list[bytes]) -> None:
        assert frames
        assert self.writable
        assert not self.ends
        self.sent += [int(frame) for frame in frames]

    def pause_reading(self) -> None:
        assert self.reading
        assert not self.ends
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        assert not self.ends
        self.reading = True

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    def report(self, error: Exception) -> None:
        self.reports.append(error)

    def arrive(self) -> None:
        self.arrived = True

    def reset(self) -> None:
        self.arrived = False

    # -- events

    @property
    def done(self) -> set[int]:
        """The requests that were answered, or need no answer and are settled before something
        answered.
        """
        found: set[int] = set()
        for one in self.accepted:
            unanswered = one.kind == "n" and one.settled and found >= set(range(one.number))
            if unanswered or one.number in self.sent:
                found.add(one.number)
        return found

    def enabled(self) -> list[str]:
        """Return the events that may happen next."""
        if self.gone:
            return ["flush"] if self.flush_asked else []
        found = [f"settle {one.number}" for one in self.accepted if self._may_settle(one)]
        if self.flush_asked:
            found.append("flush")
        if self.begun:
            found.append("answered")
        if self.chunks and self.reading and not self.ended and not self.ends:
            found.append("receive")
        if not self.writable:
            found.append("resume")
        if self.elsewhere:
            found.append("room")
        if self.muted:
            found.append("unmute")
        return found + [name for name in self.to_happen if self._may_happen(name)]

    def _may_happen(self, name: str) -> bool:
        if name == "mute":
            return self.begun is not None and not self.pipeline.closed
        return name != "end" or not self.ends

    def _may_settle(self, one: Fake) -> bool:
        return not one.exclusive and not one.settled and one.callback is not None

    def step(self, event: str) -> None:
        name, _, number = event.partition(" ")
        if name in self.to_happen:
            self.to_happen.remove(name)
        self.run(name, int(number or 0))
        self.check()

    def run(self, name: str, number: int) -> None:
        pipeline = self.pipeline
        match name:
            case "receive":
                pipeline.data_received(self.chunks.popleft())
            case "settle":
                present(self.accepted[number].callback)()
            case "flush":
                self.flush_asked = False
                pipeline.flush()
            case "answered":
                self._answered()
            case "pause":
                self.writable = False
                pipeline.pause_writing()
            case "resume":
                self.writable = True
                pipeline.resume_writing()
            case "full" | "overfull":
                self.elsewhere = (MEMORY_BYTES + 1) * (1 if name == "full" else 3)
                self.memory.take(self.elsewhere)
            case "room":
                count, self.elsewhere = self.elsewhere, 0
                self.memory.give_back(count)
            case "mute":
                self.muted = True
                pipeline.mute()
            case "unmute":
                self.muted = False
                pipeline.unmute()
            case "end":
                self.ended = True
                pipeline.end_input()
            case "stop":
                self.ended = True
                pipeline.stop()
            case "lost":
                self.gone = True
                pipeline.lost()

    def _answered(self) -> None:
        """Do as the shell does: nothing more of a connection that has ended."""
        one, self.begun = self.begun, None
        assert one is not None
        if self.pipeline.closed:
            return
        if one.kind == "x":
            self.sent.append(one.number)
            self.pipeline.answered()
        else:
            self.pipeline.fail(Malformed("no") if one.kind == "e" else RuntimeError("a bug"))

    # -- what must hold

    def check(self) -> None:
        """Check after each event."""
        answered = [one.number for one in self.accepted if one.kind != "n"]
        assert self.sent == answered[: len(self.sent)], "out of order, or twice"
        assert len(self.ends) <= 1
        pipeline = self.pipeline
        if self.gone:
            assert self.memory.used == self.elsewhere, "memory is not given back"
            return
        held = pipeline._unfinished + sum(map(len, pipeline._frames))
        held += sum(request.size for request in pipeline._requests)
        assert self.memory.used == held + self.elsewhere, "memory is not counted"
        assert pipeline.closed == bool(self.ends)
        if pipeline.closed:
            return
        if self.ended or (pipeline._frames and pipeline._exclusive is not Exclusive.NONE):
            assert self.arrived, "a long poll is not told"
        if pipeline._frames:
            assert not self.reading, "reads on while frames wait"
        elif pipeline._phase is Phase.OPEN and self.memory.has_room and not self.muted:
            assert self.reading, "does not read on"

    def check_end(self) -> None:
        """Check once nothing more can happen."""
        if self.gone:
            return
        if self.ends:
            self._check_ended()
            return
        assert not self.chunks, "stuck: it does not read"
        assert [one.kind for one in self.accepted] == self.kinds, "stuck: not accepted"
        assert self.done == set(range(len(self.kinds))), "stuck: not answered"
        assert self.memory.used == 0

    def _check_ended(self) -> None:
        faulty = [number for number, kind in enumerate(self.kinds) if kind in "mreb"]
        bug = any(self.kinds[number] == "b" for number in faulty)
        assert any(not isinstance(error, Malformed) for error in self.reports) <= bug
        if not self.reports:
            assert self.ended, "ended without a reason"
            assert self.done == {one.number for one in self.accepted}
            assert self.ends == ["close"]


def chunks_of(requests: str) -> Iterator[bytes]:
    """Yield the bytes of a case's requests, cut where it says so."""
    chunk, number = b"", 0
    for letter in requests:
        if letter == "|":
            if chunk:
                yield chunk
            chunk = b""
        elif letter == "/":
            yield chunk[:-5]
            chunk = chunk[-5:]
        else:
            chunk += bytes([0, 0, 0, 8]) + letter.encode() + bytes([number]) + bytes(6)
            number += 1
    if chunk:
        yield chunk
