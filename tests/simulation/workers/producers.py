"""Idempotent producers, as clients are: each batch is sent again until it is acknowledged."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kproxy.protocol.batch import read_header
from kproxy.shard.shard import Shard
from kproxy.virtual.producers import find, repeated
from kproxy.virtual.types import PartitionKey
from tests.wire import batch

_PRODUCERS = 6  # a partition's: more than its row remembers
_TIME_MS = 10**12


class Producer:
    """One producer at one partition."""

    def __init__(self, producer_id: int, key: PartitionKey) -> None:
        self._id = producer_id
        self._key = key
        self._sequence = 0
        self._pending: bytes | None = None
        self.is_busy = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def batch(self, values: Callable[[], list[bytes]]) -> bytes:
        """Return the batch that is not acknowledged yet, or the next."""
        if self._pending is None:
            made = values()
            self._pending = batch(
                *made, producer_id=self._id, epoch=0, sequence=self._sequence,
                times=(_TIME_MS,) * len(made),
            )  # fmt: skip
        return self._pending

    def sent_before(self, shard: Shard) -> int | None:
        """Return the offset that it has already, as `handlers.produce.call` finds it."""
        assert self._pending is not None
        row = shard.state.partition(self._key)
        if row is None:
            return None
        known = find(shard.state, self._key, row, self._id)
        found = repeated(known, read_header(self._pending))
        return None if found is None else found.base_offset

    def acknowledged(self) -> None:
        assert self._pending is not None
        self._sequence += read_header(self._pending).record_count
        self._pending = None


class Producers:
    def __init__(self, first_id: int = 100) -> None:
        self.first_id = first_id
        self._all: dict[tuple[int, PartitionKey], Producer] = {}

    def free(self, key: PartitionKey, rng: random.Random) -> Producer | None:
        """Return some producer of a partition; None where it waits for an answer."""
        producer_id = self.first_id + rng.randrange(_PRODUCERS)
        slot = producer_id, key
        producer = self._all.setdefault(slot, Producer(producer_id, key))
        return None if producer.is_busy else producer
