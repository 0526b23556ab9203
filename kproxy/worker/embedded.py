"""One worker on storage of its own: one shard, no cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from kproxy.common.errors import CannotStart
from kproxy.config.server import Config
from kproxy.log.local import LocalLog
from kproxy.loop.threads import stoppable
from kproxy.metadata.catalogue import StateLookup
from kproxy.metadata.cluster_view import DirectoryUpgrades, SingleNode, open_identity
from kproxy.protocol.responses import Broker
from kproxy.shard.compactor import Compactor
from kproxy.shard.expiry.idle_queues import IdleExpiry
from kproxy.shard.housekeeper import Housekeeper
from kproxy.shard.opening import open_local
from kproxy.shard.producer_expiry import ProducerExpiry
from kproxy.shard.retention import Retention
from kproxy.shard.shard import Shard
from kproxy.shard.staging import Staging, sweep
from kproxy.store.backups import refuse_unfinished
from kproxy.store.rocks import RowsFailed
from kproxy.store.segments import DamagedLog
from kproxy.worker.shards import OneShard
from kproxy.worker.standing import OneShardStanding
from kproxy.worker.worker import Worker

NODE_ID = 1


@asynccontextmanager
async def embedded(config: Config, address: tuple[str, int]) -> AsyncIterator[Worker]:
    """Run a worker on the data directory while the block lasts.

    Raises CannotStart; RowsFailed and LogFailed if the disk cannot be written any more.
    """
    try:
        refuse_unfinished(config.data_dir)
        cluster_id, level = open_identity(config.data_dir)
        await to_thread.run_sync(sweep, config.data_dir)
        directory = config.data_dir / "shard-0"
        shard = await stoppable(
            lambda stop: open_local(directory, config, level, stop.check), Shard.close
        )
    except (DamagedLog, RowsFailed, ValueError, OSError) as error:
        raise CannotStart(f"cannot open {config.data_dir}: {error}") from error
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shard.log.run)
            async with anyio.create_task_group() as housekeeping:
                housekeeper = Housekeeper(shard, config)
                housekeeping.start_soon(housekeeper.run)
                lookup = StateLookup(shard.state)
                assert isinstance(shard.log, LocalLog)
                worker = Worker(
                    config=config,
                    cluster=SingleNode(
                        cluster_id=cluster_id,
                        me=Broker(NODE_ID, *address),
                        addresses=config.addresses,
                    ),
                    routes=OneShard(shard),
                    lookup=lookup,
                    level=level,
                    upgrades=DirectoryUpgrades(config.data_dir, cluster_id, level),
                    standing=OneShardStanding(shard, shard.log.append_seconds),
                )
                shard.on_command = worker.security.applied
                shard.segments.damage.counters = shard.kv.damage.counters = worker.counters
                worker.staging = Staging(config.data_dir, shard, housekeeper.flush)
                worker.start(housekeeping)
                retention = Retention(shard, config, lookup, worker.now_ms)
                compactor = Compactor(
                    shard, config, lookup, worker.now_ms, counters=worker.counters
                )
                expiry = ProducerExpiry(shard, config, worker.now_ms, worker.counters)
                idle = IdleExpiry(shard, config, worker.now_ms, worker.counters)
                for background in (retention, compactor, expiry, idle):
                    housekeeping.start_soon(background.run)
                yield worker
                housekeeping.cancel_scope.cancel()
            shard.log.close()
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(shard.close)
