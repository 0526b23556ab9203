"""Every setting and limit of the server in one frozen `Config`, checked once.

A flag overrides a `KPROXY_…` variable of the environment, which overrides a TOML file. All three
are derived from this one list, and pydantic checks them. Names end in their unit.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from kproxy.common.errors import BadConfig
from kproxy.config.groups import GroupsConfig
from kproxy.config.listeners import (
    Address,
    ListenerConfig,
    checked_address,
    split_address,
    together,
)
from kproxy.config.security import SecurityConfig
from kproxy.log.sync import Sync

ENV_PREFIX = "KPROXY_"
MIB = 1 << 20
HTTP_DEFAULT = "127.0.0.1:9644"
_SECRET = re.compile("passw|secret|token|credential|key")  # in a name: the value is never shown
_SHOWN_MAX = 200


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


def _whole_bytes(value: Any) -> Any:
    """Convert text of plain digits to bytes; 64MiB and 1GB are left as they are."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


Bytes = Annotated[ByteSize, BeforeValidator(_whole_bytes), Field(gt=0)]
# A row has a batch's position in its segment in 32 bits: the last commit of one lies below 4 GiB.
SegmentBytes = Annotated[Bytes, Field(le=2048 * MIB)]
MessageBytes = Annotated[Bytes, Field(ge=1000, le=1_000_000_000)]
"""The size of a message as librdkafka takes it."""
Partitions = Annotated[int, Field(gt=0, lt=1 << 30)]  # as `virtual.rows.queues.HIDDEN`
CommitBytes = Annotated[Bytes, Field(le=1024 * MIB)]


class Config(SecurityConfig, GroupsConfig):
    """All settings of one worker. Bytes may be written 64MiB; times are milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Address = Field("127.0.0.1:9092", description="address to accept connections on")
    advertise: Address | None = Field(
        None, description="address that clients are told to use [default: the listen address]"
    )
    listeners: tuple[ListenerConfig, ...] = Field(
        (), description="several, in the place of listen and advertise; in the file alone"
    )
    login_ms_max: PositiveInt = Field(
        10_000, description="longest that a TLS handshake may take, and a login behind it"
    )
    connections_max_reauth_ms: NonNegativeInt = Field(
        0,
        description="how long a login lasts; clients then log in again, or are closed;"
        " 0: as long as the connection",
    )
    http_listen: Annotated[str, AfterValidator(_http_address)] | None = Field(
        None,
        description="address of metrics and health, for HTTP; off: none"
        f" [default: {HTTP_DEFAULT}, or the next free port]",
    )
    http_tls_cert: Path | None = Field(None, description="certificate chain for it, as PEM")
    http_tls_key: Path | None = Field(None, description="its key, where the chain has none")
    http_token_file: Path | None = Field(
        None, description="file of the bearer token that metrics and /healthz ask for"
    )
    http_hosts: str = Field(
        "",
        description="names, with commas between, by which metrics may be asked for without a"
        " token; addresses, and names without a dot, always may",
    )
    metrics_queues: str | None = Field(
        None, description="queues that have series of their own: an expression (RE2) of names"
    )
    metrics_groups: str | None = Field(None, description="the same of groups")
    metrics_series_max: PositiveInt = Field(
        10_000, description="most series of single queues and groups"
    )
    data_dir: Path = Field(Path("data"), description="directory that holds all queues")
    bootstrap_servers: str | None = Field(
        None, description="Kafka cluster that holds the data; without it, the data directory does"
    )
    topic_prefix: Annotated[str, AfterValidator(_prefix)] = Field(
        "kproxy", description="first part of the names of kproxy's topics on the cluster"
    )
    shards: Annotated[int, Field(gt=0, le=100_000)] = Field(
        64, description="partitions of the data topic; never changes"
    )
    workers: PositiveInt = Field(1, description="processes, on ports from the listen address's on")
    kafka_config: Path | None = Field(
        None, description="client settings for the cluster (librdkafka's names), for TLS and SASL"
    )
    create: bool = Field(True, description="make the topics that are missing on the cluster")
    allow_single_replica: bool = Field(
        False, description="accept topics with one replica: for development"
    )
    session_ms: Annotated[int, Field(ge=6000, le=1_800_000)] = Field(
        6000, description="silence of a worker after which others take its shards"
    )
    delivery_ms_max: PositiveInt = Field(
        20_000, description="longest wait for the cluster to take a record"
    )
    data_message_bytes_max: MessageBytes = Field(
        ByteSize(10 * MIB), description="max.message.bytes of the data topic"
    )
    publish_ms: PositiveInt = Field(10_000, description="time between publications of rows")
    publish_rows_max: PositiveInt = Field(
        25_000, description="changed rows that wait for a publication, over all shards"
    )
    sync: Annotated[str, AfterValidator(_sync)] = Field(
        "always",
        description="fsync before each answer (always), every so often (interval:MS), or never",
    )
    auto_create: bool = Field(True, description="create a queue at its first record or look-up")
    partitions_default: PositiveInt = Field(1, description="partitions of a queue created so")
    partitions_max: Partitions = Field(10_000, description="most partitions one queue may have")
    batch_bytes_max: Bytes = Field(
        ByteSize(1_048_588), description="max.message.bytes of queues that do not set it"
    )
    fetch_bytes_max: Bytes = Field(ByteSize(55 * MIB), description="most bytes one fetch returns")
    fetch_sessions_max: PositiveInt = Field(1000, description="fetch sessions kept")
    fetch_session_partitions_max: PositiveInt = Field(
        1_000_000, description="partitions kept in all fetch sessions together"
    )
    share_sessions_max: PositiveInt = Field(2000, description="share sessions kept")
    frame_bytes_max: CommitBytes = Field(
        ByteSize(100 * MIB), description="largest request accepted, 1 GiB at most"
    )
    request_elements_max: PositiveInt = Field(
        250_000,
        description="topics, partitions and the like in one request: a consumer of 100,000 queues"
        " of one partition names 200,000",
    )
    request_bytes_buffered_max: Bytes = Field(
        ByteSize(512 * MIB), description="requests held in memory, over all connections"
    )
    answer_bytes_buffered_max: Bytes = Field(
        ByteSize(512 * MIB), description="answers held in memory, over all connections"
    )
    connections_max: PositiveInt = Field(10_000, description="connections open at a time")
    connections_per_ip_max: PositiveInt = Field(10_000, description="connections from one address")
    connection_idle_ms_max: PositiveInt = Field(600_000, description="closed after this silence")
    in_flight_requests_max: PositiveInt = Field(64, description="unanswered ones per connection")
    receive_stalled_ms_max: PositiveInt = Field(
        30_000, description="a client that stops inside a request for so long is disconnected"
    )
    send_stalled_ms_max: PositiveInt = Field(
        30_000, description="a client that reads nothing for so long is disconnected"
    )
    drain_ms_max: NonNegativeInt = Field(
        20_000, description="longest a stop waits for others to take the shards; 0: not at all"
    )
    shutdown_ms_max: PositiveInt = Field(10_000, description="longest a stop waits for answers")
    offset_metadata_bytes_max: PositiveInt = Field(4096, description="metadata of a commit")
    offsets_retention_minutes: PositiveInt = Field(
        7 * 24 * 60, description="how long a group's offsets are kept once nobody uses them"
    )
    offsets_check_ms: PositiveInt = Field(
        600_000, description="time between looks for such offsets"
    )
    group_initial_rebalance_delay_ms: NonNegativeInt = Field(
        3000, description="wait for more members before a new group's first rebalance"
    )
    group_session_ms_min: PositiveInt = Field(6000, description="shortest session of a member")
    group_session_ms_max: PositiveInt = Field(1_800_000, description="longest session of a member")
    groups_joined_max: PositiveInt = Field(
        100_000, description="groups with members, or being joined, of one shard"
    )
    group_members_max: PositiveInt = Field(10_000, description="members of one group")
    transaction_max_timeout_ms: PositiveInt = Field(
        900_000, description="longest timeout that a transactional producer may ask for"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: PositiveInt = Field(
        10_000, description="time between looks for transactions that are open for too long"
    )
    transactional_id_expiration_ms: PositiveInt = Field(
        604_800_000, description="how long a transactional id is kept that nobody uses"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: PositiveInt = Field(
        3_600_000, description="time between looks for such ids"
    )
    producer_id_expiration_ms: PositiveInt = Field(
        86_400_000, description="how long a queue remembers an idempotent producer"
    )
    producer_id_expiration_check_interval_ms: PositiveInt = Field(
        600_000, description="time between looks for such producers"
    )
    segment_bytes: SegmentBytes = Field(
        ByteSize(128 * MIB), description="size of a log segment file, 2 GiB at most"
    )
    commit_bytes_max: CommitBytes = Field(
        ByteSize(32 * MIB), description="most bytes in one commit, 1 GiB at most"
    )
    disk_free_bytes_min: Bytes = Field(
        ByteSize(256 * MIB), description="below this much free disk, produces are refused"
    )
    rows_cached_max: PositiveInt = Field(125_000, description="rows of a kind cached in memory")
    rows_cache_bytes: Bytes = Field(ByteSize(8 * MIB), description="RocksDB block cache")
    rows_flush_bytes: Bytes = Field(ByteSize(8 * MIB), description="rows in memory till a flush")
    rows_flush_ms_max: PositiveInt = Field(30_000, description="longest time between flushes")
    keeper_period_ms: PositiveInt = Field(1000, description="time between housekeeping rounds")
    retention_check_ms: Annotated[int, Field(gt=0, le=86_400_000)] = Field(
        300_000, description="least time between two looks at a queue's retention, a day at most"
    )
    compaction_check_ms: PositiveInt = Field(
        15_000, description="time between looks for queues to compact"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe event that is logged"
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console on a terminal, JSON lines otherwise"
    )

    @model_validator(mode="after")
    def _listeners(self) -> Self:
        together(self.listeners)
        return self

    @model_validator(mode="after")
    def _advertisable(self) -> Self:
        if self.advertised_address[0] in ("0.0.0.0", "::"):
            raise ValueError(
                f"clients cannot connect to {self.advertised_address[0]}: say where they can with"
                " --advertise HOST:PORT"
            )
        return self

    @model_validator(mode="after")
    def _partitions(self) -> Self:
        if self.partitions_default > self.partitions_max:
            raise ValueError(
                f"--partitions-default {self.partitions_default} is more than --partitions-max"
                f" {self.partitions_max} allows"
            )
        return self

    @model_validator(mode="after")
    def _several(self) -> Self:
        if self.workers > 1 and self.bootstrap_servers is None:
            raise ValueError(
                "several workers share a Kafka cluster: say which with --bootstrap-servers"
            )
        if self.workers > 1 and not all(one.address[1] for one in self.listening):
            raise ValueError("several workers count up from a port: give one with --listen")
        return self

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The addresses that clients are told to use, by listener; empty without `listeners`."""
        return {one.name: one.advertised for one in self.listeners}

    @property
    def log_bytes_max(self) -> int:
        """The most bytes that a shard's log takes in one record."""
        embedded = self.bootstrap_servers is None
        return int(self.frame_bytes_max if embedded else self.data_message_bytes_max)

    @property
    def sync_policy(self) -> Sync:
        word, _, number = self.sync.partition(":")
        return Sync(always=word == "always", interval_ms=int(number) if number else None)

    @property
    def listening(self) -> tuple[ListenerConfig, ...]:
        """All listeners. The first is the worker's own address: by it workers know each other."""
        if self.listeners:
            return self.listeners
        only = {"listen": self.listen, "advertise": self.advertise}
        return (ListenerConfig.model_validate(only),)

    @property
    def listen_address(self) -> tuple[str, int]:
        return self.listeners[0].address if self.listeners else split_address(self.listen)

    def http_address_of(self, index: int) -> str | None:
        """Return the address of one of several workers: ports count up, where one is given."""
        if self.http_listen is None or self.http_listen == "off":
            return self.http_listen
        host, _, port = self.http_listen.rpartition(":")
        return f"{host}:{int(port) + index if int(port) else 0}"

    @property
    def advertised_address(self) -> tuple[str, int]:
        if self.listeners:
            return self.listeners[0].advertised
        return split_address(self.advertise or self.listen)


FIELDS = dict(
    sorted(
        ((name, field) for name, field in Config.model_fields.items() if name != "listeners"),
        key=lambda field: field[0] in GroupsConfig.model_fields,
    )
)
"""The settings of `Config`, as flags and as they are shown: groups last. Listeners have no flag."""


def load(flags: dict[str, Any], file: Path | None, environ: dict[str, str] | None = None) -> Config:
    """Load flags over environment over file over defaults. Raises BadConfig."""
    values = _from_file(file) if file else {}
    values |= _from_environment(os.environ if environ is None else environ)
    values |= flags
    try:
        return Config(**values)
    except ValidationError as error:
        raise BadConfig(_one_line(error)) from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not a TOML file: {error}") from None
    for name in values:
        _known(name, f"{name} in {path}")
    return values


def _from_environment(environ: Any) -> dict[str, Any]:
    values = {}
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX) and variable != f"{ENV_PREFIX}CONFIG":
            name = variable.removeprefix(ENV_PREFIX).lower()
            _known(name, f"{variable} in the environment")
            values[name] = value
    return values


def _known(name: str, where: str) -> None:
    if name not in Config.model_fields:
        raise BadConfig(f"{where} is not a setting of kproxy; `kproxy serve --help` lists them")


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    problem = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return problem
    name = "--" + str(first["loc"][0]).replace("_", "-")
    if first["loc"][0] == "listeners":
        name = " ".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    given = first["input"]
    told = isinstance(given, str | int | float) and not _SECRET.search(name)
    shown = f" {str(given)[:_SHOWN_MAX]}" if told else ""
    return f"{name}{shown}: {problem}"
