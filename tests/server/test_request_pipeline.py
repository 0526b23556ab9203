"""The pipeline in every order of events, and mistakes planted in it that these orders show."""

import random
from typing import Any

import pytest

from kproxy.common.memory_budget import MemoryBudget
from kproxy.server.pipeline.actions import PipelinedRequest
from kproxy.server.pipeline.requests import Exclusive, Phase, RequestPipeline
from tests.server.play import Case, Play

ORDERS_MAX = 4000  # the most of one case; beyond it, a seeded choice of them


CASES = [
    Case("o|o|o"),
    Case("ooo"),
    Case("oOn|o"),
    Case("o/|o/|x"),
    Case("x|x|x"),
    Case("xxo"),
    Case("o|x|o|x"),
    Case("oxo|x"),
    Case("oooox"),
    Case("o|m|o"),
    Case("oom"),
    Case("o|r|o"),
    Case("o|e|o"),
    Case("ob|o"),
    Case("x|m"),
    Case("o|o", ("pause", "end")),
    Case("oox", ("pause", "end")),
    Case("xo", ("pause", "end")),
    Case("O/|x", ("end",)),
    Case("xx|o", ("end", "stop")),
    Case("o|x", ("stop", "lost")),
    Case("oxo", ("lost", "pause")),
    Case("o|/o", ("full", "end")),
    Case("o|x|o", ("full", "pause")),
    Case("oo|oo", ("full", "stop")),
    Case("or|o", ("pause", "lost")),
    Case("o/|o", ("overfull",)),
    Case("xo|m", ("pause", "end")),
    Case("q|o|x"),
    Case("oqo/|x"),
    Case("qq|qq"),
    Case("x|o", ("mute", "end")),
    Case("xo|x", ("mute", "stop")),
    Case("x|/x|o", ("mute", "lost")),
    Case("q|o/|x", ("full", "pause")),
    Case("qx", ("mute", "lost")),
    Case("hx|o", ("end",)),
    Case("o|h|x", ("stop", "lost")),
    Case("xx|h", ("end", "pause")),
]


def played(case: Case, events: list[str], make: type[RequestPipeline]) -> Play:
    play = Play(case, make)
    for event in events:
        play.step(event)
    return play


def every_order(case: Case, make: type[RequestPipeline] = RequestPipeline) -> int:
    """Play a case in every order that is possible; return how many there are.

    A case with very many has `ORDERS_MAX` random walks.
    """
    count, paths = 0, [[]]  # type: int, list[list[str]]
    while paths and count < ORDERS_MAX:
        events = paths.pop()
        play = played(case, events, make)
        enabled = play.enabled()
        paths += [[*events, event] for event in enabled]
        if not enabled:
            play.check_end()
            count += 1
    if paths:
        for seed in range(ORDERS_MAX // 4):
            random_order(case, make, random.Random(seed))
    return count


def random_order(case: Case, make: type[RequestPipeline], choice: random.Random) -> None:
    play = Play(case, make)
    while enabled := play.enabled():
        play.step(choice.choice(enabled))
    play.check_end()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_order(case: Case) -> None:
    assert every_order(case)


class AnswersAsTheySettle(RequestPipeline):
    __slots__ = ()

    def settle(self, request: PipelinedRequest) -> None:
        request.settled = True
        self._requests.remove(request)
        self._requests.appendleft(request)
        self._send_settled()


class TakesBehindExclusive(RequestPipeline):
    __slots__ = ()

    def _accept_frames(self) -> None:
        self._exclusive = Exclusive.NONE
        super()._accept_frames()


class BeginsTooEarly(RequestPipeline):
    __slots__ = ()

    def _send_and_begin(self) -> None:
        if self._exclusive is Exclusive.WAITING:
            self._exclusive = Exclusive.BEGUN
            self._actions.begin(self._requests[-1])
        self._send_settled()


class ForgetsWhoWaits(RequestPipeline):
    """Frames behind an answered request are left lying."""

    __slots__ = ()

    def answered(self) -> None:
        self._exclusive = Exclusive.NONE
        self._memory.give_back(self._requests.popleft().size)


class AnswersWhoDoesNotRead(RequestPipeline):
    __slots__ = ()

    def pause_writing(self) -> None:
        pass


class StopsBeforeItHasAnswered(RequestPipeline):
    __slots__ = ()

    def end_input(self) -> None:
        self._phase = Phase.CLOSED
        self._actions.close()


class KeepsMemory(RequestPipeline):
    __slots__ = ()

    def lost(self) -> None:
        self._requests.clear()
        super().lost()


class NeverReadsOn(RequestPipeline):
    """Room in memory comes, and nobody hears of it."""

    __slots__ = ()

    def _take(self) -> None:
        super()._take()
        self._memory.wait_no_more(self._take)


class LosesReadyAnswers(RequestPipeline):
    """A fault ends the connection before what is ready is sent."""

    __slots__ = ()

    def fail(self, error: Exception) -> None:
        self._requests.clear()
        super().fail(error)


class TakesFromWhoIsToWait(RequestPipeline):
    """The answer to an exclusive request ends the wait."""

    __slots__ = ()

    def answered(self) -> None:
        self._muted = False
        super().answered()


class WaitsForWhoHasLeft(RequestPipeline):
    """A pipeline whose requests behind the end of input wait as long as they were asked to."""

    __slots__ = ()

    def _accept_frames(self) -> None:
        before, self._phase = self._phase, Phase.OPEN
        super()._accept_frames()
        if self._phase is Phase.OPEN:
            self._phase = before


class LosesWhatIsHeld(RequestPipeline):
    __slots__ = ()

    def unmute(self) -> None:
        self._memory.give_back(sum(map(len, self._frames)))
        self._frames.clear()
        super().unmute()


class NeverUnmutes(RequestPipeline):
    """The wait is over, and what came meanwhile is left where it is."""

    __slots__ = ()

    def unmute(self) -> None:
        self._muted = False
        if self._exclusive is Exclusive.MUTED:
            self._exclusive = Exclusive.NONE


PLANTED: list[Any] = [
    TakesFromWhoIsToWait,
    NeverUnmutes,
    WaitsForWhoHasLeft,
    LosesWhatIsHeld,
    AnswersAsTheySettle,
    TakesBehindExclusive,
    BeginsTooEarly,
    ForgetsWhoWaits,
    AnswersWhoDoesNotRead,
    StopsBeforeItHasAnswered,
    KeepsMemory,
    NeverReadsOn,
    LosesReadyAnswers,
]


@pytest.mark.parametrize("make", PLANTED, ids=lambda make: make.__name__)
def test_a_planted_mistake_is_found(make: type[RequestPipeline]) -> None:
    for case in CASES:
        try:
            every_order(case, make)
        except AssertionError:
            return
    pytest.fail("no order of any case shows it")


class Deaf:
    """A pipeline's actions that keep what they are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def accept(self, frame: bytes) -> Any:
        return Waiting(len(frame))

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


class Waiting:
    """A request that is not answered yet."""

    exclusive = settled = False

    def __init__(self, size: int) -> None:
        self.size = size

    def add_done_callback(self, callback: Any) -> None:
        """Do nothing: it is never done."""


def test_waiter_for_room_is_not_told_of_bytes_that_are_counted_anew() -> None:
    memory = MemoryBudget(1_000_000)
    actions = [Deaf() for _ in range(3)]
    holder, sender, waiter = (
        RequestPipeline(one, one, memory, frame_bytes_max=1 << 24, in_flight_max=64)  # type: ignore[arg-type]
        for one in actions
    )

    def framed(size: int) -> bytes:
        return size.to_bytes(4, "big") + bytes(size)

    holder.data_received(framed(900_000))
    sender.data_received((800_000).to_bytes(4, "big") + bytes(120_000))
    waiter.data_received(framed(100_000))
    assert actions[2].told == ["reset", "pause_reading"]
    for _ in range(5):
        sender.data_received(bytes(1000))
        assert actions[2].told == ["reset", "pause_reading"]
        assert not memory.has_room
