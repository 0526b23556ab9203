"""The assignment of shards to this worker: Kafka's own group coordinator decides.

Workers are static members of one consumer group on the data topic. The group's consumer fetches
nothing. A thread of its own polls it, so nothing that the event loop does evicts a worker.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as UpstreamError

from kproxy.common.errors import Code
from kproxy.loop.threads import left_behind
from kproxy.upstream.boundary import CLOSE_S, admin_client, noted, reason_of, translated
from kproxy.upstream.settings import Upstream

_log = structlog.get_logger()

_POLL_S = 0.2
_ASK_S = 10
_HEARTBEAT_MS = 500
_POLL_INTERVAL_MS = 300_000


class Membership:
    """Calls `changed` on the event loop with the shards that are this worker's now.

    Shards lost by silence are kept until the group says whose they are: to serve on does no harm,
    for the log decides, and after an outage of the cluster they are mostly ours again.
    """

    def __init__(
        self,
        upstream: Upstream,
        instance: str,
        session_ms: int,
        changed: Callable[[frozenset[int]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._topic, self._group = upstream.data, upstream.group
        self._changed = changed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._mine: set[int] = set()
        self._lost = False
        self._upstream = upstream
        settings = upstream.settings(
            group_id=upstream.group,
            group_instance_id=instance,
            client_id=instance,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=session_ms,
            max_poll_interval_ms=max(session_ms, _POLL_INTERVAL_MS),
            heartbeat_interval_ms=_HEARTBEAT_MS,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="latest",
            error_cb=self._on_error,
        )
        with translated():
            self._consumer = Consumer(settings)
        self._closing = False
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="member", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the thread; as a static member the worker may come back within the session."""
        self._closing = True
        self._thread.join(CLOSE_S)

    def leave(self) -> None:
        """Leave the group, for its other members to get the shards at once: `changed` says so."""
        self._leaving = True

    # -- on the thread

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                [self._topic],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost_all,
            )
        except KafkaException as error:
            self._tell(self._failed, f"cannot join group {self._group}: {reason_of(error)}")
        left = False
        while not self._closing:
            if self._leaving and not left:
                with noted("leaving the group"):
                    self._consumer.unsubscribe()  # a static member stays at a close: not at this
                left = True
            with noted("polling the group"):
                message = self._consumer.poll(_POLL_S)
                fault = message.error() if message is not None else None
                if fault is not None and fault.fatal():
                    self._on_error(fault)
                    break
        with noted("closing the membership"):
            self._consumer.close()

    def _on_error(self, error: UpstreamError) -> None:
        if error.code() in (UpstreamError.FENCED_INSTANCE_ID, UpstreamError._FENCED):
            reason = "another worker serves under the same address (--advertise)"
        elif error.fatal():
            reason = error.str()
        else:
            self._upstream.connectivity.on_error(error)
            return
        self._tell(self._failed, reason)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with noted("taking shards"):  # nothing is fetched: what counts is that the shards are known
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)
        if self._lost:
            self._lost = False
            self._mine.clear()
        self._mine.update(partition.partition for partition in partitions)
        self._tell(self._changed, frozenset(self._mine))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with noted("giving up shards"):
            consumer.incremental_unassign(partitions)
        if self._closing:
            return
        self._mine.difference_update(partition.partition for partition in partitions)
        self._tell(self._changed, frozenset(self._mine))

    def _lost_all(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with noted("giving up shards"):
            consumer.incremental_unassign(partitions)
        self._lost = True
        _log.warning("membership_lost", shards=len(partitions))

    def _tell(self, what: Callable[[Any], None], value: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, value)
        except RuntimeError:  # the event loop has ended
            self._closing = True


async def live_members(upstream: Upstream) -> list[str]:
    """Return the addresses of the members that Kafka's group has. Raises KafkaError."""

    def ask() -> list[str]:
        with translated("the cluster does not say who is alive", Code.NOT_CONTROLLER):
            admin = admin_client(upstream)
            described = admin.describe_consumer_groups([upstream.group], request_timeout=_ASK_S)
            return [member.client_id for member in described[upstream.group].result().members]

    return await left_behind(ask)
