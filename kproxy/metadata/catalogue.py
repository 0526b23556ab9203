"""Queues by name and by id, and their creation.

Requests that name a queue while it is being created share one creation: they queue behind it with
the same id. So a connection's appends keep their order from the first one on.
"""

import random
import struct
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from kproxy.common.errors import Code, KafkaError
from kproxy.loop.clock import SYSTEM_CLOCK
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.partitioner import name_fault, shard_of
from kproxy.virtual.rows.access import secured_key
from kproxy.virtual.rows.group_settings import group_config_key
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.queues import Queue, decode_queue, name_of, queue_key
from kproxy.virtual.state import State
from kproxy.virtual.types import LogOffset, QueueId, ShardId

_COMING_KEPT = 1000
_ID = struct.Struct(">QQ")
_random = random.Random()  # seeded by the system's randomness once: a call for each id takes 10 us
_TIME_MASK = (1 << 47) - 1  # the text form of an id never begins with a dash, as Kafka's


def absent(name: str) -> tuple[Code, str | None]:
    """Return Kafka's answer for a queue that is not there, and why the name could be none's."""
    fault = name_fault(name)
    return Code.INVALID_TOPIC_EXCEPTION if fault else Code.UNKNOWN_TOPIC_OR_PARTITION, fault


class QueueIds:
    """A maker of ids for new queues: milliseconds since 1970, then random, as in a UUID 7.

    Queues that are created one after the other have rows side by side. Nothing relies on the time,
    so the clock may be wrong. The last eight bytes give the queue's home shard (`home_of`).
    """

    def __init__(
        self,
        shards: int,
        now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
        random_bits: Callable[[int], int] = _random.getrandbits,
    ) -> None:
        self.shards = shards
        self._now_ms = now_ms
        self._random_bits = random_bits

    def new(self, home: ShardId) -> QueueId:
        """Return a new id of a queue with this home shard."""
        number = self._random_bits(63)
        number += home - number % self.shards
        time_ms = self._now_ms() & _TIME_MASK
        return QueueId(_ID.pack(time_ms << 16 | self._random_bits(16), number))


def home_of(queue_id: QueueId, shards: int) -> ShardId:
    """Return the home shard of the queue with this id."""
    return ShardId(int.from_bytes(queue_id[8:], "big") % shards)


class Pending(Protocol):
    """A result of `submit`: known to be settled or not."""

    @property
    def done(self) -> bool: ...


Ticket = TypeVar("Ticket", bound=Pending)


class Lookup(Protocol):
    """A look-up of queues: a shard's state, or what all workers announce."""

    @property
    def changes(self) -> int:
        """A count that goes up whenever a queue is made, changed or deleted."""
        ...

    def find(self, name: str) -> Queue | None: ...
    def find_id(self, queue_id: QueueId) -> Queue | None: ...
    def all(self, first: str = "") -> Iterator[Queue]:
        """Yield every queue by name, from this name on."""
        ...

    def rows(self, first: str = "") -> Iterator[tuple[bytes, bytes]]:
        """Yield the same as rows (`virtual.rows.queues`), also of what has no partitions yet."""
        ...

    def group_row(self, group: str) -> bytes | None:
        """Return what is set of a group (`virtual.rows.group_settings`)."""
        ...

    def configured_groups(self) -> Iterator[str]:
        """Yield the groups of which something is set."""
        ...

    def secured_row(self, name: str) -> bytes | None:
        """Return a row of security (`virtual.rows.access`)."""
        ...

    def secured(self) -> Iterator[str]:
        """Yield the names of all rows of security."""
        ...


def decoded(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Queue]:
    """Yield the queues of rows."""
    for key, value in rows:
        yield decode_queue(name_of(key), value)


def _usable(queue: Queue | None) -> Queue | None:
    return queue if queue is not None and queue.partitions else None


class StateLookup:
    """The queues of one shard's state; those that other shards are still told of are not there."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def changes(self) -> int:
        return self._state.queue_changes

    def find(self, name: str) -> Queue | None:
        return _usable(self._state.queue(name))

    def find_id(self, queue_id: QueueId) -> Queue | None:
        return _usable(self._state.queue_by_id(queue_id))

    def all(self, first: str = "") -> Iterator[Queue]:
        return decoded(self.rows(first))

    def rows(self, first: str = "") -> Iterator[tuple[bytes, bytes]]:
        return self._state.kv.scan(queue_key(first), RowKind.QUEUE.range()[1])

    def group_row(self, group: str) -> bytes | None:
        return self._state.get(group_config_key(group))

    def configured_groups(self) -> Iterator[str]:
        for key, _ in self._state.kv.scan(*RowKind.GROUP_CONFIG.range()):
            yield name_of(key)

    def secured_row(self, name: str) -> bytes | None:
        return self._state.get(secured_key(name))

    def secured(self) -> Iterator[str]:
        for key, _ in self._state.kv.scan(*RowKind.SECURED.range()):
            yield name_of(key)


class Catalogue(Generic[Ticket]):
    """The queues there are, and those on their way."""

    def __init__(
        self,
        lookup: Lookup,
        submit: Callable[[str, Envelope], Ticket],
        partitions_default: int,
        ids: QueueIds,
    ) -> None:
        """Set up; `submit` puts a command in line at a queue's home."""
        self._submit = submit
        self._partitions_default = partitions_default
        self._ids = ids
        self._coming: dict[str, tuple[Queue, Ticket]] = {}
        self._coming_kept_max = _COMING_KEPT
        self.find = lookup.find
        self.find_id = lookup.find_id
        self.all = lookup.all
        self.rows = lookup.rows

    def exists(self, name: str) -> bool:
        """Return whether there is such a queue, or one is on its way."""
        coming = self._coming.get(name)
        return self.find(name) is not None or (coming is not None and not coming[1].done)

    def create(
        self, name: str, partitions: int | None = None, configs: dict[str, str] | None = None,
        *, unasked: bool = False,
    ) -> tuple[Queue, Ticket]:  # fmt: skip
        """Put a creation in line, or join the one that is. Raise KafkaError for a bad name.

        The queue may be used behind it in the log at once; whether it won is the ticket's outcome.
        """
        fault = name_fault(name)
        if fault:
            raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, fault)
        coming = self._coming.get(name)
        if coming is not None and not coming[1].done:
            return coming
        queue = Queue(
            name=name,
            queue_id=self._ids.new(shard_of(name, self._ids.shards)),
            partitions=partitions or self._partitions_default,
            wanted=partitions or self._partitions_default,
            created_at=LogOffset(0),
            changed_at=LogOffset(0),
            configs=configs or {},
            unasked=unasked,
        )
        create = CreateQueue(queue.queue_id, name, queue.partitions, queue.configs, unasked)
        ticket = self._submit(name, create.envelope())
        self._coming[name] = (queue, ticket)
        if len(self._coming) > self._coming_kept_max:
            self._coming = {n: c for n, c in self._coming.items() if not c[1].done}
            self._coming_kept_max = max(_COMING_KEPT, 2 * len(self._coming))
        return queue, ticket
