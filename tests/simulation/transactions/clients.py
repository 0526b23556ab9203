"""Clients of the simulated logs: what they ask for, and what they are told.

A `Producer` is one life of a client with a transactional id. It takes what it is told as Kafka's
own clients do: without KIP-890 it asks for another epoch after a write of unknown fate. When it
fails, or before, another begins with the same id; then it is a zombie.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.groups import DeleteGroup
from kproxy.virtual.commands.offsets import CommitOffsets, DeleteOffsets, OffsetCommit
from kproxy.virtual.commands.queues import DeleteQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.transactions import End, EndCause, TransactionCommit
from kproxy.virtual.folds import groups as group_fold
from kproxy.virtual.folds import transactions as transaction_fold
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.transactions import (
    OPEN_TRANSACTIONS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
    producer_id_of_key,
    transaction_due_key,
)
from kproxy.virtual.types import PartitionKey
from tests.simulation.transactions.world import (
    LATE_S,
    SHARDS,
    TIMEOUT_MS,
    Acting,
    Mistakes,
    World,
)
from tests.simulation.twice import fold_twice
from tests.virtual.folds.transaction_model import ALL, Told
from tests.wire import batch

TROUBLE_S = 60.0
GROUPS = ["g", "h"]
_IDS = 4
_QUEUES = 4
_NEAR_THE_END = 32_760
_AGAIN = (None, Code.CONCURRENT_TRANSACTIONS)
_FATAL = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_PRODUCER_EPOCH)
_WHOLE = 10_000
"""The number of tries for an answer that must be known."""


class Fenced(Exception):
    """Another has the transactional id: this life is over."""


class Aborts(Exception):
    """The transaction cannot be committed."""


class Producer:
    """One life of a client with a transactional id."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.name = world, name
        self.client = f"{name}.{number}"
        self.begun = False
        self._number = number
        self._rng = random.Random(f"{world.seed} {self.client}")
        self._version = self._rng.choice((1, 2))
        self._steady = self._rng.random() < 0.7
        self._pid = self._epoch = -1
        self._sequences: dict[PartitionKey, int] = {}
        self._unsure = False  # whether something may still be on its way
        self._asked_again = False
        self._values = itertools.count()

    def live(self, seconds: float, fences: list["Producer"]) -> Acting:
        """Run until a time. `fences`: earlier lives, which this one fences if they have begun."""
        until = self.world.now + seconds
        fenced = [other for other in fences if other.begun]
        try:
            yield from self._init(expects=False)
            self.begun = True
            for other in fenced:
                self.world.model.fences(other.client)
            while self.world.now < until and not self.world.calm:
                yield from self._transaction()
                yield self._rng.random() * 0.5
        except Fenced:
            pass

    def _ask(self, handler: Callable[[], Acting], times: int = _WHOLE) -> Acting:
        """Ask until the outcome is known. Raises Fenced, and Aborts where it stays unknown."""
        self._asked_again = False
        for _ in range(times):
            outcome: Outcome | None = yield from self.world.answered(handler())
            code = None if outcome is None else outcome.code
            if code in _FATAL:
                raise Fenced
            if code not in _AGAIN:
                return outcome
            if self.world.calm:
                raise Fenced
            self._asked_again |= code is None
            yield 0.02 + self._rng.random() * 0.3
        self._unsure = True
        raise Aborts

    def _init(self, *, expects: bool) -> Acting:
        expected = (self._pid, self._epoch) if expects else (-1, -1)
        outcome = yield from self._ask(lambda: self.world.init(self.name, expected))
        assert outcome.code == Code.NONE
        self._take(outcome)
        self._unsure = False

    def _take(self, outcome: Outcome) -> None:
        """Take the producer id and epoch to go on with."""
        given = outcome.number, outcome.epoch
        self.world.model.given(self.client, *given)
        if given != (self._pid, self._epoch):
            self._sequences.clear()
        self._pid, self._epoch = given

    # -- one transaction

    def _transaction(self) -> Acting:
        if not self._steady and not self._unsure:
            self._version = self._rng.choice((1, 2))
        told = self.world.model.begin(self.client)
        commit = self._rng.random() < 0.65
        done = False
        try:
            for _ in range(self._rng.randint(1, 4)):
                if self._rng.random() < 0.4:
                    yield from self._offset(told)
                else:
                    yield from self._write(told)
                done = True
                if self._rng.random() < 0.03:
                    yield 1.3 * TIMEOUT_MS / 1000  # it stands still
        except Aborts:
            commit = False
            done = True
        if not done:
            return
        yield from self._end(told, commit)
        if self._unsure and self._version == 1:
            yield from self._init(expects=True)
        self._unsure = False

    def _takes_part(self, participant: Participant) -> Acting:
        outcome = yield from self._ask(
            lambda: self.world.take_part(self.name, self._pid, self._epoch, 1, [participant]), 4
        )
        if outcome.code:
            raise Aborts

    def _write(self, told: Told) -> Acting:
        world = self.world
        name = self._rng.choice(list(world.queues))
        key, shard = world.queues[name], world.shard_of_queue(name)
        if self._version == 1:
            yield from self._takes_part(Participant(shard, key))
        values = [
            f"{self.name}{self._number:02d}{next(self._values):04d}".encode()
            for _ in range(self._rng.randint(1, 2))
        ]
        sequence = self._sequences.get(key, 0)
        body = batch(
            *values, producer_id=self._pid, epoch=self._epoch, sequence=sequence, attributes=0x10
        )
        for value in values:
            world.model.sends(value, told)
        envelope = Envelope(Kind.APPEND, *key, time_ms=world.now_ms, body=body)
        outcome = yield from self._ask(lambda: self._written(shard, envelope), 4)
        if outcome.code:
            self._unsure = True
            raise Aborts
        self._sequences[key] = sequence + len(values)
        for number, value in enumerate(values):
            told.records[value] = key, outcome.number + number

    def _written(self, shard: int, envelope: Envelope) -> Acting:
        again = Envelope(envelope.kind, envelope.queue_id, envelope.partition,
                         number=envelope.number, time_ms=envelope.time_ms,
                         body=envelope.body)  # fmt: skip
        return self.world.write(self.name, self._pid, self._epoch, self._version, shard, again)

    def _offset(self, told: Told) -> Acting:
        world = self.world
        group, keys = self._rng.choice(GROUPS), list(world.queues.values())
        keys = self._rng.sample(keys, self._rng.randint(1, min(3, len(keys))))
        shard = shard_of(group, SHARDS)
        if self._version == 1:
            yield from self._takes_part(Participant(shard, group=group))
        offset = world.model.tick()
        named = [OffsetCommit(*key, offset, -1, "", False) for key in keys]
        command = TransactionCommit(group, "", -1, self._pid, self._epoch, named, world.now_ms)
        noted = [world.model.commits_offset(group, key, offset, told) for key in keys]
        envelope = command.envelope(NEWEST)
        outcome = yield from self._ask(lambda: self._written(shard, envelope), 4)
        if outcome.code:
            self._unsure = True
            raise Aborts
        for one in noted:
            one.answered = world.model.tick()
            if not self._asked_again:
                one.over = one.answered
        # Without KIP-890 one that comes late might take part in the next transaction.
        self._unsure |= self._asked_again

    def _end(self, told: Told, commit: bool) -> Acting:
        if commit:
            told.commit_asked = self.world.model.tick()
        outcome = yield from self._ask(
            lambda: self.world.end(self.name, self._pid, self._epoch, self._version, commit)
        )
        if outcome.code == Code.NONE:
            told.committed, told.aborted = commit, not commit
            self._take(outcome)
        elif commit:
            # Nothing but a fence or a timeout keeps it from that, and then it is told of that.
            raise Fenced
        elif self._version == 1:
            self._unsure = True


class Others:
    """The clients without transactional ids."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = random.Random(f"{world.seed} others")
        self._values = itertools.count()

    def live(self) -> Acting:
        acts = (
            self._write, self._write, self._write, self._commit, self._commit, self._trim,
            self._drop_offset, self._drop_group, self._make_again, self._abort_by_number,
        )  # fmt: skip
        while not self.world.calm:
            yield self._rng.random() * 0.8
            yield from self._rng.choice(acts)()

    def _queue(self) -> tuple[str, PartitionKey, int]:
        name = self._rng.choice(list(self.world.queues))
        return name, self.world.queues[name], self.world.shard_of_queue(name)

    def _write(self) -> Acting:
        _, key, shard = self._queue()
        value = f"p{next(self._values):07d}".encode()
        self.world.model.sends(value, None)
        envelope = Envelope(Kind.APPEND, *key, body=batch(value))
        outcome = yield from self.world.appended(shard, envelope)
        if outcome is not None and not outcome.code:
            self.world.model.plain[value] = key, outcome.number

    def _changed(self, group: str, keys: list[PartitionKey], offset: int | None, e: Any) -> Acting:
        model = self.world.model
        noted = [model.commits_offset(group, key, offset) for key in keys]
        outcome = yield from self.world.appended(shard_of(group, SHARDS), e)
        if outcome is not None and not outcome.code:
            for one in noted:
                one.answered = one.over = model.tick()

    def _commit(self) -> Acting:
        _, key, _ = self._queue()
        group, offset = self._rng.choice(GROUPS), self.world.model.tick()
        named = [OffsetCommit(*key, offset, -1, "", False)]
        command = CommitOffsets(group, "", -1, named, self.world.now_ms)
        yield from self._changed(group, [key], offset, command.envelope(NEWEST))

    def _drop_offset(self) -> Acting:
        _, key, _ = self._queue()
        group = self._rng.choice(GROUPS)
        yield from self._changed(group, [key], None, DeleteOffsets(group, [key]).envelope(2))

    def _drop_group(self) -> Acting:
        if self._rng.random() < 0.3:
            group = self._rng.choice(GROUPS)
            yield from self._changed(group, [ALL], None, DeleteGroup(group).envelope())

    def _abort_by_number(self) -> Acting:
        """Abort some open transactions of a partition, as an operator does."""
        _, key, shard = self._queue()
        log = self.world.logs[shard]
        found = [
            pair for pair in log.kv.scan(*OPEN_TRANSACTIONS.range(key)) if self._rng.random() < 0.3
        ]
        for open_key, data in found:
            pid, opened = producer_id_of_key(open_key), OPEN_TRANSACTIONS.decode(data)
            command = End(
                "", pid, opened.epoch, 1, False, opened.number, self.world.now_ms, EndCause.OPERATOR
            )
            yield from self.world.appended(pid % SHARDS, command.envelope(), foreign=True)

    def _trim(self) -> Acting:
        _, key, shard = self._queue()
        row = self.world.logs[shard].state.partition(key)
        if row is not None:
            start = self._rng.choice((-1, self._rng.randint(0, row.next_offset)))
            yield from self.world.appended(shard, Trim(*key, start).envelope())

    def _make_again(self) -> Acting:
        if self._rng.random() < 0.3:
            name, key, shard = self._queue()
            del self.world.queues[name]
            self.world.gone.add(key)
            log = self.world.logs[shard]
            yield 0.1
            log.apply(DeleteQueue(key[0]).envelope())
            log.apply(self.world.make_queue(name))


def _begin(world: World) -> None:
    """Make queues, and transactional ids whose epochs will soon run out."""
    for number in range(_IDS // 2):
        name = f"t{number}"
        shard = shard_of(name, SHARDS)
        row = Transaction(
            SHARDS * (10_000_000 + number) + shard, epoch=_NEAR_THE_END, timeout_ms=TIMEOUT_MS,
            state=TransactionState.EMPTY,
        )  # fmt: skip
        log = world.logs[shard]
        log.begin_with(
            {TRANSACTIONS.key(name): TRANSACTIONS.encode(row), transaction_due_key(row, name): b""}
        )
    for number in range(_QUEUES):
        name = f"q{number}"
        world.logs[world.shard_of_queue(name)].apply(world.make_queue(name))


def _lives(world: World, name: str) -> Acting:
    """Begin one life after the other, some before the last is over."""
    rng = random.Random(f"{world.seed} {name}")
    before: list[Producer] = []
    for number in itertools.count():
        producer = Producer(world, name, number)
        ended = world.spawn(producer.live(3.0 + rng.random() * 30, list(before)))
        before.append(producer)
        yield ended, rng.choice((2.0, 10.0, 100.0))
        yield rng.random()
        if world.calm:
            return


def simulated(seed: int, mistakes: Mistakes | None = None) -> World:
    """Run a seed. Raises AssertionError where something does not hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_fold, "NAMED_MAX", 2)  # many in one are few here
        patch.setattr(transaction_fold, "NAMED_MAX", 2)
        world = _run(World(seed, mistakes or Mistakes()))
        for log in world.logs:
            world.model.counted += fold_twice(
                log.log, log.shard, SHARDS, first_rows=log.first_rows, seed=seed
            )
        return world


def _run(world: World) -> World:
    _begin(world)
    world.spawn(world.look())
    world.spawn(Others(world).live())
    for number in range(_IDS):
        world.spawn(_lives(world, f"t{number}"))
    world.run(TROUBLE_S)
    world.calm = True
    world.run(TROUBLE_S + 2 * LATE_S)
    for _ in range(20):
        if world.all_is_quiet():
            break
        world.run(world.now + LATE_S)
    assert world.all_is_quiet(), "T5: something does not end"
    world.agree(GROUPS)
    return world
