"""Fetch (key 1), versions 4 to 17: whole stored batches, long polls, sessions (KIP-227, KIP-516).

Left out: followers, diverging epochs (there is one epoch), aborted transactions (there are none).
"""

from dataclasses import dataclass, field
from typing import Any

import anyio

from kproxy.errors import Code, KafkaError
from kproxy.fetching.context import AT_ONCE, FetchContext, FetchPartition, Ident
from kproxy.fetching.sessions import Session
from kproxy.fetching.streamed_response import (
    Budget,
    PartitionRead,
    Pins,
    Stored,
    StreamedResponse,
    look,
)
from kproxy.loop.pace import FREED_AT_ONCE
from kproxy.protocol import responses
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import response_prefix
from kproxy.protocol.responses import FETCH_TOPIC_IDS, Fetched
from kproxy.shard.shard import Shard
from kproxy.virtual.types import QueueId
from kproxy.worker.worker import Request, Worker

_READ_COMMITTED = 1
_TEXTS_MAX = 10_000  # that wait to be joined
_PART_BYTES = 600  # about what a part of an answer takes


async def handle(worker: Worker, request: Request) -> StreamedResponse:
    """A whole response frame."""
    by_id = request.version >= FETCH_TOPIC_IDS
    try:
        interest, session, full = _interest(worker, request, by_id)
    except KafkaError as error:
        await worker.sessions.tidy(request.making)
        return _refusal(request, error.code)
    pins = Pins()
    try:
        if session is not None:
            session.busy = True
        await worker.sessions.tidy(request.making)
        await _update(interest, request, by_id)
        found = await _wait(worker, interest, request, full, pins)
        session_id = session.session_id if session is not None else 0
        pieces = await _pieces(request, found, session_id, pins)
        if len(found) > FREED_AT_ONCE:
            await request.making.let_go(found)
        if session is None and not worker.sessions.end(interest):
            await worker.sessions.tidy(request.making)  # they are many: what was found is pinned
        return StreamedResponse(pieces, pins, worker.answer_memory)
    except BaseException:
        pins.release()
        if session is None:
            worker.sessions.end(interest)
        raise
    finally:
        if session is not None:
            session.busy = False


def _refusal(request: Request, code: Code) -> StreamedResponse:
    head = responses.fetch_head(request.version, code, 0, 0)
    body = head + responses.fetch_tail(request.version)
    prefix = response_prefix(
        ApiKey.FETCH, request.version, request.header.correlation_id, len(body)
    )
    return StreamedResponse([prefix, body])


# -- what the client follows


def _interest(
    worker: Worker, request: Request, by_id: bool
) -> tuple[FetchContext, Session | None, bool]:
    """(what to look at, its session if any, whether every partition must be answered)."""
    body, owner = request.body, (request.host, request.header.client_id)
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
    if epoch == 0 and wanted:
        opened = worker.sessions.open(owner, by_id, wanted)
        if opened is not None:
            return opened, opened, True
    return FetchContext(), None, True


def _ident(topic: Any, by_id: bool) -> str | bytes:
    if not by_id:
        return str(topic.topic)
    return bytes(16) if topic.topic_id is None else topic.topic_id.bytes


async def _update(interest: FetchContext, request: Request, by_id: bool) -> None:
    """Note what the request says of partitions."""
    body, making = request.body, request.making
    for topic in body.topics:
        name = _ident(topic, by_id)
        for part in topic.partitions:
            ident: Ident = (name, part.partition)
            followed = interest.partitions.get(ident)
            if followed is None:
                followed = FetchPartition(ident)
            followed.offset = part.fetch_offset
            followed.max_bytes = part.partition_max_bytes
            followed.epoch = getattr(part, "current_leader_epoch", -1)
            interest.follow(followed)
            if making.due:
                await making.rest()
    for topic in getattr(body, "forgotten_topics_data", ()):
        name = _ident(topic, by_id)
        for index in topic.partitions:
            interest.forget((name, index))
            if making.due:
                await making.rest()


def _locate(worker: Worker, interest: FetchContext, followed: FetchPartition) -> Code:
    """Find the queue that an ident means now; a name may mean a new one since it was deleted."""
    if followed.key is not None and followed.shard is not None:
        if followed.shard.serving and followed.shard.state.partition(followed.key) is not None:
            return Code.NONE
        interest.locate(followed, None, None)
    topic, index = followed.ident
    if isinstance(topic, bytes):
        queue, absent = worker.catalogue.find_id(QueueId(topic)), Code.UNKNOWN_TOPIC_ID
    else:
        queue, absent = worker.catalogue.find(topic), Code.UNKNOWN_TOPIC_OR_PARTITION
    if queue is None:
        return absent
    if not 0 <= index < queue.partitions:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    try:
        shard = worker.shard(queue.name, index)
    except KafkaError as error:
        return error.code
    interest.locate(followed, (queue.queue_id, index), shard)
    return Code.NONE


# -- looking, and waiting for more


@dataclass(slots=True)
class _Look:
    """What one look at all that is followed has found."""

    found: list[PartitionRead] = field(default_factory=list)
    size: int = 0
    failed: bool = False  # something of it
    ahead: set[Shard] = field(default_factory=set)

    def add(self, part: PartitionRead) -> None:
        self.found.append(part)
        self.size += part.size
        if part.code:
            self.failed = True
            if part.code == Code.OFFSET_OUT_OF_RANGE and (shard := _ahead(part)) is not None:
                self.ahead.add(shard)


async def _wait(
    worker: Worker, interest: FetchContext, request: Request, full: bool, pins: Pins
) -> list[PartitionRead]:
    """Look until there are `min_bytes`, an error, more in line, or `max_wait` is over."""
    body, line = request.body, request.line
    deadline = anyio.current_time() + body.max_wait.total_seconds()
    looked_ahead = False
    while True:
        # No await between this and the reading, but where what was found is pinned before it.
        await worker.answer_memory.wait_for_room()
        changed = interest.expect_change()
        seen = await _look_at_all(worker, interest, request, full, pins)
        if seen.ahead and not looked_ahead:
            looked_ahead = True
            await _catch_up(seen.ahead)
            continue
        if seen.size >= body.min_bytes or seen.failed or worker.stopping or line.arrived:
            return seen.found
        if (left := deadline - anyio.current_time()) <= 0 or not interest.partitions:
            return seen.found
        if await interest.watch(request.making):
            continue
        line.wake(changed)
        await worker.long_poll(changed, left)


def _ahead(part: PartitionRead) -> Shard | None:
    """The shard of a consumer that has read further than this worker knows: another one served it.

    Before that is an OFFSET_OUT_OF_RANGE, the log is asked where it really ends.
    """
    followed = part.followed
    assert followed.shard is not None
    assert followed.key is not None
    row = followed.shard.state.partition(followed.key)
    return followed.shard if row is not None and followed.offset > row.next_offset else None


async def _catch_up(shards: set[Shard]) -> None:
    for shard in shards:
        try:
            await shard.log.catch_up()
        except KafkaError:
            return  # no longer ours, or the cluster is away: what is known is the answer


async def _look_at_all(
    worker: Worker, interest: FetchContext, request: Request, full: bool, pins: Pins
) -> _Look:
    making, dirty = request.making, interest.dirty
    budget = Budget(min(request.body.max_bytes, worker.config.fetch_bytes_max))
    seen, held = _Look(), 0
    pins.release()
    making.begin()
    for followed in list(interest.partitions.values() if full else dirty):
        if not full and budget.bytes_left <= 0:
            break
        code = _locate(worker, interest, followed)
        part = PartitionRead(followed, code, -1, -1, (), 0) if code else look(followed, budget)
        news = part.code or part.size or followed.last_sent != (part.high_watermark, part.log_start)
        if news or full:
            seen.add(part)
        if not (news or part.held_back):
            dirty.pop(followed, None)
        elif part.size and dirty.pop(followed, 0) is None:
            dirty[followed] = None  # had its turn: the others come first now
        if making.due:
            pins.hold(part.stored for part in seen.found[held:] if part.size)
            held = len(seen.found)
            await making.rest()
    return seen


# -- the answer


async def _pieces(
    request: Request, found: list[PartitionRead], session_id: int, pins: Pins
) -> list[bytes | Stored]:
    """The response frame, whose records are read when it is sent."""
    version, making = request.version, request.making
    many = len(found) > AT_ONCE
    if many:
        pins.hold(part.stored for part in found if part.size)
    read_committed = request.body.isolation_level == _READ_COMMITTED
    by_topic: dict[str | bytes, list[PartitionRead]] = {}
    for part in found:
        by_topic.setdefault(part.followed.ident[0], []).append(part)
        part.followed.last_sent = (part.high_watermark, part.log_start)
        if many and making.due:
            await making.rest()
    pieces: list[bytes | Stored] = []
    total = 0
    texts = [responses.fetch_head(version, 0, session_id, len(by_topic))]
    tail = responses.fetch_tail(version)
    for topic, parts in by_topic.items():
        texts.append(responses.fetch_topic_head(version, topic, len(parts)))
        for part in parts:
            none_aborted = read_committed or part.followed.key is None
            texts.append(responses.fetch_partition_head(version, none_aborted, _fetched(part)))
            if part.size:
                text = b"".join(texts)
                pieces += text, part.stored
                total += len(text) + part.size
                texts = []
            texts.append(tail)
            if many:
                await making.step(_PART_BYTES)
                if len(texts) > _TEXTS_MAX:
                    texts = [b"".join(texts)]
        texts.append(tail)
    texts.append(tail)
    text = b"".join(texts)
    pieces.append(text)
    total += len(text)
    prefix = response_prefix(ApiKey.FETCH, version, request.header.correlation_id, total)
    return [prefix, *pieces]


def _fetched(part: PartitionRead) -> Fetched:
    watermark = part.high_watermark
    index = part.followed.ident[1]
    return Fetched(index, part.code, watermark, watermark, part.log_start, part.size)
