"""The target of a share group's dead letters, as it is set (KIP-1191), and what is in the way."""

import math
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

import structlog
from anyio import CapacityLimiter

from kproxy.common.counters import Counters
from kproxy.common.errors import KafkaError
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Catalogue
from kproxy.metadata.group_settings import GroupSettings
from kproxy.metadata.lane_settings import LaneRules
from kproxy.metadata.levels import Level
from kproxy.metadata.queue_settings import settings_of
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.security.behalf import Behalf, asked_for_rights
from kproxy.shard.appends import Asks
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import PartitionKey, QueueId

_log = structlog.get_logger()

_SAY_AGAIN_S = 60.0
_READERS = 2
ENABLE = "errors.deadletterqueue.group.enable"
_CREATED = {ENABLE: "true", "message.timestamp.type": "CreateTime"}
UNSET_S, _SEEN_S = 10.0, 3.0
"""The time after which owed records are dropped if their group has had no dead-letter queue."""


class Obstacle(Enum):
    """The reason why dead letters wait."""

    UNSET = "the group has no dead-letter queue any more"
    NAMED = "its name does not begin with errors.deadletterqueue.topic.name.prefix"
    ABSENT = "there is no such queue"
    FORBIDDEN = "there is no such queue, and who has set it may not create it any more"
    REFUSES = f"the queue has not {ENABLE}=true"


class Target(NamedTuple):
    """A partition that takes dead letters."""

    queue: Queue
    partition: int

    @property
    def key(self) -> PartitionKey:
        return self.queue.queue_id, self.partition


class Targets:
    """The dead-letter queues of groups, on one worker."""

    def __init__(
        self,
        settings: Callable[[str], GroupSettings],
        catalogue: Catalogue[Ticket],
        config: Config,
        monotonic: Callable[[], float],
        behalf: Behalf,
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self._prefix = config.errors_deadletterqueue_topic_name_prefix
        self._creates = config.errors_deadletterqueue_auto_create_topics_enable
        self._partitions = config.partitions_default
        self._monotonic = monotonic
        self._behalf = behalf
        self._unset: dict[str, tuple[float, float]] = {}  # groups: since when, and last seen so

    def find(self, group: str) -> Queue | Obstacle:
        """Return a group's dead-letter queue. It is made where that is wanted: look again soon."""
        name = self.settings(group).dead_letter_queue
        if not name:
            now = self._monotonic()
            since, seen = self._unset.get(group, (now, now))
            if now - seen > _SEEN_S:  # nobody has looked: it may have been set meanwhile
                since = now
            self._unset[group] = since, now
            return Obstacle.UNSET
        self._unset.pop(group, None)
        if not name.startswith(self._prefix):
            return Obstacle.NAMED
        queue = self.catalogue.find(name)
        if queue is not None:
            return queue if takes(queue) else Obstacle.REFUSES
        if self._creates and not self.catalogue.exists(name):
            by = self.settings(group).dead_letters_set_by
            if not self._may_create(by, name):
                return Obstacle.FORBIDDEN
            made = self._behalf.mutations(by)
            if not made.wait:
                made.take(self._partitions)
                with suppress(KafkaError):  # it is absent, then
                    self.catalogue.create(name, configs=dict(_CREATED))
        return Obstacle.ABSENT

    def _may_create(self, by: str | None, name: str) -> bool:
        """Return whether who has set the queue, which may be gone since, may create it now."""
        if not asked_for_rights(by):
            return True
        sees = self._behalf.permits(by).sees
        everywhere = sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME)
        return everywhere or sees(Op.CREATE, Resource.TOPIC, name)

    def is_given_up(self, group: str) -> bool:
        """Return whether a group has had none for so long that what it is owed is dropped."""
        since, seen = self._unset.get(group, (math.inf, math.inf))
        return seen - since >= UNSET_S

    def pinned(self, key: PartitionKey) -> Target | None:
        """Return the target that was aimed at before, if it still takes dead letters."""
        queue = self.catalogue.find_id(QueueId(key[0]))
        if queue is None or key[1] >= queue.partitions or not takes(queue):
            return None
        return Target(queue, key[1])


def takes(queue: Queue) -> bool:
    return settings_of(queue.configs).takes_dead_letters


class DeadLetterServices:
    """The services that the senders of all shards share."""

    def __init__(
        self, routes: Asks, targets: Targets, config: Config, counters: Counters, clock: Clock,
        level: Level, behalf: Behalf,
    ) -> None:  # fmt: skip
        self.routes = routes
        self.targets = targets
        self.behalf = behalf
        self.config = config
        self.counters = counters
        self.clock = clock
        self.level = level
        self.readers = CapacityLimiter(_READERS)  # threads: a batch may unpack to 32 MiB
        self._said_s: dict[str, float] = {}

    def copies(self, group: str, queue: str) -> bool:
        """Return whether records of a queue are copied: its group wants it, and its setters may.

        Settings may be changed by several at once. So their rights are asked of what stands now,
        and each of both values has its own signer.
        """
        settings = self.targets.settings(group)
        return settings.dead_letter_copies_record and self._may_tell(settings, queue)

    def lanes(self, group: str, queue: str) -> LaneRules | None:
        """Return the rules that say a record's lane, if the group has lanes and may tell of them.

        A lane is a part of the record: the setters of the dead-letter queue must be able to read
        it.
        """
        settings = self.targets.settings(group)
        if settings.lanes is None or settings.lanes.by_level:
            return None
        return settings.lanes if self._may_tell(settings, queue) else None

    def _may_tell(self, settings: GroupSettings, queue: str) -> bool:
        permits = self.behalf.permits
        by, copied_by = settings.dead_letters_set_by, settings.dead_letters_copied_by
        target = settings.dead_letter_queue
        if asked_for_rights(by) and not permits(by).sees(Op.WRITE, Resource.TOPIC, target):
            return False
        signers = (by,) if copied_by in (None, by) else (by, copied_by)
        return all(permits(one).sees(Op.READ, Resource.TOPIC, queue) for one in signers)

    def warn(self, event: str, **values: object) -> None:
        """Say something that may be so very often."""
        now = self.clock.monotonic()
        if now - self._said_s.get(event, -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            self._said_s[event] = now
            _log.warning(event, **values)
