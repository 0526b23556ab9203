"""The cluster's address, and the settings of each librdkafka client."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from confluent_kafka import KafkaError as UpstreamError

from kproxy.common.errors import CannotStart
from kproxy.config.server import Config

_log = structlog.get_logger()

_OURS = frozenset(
    (
        "bootstrap.servers", "group.id", "group.instance.id", "transactional.id", "acks",
        "enable.idempotence", "enable.auto.commit", "auto.offset.reset", "isolation.level",
        "partition.assignment.strategy", "message.timeout.ms", "delivery.timeout.ms",
        "enable.partition.eof", "session.timeout.ms", "heartbeat.interval.ms", "linger.ms",
    )
)  # fmt: skip
_ANSWER_MS = 10_000
"""The wait for an answer, after which librdkafka connects anew, and asks again.

A connection that the network has forgotten answers nothing, for ever, and says nothing of it: by
librdkafka's own 60 s neither would a worker.
"""


class BadKafkaConfig(CannotStart):
    """The file of client settings is not sound; the message is one line for a person."""


class Connectivity:
    """Whether the cluster answers, as all clients of this worker find: one log line a change."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.lost = False
        self.errors: Counter[str] = Counter()  # by the error's name

    def on_error(self, error: UpstreamError) -> None:
        """Take an error as librdkafka's `error_cb`; may come from any thread."""
        self.errors[error.name()] += 1
        if error.code() == UpstreamError._ALL_BROKERS_DOWN and not self.lost:
            self.lost = True
            _log.error(
                "kafka_unreachable", servers=self._servers, reason=error.str(),
                hint="is the cluster up, and does --bootstrap-servers name it?",
            )  # fmt: skip

    def report_success(self) -> None:
        if self.lost:
            self.lost = False
            _log.info("kafka_reachable", servers=self._servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The cluster, and the names of kproxy's topics there."""

    servers: str
    prefix: str
    client: dict[str, str] = field(repr=False)  # may hold passwords
    connectivity: Connectivity

    @property
    def data(self) -> str:
        return f"{self.prefix}-data"

    @property
    def offset(self) -> str:
        return f"{self.prefix}-offset"

    @property
    def partitions(self) -> str:
        return f"{self.prefix}-partitions"

    @property
    def queues(self) -> str:
        return f"{self.prefix}-queues"

    @property
    def group(self) -> str:
        return f"{self.prefix}-workers"

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of one client; `_` in a name stands for `.`."""
        return {
            "log_level": 0,  # errors that matter come through `error_cb`
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": _ANSWER_MS,
            "socket.connection.setup.timeout.ms": _ANSWER_MS,
            "topic.metadata.refresh.interval.ms": 30_000,
            **self.client,
            "bootstrap.servers": self.servers,
            "error_cb": self.connectivity.on_error,
            **{
                name if name == "error_cb" else name.replace("_", "."): value
                for name, value in more.items()
            },
        }

    def reading(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the settings of a consumer that assigns its partitions itself and commits
        nothing.
        """
        return self.settings(
            group_id=f"{self.prefix}-{name}",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            **more,
        )


def upstream_of(config: Config) -> Upstream:
    """Return the cluster that a configuration names. Raises BadKafkaConfig."""
    assert config.bootstrap_servers is not None
    return Upstream(
        servers=config.bootstrap_servers,
        prefix=config.topic_prefix,
        client=read_client_settings(config.kafka_config),
        connectivity=Connectivity(config.bootstrap_servers),
    )


def read_client_settings(path: Path | None) -> dict[str, str]:
    """Read a file of `name=value` lines, as for Kafka's own tools. Raises BadKafkaConfig."""
    if path is None:
        return {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadKafkaConfig(f"cannot read --kafka-config {path}: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise BadKafkaConfig(f"{path}, line {number}: write it as name=value")
        if name in _OURS:
            raise BadKafkaConfig(f"{path}, line {number}: kproxy sets {name} itself; remove it")
        found[name] = value
    return found
