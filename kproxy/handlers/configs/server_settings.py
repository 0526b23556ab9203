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
    ("auto.leader.rebalance.enable", BOOLEAN, _fixed(False), "Workers share shards by themselves."),
    ("default.replication.factor", INT, _fixed(1), "A queue has one replica: its log has more."),
    ("delete.topic.enable", BOOLEAN, _fixed(True), "Topics can be deleted."),
    ("group.consumer.max.size", INT, lambda c: c.group_members_max, "Members of a consumer group."),
    ("listeners", LIST, lambda c: f"PLAINTEXT://{c.listen}", "Where clients connect."),
    ("log.dirs", LIST, lambda c: c.data_dir.absolute().name, "The data directory's name."),
    ("message.max.bytes", INT, lambda c: min(c.batch_bytes_max, largest_batch(c)[0]),
     "The largest record batch of topics that do not say otherwise; bytes."),
    ("process.roles", LIST, _fixed("broker,controller"), "A worker is both to its clients."),
)  # fmt: skip
_DEFAULTS = load({}, None, {})
_GROUP_DEFAULTS = GroupRules(_DEFAULTS.broker_values())


def of_broker(config: Config, node_id: int) -> Iterator[Told]:
    """Yield a worker's settings, in the order of names."""
    found = (*_told(_BROKER, config), *_of_config(config), *_of_topics(config, node_id))
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


def _of_config(config: Config) -> Iterator[Told]:
    """Yield the settings of this worker that are Kafka's too."""
    defaults = _DEFAULTS.broker_settings()
    for name, (value, documentation, kind) in config.broker_settings().items():
        yield Told(
            name=name, kind=kind, value=_text(value), default=_text(defaults[name].value),
            documentation=documentation,
        )  # fmt: skip


def _of_topics(config: Config, node_id: int) -> Iterator[Told]:
    """Yield what topics have that do not say otherwise, and who this is."""
    told = {*(name for name, *_ in _BROKER), *config.broker_settings()}
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
