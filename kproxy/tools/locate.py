"""`kproxy locate`: where a queue is."""

from itertools import chain
from pathlib import Path
from typing import Any

import click

from kproxy.common.errors import CannotStart, KafkaError
from kproxy.common.printable import printable
from kproxy.config.server import Config
from kproxy.metadata.cluster_map import NOBODY, ClusterMap
from kproxy.tools.config_options import config_file, loaded, settings
from kproxy.upstream.read_topic import read_to_end
from kproxy.upstream.settings import upstream_of
from kproxy.virtual.partitioner import shard_of

_MAP_S = 15


@click.command(name="locate")
@click.argument("queue")
@click.option("--partition", default=0, show_default=True, help="which of the queue's partitions")
@settings("bootstrap_servers", "topic_prefix", "kafka_config")
@config_file
def locate_command(queue: str, partition: int, config_file: Path | None, **flags: Any) -> None:
    """Print a queue's shard, the node that serves it, and that node's address."""
    click.echo(printable(locate(loaded(config_file, flags), queue, partition)))


def locate(config: Config, queue: str, partition: int) -> str:
    """Return one line about a queue's partition. Raises CannotStart."""
    if config.bootstrap_servers is None:
        raise CannotStart("locate asks the Kafka cluster: give --bootstrap-servers")
    upstream = upstream_of(config)
    try:
        records = list(
            chain.from_iterable(read_to_end(upstream, upstream.partitions, timeout_s=_MAP_S))
        )
    except KafkaError as error:
        raise CannotStart(
            f"cannot read topic {upstream.partitions} at {upstream.servers}:"
            f" {error.message}; is the cluster up, and --topic-prefix right?"
        ) from None
    shards = ClusterMap.shards_of(records)
    if shards is None:
        raise CannotStart(f"no kproxy has served with --topic-prefix {upstream.prefix} there yet")
    map_ = ClusterMap(shards)
    for key, value in records:
        map_.apply(key, value)
    shard = shard_of(queue, shards, partition)
    owner = map_.owners[shard]
    where = f"{queue} partition {partition}: shard {shard} of {shards}"
    if owner == NOBODY:
        return f"{where}, nobody has served it yet"
    node = map_.nodes.get(owner.node_id)
    address = f"{node.host}:{node.port}" if node else "unknown"
    return f"{where}, owner {owner.node_id}, address {address}"
