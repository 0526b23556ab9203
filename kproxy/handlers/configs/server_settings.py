"""The settings of a worker under the names of Kafka's broker settings.

All are read-only: an operator gives them at the start. Tools and frameworks look at them: Connect
and Streams at the default replication factor, UIs at what may be deleted or created.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kproxy.config.server import Config, load
from kproxy.metadata.group_settings import GroupRules
from kproxy.metadata.setting import BOOLEAN, INT, LIST, LONG, STRING, Setting
from kproxy.metadata.topic_settings import SETTINGS
from kproxy.worker.batch_limits import largest_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A setting as DescribeConfigs tells it."""

    name: str
    kind: int
    value: str
    default: str
    documentation: str


Value = Callable[[Config], Any]
_Row = tuple[str, int, Value, str]


def _fixed(value: Any) -> Value:
    return lambda config: value


_CLIENT_METRICS: tuple[_Row, ...] = (
    ("interval.ms", INT, _fixed(300_000), "Time between two pushes of a client; milliseconds."),
    ("match", LIST, _fixed(""), "Which clients."),
    ("metrics", LIST, _fixed(""), "Prefixes of metrics' names."),
)
_BROKER: tuple[_Row, ...] = (
    ("auto.create.topics.enable", BOOLEAN, lambda c: c.auto_create,
     "Whether a topic is made at its first record or look-up."),
    ("auto.leader.rebalance.enable", BOOLEAN, _fixed(False), "Workers share shards by themselves."),
    ("connections.max.idle.ms", LONG, lambda c: c.connection_idle_ms_max,
     "Silence after which a connection is closed; milliseconds."),
    ("default.replication.factor", INT, _fixed(1), "A queue has one replica: its log has more."),
    ("delete.topic.enable", BOOLEAN, _fixed(True), "Topics can be deleted."),
    ("fetch.max.bytes", INT, lambda c: c.fetch_bytes_max, "The most a fetch returns; bytes."),
    ("group.consumer.assignment.interval.ms", INT,
     lambda c: c.group_consumer_assignment_interval_ms,
     "The least time between two assignments of a consumer group; milliseconds."),
    ("group.consumer.heartbeat.interval.ms", INT, lambda c: c.group_consumer_heartbeat_ms,
     "Time between heartbeats of a consumer group's members; milliseconds."),
    ("group.consumer.max.size", INT, lambda c: c.group_members_max, "Members of a consumer group."),
    ("group.consumer.session.timeout.ms", INT, lambda c: c.group_consumer_session_ms,
     "Session of a consumer group's members; milliseconds."),
    ("group.initial.rebalance.delay.ms", INT, lambda c: c.group_initial_rebalance_delay_ms,
     "Wait for more members before a new group's first rebalance; milliseconds."),
    ("group.max.session.timeout.ms", INT, lambda c: c.group_session_ms_max,
     "The longest session of a classic group's members; milliseconds."),
    ("group.max.size", INT, lambda c: c.group_members_max, "Members of a classic group."),
    ("group.min.session.timeout.ms", INT, lambda c: c.group_session_ms_min,
     "The shortest session of a classic group's members; milliseconds."),
    ("listeners", LIST, lambda c: f"PLAINTEXT://{c.listen}", "Where clients connect."),
    ("log.dirs", LIST, lambda c: c.data_dir.absolute().name, "The data directory's name."),
    ("log.retention.check.interval.ms", LONG, lambda c: c.retention_check_ms,
     "Time between two looks at a queue's retention; milliseconds."),
    ("max.connections", INT, lambda c: c.connections_max, "Connections open at a time."),
    ("max.connections.per.ip", INT, lambda c: c.connections_per_ip_max,
     "Connections from one address."),
    ("message.max.bytes", INT, lambda c: min(c.batch_bytes_max, largest_batch(c)[0]),
     "The largest record batch of topics that do not say otherwise; bytes."),
    ("num.partitions", INT, lambda c: c.partitions_default,
     "Partitions of topics that do not say otherwise."),
    ("offset.metadata.max.bytes", INT, lambda c: c.offset_metadata_bytes_max,
     "The largest metadata of a committed offset; bytes."),
    ("offsets.retention.check.interval.ms", LONG, lambda c: c.offsets_check_ms,
     "Time between looks for offsets that nobody uses; milliseconds."),
    ("offsets.retention.minutes", INT, lambda c: c.offsets_retention_minutes,
     "How long offsets that nobody uses are kept; minutes."),
    ("process.roles", LIST, _fixed("broker,controller"), "A worker is both to its clients."),
    ("producer.id.expiration.check.interval.ms", INT,
     lambda c: c.producer_id_expiration_check_interval_ms,
     "Time between looks for producers that are not used; milliseconds."),
    ("producer.id.expiration.ms", INT, lambda c: c.producer_id_expiration_ms,
     "How long a queue remembers a producer that is not used; milliseconds."),
    ("socket.request.max.bytes", INT, lambda c: c.frame_bytes_max, "The largest request; bytes."),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT,
     lambda c: c.transaction_abort_timed_out_transaction_cleanup_interval_ms,
     "Time between looks for transactions that are open for too long; milliseconds."),
    ("transaction.max.timeout.ms", INT, lambda c: c.transaction_max_timeout_ms,
     "The longest timeout of a transaction; milliseconds."),
    ("transaction.remove.expired.transaction.cleanup.interval.ms", INT,
     lambda c: c.transaction_remove_expired_transaction_cleanup_interval_ms,
     "Time between looks for transactional ids that are not used; milliseconds."),
    ("transactional.id.expiration.ms", INT, lambda c: c.transactional_id_expiration_ms,
     "How long a transactional id is kept that is not used; milliseconds."),
)  # fmt: skip
_DEFAULTS = load({}, None, {})
_KINDS = {bool: BOOLEAN, int: INT, str: STRING}
_GROUP_DEFAULTS = GroupRules(_DEFAULTS.broker_values())


def of_broker(config: Config, node_id: int) -> Iterator[Told]:
    """Yield a worker's settings, in the order of names."""
    found = (*_told(_BROKER, config), *_of_groups(config), *_of_topics(config, node_id))
    yield from sorted(found, key=_name)


def of_client_metrics(config: Config) -> Iterator[Told]:
    """Yield what clients' metrics would be asked for; nobody asks for any (KIP-714)."""
    return _told(_CLIENT_METRICS, config)


def of_loggers(config: Config) -> Iterator[Told]:
    """Yield the one logger, and its level."""
    return _told((("kproxy", STRING, _fixed("INFO"), "What this worker logs."),), config)


def group_default(setting: Setting) -> str:
    """Return what groups have if neither they nor the worker's operator say otherwise."""
    return _GROUP_DEFAULTS.default(setting)


def _name(told: Told) -> str:
    return told.name


def _told(settings: tuple[_Row, ...], config: Config) -> Iterator[Told]:
    for name, kind, value, documentation in settings:
        yield Told(
            name=name, kind=kind, value=_text(value(config)), default=_text(value(_DEFAULTS)),
            documentation=documentation,
        )  # fmt: skip


def _of_groups(config: Config) -> Iterator[Told]:
    """Yield what groups have that do not say otherwise, and what they may say."""
    told = {name for name, *_ in _BROKER}
    for name, (value, documentation) in config.broker_settings().items():
        if name not in told:
            kind = _KINDS[type(value)]
            default, _ = _DEFAULTS.broker_settings()[name]
            yield Told(
                name=name, kind=kind, value=_text(value), default=_text(default),
                documentation=documentation,
            )  # fmt: skip


def _of_topics(config: Config, node_id: int) -> Iterator[Told]:
    """Yield what topics have that do not say otherwise, and who this is."""
    told = {name for name, *_ in _BROKER}
    for setting in SETTINGS.values():
        if setting.broker_name is not None and setting.broker_name not in told:
            yield Told(
                name=setting.broker_name, kind=setting.kind, value=setting.default,
                default=setting.default, documentation=setting.documentation,
            )  # fmt: skip
    retention = SETTINGS["retention.ms"]
    yield Told(
        name="log.retention.ms", kind=LONG, value=retention.default, default=retention.default,
        documentation=retention.documentation,
    )  # fmt: skip
    node = str(node_id)
    yield Told(name="broker.id", kind=INT, value=node, default="-1", documentation="This worker.")
    yield Told(name="node.id", kind=INT, value=node, default=node, documentation="This worker.")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value) if isinstance(value, int) else value)
