"""The effect of quotas on a request: how long it kept this worker busy, how long its client waits.

Nothing of it is called where no quota is set.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import perf_counter
from typing import Any

from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.loop.asking import ASKING
from kproxy.protocol.api_keys import EXCESS_TOLD_FROM, ApiKey
from kproxy.protocol.codec import RequestHeader, throttle_at
from kproxy.security.peer import Peer
from kproxy.security.quotas import MUTATED, PRODUCED, WORKED, Quotas, milliseconds
from kproxy.server.dispatch import Accepted
from kproxy.server.pipeline.requests import RequestPipeline

Frame = bytes | bytearray | StreamedResponse
_MUTE_S_MAX = 1.0
_OF_LOGIN = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class Timed:
    """Runs a coroutine, and counts the seconds that the event loop is busy with it."""

    def __init__(self, work: Coroutine[Any, Any, Frame]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Frame]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            began = perf_counter()
            try:
                awaited = step()
            except StopIteration as done:
                frame: Frame = done.value
                return frame
            finally:
                self.seconds += perf_counter() - began
            try:
                yield awaited
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)


class Muting:
    """The wait of a connection's client, whether it obeys its throttle time."""

    def __init__(
        self, quotas: Quotas, pipeline: RequestPipeline, monotonic: Callable[[], float]
    ) -> None:
        self._quotas = quotas
        self._pipeline = pipeline
        self._monotonic = monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    def mute(self, seconds: float, peer: Peer, client_id: str | None) -> None:
        """Take nothing more from a client for so long."""
        if seconds:
            self._pipeline.mute()
            self._until = self._monotonic() + seconds
            self._go_on(peer, client_id)

    def _go_on(self, peer: Peer, client_id: str | None) -> None:
        """Go on waiting: a second, then what is owed may be less, as quotas are by then."""
        left = min(self._until - self._monotonic(), self._quotas.owes(peer, client_id))
        if left > 0:
            self._call_later(min(left, _MUTE_S_MAX), self._go_on, peer, client_id)
        else:
            self._pipeline.unmute()

    def until_end(self, seconds: float, end: Callable[[], None]) -> None:
        """Take nothing more at all, and end the connection after so long."""
        self._pipeline.mute()
        self._call_later(seconds, end)

    def _call_later(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, call, *args)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def appended(quotas: Quotas, peer: Peer, accepted: Accepted, seconds: float) -> float:
    """Count a short Produce; return the seconds for which its client is to wait."""
    call, client_id = accepted.call, accepted.header.client_id
    assert call is not None
    wait_s = quotas.produced(peer, client_id, accepted.size)
    if not call.silent:
        wait_s = max(wait_s, quotas.worked(peer, client_id, seconds))
    if wait_s:
        call.throttle(milliseconds(wait_s))
    return wait_s


def owed(quotas: Quotas, peer: Peer, header: RequestHeader) -> float:
    """Return the seconds that a client is to wait before its request is taken."""
    key = header.api_key
    if key in _OF_LOGIN:
        return 0.0
    keys: tuple[str, ...] = (WORKED,)
    if key == ApiKey.PRODUCE:
        keys = (PRODUCED, WORKED)
    elif header.api_version < EXCESS_TOLD_FROM.get(key, 0):
        keys = (MUTATED, WORKED)
    return quotas.owes(peer, header.client_id, keys)


async def answered(
    quotas: Quotas, peer: Peer, accepted: Accepted, work: Coroutine[Any, Any, Frame]
) -> tuple[Frame, float]:
    """Return (the frame, the seconds for which its client is to wait) of any other request."""
    header = accepted.header
    if header.api_key in _OF_LOGIN:
        return await work, 0.0
    signal = accepted.next_request
    if signal is not None:
        signal.throttle_s = 0.0
    timed, asking = Timed(work), ASKING.get()
    asking.take_threads_s()  # time of before there were quotas does not count
    frame = await timed
    worked_s = timed.seconds + asking.take_threads_s()
    wait_s = signal.throttle_s if signal is not None else 0.0
    if header.api_key == ApiKey.PRODUCE:
        wait_s = max(wait_s, quotas.produced(peer, header.client_id, accepted.size))
    if frame or header.api_key != ApiKey.PRODUCE:
        wait_s = max(wait_s, quotas.worked(peer, header.client_id, worked_s))
    if wait_s:
        frame = told(frame, header.api_key, header.api_version, milliseconds(wait_s))
    return frame, wait_s


def told(frame: Frame, key: int, version: int, throttle_ms: int) -> Frame:
    """Return an answer with its throttle time, where its version has one."""
    at = throttle_at(key, version)
    if at is None or not frame:
        return frame
    data = throttle_ms.to_bytes(4, "big")
    if isinstance(frame, StreamedResponse):
        frame.overwrite(at, data)
        return frame
    start = at if at >= 0 else len(frame) + at
    return frame[:start] + data + frame[start + 4 :]
