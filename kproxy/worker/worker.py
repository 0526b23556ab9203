"""One worker: its settings, the shards it serves, and what handlers share."""

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

from kproxy.common.counters import WAITED, Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import (
    AnswerBudget,
    AskersBudget,
    MemoryBudget,
    ResponseBudget,
    SharedBudget,
)
from kproxy.config.server import Config
from kproxy.delays.delays import Delays
from kproxy.fetching.sessions import FetchSessions
from kproxy.groups.coordinators import Coordinators
from kproxy.log.base import Ticket
from kproxy.loop.asking import counted
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import slices
from kproxy.metadata.catalogue import Catalogue, Lookup, QueueIds
from kproxy.metadata.cluster_view import Cluster
from kproxy.metadata.delay_settings import FIXED, MODE
from kproxy.metadata.group_settings import GroupRules, GroupSettings
from kproxy.metadata.levels import SECURITY_FROM, UNASKED_FROM, Level, Newest, Upgrades
from kproxy.metadata.queue_settings import SIZE, QueueSettings, settings_of
from kproxy.metadata.routing import read_configs
from kproxy.metadata.setting import Setting
from kproxy.protocol.codec import RequestHeader
from kproxy.routes.cutting import SHIP_FRAME_BYTES
from kproxy.routes.passages import Passages
from kproxy.security.behalf import Signatures
from kproxy.security.cache import SecurityCache
from kproxy.security.peer import NOBODY, Peer
from kproxy.security.permits import EVERYTHING, Authorizer, Permits
from kproxy.security.quotas import NO_LIMIT, Mutations, Quotas
from kproxy.shard.appends import outcomes_of
from kproxy.shard.located import Located
from kproxy.shard.shard import Shard
from kproxy.shard.staging import Staging
from kproxy.shares.dead_letters import DeadLetters
from kproxy.shares.sessions import ShareSessions
from kproxy.shares.share_partitions import SharePartitions
from kproxy.transactions.coordinators import TransactionCoordinators
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.folds.routes import CONFIGS
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.access import SECURITY_SHARD
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker.refused_batches import RefusedBatches
from kproxy.worker.standing import Standing

_READ_BYTES = 256 << 10
LONG_POLL_S_MAX = 300.0
"""A client may ask for 24 days."""
_SECURED_AT_ONCE = 200  # rows: announcing one costs up to 50 µs

Args = TypeVarTuple("Args")
Encoded = TypeVar("Encoded")


def _uncounted() -> ResponseBudget:
    return ResponseBudget(MemoryBudget(sys.maxsize))


async def _nothing_to_hand_over(report: Callable[[int], None]) -> None:
    """Do nothing: embedded, no other worker could serve."""


_serials = count(1)


class NextRequestSignal:
    """Whether the client has sent more that waits behind the request being answered.

    Each connection has one. `connection`: later connections have higher numbers. `throttle_s`: for
    how long the client is to wait behind the answer.
    """

    __slots__ = ("_wake", "arrived", "connection", "gone", "throttle_s")

    def __init__(self) -> None:
        self.connection = next(_serials)
        self.arrived = False
        self.throttle_s = 0.0
        self.gone = False  # so is the connection: nothing is to be kept for it
        self._wake: anyio.Event | None = None

    def arrive(self) -> None:
        self.arrived = True
        if self._wake is not None:
            self._wake.set()

    def reset(self) -> None:
        self.arrived = False

    def wake(self, event: anyio.Event) -> None:
        """Have an event set when more arrives, or nothing more will."""
        self._wake = event


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded request: `body` is kio's value for `header.api_version`."""

    header: RequestHeader
    body: Any
    peer: Peer = NOBODY  # the client, as it was when the request came
    permits: Permits = EVERYTHING  # the client's rights
    next_request: NextRequestSignal = field(default_factory=NextRequestSignal)
    budget: ResponseBudget = field(default_factory=_uncounted)  # its answer

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def host(self) -> str:
        """The client's address as Kafka shows it: with a slash before it."""
        return f"/{self.peer.host}"

    @property
    def max_wait_s(self) -> float:
        """The seconds that its answer may wait for data that is not there yet."""
        return min(float(self.body.max_wait.total_seconds()), LONG_POLL_S_MAX)

    def throttle(self, seconds: float) -> None:
        """Have the client wait so long before its next request, and say so."""
        self.next_request.throttle_s = max(self.next_request.throttle_s, seconds)


class ShardRouter(Protocol):
    """The shards that this worker serves, and the way to those it does not."""

    shards: int

    def serving(self, index: int) -> Shard | None:
        """Return the shard with this number, if this worker serves it now."""
        ...

    def all(self) -> list[Shard]:
        """Return the shards that this worker serves now."""
        ...

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        """Put a command in line in the home shard of queue `name`, wherever that is."""
        ...

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        """Append to a shard's log, whoever serves it: settled once all are durable there."""
        ...

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        """Append a command to a shard's log: settled with what its owner's fold decides."""
        ...

    async def wait_for_catalogue(self, names: Iterable[str | None]) -> None:
        """Wait until what was decided about these queues by now is known. Raises KafkaError.

        None stands for one whose name is not known here.
        """
        ...


class OneShard:
    """Embedded: one shard has everything."""

    shards = 1

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def serving(self, index: int) -> Shard:
        return self._shard

    def all(self) -> list[Shard]:
        return [self._shard]

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        return self._shard.append([envelope])

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        return self._shard.append(envelopes)

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        return self._shard.append([envelope])

    async def wait_for_catalogue(self, names: Iterable[str | None]) -> None:
        pass


def largest_batch(config: Config) -> tuple[int, str]:
    """Return the largest batch that the log takes, in bytes, and the flag that bounds it.

    A queue's settings do not change it.
    """
    most = config.log_bytes_max
    if config.bootstrap_servers is None:
        return most, "--frame-bytes-max"
    return most - min(SHIP_FRAME_BYTES, most // 2), "--data-message-bytes-max"


class Worker:
    """A worker, as every handler gets it."""

    def __init__(
        self,
        *,
        config: Config,
        cluster: Cluster,
        routes: ShardRouter,
        lookup: Lookup,
        level: Level | None = None,
        upgrades: Upgrades | None = None,
        clock: Clock = SYSTEM_CLOCK,
        standing: Standing | None = None,
    ) -> None:
        self.config = config
        self.standing = standing
        self.level = level or Level()
        self.upgrades = upgrades or Newest()
        self.cluster = cluster
        self.routes = routes
        self.catalogue: Catalogue[Ticket] = Catalogue(
            lookup, routes.submit, config.partitions_default, QueueIds(routes.shards, clock.now_ms)
        )
        self.sessions = FetchSessions(
            config.fetch_sessions_max, config.fetch_session_partitions_max, clock=clock
        )
        self.request_memory = SharedBudget(config.request_bytes_buffered_max)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        """The buffer that the loop reads sockets into: one for all, as it reads one after the
        other.
        """
        self.decoded_memory = AskersBudget(config.request_bytes_buffered_max)  # for large requests
        self.answer_memory = AnswerBudget(config.answer_bytes_buffered_max)
        self.searchers = anyio.CapacityLimiter(2)  # threads that look for times in batches
        self._encoders = anyio.CapacityLimiter(1)  # threads that encode long answers
        self.clock = clock
        self.counters = Counters()
        self.now_ms = clock.now_ms
        self.group_rules = GroupRules(config.broker_values())
        self.security = SecurityCache(lookup)
        self.authorizer = Authorizer(
            self.security, enabled=config.authorizer == "acl", super_users=config.super_principals,
            lenient=config.allow_everyone_if_no_acl_found,
        )  # fmt: skip
        self.quotas = Quotas(self.security, clock.monotonic, self.counters)
        self._lookup = lookup
        self.signatures = Signatures(self.authorizer, self.quotas)
        self.group_row = lookup.group_row
        self.configured_groups = lookup.configured_groups
        self.groups = Coordinators(
            routes.all, config, lookup, clock.now_ms, landing=routes,
            settings_of=self.group_settings, readers=self.authorizer,
        )  # fmt: skip
        self.transactions = TransactionCoordinators(routes.all, routes, config, clock.now_ms)
        self.dead_letters = DeadLetters(
            routes.all, routes, self.group_settings, self.catalogue, config, self.counters, clock,
            self.level, self.signatures,
        )  # fmt: skip
        self.passages = Passages(
            routes.all, routes, self.catalogue, config, self.counters, clock, self.level,
            self.signatures,
        )  # fmt: skip
        self.delays = Delays(routes.all, self.catalogue, config, clock)
        self.shares = SharePartitions(
            self.group_settings, self.dead_letters.owes, clock.now_ms, self.counters
        )
        self.share_sessions = ShareSessions(
            self.shares, config.share_sessions_max, config.fetch_session_partitions_max
        )
        self.refused_batches = RefusedBatches()
        self._batch_bytes_max, self._batch_bytes_flag = largest_batch(config)
        self.stopping = False
        self.draining = False
        self.staging: Staging | None = None  # embedded: what a backup is made from
        self.hand_over: Callable[[Callable[[int], None]], Awaitable[None]] = _nothing_to_hand_over
        """Hand all shards to other workers, where there are any. It reports how many are left."""
        self._long_polls: set[anyio.Event] = set()

    def stop(self) -> None:
        """Let every long poll answer with what there is."""
        self.stopping = True
        self.groups.stop()
        for event in self._long_polls:
            event.set()

    async def long_poll(self, event: anyio.Event, seconds: float) -> None:
        """Wait for an event, for so long, or until the worker stops."""
        self._long_polls.add(event)
        waited, began = WAITED.get(), self.clock.monotonic()
        try:
            with anyio.move_on_after(seconds):
                await event.wait()
        finally:
            self._long_polls.discard(event)
            if waited is not None:
                waited[0] += self.clock.monotonic() - began

    @property
    def queue_changes(self) -> int:
        """A counter that goes up whenever a queue is made, changed or deleted."""
        return self._lookup.changes

    @property
    def long_polls(self) -> int:
        """The number of requests that wait for records."""
        return len(self._long_polls)

    async def encoded(
        self, budget: ResponseBudget, encode: Callable[[*Args], Encoded], *args: *Args
    ) -> Encoded:
        """Encode an answer with `encode`: if the answer is long, on another thread."""
        if budget.long:
            return await to_thread.run_sync(counted(encode), *args, limiter=self._encoders)
        return encode(*args)

    def shard(self, name: str, partition: int = 0) -> Shard:
        """Return the shard that holds a queue's partition.

        Raises KafkaError: another worker has it.
        """
        shards = self.routes.shards
        shard = self.routes.serving(shard_of(name, shards, partition) if shards > 1 else 0)
        if shard is None:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        return shard

    def partition(self, topic: str | bytes, index: int) -> Located:
        """Return a partition by its queue's name, or by its id of 16 bytes.

        Raises KafkaError: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        if isinstance(topic, bytes):
            queue, absent = self.catalogue.find_id(QueueId(topic)), Code.UNKNOWN_TOPIC_ID
        else:
            queue, absent = self.catalogue.find(topic), Code.UNKNOWN_TOPIC_OR_PARTITION
        if queue is None:
            raise KafkaError(absent)
        if not 0 <= index < queue.partitions:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        shard = self.shard(queue.name, index)
        return Located(queue, (queue.queue_id, index), shard)

    def coordinated(self, group: str) -> Shard:
        """Return the shard that a group lives in. Raises KafkaError: another worker has it."""
        try:
            return self.shard(group)
        except KafkaError:
            raise KafkaError(Code.NOT_COORDINATOR) from None

    def group_settings(self, group: str) -> GroupSettings:
        """Return a group's settings, whichever worker set them; its shard's owner has them
        first.
        """
        row = self.group_row(group)
        return self.group_rules.defaults if row is None else self.group_rules.of_row(row)

    async def secure(self, changes: Mapping[str, dict[str, Any] | None]) -> None:
        """Put rows of security (`virtual.rows.access`), or with None drop them.

        Returns once they are in force here; other workers have them as soon as they hear of them.
        Raises KafkaError.
        """
        if not self.level.reaches(SECURITY_FROM):
            raise KafkaError(
                Code.UNSUPPORTED_VERSION,
                f"rules and users are kept from level {SECURITY_FROM} on: once every worker runs"
                " this release, put it in force with `kproxy upgrade --finalize`",
            )
        for some in slices(list(changes.items()), _SECURED_AT_ONCE):
            envelope = Secure(dict(some)).envelope()
            (outcome,) = await outcomes_of([self.routes.ask(SECURITY_SHARD, envelope)])
            if outcome.code:
                raise KafkaError(outcome.code, outcome.message or "")

    def mutations(self, request: Request, strict_from: int = 0) -> Mutations:
        """Return the meter of new and deleted queues.

        Before version `strict_from` none is refused.
        """
        if not self.quotas.active:
            return NO_LIMIT
        strict = request.version >= strict_from
        return self.quotas.mutations(request.peer, request.header.client_id, strict=strict)

    def any_shard(self) -> Shard:
        """Return a shard that this worker serves, for requests of no shard. Raises KafkaError."""
        for shard in self.routes.all():
            return shard
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)

    def create_unasked(self, name: str) -> tuple[Queue, Ticket]:
        """Make a queue that somebody has looked up, or produces to. Raises KafkaError."""
        return self.catalogue.create(name, unasked=self.level.reaches(UNASKED_FROM))

    def max_batch_bytes(self, settings: QueueSettings) -> int:
        """Return the largest batch, in bytes, that a queue with these settings takes."""
        size = settings.demands.bytes_max
        if size is None:
            size = self.config.batch_bytes_max
        return size if size <= self._batch_bytes_max else self._batch_bytes_max

    def check_kept(self, values: Mapping[str, str], given: Collection[str]) -> None:
        """Raise KafkaError (INVALID_CONFIG): a queue's settings ask for more than is kept here.

        `given`: the names of those that are set now. One that was set before stays.
        """
        made = dict(read_configs(values[CONFIGS])) if values.get(CONFIGS) else {}
        for settings, new in ((values, given), (made, made if CONFIGS in given else ())):
            if SIZE in settings and not {SIZE, FIXED, MODE}.isdisjoint(new):
                self._check_size(settings)

    def _check_size(self, values: Mapping[str, str]) -> None:
        settings, most, flag = settings_of(values), self._batch_bytes_max, self._batch_bytes_flag
        if settings.delay is not None and self.delays.batch_bytes_max < most:
            most, flag = self.delays.batch_bytes_max, "--data-message-bytes-max"
        if (size := settings.demands.bytes_max or 0) > most:
            what = f"{SIZE}={size} is above {most}, the most that {flag} of this kproxy allows"
            raise KafkaError(Code.INVALID_CONFIG, what)

    def default(self, setting: Setting) -> str:
        """Return the value that queues have that do not set it."""
        if setting.name == SIZE:
            return str(min(self.config.batch_bytes_max, self._batch_bytes_max))
        return setting.default
