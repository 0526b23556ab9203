"""The settings of the server by section, but for those of security and of groups."""

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ByteSize, Field, NonNegativeInt

from kproxy.config.listeners import Address, ListenerConfig, checked_address
from kproxy.config.setting import MIB, Bytes, CommitBytes, Count, Ms, Section, mib, setting

HTTP_DEFAULT = "127.0.0.1:9644"


def _http_address(text: str) -> str:
    return text if text == "off" else checked_address(text)


def _sync(text: str) -> str:
    word, _, number = text.partition(":")
    fits = (word == "interval" and number.isdigit() and int(number) > 0) or (
        word in ("always", "never") and not number
    )
    if not fits:
        raise ValueError("write always, never or interval:MS")
    return text


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", text):
        raise ValueError("it may hold only ASCII letters, digits, '.', '_' and '-'")
    return text


# A row has a batch's position in its segment in 32 bits: the last commit of one lies below 4 GiB.
SegmentBytes = Annotated[Bytes, Field(le=2048 * MIB)]
MessageBytes = Annotated[Bytes, Field(ge=1000, le=1_000_000_000)]
"""The size of a message as librdkafka takes it."""
Partitions = Annotated[int, Field(gt=0, lt=1 << 30)]  # as `virtual.rows.queues.HIDDEN`


class NetworkConfig(Section, title="Network"):
    """Clients' connections."""

    listen: Address = setting(
        "127.0.0.1:9092", "address to accept connections on", value="HOST:PORT"
    )
    advertise: Address | None = setting(
        None,
        "address that clients are told to use [default: the listen address]",
        value="HOST:PORT",
    )
    listeners: tuple[ListenerConfig, ...] = setting(
        (), "several, in the place of listen and advertise; in the file alone"
    )
    connections_max: Count = setting(10_000, "connections open at a time", kafka="max.connections")
    connections_per_ip_max: Count = setting(
        10_000, "connections from one address", kafka="max.connections.per.ip"
    )
    connection_idle_ms_max: Ms = setting(
        600_000, "silence after which a connection is closed", kafka="connections.max.idle.ms LONG"
    )
    in_flight_requests_max: Count = setting(64, "unanswered ones per connection")
    receive_stalled_ms_max: Ms = setting(
        30_000, "a client that stops inside a request for so long is disconnected"
    )
    send_stalled_ms_max: Ms = setting(
        30_000, "a client that reads nothing for so long is disconnected"
    )
    shutdown_ms_max: Ms = setting(10_000, "longest a stop waits for answers")


class StorageConfig(Section, title="Storage"):
    """The data directory."""

    data_dir: Path = setting(Path("data"), "directory that holds all queues", value="DIR")
    sync: Annotated[str, AfterValidator(_sync)] = setting(
        "always",
        "fsync before each answer (always), every so often (interval:MS), or never",
        value="always|interval:MS|never",
    )
    segment_bytes: SegmentBytes = setting(mib(128), "size of a log segment file, 2 GiB at most")
    commit_bytes_max: CommitBytes = setting(mib(32), "most bytes in one commit, 1 GiB at most")
    disk_free_bytes_min: Bytes = setting(
        mib(256), "below this much free disk, produces are refused"
    )
    rows_cached_max: Count = setting(125_000, "rows of a kind cached in memory")
    rows_cache_bytes: Bytes = setting(mib(8), "RocksDB block cache")
    rows_flush_bytes: Bytes = setting(mib(8), "rows in memory till a flush")
    rows_flush_ms_max: Ms = setting(30_000, "longest time between flushes")
    keeper_period_ms: Ms = setting(1000, "time between housekeeping rounds")


class ProcessConfig(Section, title="Process"):
    """The process itself."""

    native: Literal["auto", "off"] = setting(
        "auto", "kernels in Rust for routes and delays, where they were built; off: Python alone"
    )


class ClusterConfig(Section, title="Cluster"):
    """The Kafka cluster, and the workers on it."""

    bootstrap_servers: str | None = setting(
        None,
        "Kafka cluster that holds the data; without it, the data directory does",
        value="HOST:PORT,…",
    )
    topic_prefix: Annotated[str, AfterValidator(_prefix)] = setting(
        "kproxy", "first part of the names of kproxy's topics on the cluster", value="NAME"
    )
    shards: Annotated[int, Field(gt=0, le=100_000)] = setting(
        64, "partitions of the data topic; never changes"
    )
    workers: Count = setting(1, "processes, on ports from the listen address's on")
    kafka_config: Path | None = setting(
        None, "client settings for the cluster (librdkafka's names), for TLS and SASL"
    )
    create: bool = setting(True, "make the topics that are missing on the cluster")
    allow_single_replica: bool = setting(False, "accept topics with one replica: for development")
    session_ms: Annotated[int, Field(ge=6000, le=1_800_000)] = setting(
        6000, "silence of a worker after which others take its shards"
    )
    delivery_ms_max: Ms = setting(20_000, "longest wait for the cluster to take a record")
    data_message_bytes_max: MessageBytes = setting(mib(10), "max.message.bytes of the data topic")
    publish_ms: Ms = setting(10_000, "time between publications of rows")
    publish_rows_max: Count = setting(
        25_000, "changed rows that wait for a publication, over all shards"
    )
    drain_ms_max: NonNegativeInt = setting(
        20_000, "longest a stop waits for others to take the shards; 0: not at all"
    )


class QueuesConfig(Section, title="Queues"):
    """Queues that set nothing themselves."""

    auto_create: bool = setting(
        True, "create a queue at its first record or look-up", kafka="auto.create.topics.enable"
    )
    partitions_default: Count = setting(
        1, "partitions of a queue whose creator does not say how many", kafka="num.partitions"
    )
    partitions_max: Partitions = setting(10_000, "most partitions one queue may have")
    batch_bytes_max: Bytes = setting(
        ByteSize(1_048_588), "max.message.bytes of queues that do not set it"
    )
    retention_check_ms: Annotated[int, Field(gt=0, le=86_400_000)] = setting(
        300_000,
        "least time between two looks at a queue's retention, a day at most",
        kafka="log.retention.check.interval.ms LONG",
    )
    compaction_check_ms: Ms = setting(15_000, "time between looks for queues to compact")


class LimitsConfig(Section, title="Limits"):
    """Bounds of requests and of memory."""

    fetch_bytes_max: Bytes = setting(
        mib(55), "most bytes one fetch returns", kafka="fetch.max.bytes"
    )
    fetch_sessions_max: Count = setting(1000, "fetch sessions kept")
    fetch_session_partitions_max: Count = setting(
        1_000_000, "partitions kept in all fetch sessions together"
    )
    share_sessions_max: Count = setting(2000, "share sessions kept")
    share_lanes_bytes_max: Bytes = setting(
        mib(256), "memory for lanes of share groups; where it is full they look less far ahead"
    )
    frame_bytes_max: CommitBytes = setting(
        mib(100),
        "largest request accepted, 1 GiB at most",
        kafka="socket.request.max.bytes",
    )
    request_elements_max: Count = setting(
        250_000,
        "topics, partitions and the like in one request: a consumer of 100,000 queues of one"
        " partition names 200,000",
    )
    request_bytes_buffered_max: Bytes = setting(
        mib(512), "requests held in memory, over all connections"
    )
    answer_bytes_buffered_max: Bytes = setting(
        mib(512), "answers held in memory, over all connections"
    )


class ClassicConfig(Section, title="Groups"):
    """Groups, and the classic protocol."""

    offset_metadata_bytes_max: Count = setting(
        4096, "largest metadata of a committed offset", kafka="offset.metadata.max.bytes"
    )
    offsets_retention_minutes: Count = setting(
        7 * 24 * 60,
        "how long a group's offsets are kept once nobody uses them",
        kafka="offsets.retention.minutes",
    )
    offsets_check_ms: Ms = setting(
        600_000,
        "time between looks for offsets that nobody uses",
        kafka="offsets.retention.check.interval.ms LONG",
    )
    group_initial_rebalance_delay_ms: NonNegativeInt = setting(
        3000,
        "wait for more members before a new group's first rebalance",
        kafka="group.initial.rebalance.delay.ms",
    )
    group_session_ms_min: Ms = setting(
        6000, "shortest session of a member", kafka="group.min.session.timeout.ms"
    )
    group_session_ms_max: Ms = setting(
        1_800_000, "longest session of a member", kafka="group.max.session.timeout.ms"
    )
    groups_joined_max: Count = setting(
        100_000, "groups with members, or being joined, of one shard"
    )
    group_members_max: Count = setting(10_000, "members of one group", kafka="group.max.size")


class ProducersConfig(Section, title="Producers and transactions"):
    """Producers, transactions, and how long they are remembered."""

    NAMES_ARE_KAFKAS: ClassVar = True

    transaction_max_timeout_ms: Ms = setting(
        900_000, "longest timeout that a transactional producer may ask for"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Ms = setting(
        10_000, "time between looks for transactions that are open for too long"
    )
    transactional_id_expiration_ms: Ms = setting(
        604_800_000, "how long a transactional id is kept that nobody uses"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: Ms = setting(
        3_600_000, "time between looks for transactional ids that nobody uses"
    )
    producer_id_expiration_ms: Ms = setting(
        86_400_000, "how long a queue remembers an idempotent producer"
    )
    producer_id_expiration_check_interval_ms: Ms = setting(
        600_000, "time between looks for producers that nobody uses"
    )


class MetricsConfig(Section, title="Metrics and logs"):
    """The endpoint for HTTP, and the log."""

    http_listen: Annotated[str, AfterValidator(_http_address)] | None = setting(
        None,
        "address of metrics and health, for HTTP; off: none"
        f" [default: {HTTP_DEFAULT}, or the next free port]",
        value="HOST:PORT",
    )
    http_tls_cert: Path | None = setting(None, "certificate chain for it, as PEM")
    http_tls_key: Path | None = setting(None, "its key, where the chain has none")
    http_token_file: Path | None = setting(
        None, "file of the bearer token that metrics and /healthz ask for"
    )
    http_hosts: str = setting(
        "",
        "names, with commas between, by which metrics may be asked for without a token;"
        " addresses, and names without a dot, always may",
        value="NAME,…",
    )
    metrics_queues: str | None = setting(
        None, "queues that have series of their own: an expression (RE2) of names", value="REGEX"
    )
    metrics_groups: str | None = setting(None, "the same of groups", value="REGEX")
    metrics_series_max: Count = setting(10_000, "most series of single queues and groups")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "least severe event that is logged"
    )
    log_format: Literal["auto", "console", "json"] = setting(
        "auto", "auto: console on a terminal, JSON lines otherwise"
    )
