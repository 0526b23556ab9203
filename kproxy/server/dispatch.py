"""The way from a frame to an answer, by the API table, and the only error boundary."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from mmap import mmap
from typing import Any

from anyio import move_on_after

from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import MemoryBudget, ResponseBudget
from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.handlers.cluster import api_versions
from kproxy.handlers.produce import produce
from kproxy.handlers.produce.call import ProduceCall
from kproxy.loop import pace
from kproxy.loop.pace import FREED_AT_ONCE
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import (
    NOT_LOADED,
    RequestHeader,
    admit_body,
    decode_admitted,
    decode_header,
    encode,
    load,
    response_prefix,
)
from kproxy.protocol.frames import Frame, readable
from kproxy.protocol.guard import TooMany
from kproxy.protocol.produce_request import ProduceRequest, decode_produce, each_once
from kproxy.protocol.share_requests import Decoded, decode_share
from kproxy.protocol.varint import Malformed
from kproxy.security.peer import NOBODY, Peer
from kproxy.security.permits import EVERYTHING
from kproxy.security.quotas import NO_LIMIT
from kproxy.server import large_requests
from kproxy.server.api_table import RANGES, TABLE, Api, Body
from kproxy.server.audit import AUDITED, audit
from kproxy.server.rules import refusal
from kproxy.worker.request import NextRequestSignal, Request
from kproxy.worker.worker import Worker

_PRODUCE = int(ApiKey.PRODUCE)
_SHARES = {int(ApiKey.SHARE_FETCH): 14, int(ApiKey.SHARE_ACKNOWLEDGE): 14}
"""Requests of share groups: a decoded body takes so many times the bytes of the request."""
_ERROR_PARTS, _ERROR_DEPTH = 4, 1  # the parts of an answer that are looked at for an error


class Accepted:
    """A request taken in: a short Produce is appended already, any other waits for `answer`.

    It is the pipeline's `PipelinedRequest`.
    """

    __slots__ = (
        "api", "began", "call", "frame", "header", "next_request", "peer", "settled", "size",
        "worker",
    )  # fmt: skip

    def __init__(
        self,
        header: RequestHeader,
        size: int,
        *,
        call: ProduceCall | None = None,
        api: Api | None = None,
        frame: Frame = b"",
        peer: Peer = NOBODY,
        next_request: NextRequestSignal | None = None,
    ) -> None:
        """Take `size`, the bytes of the frame.

        No `call` and no `api`: ApiVersions, in a version too new.
        """
        self.header = header
        self.size = size
        self.call = call
        self.api = api
        self.frame = frame
        self.peer = peer
        self.next_request = next_request
        self.settled = False
        self.began = 0.0  # when, if it is timed
        self.worker: Worker | None = None  # for a Produce, where it is counted

    @property
    def exclusive(self) -> bool:
        return self.call is None

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when a Produce is durable or refused."""
        assert self.call is not None
        self.call.add_done_callback(callback)

    def response(self) -> bytes | None:
        """Return the response frame of a Produce that is durable or refused, or None where none is
        due.

        Raises Malformed: close the connection.
        """
        assert self.call is not None
        try:
            body = self.call.body()
        except KafkaError as error:
            raise Malformed(f"{error.code.name}: {error}") from error
        if (worker := self.worker) is not None:
            if code := self.call.code:
                worker.counters.failed[_PRODUCE, code] += 1
            else:
                worker.counters.answered[_PRODUCE] += 1
            if self.began:
                took = worker.clock.monotonic() - self.began
                worker.counters.request_seconds[_PRODUCE].observe(took)
        return None if body is None else _framed(self.header, body)


def accept(worker: Worker, frame: Frame, peer: Peer, next_request: NextRequestSignal) -> Accepted:
    """Take in a request of a client and, if it is a Produce, append it.

    A Produce of many batches waits for its turn, as any other request, and is decoded then. Raises
    Malformed: close the connection.
    """
    header = decode_header(frame, loads=False)
    api = TABLE.get(header.api_key)
    if api is None or not api.low <= header.api_version <= api.high:
        if header.api_key == ApiKey.API_VERSIONS:
            return Accepted(header, len(frame))
        raise Malformed(f"API key {header.api_key} version {header.api_version} is not supported")
    if api.key == _PRODUCE:
        if header.body_at == NOT_LOADED:
            header = decode_header(frame)
        elements_max = worker.config.request_elements_max
        at_once = min(elements_max, large_requests.PRODUCE_ELEMENTS)
        try:
            body = _produce(frame, header.body_at, header.api_version, at_once)
        except TooMany:
            if at_once == elements_max:
                raise
        else:
            if not produce.is_long(body):
                guard = worker.authorizer
                permits = guard.permits(peer) if guard.enabled else EVERYTHING
                made = NO_LIMIT
                if worker.quotas.active:
                    made = worker.quotas.mutations(peer, header.client_id)
                call = produce.append(worker, header.api_version, body, permits, made)
                if call is not None:
                    accepted = Accepted(header, len(frame), call=call)
                    accepted.worker = worker
                    return accepted
    else:
        frame = frame if isinstance(frame, mmap) else bytes(frame)
    return Accepted(header, len(frame), api=api, frame=frame, peer=peer, next_request=next_request)


def _produce(frame: Frame, body_at: int, version: int, elements_max: int) -> ProduceRequest:
    """Decode a Produce. Raises Malformed, of which TooMany."""
    return each_once(decode_produce(frame, body_at, version, elements_max))


def _too_new(header: RequestHeader) -> bytes:
    low_high = [r for r in RANGES if r[0] == ApiKey.API_VERSIONS]
    body = api_versions.values(low_high, Code.UNSUPPORTED_VERSION)
    return encode(ApiKey.API_VERSIONS, 0, header.correlation_id, body)


async def answer(worker: Worker, accepted: Accepted) -> bytes | bytearray | StreamedResponse:
    """Return the response frame of any other request, whose turn it is; empty where none is due.

    Raises Malformed: close the connection.
    """
    header, api = accepted.header, accepted.api
    if api is None:
        return _too_new(header)
    with ResponseBudget(worker.answer_memory) as budget:
        body = await _handled(worker, api, accepted, budget)
        worker.counters.answer(int(api.key), error_in(body))
        if isinstance(body, Mapping):
            await _weigh(worker, budget, body)
            key, version, correlation_id = header[:3]
            held = [body]
            encoded = await worker.encoded(budget, encode, key, version, correlation_id, body)
            del body
            if budget.large:
                await budget.let_go(held)
            return encoded
        if isinstance(body, StreamedResponse):
            return body
        return _framed(header, body) if body else b""  # a Produce with acks=0


async def _handled(worker: Worker, api: Api, accepted: Accepted, budget: ResponseBudget) -> Body:
    """Handle a request with its API."""
    header, frame = accepted.header, accepted.frame
    if header.body_at == NOT_LOADED:
        await large_requests.aside(load, header.api_key, header.api_version)
        header = decode_header(frame)
    next_request = accepted.next_request or NextRequestSignal()
    permits = worker.authorizer.permits(accepted.peer)
    if len(frame) > large_requests.LIGHT_BYTES or pace.waits():
        await pace.turn()
        budget.begin()
    asked = partial(
        Request, header=header, peer=accepted.peer, permits=permits, next_request=next_request,
        budget=budget,
    )  # fmt: skip
    if api.key != _PRODUCE:
        check = (readable(frame), header, worker.config.request_elements_max)
    if api.key != _PRODUCE and len(frame) <= large_requests.REQUEST_BYTES:
        body = _decoded(*check)
        return await _permitted(worker, api, asked(body=body), at_once=True)
    memory, taken = worker.decoded_memory.mine(), len(frame) * _SHARES.get(api.key, 1)
    if api.key != _PRODUCE and api.key not in _SHARES:
        admitted = await large_requests.aside(admit_body, *check)
        elements = admitted.elements
        taken = large_requests.decoded_bytes(len(frame), elements)
    await _wait_for_room(worker, memory)
    memory.take(taken)
    try:
        if api.key == _PRODUCE:
            where = (header.body_at, header.api_version, worker.config.request_elements_max)
            body = await large_requests.aside(_produce, frame, *where)
            elements = sum(1 + len(topic.partitions) for topic in body.topics)
        elif api.key in _SHARES:
            body, elements = await large_requests.aside(_of_shares, *check)
        else:
            sliced = elements > large_requests.ELEMENTS_AT_ONCE
            body = await large_requests.aside(decode_admitted, header, admitted, sliced)
            del admitted
        request = asked(body=body)
        held = [body]
        del body
        answer = await _permitted(worker, api, request)
        del request
        if elements > FREED_AT_ONCE:
            with answer.kept() if isinstance(answer, StreamedResponse) else nullcontext():
                await budget.let_go(held)
        return answer
    finally:
        memory.give_back(taken)


def _decoded(frame: bytes, header: RequestHeader, elements_max: int) -> Any:
    """Decode a short request. Raises Malformed."""
    if header.api_key in _SHARES:
        return _of_shares(frame, header, elements_max).body
    return decode_admitted(header, admit_body(frame, header, elements_max))


def _of_shares(frame: bytes, header: RequestHeader, elements_max: int) -> Decoded:
    return decode_share(frame, header.body_at, header.api_key, header.api_version, elements_max)


async def _permitted(worker: Worker, api: Api, request: Request, *, at_once: bool = False) -> Body:
    """Handle a request that is not refused as a whole."""
    code, refused = refusal(api.rule, request), api.rule.refused
    if code is None or refused is None:
        answer = await api.handle(worker, request)
        if api.key in AUDITED and worker.authorizer.enabled:
            await audit(request, answer, error_in(answer))
        return answer
    if at_once:
        return refused(request, code)
    return await large_requests.aside(refused, request, code)


async def _wait_for_room(worker: Worker, memory: MemoryBudget) -> None:
    """Wait until there is memory for one more large request. Raises Malformed: not for long."""
    with move_on_after(worker.config.receive_stalled_ms_max / 1000):
        await memory.wait_for_room()
    if not memory.has_room:
        raise Malformed("large requests take more memory than request_bytes_buffered_max")


async def _weigh(worker: Worker, budget: ResponseBudget, values: Mapping[str, Any]) -> None:
    """Count what an answer has more than was counted while it was made.

    Texts are counted here: they may be long, and one text may stand in many places. Raises
    Malformed: it is too much.
    """
    if not budget.long:
        weight = large_requests.weight(values, large_requests.ANSWER_WEIGHT)
        if weight <= large_requests.ANSWER_WEIGHT:
            return
    most = worker.config.answer_bytes_buffered_max
    weight = await large_requests.aside(large_requests.weight, values, most)
    await budget.step(max(0, weight - budget.counted))


def error_in(body: Body) -> int:
    """Return the first error code of an answer, among its first few parts; 0 where it has none.

    Nothing is known of a body that is encoded already.
    """
    if isinstance(body, StreamedResponse):
        return body.code
    if not isinstance(body, Mapping):
        return 0
    code = body.get("error_code", 0)
    return int(code) if code else _error_among(body.values(), _ERROR_DEPTH)


def _error_among(values: Iterable[Any], depth: int) -> int:
    for value in values:
        if isinstance(value, list | tuple):
            for part in value[:_ERROR_PARTS]:
                if isinstance(part, Mapping):
                    if code := part.get("error_code", 0):
                        return int(code)
                    if depth and (code := _error_among(part.values(), depth - 1)):
                        return code
    return 0


def _framed(header: RequestHeader, body: bytes | bytearray) -> bytes:
    return (
        response_prefix(header.api_key, header.api_version, header.correlation_id, len(body)) + body
    )
