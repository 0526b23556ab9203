"""One worker: its settings, the shards it serves, and what handlers share."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from kproxy import native
from kproxy.common.counters import WAITED, Counters
from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import AnswerBudget, AskersBudget, ResponseBudget, SharedBudget
from kproxy.config.server import Config
from kproxy.delays.delays import Delays
from kproxy.fetching.sessions import FetchSessions
from kproxy.groups.coordinator import GroupServices
from kproxy.groups.coordinators import Coordinators
from kproxy.log.base import Ticket
from kproxy.loop.asking import counted
from kproxy.loop.clock import SYSTEM_CLOCK, Clock
from kproxy.loop.pace import slices
from kproxy.metadata.catalogue import Catalogue, Lookup, QueueIds
from kproxy.metadata.cluster_view import Cluster
from kproxy.metadata.group_settings import GroupRules, GroupSettings
from kproxy.metadata.levels import Level, Newest, Upgrades
from kproxy.routes.passages import Passages
from kproxy.security.behalf import Signatures
from kproxy.security.cache import SecurityCache
from kproxy.security.permits import Authorizer
from kproxy.security.quotas import NO_LIMIT, Mutations, Quotas
from kproxy.shard.appends import outcomes_of
from kproxy.shard.located import Located
from kproxy.shard.shard import Shard
from kproxy.shard.staging import Staging
from kproxy.shares.dead_letters import DeadLetters
from kproxy.shares.lanes.share_lanes import LaneMemory
from kproxy.shares.sessions import ShareSessions
from kproxy.shares.share_partitions import SharePartitions
from kproxy.transactions.coordinators import TransactionCoordinators
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.levels import SECURITY_FROM, UNASKED_FROM
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.access import SECURITY_SHARD
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker.batch_limits import BatchLimits
from kproxy.worker.refused_batches import RefusedBatches
from kproxy.worker.request import Request
from kproxy.worker.shards import ShardRouter
from kproxy.worker.standing import Standing

_READ_BYTES = 256 << 10
_SECURED_AT_ONCE = 200  # rows: announcing one costs up to 50 µs

Args = TypeVarTuple("Args")
Encoded = TypeVar("Encoded")


async def _nothing_to_hand_over(report: Callable[[int], None]) -> None:
    """Do nothing: embedded, no other worker could serve."""


class Worker:
    """A worker. Each family of handlers gets what it needs of it (`handlers.common.needs`)."""

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
        self.lane = native.choose(config.native)
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
        self.group_row: Callable[[str], bytes | None] = lookup.group_row
        self.configured_groups = lookup.configured_groups
        self._make_parts(clock)
        self.refused_batches = RefusedBatches()
        self.batch_limits = BatchLimits(config, self.delays.batch_bytes_max)
        self.stopping = False
        self.draining = False
        self.staging: Staging | None = None  # embedded: what a backup is made from
        self.hand_over: Callable[[Callable[[int], None]], Awaitable[None]] = _nothing_to_hand_over
        """Hand all shards to other workers, where there are any. It reports how many are left."""
        self._long_polls: set[anyio.Event] = set()

    def _make_parts(self, clock: Clock) -> None:
        """Make what works in the background, for the shards that are served here."""
        config, routes, serving = self.config, self.routes, self.routes.all
        services = GroupServices(
            config, self._lookup, clock.now_ms, landing=routes, settings_of=self.group_settings,
            readers=self.authorizer,
        )  # fmt: skip
        self.groups = Coordinators(serving, services)
        self.transactions = TransactionCoordinators(serving, routes, config, clock.now_ms)
        self.dead_letters = DeadLetters(
            serving, routes, self.group_settings, self.catalogue, config, self.counters, clock,
            self.level, self.signatures,
        )  # fmt: skip
        self.passages = Passages(
            serving, routes, self.catalogue, config, self.counters, clock, self.level,
            self.signatures,
        )  # fmt: skip
        self.delays = Delays(serving, self.catalogue, config, clock)
        self.shares = SharePartitions(
            self.group_settings, self.dead_letters.owes, clock.now_ms, self.counters,
            LaneMemory(config.share_lanes_bytes_max, self.counters),
        )  # fmt: skip
        self.share_sessions = ShareSessions(
            self.shares, config.share_sessions_max, config.fetch_session_partitions_max
        )

    def start(self, tasks: TaskGroup) -> None:
        """Start what works in the background."""
        for part in (
            self.groups, self.transactions, self.dead_letters, self.passages, self.delays,
            self.shares, self.share_sessions,
        ):  # fmt: skip
            tasks.start_soon(part.run)

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
