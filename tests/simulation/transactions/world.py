"""Transactions over three logs, and a network that delays, loses, reorders and says twice.

An append to a log is folded at once, as all readers of the log will fold it; so a log's
`MemoryShard` is the truth. Servers, drivers and clients act on what they saw some time ago, and
learn the outcomes of their commands late or never. Several drive a transaction at once, some of
them for long after they should have stopped. Time is that of a heap of events; each actor is a
generator that yields seconds to sleep, or a `Later` to wait for.
"""

import heapq
import itertools
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kproxy.common.errors import Code
from kproxy.protocol.batch import control_batch, read_header
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.transactions import (
    NAMED_MAX,
    Begin,
    Complete,
    End,
    EndCause,
    Enlist,
    ExpireTransaction,
    InitProducer,
    Marker,
    TransactionCommit,
)
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    NO_NUMBER,
    OPEN_GROUPS,
    OPEN_TRANSACTIONS,
    PARTICIPANTS,
    TRANSACTIONAL_PRODUCERS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
)
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import DictKv, MemoryShard
from tests.present import present
from tests.virtual.folds.transaction_model import Model

SHARDS = 3
TIMEOUT_MS = 6_000
LATE_S = 20.0
"""No command is on its way for longer."""
Acting = Generator[Any, Any, Any]
_LOOKS_S = 1.0
_END_WAIT_S = 2.0
_IDLE_MS = 15_000
_GIVEN_UP_S = 3.0


class Later:
    """A value that somebody waits for."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def set(self, value: Any = None) -> None:
        if not self.done:
            self.done, self.value = True, value
            for wake in self._waiting:
                wake(value)

    def on(self, wake: Callable[[Any], None]) -> None:
        if self.done:
            wake(self.value)
        else:
            self._waiting.append(wake)


class SortedKv(DictKv):
    """A store whose scans are as fast as they are short."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        super().__init__(rows)
        self._keys = sorted(self.rows)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys
        found = keys[bisect_left(keys, start) : bisect_left(keys, end)]
        return iter([(key, self.rows[key]) for key in found])

    walk = scan

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        keys = self._keys
        for key, value in changes.items():
            if value is None:
                if self.rows.pop(key, None) is not None:
                    del keys[bisect_left(keys, key)]
            else:
                if key not in self.rows:
                    insort(keys, key)
                self.rows[key] = value


class SimLog(MemoryShard):
    """One log, and what it comes to."""

    def __init__(self, shard: int) -> None:
        super().__init__(shard, SHARDS, shared=True)
        self.first_rows: dict[bytes, bytes] = {}
        self.restart({})

    def restart(self, found: dict[bytes, bytes] | None = None) -> None:
        """Lose all that is in memory."""
        if found is not None:
            self.kv = SortedKv(found)
        self.state = State(self.kv, 1000)
        self.fold = Fold(self.state, self.shard, SHARDS, shared=True)

    def begin_with(self, changes: dict[bytes, bytes | None]) -> None:
        self.kv.write(changes)
        self.first_rows = dict(self.kv.rows)

    def folded_again(self) -> dict[bytes, bytes]:
        """Return the rows as a fold of the whole log makes them."""
        again = SimLog(self.shard)
        again.restart(self.first_rows)
        for envelope in self.log:
            again.apply(envelope)
        return again.kv.rows


@dataclass(frozen=True, slots=True)
class Conditions:
    """Chances of what happens to one command, request or driver."""

    slow: float  # it takes seconds
    lost: float
    twice: float  # said by one shard's worker to another's log
    unsaid: float  # it landed, and who sent it does not hear of it
    stale: float  # the reader sees the rows of a while ago
    crash: float  # after each append
    drivers: int

    @staticmethod
    def of(seed: int) -> "Conditions":
        rng = random.Random(f"conditions {seed}")
        return Conditions(
            slow=rng.choice((0.02, 0.1, 0.2)),
            lost=rng.choice((0.0, 0.03, 0.1)),
            twice=rng.choice((0.0, 0.1, 0.3)),
            unsaid=rng.choice((0.0, 0.03, 0.1)),
            stale=rng.choice((0.0, 0.1, 0.3)),
            crash=rng.choice((0.0, 0.1, 1.0)),
            drivers=rng.choice((1, 2, 3)),
        )


@dataclass(slots=True)
class Mistakes:
    """The mistakes of a worker; `mistakes` plants those of the fold."""

    completes_early: bool = False
    enlists_beside: bool = False
    tells_groups_once: bool = False


@dataclass(slots=True)
class Seen:
    """A row of a transactional id from some time on."""

    at: float
    row: Transaction | None


@dataclass
class World:
    """The logs, the network, and those who serve."""

    seed: int
    mistakes: Mistakes = field(default_factory=Mistakes)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.conditions = Conditions.of(self.seed)
        self.model = Model()
        self.now = 0.0
        self.calm = False
        self.logs = [SimLog(shard) for shard in range(SHARDS)]
        self.queues: dict[str, PartitionKey] = {}  # by name, as they are now
        self.gone: set[PartitionKey] = set()
        self.landed = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._made = 0
        self._history: dict[str, list[Seen]] = {}
        self._stable: dict[PartitionKey, int] = {}

    # -- time

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until

    def spawn(self, acting: Acting) -> Later:
        ended = Later()
        self.at(0, lambda: self._step(acting, ended, None))
        return ended

    def _step(self, acting: Acting, ended: Later, value: Any) -> None:
        try:
            wanted = acting.send(value)
        except StopIteration as stop:
            ended.set(stop.value)
            return
        if isinstance(wanted, float):
            self.at(wanted, lambda: self._step(acting, ended, None))
        else:
            later, seconds = wanted
            woken: list[Any] = []

            def wake(value: Any) -> None:
                if not woken:
                    woken.append(value)
                    self.at(0, lambda: self._step(acting, ended, value))

            later.on(wake)
            self.at(seconds, lambda: wake(None))

    @property
    def now_ms(self) -> int:
        return int(self.now * 1000)

    # -- the network

    def _chance(self, share: float) -> bool:
        return not self.calm and self.rng.random() < share

    def _travels_s(self) -> float:
        if self._chance(self.conditions.slow):
            return self.rng.random() * LATE_S / 2
        return self.rng.random() * 0.02

    def append(self, shard: int, *envelopes: Envelope, foreign: bool = False) -> Later:
        """Append to a log; what is set is the outcome of the last one, where one hears of it."""
        said, after = Later(), self._travels_s()
        for envelope in envelopes:
            last = envelope is envelopes[-1]
            if self._chance(self.conditions.lost):
                self.model.counted["append lost"] += 1
                return said  # and nothing behind it
            self.at(after, partial(self._land, shard, envelope, said if last else None))
            if foreign and self._chance(self.conditions.twice):
                self.model.counted["append sent again"] += 1
                again = after + self.rng.random() * LATE_S / 2
                self.at(again, partial(self._land, shard, envelope, None))
            after += self._travels_s()
        return said

    def _land(self, shard: int, envelope: Envelope, said: Later | None) -> None:
        log = self.logs[shard]
        outcome = log.apply(envelope)
        self.landed += 1
        self._check(shard, envelope, outcome)
        if self.conditions.crash and self.rng.random() < self.conditions.crash:
            self.model.counted["restarted"] += 1
            log.restart(dict(log.kv.rows) if self.rng.random() < 0.1 else None)
        if said is not None and self._chance(self.conditions.unsaid):
            self.model.counted["answer lost"] += 1
        elif said is not None:
            self.at(self._travels_s(), lambda: said.set(outcome))

    def appended(self, shard: int, *envelopes: Envelope, foreign: bool = False) -> Acting:
        """Append, and return the outcome; None where it is not known."""
        return (yield self.append(shard, *envelopes, foreign=foreign), _GIVEN_UP_S)

    def _check(self, shard: int, envelope: Envelope, outcome: Outcome) -> None:
        """Check an append."""
        log = self.logs[shard]
        if envelope.kind in _ROW_KINDS:
            name = _name_in(envelope) or (outcome.message or "")
            data = log.kv.get(TRANSACTIONS.key(name))
            row = None if data is None else TRANSACTIONS.decode(data)
            self._history.setdefault(name, []).append(Seen(self.now, row))
        for key in self.queues.values():
            if envelope.kind in _STABLE_KINDS and (part := log.state.partition(key)) is not None:
                stable, before = part.last_stable, self._stable.get(key, 0)
                assert before <= stable <= part.next_offset, f"T5: {key} {before} {stable}"
                self._stable[key] = stable
        if self.landed % 100 == 0:
            self.model.may_be_seen(
                value for key, home in self.there() for value in self.seen(home, key)
            )

    # -- what there is

    def there(self) -> list[tuple[PartitionKey, int]]:
        """(partition, its shard) of all queues."""
        return [(key, self.shard_of_queue(name)) for name, key in self.queues.items()]

    @staticmethod
    def shard_of_queue(name: str) -> int:
        return shard_of(name, SHARDS)

    def make_queue(self, name: str) -> Envelope:
        self._made += 1
        queue_id = QueueId(self._made.to_bytes(16, "big"))
        self.queues[name] = queue_id, 0
        return CreateQueue(queue_id, name, 1, {}).envelope()

    def row(self, name: str, stale: bool = False) -> Transaction | None:
        """Return a transactional id's row, as the server of its shard sees it."""
        found = self._history.get(name, [])
        before = self.now - self.rng.random() * 10 if stale else self.now
        seen = [one for one in found if one.at <= before]
        if seen:
            return seen[-1].row
        data = self.logs[shard_of(name, SHARDS)].first_rows.get(TRANSACTIONS.key(name))
        return None if data is None else TRANSACTIONS.decode(data)

    def seen(self, shard: int, key: PartitionKey, start: int = 0) -> list[bytes]:
        """Return the records that a read_committed consumer gets, by its own algorithm."""
        log = self.logs[shard]
        row = log.state.partition(key)
        if row is None:
            return []
        start = max(start, row.log_start)
        aborted = sorted(
            (one.first_offset, one.producer_id)
            for _, one in log.state.aborted(key, start, row.last_stable)
        )
        dropped: set[int] = set()
        values = []
        for last, batch in log.state.batches(key, start, row.last_stable):
            body = bytes(log.segments.data[batch.position : batch.position + batch.length])
            header = read_header(body)
            while aborted and aborted[0][0] <= last:
                dropped.add(aborted.pop(0)[1])
            if header.attributes & 0x20:
                if header.producer_id in dropped and _is_abort(body):
                    dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                base = last - header.last_offset_delta
                values += [v for i, v in enumerate(values_of(body)) if base + i >= start]
        return values

    # -- handlers: what a worker does for a client

    def answered(self, acting: Acting) -> Acting:
        """Do a request; return None where no answer comes."""
        answer = self.spawn(acting)
        said = Later()

        def say(value: Any) -> None:
            if not self._chance(self.conditions.unsaid / 2):
                said.set(value)

        answer.on(say)
        return (yield said, 2 * _GIVEN_UP_S)

    def init(self, name: str, expected: tuple[int, int]) -> Acting:
        command = InitProducer(name, TIMEOUT_MS, *expected, self.now_ms)
        outcome = yield from self.appended(shard_of(name, SHARDS), command.envelope())
        if outcome is not None and outcome.code == Code.CONCURRENT_TRANSACTIONS:
            self.drive(name)
        return outcome

    def take_part(
        self, name: str, pid: int, epoch: int, version: int, participants: Sequence[Participant]
    ) -> Acting:
        """ENLIST, and then BEGIN in the other shards: the outcome of the former, None if any is
        not durable as far as one knows."""
        home = shard_of(name, SHARDS)
        command = Enlist(name, pid, epoch, version, participants, self.now_ms)
        outcome = yield from self.appended(home, command.envelope(), foreign=version == 2)
        if outcome is None or outcome.code:
            return outcome
        began = [
            self.append(one.shard, self._begin(name, pid, epoch, version, outcome.number, one),
                        foreign=True)
            for one in participants if one.shard != home
        ]  # fmt: skip
        for said in began:
            if (yield said, _GIVEN_UP_S) is None:
                return None
        return outcome

    def _begin(
        self, name: str, pid: int, epoch: int, version: int, number: int, one: Participant
    ) -> Envelope:
        keys = [] if one.key is None else [one.key]
        groups = [one.group] if one.key is None else []
        tag = transaction_rows.tag_of(name)
        return Begin(pid, epoch, version, number, tag, keys, groups, self.now_ms).envelope()

    def write(
        self, name: str, pid: int, epoch: int, version: int, shard: int, envelope: Envelope
    ) -> Acting:
        """Do a Produce of one batch, or a TxnOffsetCommit: with KIP-890 it enlists by itself."""
        if version < 2:
            return (yield from self.appended(shard, envelope))
        participant = self._participant(shard, envelope)
        if self._is_open(participant, pid, epoch):
            return (yield from self.appended(shard, envelope))
        home = shard_of(name, SHARDS)
        command = Enlist(name, pid, epoch, 2, [participant], self.now_ms)
        row = self.row(name)
        if self.mistakes.enlists_beside and row is not None and row.epoch == epoch:
            self.append(home, command.envelope(), foreign=True)
            number = row.number
        else:
            outcome = yield from self.appended(home, command.envelope(), foreign=True)
            if outcome is None or outcome.code:
                return outcome
            number = outcome.number
        begin = [self._begin(name, pid, epoch, 2, number, participant)] if shard != home else []
        return (yield from self.appended(shard, *begin, envelope))

    @staticmethod
    def _participant(shard: int, envelope: Envelope) -> Participant:
        if envelope.kind == Kind.APPEND:
            return Participant(shard, (envelope.queue_id, envelope.partition))
        return Participant(shard, group=TransactionCommit.decode(envelope).group)

    def _is_open(self, one: Participant, pid: int, epoch: int) -> bool:
        get = self.logs[one.shard].kv.get
        if one.key is not None:
            data = get(OPEN_TRANSACTIONS.key(one.key, pid))
            return data is not None and OPEN_TRANSACTIONS.decode(data).epoch == epoch
        data = get(OPEN_GROUPS.key(one.group, pid))
        return data is not None and OPEN_GROUPS.decode(data).epoch == epoch

    def end(self, name: str, pid: int, epoch: int, version: int, commit: bool) -> Acting:
        row = self.row(name, self._chance(self.conditions.stale))
        opened = row is not None and row.state == TransactionState.ONGOING
        number = row.number if row is not None and opened else NO_NUMBER
        command = End(name, pid, epoch, version, commit, number, self.now_ms)
        envelope = command.envelope()
        outcome = yield from self.appended(shard_of(name, SHARDS), envelope)
        if outcome is not None and not outcome.code:
            known = self.drive(name)
            yield known, _END_WAIT_S
            if version == 1 and not known.done:
                return None  # the next transaction has the same epoch: it is to be asked again
        return outcome

    # -- coordinators: what they do by themselves

    def drive(self, name: str) -> Later:
        """Set when all who take part can know."""
        known = Later()
        for _ in range(self.rng.randint(1, 1 if self.calm else self.conditions.drivers)):
            self.spawn(self._drive(name, known))
        return known

    def _drive(self, name: str, known: Later) -> Acting:
        row = self.row(name)
        if row is None or not row.state.is_ending:
            known.set()
            return
        found = self.logs[shard_of(name, SHARDS)].kv.scan(*PARTICIPANTS.range(row.number))
        members = [transaction_rows.participant_of(key) for key, _ in found]
        markers = []
        for shard, some in itertools.groupby(members, lambda one: one.shard):
            here = list(some)
            keys = [one.key for one in here if one.key is not None]
            markers += [(shard, _marker(row, keys, (), self.now_ms))] if keys else []
            markers += [
                (shard, _marker(row, (), (one.group,), self.now_ms))
                for one in here if one.key is None
            ]  # fmt: skip
        while markers:
            if self._chance(self.conditions.slow):
                yield self.rng.random() * LATE_S / 4  # it stands still
            said = [(*one, self.append(*one, foreign=True)) for one in markers]
            if self.mistakes.completes_early:
                break
            markers = []
            for shard, envelope, later in said:
                outcome = yield later, _GIVEN_UP_S
                left = outcome is not None and outcome.number > 0
                if outcome is None or (left and not self.mistakes.tells_groups_once):
                    markers.append((shard, envelope))
            if self._chance(0.05):
                return  # the worker is gone
        known.set()
        left = 1
        while left:
            complete = Complete(name, row.number, self.now_ms).envelope()
            outcome = yield from self.appended(shard_of(name, SHARDS), complete)
            if outcome is None and self.rng.random() < 0.3:
                return
            left = 1 if outcome is None else outcome.number

    def look(self) -> Acting:
        """Time passes for all transactional ids, as several coordinators see them."""
        while True:
            yield _LOOKS_S
            for name in self.names():
                row = self.row(name, self._chance(self.conditions.stale))
                if row is None:
                    continue
                home = shard_of(name, SHARDS)
                if row.state.is_ending:
                    self.drive(name)
                elif row.state == TransactionState.ONGOING and row.due_ms <= self.now_ms:
                    end = End(
                        name, row.producer_id, row.epoch, row.version, False, row.number,
                        self.now_ms, EndCause.TIMEOUT,
                    )  # fmt: skip
                    self.append(home, end.envelope())
                elif row.state.is_idle and row.update_ms < self.now_ms - _IDLE_MS:
                    if self._chance(0.3):
                        expire = ExpireTransaction(name, -1, row.update_ms)
                        self.append(home, expire.envelope())
            self._forget_producers()

    def _forget_producers(self) -> None:
        for log in self.logs:
            for key, data in log.kv.scan(*RowKind.TRANSACTIONAL_PRODUCER.range()):
                used_ms = TRANSACTIONAL_PRODUCERS.decode(data).used_ms
                if used_ms < self.now_ms - 3000 * LATE_S:
                    pid = transaction_rows.producer_id_of_key(key)
                    self.append(log.shard, ExpireTransaction("", pid, used_ms).envelope())

    def names(self) -> list[str]:
        """Return all transactional ids."""
        found = (log.kv.scan(*RowKind.TRANSACTION.range()) for log in self.logs)
        return [TRANSACTIONS.parts(key)[0] for key, _ in itertools.chain(*found)]

    # -- the end

    def all_is_quiet(self) -> bool:
        rows = [self.row(name) for name in self.names()]
        return all(row is None or row.state.is_idle for row in rows)

    def agree(self, groups: Sequence[str]) -> None:
        """Check everything that must hold once nothing is on its way."""
        seen, starts = {}, {}
        for key, shard in self.there():
            row = present(self.logs[shard].state.partition(key))
            assert row.last_stable == row.next_offset, f"T5: {key} hangs at {row.last_stable}"
            seen[key], starts[key] = self.seen(shard, key), row.log_start
            self._offsets_are_dense(shard, key)
            for start in range(0, row.next_offset, 7):
                part = self.seen(shard, key, start)
                assert part == seen[key][len(seen[key]) - len(part) :], "T6"
        self.model.all_agree(seen, starts)
        found = {
            (group, key): self._committed(group, key) for group in groups for key, _ in self.there()
        }
        self.model.offsets_agree(found, starts)
        for log in self.logs:
            left = [key for key in log.kv.rows if key[:1] in _LEFT_BY_NOBODY]
            left = [key for key in left if key[1:17] not in self._gone_ids()]
            assert not left, f"left in {log.shard}: {left}"
            assert log.state.pending_offsets == 0, "T10"
            assert log.folded_again() == log.kv.rows, "T9"

    def _gone_ids(self) -> set[bytes]:
        return {bytes(queue_id) for queue_id, _ in self.gone}

    def _committed(self, group: str, key: PartitionKey) -> int | None:
        found = self.logs[shard_of(group, SHARDS)].state.committed(group, key)
        return None if found is None else found.offset

    def _offsets_are_dense(self, shard: int, key: PartitionKey) -> None:
        state = self.logs[shard].state
        row = present(state.partition(key))
        at = 0
        for last, batch in state.batches(key, 0, row.next_offset):
            assert last - batch.last_delta == at, "T7"
            at = last + 1
        assert at == row.next_offset, "T7"


_ROW_KINDS = (
    Kind.INIT_PRODUCER, Kind.ENLIST, Kind.END, Kind.COMPLETE, Kind.EXPIRE_TRANSACTION,
)  # fmt: skip
_STABLE_KINDS = (Kind.APPEND, Kind.MARKER, Kind.TRIM)
_LEFT_BY_NOBODY = (
    RowKind.OPEN_TRANSACTION, RowKind.OPEN_FIRST, RowKind.OPEN_GROUP, RowKind.PENDING_OFFSET,
    RowKind.PENDING_BY_PARTITION, RowKind.PARTICIPANT, RowKind.TRANSACTION_DUE,
)  # fmt: skip


def _name_in(envelope: Envelope) -> str:
    decoders: dict[int, Any] = {
        Kind.INIT_PRODUCER: InitProducer, Kind.ENLIST: Enlist, Kind.END: End,
        Kind.COMPLETE: Complete, Kind.EXPIRE_TRANSACTION: ExpireTransaction,
    }  # fmt: skip
    return str(decoders[envelope.kind].decode(envelope).transactional_id)


def _marker(
    row: Transaction, keys: Sequence[PartitionKey], groups: Sequence[str], time_ms: int
) -> Envelope:
    assert len(keys) <= NAMED_MAX
    commit = row.state == TransactionState.PREPARE_COMMIT
    batch = control_batch(row.ending_producer_id, row.marker_epoch, commit=commit, time_ms=time_ms)
    return Marker(
        batch, row.ending_producer_id, row.ending_epoch, row.number, commit, keys, groups, time_ms
    ).envelope()


_CONTROL_TYPE_AT = 69


def _is_abort(body: bytes) -> bool:
    return not body[_CONTROL_TYPE_AT]


def values_of(body: bytes) -> list[bytes]:
    """Return the values of a batch, each 8 bytes long."""
    header = read_header(body)
    size = (len(body) - 61) // header.record_count
    ends = range(61 + size, len(body) + 1, size)
    return [body[end - 9 : end - 1] for end in ends]
