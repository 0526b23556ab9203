"""`kproxy locate` and `kproxy health`: where a queue is, and whether a worker answers."""

from itertools import chain

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kproxy.config import Config
from kproxy.errors import CannotStart
from kproxy.metadata.cluster_map import NOBODY, ClusterMap
from kproxy.upstream.read_topic import read_to_end
from kproxy.upstream.settings import upstream_of
from kproxy.virtual.partitioner import shard_of

_HEALTH_S = 4
_MAP_S = 15


def health(host: str, port: int) -> str:
    """One line about the kproxy at an address. Raises CannotStart where it does not serve."""
    client = AdminClient(
        {"bootstrap.servers": f"{host}:{port}", "log_level": 0, "socket.timeout.ms": 3000}
    )
    try:
        cluster = client.describe_cluster(request_timeout=_HEALTH_S).result()
    except KafkaException as error:
        raise CannotStart(
            f"nothing serves at {host}:{port}: {error.args[0].str()}; is kproxy up, and --listen"
            " right?"
        ) from None
    return f"cluster {cluster.cluster_id}: {len(cluster.nodes)} serving"


def locate(config: Config, queue: str, partition: int) -> str:
    """One line about a queue's partition. Raises CannotStart."""
    if config.bootstrap_servers is None:
        raise CannotStart("locate asks the Kafka cluster: give --bootstrap-servers")
    upstream = upstream_of(config)
    try:
        records = list(
            chain.from_iterable(read_to_end(upstream, upstream.partitions, timeout_s=_MAP_S))
        )
    except KafkaException as error:
        raise CannotStart(
            f"cannot read topic {upstream.partitions} at {upstream.servers}:"
            f" {error.args[0].str()}; is the cluster up, and --topic-prefix right?"
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
