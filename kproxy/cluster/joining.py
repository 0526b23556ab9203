"""The way of a worker into its cluster, from the cluster's address to a serving `Worker`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from kproxy.cluster.command_router import CommandRouter
from kproxy.cluster.departed_nodes import DepartedNodes
from kproxy.cluster.draining import Draining
from kproxy.cluster.node import ClusterNode
from kproxy.cluster.services import ShardServices
from kproxy.cluster.standing import NodeStanding
from kproxy.cluster.upgrades import ClusterUpgrades
from kproxy.common.counters import Counters
from kproxy.common.errors import CannotStart, KafkaError
from kproxy.config.server import Config
from kproxy.loop.threads import left_behind
from kproxy.metadata.cluster_view import ClusterMapView
from kproxy.shard.compactor import CompactionLimits
from kproxy.upstream.boundary import admin_client
from kproxy.upstream.membership import Membership
from kproxy.upstream.settings import BadKafkaConfig, Upstream, upstream_of
from kproxy.upstream.topics import ClusterRefused, Topics
from kproxy.worker.worker import Worker

_log = structlog.get_logger()

_AGAIN_S = 2.0
_OPENING_MAX = 8


async def _prepared(config: Config, upstream: Upstream) -> Topics:
    """Return the topics, made and checked; wait until the cluster answers."""
    try:
        admin = admin_client(upstream)
    except KafkaError as error:
        raise BadKafkaConfig(f"--kafka-config {config.kafka_config}: {error.message}") from None
    topics = Topics(
        admin,
        upstream,
        shards=config.shards,
        message_bytes_max=config.data_message_bytes_max,
        create=config.create,
        single_replica=config.allow_single_replica,
    )
    while True:
        try:
            await left_behind(topics.prepare)
        except KafkaError as error:
            _log.warning(
                "kafka_unreachable", servers=upstream.servers, reason=error.message,
                hint="is the cluster up, and does --bootstrap-servers name it? trying again",
            )  # fmt: skip
            await anyio.sleep(_AGAIN_S)
        else:
            upstream.connectivity.report_success()
            return topics


@contextmanager
def _making_clients(upstream: Upstream) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise CannotStart(
            f"cannot use the cluster at {upstream.servers}: {error.message}"
        ) from error


@asynccontextmanager
async def joined(config: Config, address: tuple[str, int]) -> AsyncIterator[Worker]:
    """Run a worker that serves its share of the shards while the block lasts.

    Raises CannotStart.
    """
    upstream = upstream_of(config)
    topics = await _prepared(config, upstream)
    with _making_clients(upstream):
        node = ClusterNode(config, upstream, address, topics.tombstones_kept_ms)
    try:
        async with anyio.create_task_group() as tasks:
            yield await _served(node, tasks)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await node.close()


async def _served(node: ClusterNode, tasks: TaskGroup) -> Worker:
    shards = node.shards
    node.command_router = CommandRouter(node.context(tasks), node.clock.now_ms)
    node.link.unfollowed = node.command_router.unfollowed
    shards.submit = node.command_router.submit
    shards.ask = node.command_router.ask
    shards.land_elsewhere = node.link.land
    await node.start()
    assert node.me is not None
    upgrades = ClusterUpgrades(node.upstream, node.map, node.link.publish_map, node.map_changed)
    worker = Worker(
        config=node.config,
        cluster=ClusterMapView(node.me, node.map),
        routes=shards,
        lookup=node.cache,
        level=node.level,
        upgrades=upgrades,
        standing=NodeStanding(
            shards, node.progress, node.upstream.connectivity, node.disk_space,
            node.link.append_seconds, node.clock,
        ),
    )  # fmt: skip
    node.cache.security.changed = worker.security.changed
    membership = _start_tasks(node, tasks, upgrades, worker.counters)
    drain_s = node.config.drain_ms_max / 1000
    worker.hand_over = Draining(shards, membership.leave, upgrades.live, drain_s).run
    worker.start(tasks)
    _log.info("joined", node_id=node.me.node_id, group=node.upstream.group)
    return worker


def _start_tasks(
    node: ClusterNode, tasks: TaskGroup, upgrades: ClusterUpgrades, counters: Counters
) -> Membership:
    assert node.me is not None
    shards = node.shards
    with _making_clients(node.upstream):
        membership = Membership(
            node.upstream,
            f"{node.me.host}:{node.me.port}",
            node.config.session_ms,
            shards.assigned,
            node.fail,
        )
    away = DepartedNodes(
        node.map, upgrades.live, node.link.publish_map, lambda: shards.serving(0) is not None
    )
    tasks.start_soon(_until_cancelled, membership)
    tasks.start_soon(shards.run, _services(node, counters))
    tasks.start_soon(node.link.watch_ends)
    tasks.start_soon(node.command_router.expire)
    tasks.start_soon(node.remote_cleanup.run)
    tasks.start_soon(node.catalogue_barrier.run)
    tasks.start_soon(node.flush_now_and_then)
    tasks.start_soon(node.catalogue_reload.run)
    tasks.start_soon(node.say_again_now_and_then)
    tasks.start_soon(_watch_failure, node)
    tasks.start_soon(away.run)
    return membership


def _services(node: ClusterNode, counters: Counters) -> ShardServices:
    return ShardServices(
        config=node.config,
        upstream=node.upstream,
        link=node.link,
        command_router=node.command_router,
        announce=node.announce,
        disk_space=node.disk_space,
        progress=node.progress,
        opening=anyio.Semaphore(_OPENING_MAX),
        compacting=CompactionLimits(),
        counters=counters,
        lookup=node.cache,
        clock=node.clock,
        level=node.level,
    )


async def _until_cancelled(membership: Membership) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(membership.close)


async def _watch_failure(node: ClusterNode) -> None:
    await node.failed.wait()
    raise ClusterRefused(node.reason)
