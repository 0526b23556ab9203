"""Fetch (1), versions 4 to 18: whole stored batches, long polls, sessions (KIP-227, KIP-516).

Left out: followers, diverging epochs (there is one epoch).
"""

from typing import Any

from kproxy.common.counters import TIMED_EVERY, Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.context import AT_ONCE, FetchContext, FetchPartition, Ident
from kproxy.fetching.poll import Poll, PollLimits
from kproxy.fetching.sessions import Session
from kproxy.fetching.streamed_response import PartitionRead, Pins, Stored, StreamedResponse
from kproxy.handlers.common.needs import FetchNeeds
from kproxy.handlers.common.permitted import Refuses, fetcher_of
from kproxy.loop.pace import FREED_AT_ONCE
from kproxy.protocol import responses
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import response_prefix
from kproxy.protocol.responses import FETCH_TOPIC_IDS, Fetched
from kproxy.worker.request import Request

_READ_COMMITTED = 1
_TEXTS_MAX = 10_000  # that wait to be joined
_PART_BYTES = 600  # about what a part of an answer takes


async def handle(worker: FetchNeeds, request: Request) -> StreamedResponse:
    """Return a whole response frame."""
    by_id = request.version >= FETCH_TOPIC_IDS
    refuses = fetcher_of(worker, request)
    keeps = refuses is None or await _reads_any(request, by_id, refuses)
    try:
        context, session, full = _context_of(worker, request, by_id, keeps)
    except KafkaError as error:
        await worker.sessions.tidy(request.budget)
        return _refusal(request, error.code)
    pins = Pins()
    try:
        if session is not None:
            session.busy = True
        await worker.sessions.tidy(request.budget)
        await _update(context, request, by_id)
        if refuses is not None:
            context.ruled(worker.security.generation)
        limits = _limits(worker, request, full)
        poll = Poll(worker, context, limits, request.budget, pins, refuses)
        found = await poll.run(request.next_request)
        if worker.quotas.active and _too_much(worker, request, found):
            return _nothing(worker, request, context, session, found, pins)
        session_id = session.session_id if session is not None else 0
        pieces, code = await _pieces(request, found, session_id, pins, worker.counters)
        if len(found) > FREED_AT_ONCE:
            await request.budget.let_go(found)
        if session is None and not worker.sessions.end(context):
            await worker.sessions.tidy(request.budget)  # they are many: what was found is pinned
        response = StreamedResponse(pieces, pins, worker.answer_memory)
        response.code = code
        return response
    except BaseException:
        pins.release()
        if session is None:
            worker.sessions.end(context)
        raise
    finally:
        if session is not None:
            session.busy = False


def _refusal(request: Request, code: Code) -> StreamedResponse:
    return _empty(request, code, 0)


def _empty(request: Request, code: Code, session_id: int) -> StreamedResponse:
    head = responses.fetch_head(request.version, code, session_id, 0)
    body = head + responses.fetch_tail(request.version)
    prefix = response_prefix(
        ApiKey.FETCH, request.version, request.header.correlation_id, len(body)
    )
    response = StreamedResponse([prefix, body])
    response.code = code
    return response


# -- the partitions that the client follows


async def _reads_any(request: Request, by_id: bool, refuses: Refuses) -> bool:
    """Return whether the client may read any of what a session is opened for."""
    if getattr(request.body, "session_epoch", -1):
        return True
    for topic in request.body.topics:
        if not refuses(_ident(topic, by_id)):
            return True
        if request.budget.due:
            await request.budget.rest()
    return False


def _context_of(
    worker: FetchNeeds, request: Request, by_id: bool, keeps: bool
) -> tuple[FetchContext, Session | None, bool]:
    """Return (what to look at, its session if any, whether every partition must be answered).

    `keeps`: a session is worth a place. Partitions that its client may not read take none.
    """
    body, owner = request.body, (request.peer, request.header.client_id)
    session_id = getattr(body, "session_id", 0)
    epoch = getattr(body, "session_epoch", -1)
    wanted = sum(len(topic.partitions) for topic in body.topics)
    if epoch > 0:
        session = worker.sessions.use(session_id, owner, epoch, by_id)
        if wanted:
            worker.sessions.check_room(session, wanted)
        return session, session, False
    if session_id:
        worker.sessions.close(session_id, owner)
    if epoch == 0 and wanted and keeps:
        opened = worker.sessions.open(owner, by_id, wanted)
        if opened is not None:
            return opened, opened, True
    return FetchContext(), None, True


def _ident(topic: Any, by_id: bool) -> str | bytes:
    if not by_id:
        return str(topic.topic)
    return bytes(16) if topic.topic_id is None else topic.topic_id.bytes


def _limits(worker: FetchNeeds, request: Request, full: bool) -> PollLimits:
    body = request.body
    min_bytes, max_bytes = body.min_bytes, min(body.max_bytes, worker.config.fetch_bytes_max)
    if worker.quotas.active:
        most = worker.quotas.consumes_at_most(request.peer, request.header.client_id)
        if most is not None:
            max_bytes = min(max_bytes, most)
            min_bytes = min(min_bytes, max(1, max_bytes // 2))  # whole batches come as near
    return PollLimits(
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_wait_s=request.max_wait_s,
        full=full,
        read_committed=body.isolation_level == _READ_COMMITTED,
    )


async def _update(context: FetchContext, request: Request, by_id: bool) -> None:
    """Note what the request says of partitions."""
    body, budget = request.body, request.budget
    context.isolate(body.isolation_level == _READ_COMMITTED)
    for topic in body.topics:
        if budget.due:
            await budget.rest()
        name = _ident(topic, by_id)
        for part in topic.partitions:
            ident: Ident = (name, part.partition)
            followed = context.partitions.get(ident)
            if followed is None:
                followed = FetchPartition(ident)
            followed.offset = part.fetch_offset
            followed.max_bytes = part.partition_max_bytes
            followed.epoch = getattr(part, "current_leader_epoch", -1)
            context.follow(followed)
            if budget.due:
                await budget.rest()
    for topic in getattr(body, "forgotten_topics_data", ()):
        if budget.due:
            await budget.rest()
        name = _ident(topic, by_id)
        for index in topic.partitions:
            context.forget((name, index))
            if budget.due:
                await budget.rest()


# -- quotas


def _too_much(worker: FetchNeeds, request: Request, found: list[PartitionRead]) -> bool:
    """Return whether the client may not have yet what was found; note how long it is to wait."""
    size = sum([part.size for part in found])
    if not size:
        return False
    client = request.peer, request.header.client_id
    wait_s, given = worker.quotas.consumed(*client, size)
    request.throttle(wait_s)
    return not given


def _nothing(
    worker: FetchNeeds, request: Request, context: FetchContext, session: Session | None,
    found: list[PartitionRead], pins: Pins,
) -> StreamedResponse:  # fmt: skip
    """Return the empty answer of a client that is to wait. A session goes on; none is begun."""
    pins.release()
    session_id = 0
    if session is None:
        worker.sessions.end(context)
    elif getattr(request.body, "session_epoch", -1) > 0:
        session_id = session.session_id
        for part in found:
            session.look_at(part.followed)
    else:
        worker.sessions.close(session.session_id, session.owner)
    return _empty(request, Code.NONE, session_id)


# -- the answer


async def _pieces(
    request: Request, found: list[PartitionRead], session_id: int, pins: Pins, counters: Counters
) -> tuple[list[bytes | Stored], int]:
    """Return the response frame, whose records are read when it is sent; and its first error."""
    version, budget = request.version, request.budget
    many = len(found) > AT_ONCE
    if many:
        pins.hold(part.stored for part in found if part.size)
    by_topic: dict[str | bytes, list[PartitionRead]] = {}
    code = size = records = 0
    for part in found:
        code, size, records = code or part.code, size + part.size, records + part.records
        by_topic.setdefault(part.followed.ident[0], []).append(part)
        part.followed.last_sent = (part.high_watermark, part.log_start)
        if many and budget.due:
            await budget.rest()
    counters.fetched_bytes += size
    counters.fetched_records += records
    pieces: list[bytes | Stored] = []
    total = 0
    texts = [responses.fetch_head(version, 0, session_id, len(by_topic))]
    tail = responses.fetch_tail(version)
    sampled = size and counters.requests % TIMED_EVERY == 0
    for topic, parts in by_topic.items():
        if sampled and parts[0].size:
            counters.busy_out.add(topic, TIMED_EVERY * parts[0].size)
        texts.append(responses.fetch_topic_head(version, topic, len(parts)))
        for part in parts:
            aborted = () if part.followed.key is None else part.aborted
            texts.append(responses.fetch_partition_head(version, aborted, _fetched(part)))
            if part.size:
                text = b"".join(texts)
                pieces += text, part.stored
                total += len(text) + part.size
                texts = []
            texts.append(tail)
            if many:
                if budget.add(_PART_BYTES):
                    await budget.step()
                if len(texts) > _TEXTS_MAX:
                    texts = [b"".join(texts)]
        texts.append(tail)
    texts.append(tail)
    text = b"".join(texts)
    pieces.append(text)
    total += len(text)
    prefix = response_prefix(ApiKey.FETCH, version, request.header.correlation_id, total)
    return [prefix, *pieces], code


def _fetched(part: PartitionRead) -> Fetched:
    index = part.followed.ident[1]
    return Fetched(
        index, part.code, part.high_watermark, part.last_stable, part.log_start, part.size
    )
