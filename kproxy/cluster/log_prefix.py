"""A local copy held against its log: whether it is a prefix, and else from where on it is not."""

from collections.abc import Iterator
from functools import partial

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.threads import on_disk
from kproxy.shard.shard import Shard, identity
from kproxy.store.frames import Frame
from kproxy.store.segments import Segments
from kproxy.upstream.link import DataLink, LogListenerBase
from kproxy.upstream.log_reader import Records
from kproxy.virtual.commands.envelope import Envelope, Kind

_NOWHERE = 1 << 62


class _OneRecord(LogListenerBase):
    """A reader of one record, to hold it against the local copy."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self.envelope: Envelope | None = None
        self.done = anyio.Event()

    async def was_read(self, records: Records) -> None:
        if not self.done.is_set():
            self.envelope = dict(records).get(self._offset)
            self.done.set()

    def lost(self, reason: str) -> None:
        self.done.set()


async def _read(link: DataLink, index: int, offset: int) -> Envelope | None:
    """Return what the log has there now, if anything."""
    record = _OneRecord(offset)
    link.follow(index, record)
    link.read(index, offset, offset + 1)
    await record.done.wait()
    link.forget(index)
    return record.envelope


async def is_prefix(shard: Shard, link: DataLink) -> bool:
    """Return whether the log still has the copy's last envelope where the copy has it.

    Raises KafkaError where the cluster does not say.
    """
    index, here = shard.shard, shard.applied_through
    if not here.next_offset:
        return await link.start(index) == 0
    last = here.next_offset - 1
    if not await link.start(index) <= last < await link.end(index):
        return False
    there = await _read(link, index, last)
    return there is not None and identity(there) == here.last_envelope


async def probe(link: DataLink, index: int, mark: Envelope) -> int:
    """Append a mark to a log, and return where it landed: the log's true end was there.

    A broker that stood still, and does not know that another one leads now, answers questions
    with an end of old. Raises KafkaError where no leader takes it.
    """
    (outcome,) = await link.land(index, [mark]).wait()
    if outcome.code:
        raise KafkaError(outcome.code, "the cluster does not say where a log ends")
    return outcome.number


async def lost_part(shard: Shard, link: DataLink, at: int | None) -> tuple[int, int] | None:
    """Return the log offsets, from and to before, at which the log lacks what the copy has.

    `at`: one of them; None: the copy's last, if it is one. Behind the part may be what the copy
    has taken before it was known. None: there is no such part, or the two have nothing in common.
    Raises KafkaError where the cluster does not say.
    """
    index, segments, through = shard.shard, shard.segments, shard.applied_through.next_offset
    first = max(await link.start(index), min(segments.ids, default=0))
    at = through - 1 if at is None else min(at, through - 1)
    if at < first:
        return None
    end = await probe(link, index, unplaced_mark())

    async def lacks(log_offset: int) -> bool:
        if log_offset >= end:
            return True
        there = await _read(link, index, log_offset)
        here = await on_disk(partial(_here, segments, log_offset))
        if there is None:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the cluster does not say what it has")
        return here is None or identity(there) != identity(here)

    if not await lacks(at):
        return None
    low, high = first, at
    while low < high:
        middle = (low + high) // 2
        if await lacks(middle):
            high = middle
        else:
            low = middle + 1
    if low == first and (first > 0 or not end):
        return None
    lost, low, high = low, at + 1, through
    while low < high:
        middle = (low + high) // 2
        if await lacks(middle):
            low = middle + 1
        else:
            high = middle
    return lost, low


def mark(lost_from: int) -> Envelope:
    """Return a record that the fold passes over: from this log offset on the log was lost."""
    return Envelope(Kind.FOREIGN, number=lost_from)


def unplaced_mark() -> Envelope:
    return mark(_NOWHERE)


def marked(envelope: Envelope) -> int:
    """Return from which log offset on the log was lost, by a mark; of all else a very large one."""
    return envelope.number if envelope.kind == Kind.FOREIGN and envelope.writer else _NOWHERE


def _here(segments: Segments, log_offset: int) -> Envelope | None:
    for _, envelope, *_ in frames_from(segments, log_offset):
        return envelope
    return None


def frames_from(segments: Segments, log_offset: int) -> Iterator[Frame]:
    """Yield the frames of a copy from this log offset on. Blocks."""
    for segment in sorted(segments.ids):
        later = [other for other in segments.ids if other > segment]
        if later and min(later) <= log_offset:
            continue
        with segments.reader(segment) as reader:
            position = 0
            for found, _, _, at, after in reader.heads():
                if found >= log_offset:
                    position = at
                    break
                position = after
            yield from reader.frames(position)
