"""ShareFetch (78), versions 1 and 2: acquires records for a member (KIP-932, KIP-1206, KIP-1222).

Acknowledgements that come with it are worked on first. While the log takes them, the records are
found; where some are released, once it has. With any of them it does not wait for records: Kafka
answers them only once it has.
"""

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.streamed_response import Pins, Stored, StreamedResponse
from kproxy.handlers.common.by_time import offset_by_time
from kproxy.handlers.common.needs import ShareNeeds
from kproxy.handlers.common.permitted import need_group, reader_of
from kproxy.handlers.shares.answers import Leaders, check_member
from kproxy.metadata.group_settings import GroupSettings
from kproxy.protocol import share_responses as encoded
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import response_prefix
from kproxy.security.acls import Op
from kproxy.security.peer import holder
from kproxy.security.quotas import CONSUMED
from kproxy.shard.appends import append
from kproxy.shares.acknowledging import DONE, Acknowledged, Acknowledging, Said
from kproxy.shares.poll import Found, ShareLimits, SharePoll
from kproxy.shares.sessions import FINAL_EPOCH, FIRST_EPOCH, Ident, ShareSession
from kproxy.virtual.commands.shares import SetShares, ShareAction, ShareChange
from kproxy.worker.request import Request

_BATCH_OPTIMIZED, _RECORD_LIMIT = 0, 1


async def handle(worker: ShareNeeds, request: Request) -> StreamedResponse:
    """Return a whole response frame."""
    try:
        need_group(request, Op.READ, request.body.group_id)
        session, said = await _session(worker, request)
    except KafkaError as error:
        if error.code == Code.SHARE_SESSION_LIMIT_REACHED:
            await _wait_as_asked(worker, request)
        head = encoded.share_head(error.code, error.message, 0, 0)
        refusal = _framed(request, [head, encoded.endpoints(())], Pins(), worker)
        refusal.code = error.code
        return refusal
    body = request.body
    renews = body.is_renew_ack
    settings = worker.shares.settings(session.group)
    refuses = reader_of(worker, request)
    if refuses is not None:
        session.ruled(worker.security.generation)
    acknowledging = Acknowledging(
        worker.shares, worker.partition, session, settings, renews=renews, unreadable=refuses
    )
    pins = Pins()
    try:
        if said:
            await acknowledging.take(said, request.budget)
        found: list[Found] = []
        if body.share_session_epoch == FINAL_EPOCH:
            await acknowledging.done()
            worker.share_sessions.end(session)
        elif renews or body.max_records <= 0 or body.max_bytes <= 0:
            pass
        elif not _owes(worker, request):
            await _resolve(worker, request, session)
            found, settings = await _found(worker, request, session, acknowledging, pins)
        results = await acknowledging.done()
        return await _answer(worker, request, settings.lock_duration_ms, found, results, pins)
    except BaseException:
        pins.release()
        raise


def _owes(worker: ShareNeeds, request: Request) -> bool:
    """Return whether the client is still to wait for what it had, by another connection perhaps.

    Acknowledgements are taken meanwhile: locks run out.
    """
    if not worker.quotas.active:
        return False
    wait_s = worker.quotas.owes(request.peer, request.header.client_id, (CONSUMED,))
    request.throttle(wait_s)
    return wait_s > 0


async def _wait_as_asked(worker: ShareNeeds, request: Request) -> None:
    """Wait without a session to wait for records with: else its client would ask all the time."""
    signal, left = request.next_request, anyio.Event()
    if not signal.arrived:
        signal.wake(left)
        await worker.long_poll(left, request.max_wait_s)


async def _found(
    worker: ShareNeeds, request: Request, session: ShareSession, acknowledging: Acknowledging,
    pins: Pins,
) -> tuple[list[Found], GroupSettings]:  # fmt: skip
    """Return what there is for the member, and its group's settings by then."""
    said = bool(acknowledging.results)
    if not acknowledging.final:
        await acknowledging.done()
    limits = _limits(worker, request, wait=not said)

    def poll() -> SharePoll:
        return SharePoll(
            worker, worker.shares, worker.share_sessions, session, limits, request.budget, pins,
            reader_of(worker, request),
        )  # fmt: skip

    first = poll()
    found = await first.run(request.next_request)
    if not said:
        return found, first.settings
    await acknowledging.done()
    found = first.give_back(found, acknowledging.refused)
    if not acknowledging.final or not session.dirty or any(one.ranges for one in found):
        return found, first.settings
    second = poll()  # there may be room by now
    return await second.run(request.next_request), second.settings


# -- the session


async def _session(
    worker: ShareNeeds, request: Request
) -> tuple[ShareSession, list[tuple[Ident, list[Said]]]]:
    """Return the session as the request makes it, and its acknowledgements. Raise KafkaError."""
    body, sessions = request.body, worker.share_sessions
    group, member = check_member(request)
    _check(request)
    epoch, connection = body.share_session_epoch, request.next_request.connection
    wanted, said = [], []
    for topic in body.topics:
        for part in topic.partitions:
            ident = (topic.topic_id, part.partition_index)
            wanted.append(ident)
            if part.said:
                said.append((ident, part.said))
            if request.budget.due:
                await request.budget.rest()
    if request.next_request.gone:
        raise KafkaError(Code.SHARE_SESSION_NOT_FOUND)  # nobody hears it
    if epoch == FIRST_EPOCH:
        if said:
            raise KafkaError(Code.INVALID_REQUEST)
        session = sessions.open(group, member, connection, len(wanted), holder(request.peer))
    else:
        session = sessions.use(group, member, epoch, connection)
        if epoch == FINAL_EPOCH:
            return session, said
        more = sum(ident not in session.partitions for ident in wanted)
        sessions.check_room(session.holder, more)
    for ident in wanted:
        sessions.follow(session, ident)
        if request.budget.due:
            await request.budget.rest()
    for topic in body.forgotten_topics_data:
        for index in topic.partitions:
            sessions.forget(session, (topic.topic_id, index))
            if request.budget.due:
                await request.budget.rest()
    return session, said


def _check(request: Request) -> None:
    """Check a request. Raise KafkaError (INVALID_REQUEST)."""
    body = request.body
    if body.is_renew_ack and (
        body.max_records or body.max_bytes or body.min_bytes or body.max_wait
    ):
        raise KafkaError(Code.INVALID_REQUEST)
    if body.share_acquire_mode not in (_BATCH_OPTIMIZED, _RECORD_LIMIT):
        raise KafkaError(Code.INVALID_REQUEST, "Unknown share acquire mode.")


def _max_bytes(worker: ShareNeeds, request: Request) -> int:
    size = min(request.body.max_bytes, worker.config.fetch_bytes_max)
    if worker.quotas.active:
        most = worker.quotas.consumes_at_most(request.peer, request.header.client_id)
        size = size if most is None else min(size, most)
    return int(size)


def _limits(worker: ShareNeeds, request: Request, *, wait: bool) -> ShareLimits:
    body = request.body
    return ShareLimits(
        min_bytes=body.min_bytes,
        max_bytes=_max_bytes(worker, request),
        max_records=body.max_records,
        batch_size=body.batch_size,
        exact=body.share_acquire_mode == _RECORD_LIMIT,
        max_wait_s=request.max_wait_s if wait else 0,
    )


async def _resolve(worker: ShareNeeds, request: Request, session: ShareSession) -> None:
    """Look for the first record of share partitions that begin at a time, and log which it is."""
    for followed in list(session.dirty):
        if followed.share is None:
            try:
                _, key, shard = worker.partition(*followed.ident)
                row = worker.shares.row(shard, key, session.group)
                start = -1
                if row is not None and row.since_ms >= 0:
                    start = await offset_by_time(worker, request.budget, shard, key, row.since_ms)
            except KafkaError:
                continue  # the poll says so
            if row is not None and start >= 0:
                change = ShareChange(key, ShareAction.RESOLVE, row.epoch, start)
                command = SetShares(session.group, [change], worker.now_ms())
                await append(shard, command.envelope())
        if request.budget.due:
            await request.budget.rest()


# -- the answer


async def _answer(
    worker: ShareNeeds, request: Request, lock_ms: int, found: list[Found],
    results: dict[Ident, Acknowledged], pins: Pins,
) -> StreamedResponse:  # fmt: skip
    leaders = Leaders(worker, request)
    by_ident = {one.ident: one for one in found}
    size = sum([one.size for one in found])
    worker.counters.fetched_bytes += size
    if size and worker.quotas.active:  # they are acquired, and so given
        request.throttle(worker.quotas.gave(request.peer, request.header.client_id, size))
    acquired = [last - first + 1 for one in found for first, last, *_ in one.ranges]
    worker.counters.fetched_records += sum(acquired)
    worker.counters.share_delivered += sum(acquired)
    by_topic: dict[bytes, list[Ident]] = {}
    for ident in dict.fromkeys([*by_ident, *results]):
        by_topic.setdefault(ident[0], []).append(ident)
    pieces: list[bytes | Stored] = []
    texts = [encoded.share_head(Code.NONE, None, lock_ms, len(by_topic))]
    for topic_id, idents in by_topic.items():
        texts.append(encoded.share_topic_head(topic_id, len(idents)))
        for ident in idents:
            part = by_ident.get(ident) or Found(ident)
            said = results.get(ident, DONE)
            leader = leaders.of(ident, part.code, said.code)
            texts.append(
                encoded.share_partition_head(
                    ident[1], part.code, part.message, said.code, said.message, leader, part.size
                )
            )
            for piece in part.cut if part.stored is None else (part.stored,):
                if isinstance(piece, bytes):
                    texts.append(piece)
                else:
                    pieces += b"".join(texts), piece
                    texts = []
            texts.append(encoded.share_partition_tail(part.ranges))
            if request.budget.due:
                await request.budget.rest()
        texts.append(encoded.TAIL)
    texts.append(encoded.endpoints(leaders.nodes))
    pieces.append(b"".join(texts))
    return _framed(request, pieces, pins, worker)


def _framed(
    request: Request, pieces: list[bytes | Stored], pins: Pins, worker: ShareNeeds
) -> StreamedResponse:
    size = 0
    for piece in pieces:
        size += len(piece) if isinstance(piece, bytes) else sum([one[3] for one in piece.batches])
    key, version = ApiKey.SHARE_FETCH, request.version
    prefix = response_prefix(key, version, request.header.correlation_id, size)
    return StreamedResponse([prefix, *pieces], pins, worker.answer_memory)
