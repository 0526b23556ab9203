"""Fetch (key 1), versions 4 to 17: whole stored batches, long polls, sessions (KIP-227, KIP-516).

Left out: followers, diverging epochs (there is one epoch), aborted transactions (there are none).
"""

from typing import Any

import anyio

from kproxy.errors import Code, KafkaError
from kproxy.fetching.interest import Followed, Ident, Interest
from kproxy.fetching.reading import Answer, Budget, Found, Stored, look
from kproxy.fetching.sessions import Session
from kproxy.protocol import answers
from kproxy.protocol.answers import FETCH_TOPIC_IDS, Fetched
from kproxy.protocol.codec import response_prefix
from kproxy.shard import Shard
from kproxy.virtual.types import QueueId
from kproxy.worker import Request, Worker

_KEY = 1
_READ_COMMITTED = 1


async def handle(worker: Worker, request: Request) -> Answer:
    """A whole response frame."""
    by_id = request.version >= FETCH_TOPIC_IDS
    try:
        interest, session, full = _interest(worker, request, by_id)
    except KafkaError as error:
        return _refusal(request, error.code)
    try:
        if session is not None:
            session.busy = True
        found = await _wait(worker, interest, request, full)
        session_id = session.session_id if session is not None else 0
        return _answer(request, found, session_id)
    finally:
        if session is not None:
            session.busy = False
        else:
            interest.close()


def _refusal(request: Request, code: Code) -> Answer:
    head = answers.fetch_head(request.version, code, 0, 0)
    body = head + answers.fetch_tail(request.version)
    prefix = response_prefix(_KEY, request.version, request.header.correlation_id, len(body))
    return Answer([prefix, body])


# -- what the client follows


def _interest(
    worker: Worker, request: Request, by_id: bool
) -> tuple[Interest, Session | None, bool]:
    """(what to look at, its session if any, whether every partition must be answered)."""
    body = request.body
    session_id = getattr(body, "session_id", 0)
    epoch = getattr(body, "session_epoch", -1)
    wanted = sum(len(topic.partitions) for topic in body.topics)
    if epoch > 0:
        session = worker.sessions.use(session_id, epoch, by_id)
        if wanted:
            worker.sessions.check_room(session, wanted)
        _update(session, body, by_id)
        return session, session, False
    if session_id:
        worker.sessions.close(session_id)
    if epoch == 0 and wanted:
        opened = worker.sessions.open(by_id, wanted)
        if opened is not None:
            _update(opened, body, by_id)
            return opened, opened, True
    interest = Interest()
    _update(interest, body, by_id)
    return interest, None, True


def _ident(topic: Any, by_id: bool) -> str | bytes:
    if not by_id:
        return str(topic.topic)
    return bytes(16) if topic.topic_id is None else topic.topic_id.bytes


def _update(interest: Interest, body: Any, by_id: bool) -> None:
    for topic in body.topics:
        name = _ident(topic, by_id)
        for part in topic.partitions:
            ident: Ident = (name, part.partition)
            followed = interest.partitions.get(ident)
            if followed is None:
                followed = Followed(ident)
            followed.offset = part.fetch_offset
            followed.max_bytes = part.partition_max_bytes
            followed.epoch = getattr(part, "current_leader_epoch", -1)
            interest.follow(followed)
    for topic in getattr(body, "forgotten_topics_data", ()):
        name = _ident(topic, by_id)
        for index in topic.partitions:
            interest.forget((name, index))


def _locate(worker: Worker, interest: Interest, followed: Followed) -> Code:
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


async def _wait(worker: Worker, interest: Interest, request: Request, full: bool) -> list[Found]:
    """Look until there are `min_bytes`, an error, more in line, or `max_wait` is over."""
    body, line = request.body, request.line
    deadline = anyio.current_time() + body.max_wait.total_seconds()
    looked_ahead = False
    while True:
        # No await between this and the reading: what was found is not yet there to be deleted.
        await worker.answer_memory.wait_for_room()
        changed = interest.expect_change()
        found = _look_at_all(worker, interest, body, full)
        if not looked_ahead and (ahead := _ahead(found)):
            looked_ahead = True
            await _catch_up(ahead)
            continue
        enough = sum(part.size for part in found) >= body.min_bytes
        if enough or any(part.code for part in found) or worker.stopping or line.pressed:
            return found
        if (left := deadline - anyio.current_time()) <= 0 or not interest.partitions:
            return found
        interest.watch()
        line.wake(changed)
        await worker.long_poll(changed, left)


def _ahead(found: list[Found]) -> set[Shard]:
    """Shards of consumers that have read further than this worker knows: another one served them.

    Before that is an OFFSET_OUT_OF_RANGE, the log is asked where it really ends.
    """
    shards = set()
    for part in found:
        if part.code == Code.OFFSET_OUT_OF_RANGE:
            followed = part.followed
            assert followed.shard is not None
            assert followed.key is not None
            row = followed.shard.state.partition(followed.key)
            if row is not None and followed.offset > row.next_offset:
                shards.add(followed.shard)
    return shards


async def _catch_up(shards: set[Shard]) -> None:
    for shard in shards:
        try:
            await shard.log.catch_up()
        except KafkaError:
            return  # no longer ours, or the cluster is away: what is known is the answer


def _look_at_all(worker: Worker, interest: Interest, body: Any, full: bool) -> list[Found]:
    budget = Budget(min(body.max_bytes, worker.config.fetch_bytes_max))
    found = []
    quiet = []
    for followed in interest.partitions.values() if full else interest.dirty:
        if not full and budget.bytes_left <= 0:
            break
        code = _locate(worker, interest, followed)
        part = Found(followed, code, -1, -1, (), 0) if code else look(followed, budget)
        news = part.code or part.size or followed.told != (part.high_watermark, part.log_start)
        if news or full:
            found.append(part)
        if not (news or part.held_back):
            quiet.append(followed)
    for followed in quiet:
        interest.dirty.pop(followed, None)
    for part in found:
        if part.size and interest.dirty.pop(part.followed, 0) is None:
            interest.dirty[part.followed] = None  # had its turn: the others come first now
    return found


# -- the answer


def _answer(request: Request, found: list[Found], session_id: int) -> Answer:
    """The response frame, whose records are read when it is sent."""
    version = request.version
    read_committed = request.body.isolation_level == _READ_COMMITTED
    by_topic: dict[str | bytes, list[Found]] = {}
    for part in found:
        by_topic.setdefault(part.followed.ident[0], []).append(part)
        part.followed.told = (part.high_watermark, part.log_start)
    pieces: list[bytes | Stored] = [answers.fetch_head(version, 0, session_id, len(by_topic))]
    total = len(pieces[0])
    tail = answers.fetch_tail(version)
    for topic, parts in by_topic.items():
        head = answers.fetch_topic_head(version, topic, len(parts))
        pieces.append(head)
        total += len(head) + len(tail)
        for part in parts:
            none_aborted = read_committed or part.followed.key is None
            head = answers.fetch_partition_head(version, none_aborted, _fetched(part))
            pieces.append(head)
            if part.size:
                assert part.followed.shard is not None
                pieces.append(Stored(part.batches, part.followed.shard.segments))
            pieces.append(tail)
            total += len(head) + part.size + len(tail)
        pieces.append(tail)
    pieces.append(tail)
    total += len(tail)
    prefix = response_prefix(_KEY, version, request.header.correlation_id, total)
    return Answer([prefix, *pieces])


def _fetched(part: Found) -> Fetched:
    watermark = part.high_watermark
    index = part.followed.ident[1]
    return Fetched(index, part.code, watermark, watermark, part.log_start, part.size)
