"""ShareAcknowledge (79), versions 1 and 2: what members say of records (KIP-932, KIP-1222)."""

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ShareNeeds
from kproxy.handlers.common.permitted import need_group, reader_of
from kproxy.handlers.shares.answers import Leaders, check_member
from kproxy.protocol import share_responses as encoded
from kproxy.security.acls import Op
from kproxy.shares.acknowledging import Acknowledged, Acknowledging, Said
from kproxy.shares.sessions import FINAL_EPOCH, FIRST_EPOCH, Ident
from kproxy.worker.request import Request


async def handle(worker: ShareNeeds, request: Request) -> bytes:
    """Return an encoded ShareAcknowledgeResponse."""
    body, shares = request.body, worker.shares
    try:
        need_group(request, Op.READ, body.group_id)
        group, member = check_member(request)
        if body.share_session_epoch == FIRST_EPOCH:
            raise KafkaError(Code.INVALID_SHARE_SESSION_EPOCH)
        if request.next_request.gone:
            raise KafkaError(Code.SHARE_SESSION_NOT_FOUND)  # nobody hears it
        session = worker.share_sessions.use(
            group, member, body.share_session_epoch, request.next_request.connection
        )
    except KafkaError as error:
        head = encoded.acknowledge_head(request.version, error.code, error.message, 0, 0)
        return head + encoded.endpoints(())
    said: list[tuple[Ident, list[Said]]] = []
    for topic in body.topics:
        for part in topic.partitions:
            said.append(((topic.topic_id, part.partition_index), part.said))
            if request.budget.due:
                await request.budget.rest()
    renews = body.is_renew_ack
    settings = shares.settings(group)
    acknowledging = Acknowledging(
        shares, worker.partition, session, settings, renews=renews,
        unreadable=reader_of(worker, request),
    )  # fmt: skip
    try:
        await acknowledging.take(said, request.budget)
        results = await acknowledging.done()
    finally:
        if body.share_session_epoch == FINAL_EPOCH:
            worker.share_sessions.end(session)
    return await _answer(worker, request, settings.lock_duration_ms, results)


async def _answer(
    worker: ShareNeeds, request: Request, lock_ms: int, results: dict[Ident, Acknowledged]
) -> bytes:
    leaders = Leaders(worker, request)
    by_topic: dict[bytes, list[bytes]] = {}
    for ident, (code, message) in results.items():
        leader = leaders.of(ident, code)
        part = encoded.acknowledged_partition(ident[1], code, message, leader)
        by_topic.setdefault(ident[0], []).append(part)
        await request.budget.step(len(part))
    parts = [encoded.acknowledge_head(request.version, Code.NONE, None, lock_ms, len(by_topic))]
    for topic_id, some in by_topic.items():
        parts += [encoded.share_topic_head(topic_id, len(some)), *some, encoded.TAIL]
        if request.budget.due:
            await request.budget.rest()
    parts.append(encoded.endpoints(leaders.nodes))
    return b"".join(parts)
