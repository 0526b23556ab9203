"""The services of a worker that each family of handlers gets. A `Worker` has all of them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, TypeVarTuple

import anyio

from kproxy.common.counters import Counters
from kproxy.common.memory_budget import AnswerBudget, ResponseBudget
from kproxy.config.server import Config
from kproxy.delays.delays import Delays
from kproxy.fetching.poll import Source
from kproxy.fetching.sessions import FetchSessions
from kproxy.groups.coordinators import Coordinators
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Catalogue
from kproxy.metadata.cluster_view import Cluster
from kproxy.metadata.group_settings import GroupRules, GroupSettings
from kproxy.metadata.levels import Level, Upgrades
from kproxy.routes.passages import Passages
from kproxy.security.behalf import Signatures
from kproxy.security.cache import SecurityCache
from kproxy.security.permits import Authorizer
from kproxy.security.quotas import Mutations, Quotas
from kproxy.shard.located import Located
from kproxy.shard.shard import Shard
from kproxy.shares.dead_letters import DeadLetters
from kproxy.shares.sessions import ShareSessions
from kproxy.shares.share_partitions import SharePartitions
from kproxy.transactions.coordinators import TransactionCoordinators
from kproxy.virtual.rows.queues import Queue
from kproxy.worker.batch_limits import BatchLimits
from kproxy.worker.refused_batches import RefusedBatches
from kproxy.worker.request import Request
from kproxy.worker.shards import ShardRouter

Args = TypeVarTuple("Args")
Encoded = TypeVar("Encoded")


class Queues(Protocol):
    """The queues, and the shards that hold them."""

    config: Config
    catalogue: Catalogue[Ticket]
    routes: ShardRouter
    level: Level
    now_ms: Callable[[], int]

    def shard(self, name: str, partition: int = 0) -> Shard: ...
    def partition(self, topic: str | bytes, index: int) -> Located: ...


class Answers(Protocol):
    """The making of long answers."""

    counters: Counters
    answer_memory: AnswerBudget

    async def encoded(
        self, budget: ResponseBudget, encode: Callable[[*Args], Encoded], *args: *Args
    ) -> Encoded: ...


class Searches(Protocol):
    """The search in the records of a batch."""

    answer_memory: AnswerBudget
    searchers: anyio.CapacityLimiter
    clock: Clock
    stopping: bool


class Definitions(Queues, Protocol):
    """The making of queues, and what their settings may say."""

    batch_limits: BatchLimits
    signatures: Signatures

    def create_unasked(self, name: str) -> tuple[Queue, Ticket]: ...
    def mutations(self, request: Request, strict_from: int = 0) -> Mutations: ...


class ProduceNeeds(Definitions, Answers, Searches, Protocol):
    delays: Delays
    refused_batches: RefusedBatches


class FetchNeeds(Queues, Answers, Searches, Source, Protocol):
    sessions: FetchSessions
    quotas: Quotas
    security: SecurityCache


class TopicNeeds(Definitions, Protocol):
    cluster: Cluster
    configured_groups: Callable[[], Iterator[str]]


class ConfigNeeds(Definitions, Protocol):
    cluster: Cluster
    dead_letters: DeadLetters
    delays: Delays
    passages: Passages
    shares: SharePartitions
    group_rules: GroupRules
    group_row: Callable[[str], bytes | None]

    def group_settings(self, group: str) -> GroupSettings: ...


class GroupNeeds(Queues, Answers, Protocol):
    cluster: Cluster
    groups: Coordinators

    def coordinated(self, group: str) -> Shard: ...
    def group_settings(self, group: str) -> GroupSettings: ...


class StreamsNeeds(GroupNeeds, TopicNeeds, Protocol):
    """The groups, and the making of the topics that they need."""


class ShareNeeds(GroupNeeds, Searches, Source, Protocol):
    quotas: Quotas
    security: SecurityCache
    shares: SharePartitions
    share_sessions: ShareSessions


class TransactionNeeds(GroupNeeds, Protocol):
    transactions: TransactionCoordinators

    def any_shard(self) -> Shard: ...


class AccessNeeds(Protocol):
    """The rules, users and quotas."""

    authorizer: Authorizer
    security: SecurityCache

    async def secure(self, changes: Mapping[str, dict[str, Any] | None]) -> None: ...


class ClusterNeeds(Protocol):
    """The cluster and its node here, the level in force, and its rise."""

    cluster: Cluster
    level: Level
    upgrades: Upgrades
