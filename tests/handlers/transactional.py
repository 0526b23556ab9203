"""Producers with transactional ids over a worker in memory, by commands as its log has them."""

from typing import Any

from kproxy.protocol.batch import control_batch
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.offsets import OffsetCommit
from kproxy.virtual.commands.transactions import (
    Complete,
    End,
    Enlist,
    InitProducer,
    Marker,
    TransactionCommit,
)
from kproxy.virtual.levels import NEWEST
from kproxy.virtual.rows.transactions import Participant
from kproxy.virtual.types import PartitionKey
from tests.wire import batch

TRANSACTIONAL = 0x10


class Transactional:
    """One producer; its transactions are in one partition, and perhaps in a group."""

    def __init__(self, shard: Any, key: PartitionKey, name: str, version: int = 2) -> None:
        self._shard: Shard = shard
        self.key, self.name, self.version = key, name, version
        made = self._apply(InitProducer(name, 60_000, -1, -1, 0).envelope())
        self.producer_id, self.epoch = made.number, made.epoch
        self._sequence = 0
        self._number = -1
        self._group = ""

    def _apply(self, envelope: Envelope) -> Any:
        shard: Any = self._shard
        outcome = shard.apply(envelope)
        assert not outcome.code, (envelope.kind, outcome)
        return outcome

    @property
    def is_open(self) -> bool:
        return self._number >= 0

    def begin(self, group: str = "") -> None:
        self._group = group
        taking = [Participant(0, self.key), *([Participant(0, group=group)] if group else ())]
        asked = Enlist(self.name, self.producer_id, self.epoch, self.version, taking, 0)
        self._number = self._apply(asked.envelope()).number

    def write(self, *values: bytes, **more: Any) -> int:
        """Write a batch; return the base offset; begin a transaction where none is open."""
        if not self.is_open:
            self.begin()
        data = batch(
            *values, attributes=TRANSACTIONAL, producer_id=self.producer_id, epoch=self.epoch,
            sequence=self._sequence, **more,
        )  # fmt: skip
        self._sequence += len(values)
        return int(self._apply(Envelope(Kind.APPEND, *self.key, body=data)).number)

    def commit_offset(self, key: PartitionKey, offset: int) -> None:
        asked = OffsetCommit(*key, offset, -1, "", False)
        self._apply(
            TransactionCommit(
                self._group, "", -1, self.producer_id, self.epoch, [asked], 0
            ).envelope(NEWEST)
        )

    def end(self, commit: bool, time_ms: int = 0) -> None:
        number, ended = self._number, self.epoch
        asked = End(self.name, self.producer_id, ended, self.version, commit, number, 0)
        decided = self._apply(asked.envelope())
        marks = control_batch(self.producer_id, decided.epoch, commit=commit, time_ms=time_ms)
        groups = [self._group] if self._group else []
        self._apply(
            Marker(
                marks, self.producer_id, ended, number, commit, [self.key], groups, time_ms
            ).envelope()
        )
        self._apply(Complete(self.name, number, 0).envelope())
        if decided.epoch != ended:
            self._sequence = 0
        self.producer_id, self.epoch, self._number = decided.number, decided.epoch, -1
