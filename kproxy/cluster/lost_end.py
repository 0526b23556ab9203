"""The repair of a shard whose log has lost its end in the cluster: an unclean leader election.

A local copy that had folded the lost part shows its content. The owner

1. says which records are lost (`log_lost`, `records_lost`, the counters);
2. fills the log up to where it ended, with marks that the fold passes over, and puts RESTORED
   behind them: no log offset is given twice, and all that a log offset makes unique stays so;
3. makes its copy again, and folds the log, before anybody is served;
4. gives each queue partition an empty batch over the offsets that are lost: no offset is given
   twice, so a consumer that has read them goes on behind them, and so does a route;
5. appends again what the log took at such offsets before its owner knew, where a repetition of it
   is to be answered as one: a consumer that is behind them would never see it;
6. appends again what other shards had told this one. They believe that it knows, and whatever they
   tell has no effect the second time.

Other envelopes that the log took at lost offsets before its owner knew stay where they are: of a
producer without a sequence, who was refused and sends again, of transactions, routes and dead
letters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import structlog

from kproxy.cluster.log_prefix import frames_from, mark, probe
from kproxy.cluster.services import ShardServices
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.loop.pace import Pace
from kproxy.loop.threads import on_disk
from kproxy.protocol.batch import empty_batch, read_header
from kproxy.protocol.made_batches import of_producer
from kproxy.shard.shard import Shard
from kproxy.store.segments import Segments
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.records import Compact
from kproxy.virtual.commands.restore import Restored
from kproxy.virtual.folds.carried import carried
from kproxy.virtual.levels import COMPACTION_FROM
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.queues import HIDDEN, name_key
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_log = structlog.get_logger()

LOST_MAX = 20_000_000
"""The most log offsets that are filled: a mark takes some 80 bytes of the log."""
_AT_ONCE = 2000
_TOLD = frozenset(
    (Kind.ASSIGN_PARTITIONS, Kind.ROUTE, Kind.BEGIN, Kind.MARKER, Kind.SHIP, Kind.FORWARD)
)
"""The kinds of commands that other shards believe to be known once they are durable."""
_GIVEN_AGAIN = frozenset((Kind.APPEND, Kind.APPEND_IF, Kind.DUE))
_TOLD_BYTES_MAX = 64 << 20
_OFFSETS_END = 1 << 62
_OFFSETS_MAX = (1 << 31) - 1  # a batch's last offset delta is an int32


class NotRebuilt(Exception):
    """The shard cannot be made from what is published and what the log holds: not served."""


@dataclass(slots=True)
class LostEnd:
    """The part of a log that is lost, and what was in it as far as that is known."""

    start: int
    end: int
    ends: dict[PartitionKey, int] = field(default_factory=dict)
    """The next offset that each partition gave out."""
    told: list[Envelope] = field(default_factory=list)
    untold: int = 0
    """The number of commands of others that are too many to be kept."""
    said: set[PartitionKey] = field(default_factory=set)
    """Partitions whose loss the operator knows of."""
    room: int = field(default_factory=lambda: _TOLD_BYTES_MAX)

    def note_told(self, envelope: Envelope) -> None:
        """Keep what another shard has told this one, as far as there is room."""
        if envelope.kind not in _TOLD:
            return
        self.room -= len(envelope.body)
        if self.room >= 0:
            self.told.append(envelope)
        else:
            self.untold += 1


def look(shard: Shard, start: int, end: int) -> tuple[LostEnd, list[dict[str, object]]]:
    """Return what of a copy is not in the log any more, and the records among it. Blocks."""
    lost, state = LostEnd(start, end), shard.state
    keys: dict[PartitionKey, None] = {}
    for log_offset, envelope, location, _ in frames_from(shard.segments, start):
        if log_offset >= end:
            break
        keys |= dict.fromkeys(key for key, *_ in carried(state, log_offset, envelope, location))
        lost.note_told(envelope)
    said = []
    for key in keys:
        row = state.partition(key)
        found = state.first_batch(key, lambda batch: batch.log_offset >= start)
        if row is None or found is None:
            continue
        behind = state.first_batch(key, lambda batch: batch.log_offset >= end)
        ended = row.next_offset if behind is None else behind[0] - behind[1].last_delta
        said.append(told(state, key, found[0] - found[1].last_delta, ended))
        lost.said.add(key)
        if not key[1] & HIDDEN:
            lost.ends[key] = row.next_offset
    return lost, said


def told(state: State, key: PartitionKey, first: int, end: int) -> dict[str, object]:
    """Return the event of a partition's lost offsets; delayed records have their own."""
    name = state.kv.get(name_key(key[0]))
    return {
        "queue": key[0].hex() if name is None else name.decode(),
        "partition": key[1] & ~HIDDEN, "first": first, "last": end - 1,
        "delayed": bool(key[1] & HIDDEN),
    }  # fmt: skip


def say(
    index: int, lost: LostEnd, records: Sequence[dict[str, object]], services: ShardServices
) -> None:
    """Tell the operator what is lost."""
    services.counters.log_lost[str(index)] += lost.end - lost.start
    _log.error(
        "log_lost", topic=services.upstream.data, shard=index, first=lost.start, last=lost.end - 1,
        partitions=len(records), untold=lost.untold,
    )  # fmt: skip
    say_records(index, records, services)


def add(
    shard: Shard, lost: LostEnd, rolled_back: dict[PartitionKey, tuple[int, int]],
    services: ShardServices,
) -> None:  # fmt: skip
    """Add what published rows know of, and the log does not: (end in the log, end in the row)."""
    unsaid = [key for key in rolled_back if key not in lost.said]
    say_records(
        shard.shard, [told(shard.state, key, *rolled_back[key]) for key in unsaid], services
    )
    lost.said |= set(unsaid)
    for key, (_, end) in rolled_back.items():
        if not key[1] & HIDDEN:
            lost.ends[key] = max(end, lost.ends.get(key, 0))


def say_records(index: int, records: Sequence[dict[str, object]], services: ShardServices) -> None:
    for one in records:
        first, last = one["first"], one["last"]
        assert isinstance(first, int)
        assert isinstance(last, int)
        services.counters.records_lost[str(index)] += last + 1 - first
        _log.error("records_lost", shard=index, **one)


async def repair(
    index: int, lost: LostEnd, records: list[dict[str, object]], services: ShardServices
) -> LostEnd:
    """Say what is lost, and fill the log; return what is lost.

    Raises NotRebuilt: it is more than a cluster loses; KafkaError: to be done again.
    """
    if lost.end - lost.start > LOST_MAX:
        raise NotRebuilt(f"the log ends at {lost.start}, and is known up to {lost.end}")
    say(index, lost, records, services)
    await fill(index, lost, services)
    return lost


async def fill(index: int, lost: LostEnd, services: ShardServices) -> None:
    """Put marks into the log up to where it ended. Raises KafkaError: to be done again."""
    link = services.link
    through = await probe(link, index, mark(lost.start))
    while (missing := lost.end - 1 - through) > 0:
        marks = [mark(lost.start) for _ in range(min(missing, _AT_ONCE))]
        through = (await _durable(link.land(index, marks)))[-1].number
    restored = Restored(services.clock.now_ms()).envelope()
    if services.level.admits([restored]):
        await _durable(link.land(index, [restored]))


async def make_up(shard: Shard, lost: LostEnd) -> None:
    """Let no offset be given twice, and tell again what was told. Raises KafkaError."""
    gaps = _gaps(shard.state, lost)
    while some := list(islice(gaps, _AT_ONCE)):
        await _durable(shard.append(some))
    await _give_again(shard, lost)
    for one in lost.told:
        await _durable(shard.append([one]))


def _gaps(state: State, lost: LostEnd) -> Iterator[Envelope]:
    for key, end in lost.ends.items():
        row = state.partition(key)
        missing = 0 if row is None else end - row.next_offset
        while missing > 0:
            offsets = min(missing, _OFFSETS_MAX)
            yield Envelope(Kind.APPEND, *key, body=empty_batch(offsets))
            missing -= offsets


async def _give_again(shard: Shard, lost: LostEnd) -> None:
    """Append once more what nobody who is behind the lost offsets would see, and take it there."""
    if not lost.ends or not shard.level.reaches(COMPACTION_FROM):
        return
    pace = Pace()
    for key, kinds in (await on_disk(partial(_taken, shard.segments, lost))).items():
        await pace.step()
        first = shard.state.first_batch(key, lambda batch: batch.log_offset >= lost.start)
        if first is None:
            continue
        for last_offset, batch in shard.state.batches(key, first[0], _OFFSETS_END):
            if last_offset - batch.last_delta >= lost.ends[key]:
                break
            if batch.log_offset in kinds:
                read = partial(shard.segments.batch, batch.segment, batch.position, batch.length)
                again = _again(kinds[batch.log_offset], bytes(await on_disk(read) or b""))
                if again:
                    gone = Compact(*key, [(last_offset, batch.generation)]).envelope()
                    await _durable(shard.append([Envelope(Kind.APPEND, *key, body=again), gone]))


def _taken(segments: Segments, lost: LostEnd) -> dict[PartitionKey, dict[int, int]]:
    """Return the kinds of envelopes by their partitions, which have lost something, and their log
    offsets, of those taken before anybody knew.

    Behind a claim another owner served: what it has answered stays. Blocks.
    """
    found: dict[PartitionKey, dict[int, int]] = {}
    for log_offset, envelope, *_ in frames_from(segments, lost.start):
        if log_offset >= lost.end or envelope.kind == Kind.CLAIM:
            break
        key = envelope.queue_id, envelope.partition
        if envelope.kind in _GIVEN_AGAIN and key in lost.ends:
            found.setdefault(key, {})[log_offset] = envelope.kind
    return found


def _again(kind: int, batch: bytes) -> bytes:
    """Return a batch to append once more, without a sequence; empty: it stays where it is."""
    header = read_header(batch)
    if header.is_transactional or (header.producer_id < 0 and kind != Kind.DUE):
        return b""
    return of_producer(batch, -1, -1, -1)


async def _durable(ticket: Ticket) -> list[Outcome]:
    """Wait for envelopes to be in the log. Raises KafkaError where that is not known."""
    outcomes = await ticket.wait()
    for outcome in outcomes:
        if outcome.code in (Code.REQUEST_TIMED_OUT, Code.NOT_LEADER_OR_FOLLOWER):
            raise KafkaError(outcome.code, "the cluster did not take what makes up for a loss")
    return outcomes
