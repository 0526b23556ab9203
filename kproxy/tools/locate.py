"""`kproxy locate` and `kproxy health`: where a queue is, and whether a worker answers."""

import ssl
import urllib.request
from itertools import chain
from urllib.error import HTTPError

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kproxy.config import HTTP_DEFAULT, Config
from kproxy.errors import CannotStart, KafkaError
from kproxy.metadata.cluster_map import NOBODY, ClusterMap
from kproxy.tools.client import Client
from kproxy.tools.client_settings import ClientSettings
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


def secured_health(host: str, port: int, settings: ClientSettings) -> str:
    """The same over TLS or after a login. Raises CannotStart."""
    with Client((host, port), settings) as client:
        return f"{len(client.nodes())} serving"


def http_health(config: Config) -> str:
    """Whether the kproxy here is ready, whatever its clients have to show for themselves; with
    several workers, each. Raises CannotStart where one is not.
    """
    if config.http_listen == "off":
        raise CannotStart("there is no health over HTTP: --http-listen is off")
    for index in range(config.workers):
        host, _, port = (config.http_address_of(index) or HTTP_DEFAULT).rpartition(":")
        url = f"{'https' if config.http_tls_cert else 'http'}://{_here(host)}:{port}/readyz"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this machine
        try:
            with urllib.request.urlopen(url, timeout=_HEALTH_S, context=context) as answer:
                answer.read(100)
        except HTTPError as error:
            raise CannotStart(
                f"{url}: {error.read(1000).decode(errors='replace').strip()}"
            ) from None
        except OSError as error:
            raise CannotStart(f"{url}: {error}") from None
    return "ready"


def _here(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)


def locate(config: Config, queue: str, partition: int) -> str:
    """One line about a queue's partition. Raises CannotStart."""
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
