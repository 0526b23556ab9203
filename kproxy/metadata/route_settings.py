"""The settings of routes (`metadata.routing`), and what is wrong with them together.

A queue with `kproxy.route.to` is an *entrance*: its records go on to the queues that a template
names. A queue with `kproxy.route.from` gets those records of another that its filter lets through.
"""

from collections.abc import Callable, Collection, Mapping

from kproxy.metadata.expiry_settings import expiring_partitions_conflict
from kproxy.metadata.routing import internal, read_configs, read_filter, read_template
from kproxy.metadata.setting import (
    BOOLEAN,
    LONG,
    SPACE,
    STRING,
    Read,
    Setting,
    boolean,
    is_true,
    whole,
)
from kproxy.virtual.folds.route_definitions import CONFIGS, FILTER, FROM, FROM_START, TO, UNROUTABLE
from kproxy.virtual.levels import ENCODINGS_FROM, ROUTES_FROM
from kproxy.virtual.partitioner import name_fault

KEEP, QUEUES_MAX, LAG_MAX = "kproxy.route.keep", "kproxy.route.queues.max", "kproxy.route.lag.max"
PREFIX = "kproxy.route."
ENTRANCE_PARTITIONS_MAX = 8
"""Each partition of an entrance has a flow to each shard."""


def sound(check: Callable[[str], object]) -> Read:
    """Return a check that takes what `check` takes, or nothing. Spaces around it are dropped, as
    Kafka does with others."""

    def read(value: str) -> str:
        value = value.strip(SPACE)
        if value:
            check(value)
        return value

    return read


def queue_name(value: str) -> str:
    fault = name_fault(value)
    if fault:
        raise ValueError(f"it must be a queue's name: {fault}")
    if internal(value):
        raise ValueError("it must not be a queue of Kafka's own (__…)")
    return value


def _template_level(value: str) -> int:
    return ENCODINGS_FROM if value and read_template(value).encodings else ROUTES_FROM


ROUTE_SETTINGS = (
    Setting(CONFIGS, STRING, "", sound(read_configs),  # their form: checked where all are known
            "Settings of the queues that kproxy.route.to makes: name:value;name:value.",
            level=ROUTES_FROM),
    Setting(FILTER, STRING, "", sound(read_filter),
            "Which records come by kproxy.route.from, conditions with & between them:"
            " header:NAME:VALUE|VALUE, header:NAME (it is there), !header:NAME (it is not),"
            " key:PREFIX. %XX stands for a byte. Empty: all.", level=ROUTES_FROM),
    Setting(FROM, STRING, "", sound(queue_name),
            "The queue whose records come here, too, those that kproxy.route.filter lets"
            " through.", level=ROUTES_FROM),
    Setting(FROM_START, BOOLEAN, "false", boolean,
            "Whether those records come as well that are in kproxy.route.from already when it"
            " is set.", level=ROUTES_FROM),
    Setting(KEEP, BOOLEAN, "true", boolean,
            "Whether records stay here, too, once they are in the queues that kproxy.route.to"
            " names.", field="route_keeps", value=is_true, level=ROUTES_FROM),
    Setting(LAG_MAX, LONG, "1000000", whole(LONG, 1),
            "How many records of a partition may wait to be passed on; beyond that producers are"
            " told to wait.", level=ROUTES_FROM),
    Setting(QUEUES_MAX, LONG, "10000000", whole(LONG, 1),
            "How many queues each partition's route may make; beyond that it passes nothing on.",
            field="route_queues_max", value=int, level=ROUTES_FROM),
    Setting(TO, STRING, "", sound(read_template),
            "A template of the queue that each record goes to, for example device-{key} or"
            " t.{header:tenant}.{key}. {key:%}, {key:hex} and {key:hash} encode any key. Queues"
            " are made at their first record.", level=_template_level),
    Setting(UNROUTABLE, STRING, "", sound(queue_name),
            "The queue of those records that kproxy.route.to names none for.", level=ROUTES_FROM),
)  # fmt: skip

_OF_ENTRANCES = (UNROUTABLE, CONFIGS, KEEP, QUEUES_MAX, LAG_MAX)
_OF_FILTERS = (FILTER, FROM_START)
_NO_CHANGE = {setting.name: (None, setting.default) for setting in ROUTE_SETTINGS}


def routes_conflict(values: Mapping[str, str], given: Collection[str]) -> str | None:
    """Return what is wrong with a queue's settings of routes, of which each by itself is sound.

    `given`: the names of those that are set now. One of a route that has ended may stay, one that
    is set without its route is a mistake.
    """
    to, source = values.get(TO), values.get(FROM)
    if to and source:
        return f"{TO} and {FROM} exclude each other: use two queues, or delete one of them"
    if to and not values.get(UNROUTABLE):
        return f"{TO} needs {UNROUTABLE}: name a queue for the records that have no target"
    for names, route, needed in ((_OF_ENTRANCES, to, TO), (_OF_FILTERS, source, FROM)):
        lost = [
            name for name in names if name in given and values.get(name) not in _NO_CHANGE[name]
        ]
        if lost and not route:
            return f"{lost[0]} has no effect without {needed}: set both, or neither"
    return None


def names_conflict(values: Mapping[str, str], name: str) -> str | None:
    """Return what is wrong with the queues that the settings of the queue `name` refer to."""
    for setting in (FROM, UNROUTABLE):
        if values.get(setting) == name:
            return f"{setting}={name} is this queue itself: name another one"
    return None


def partitions_conflict(values: Mapping[str, str], partitions: int) -> str | None:
    """Return why a queue with these settings has too many partitions, or None."""
    if fault := expiring_partitions_conflict(values, partitions):
        return fault
    if values.get(FROM) and partitions != 1:
        return f"a queue with {FROM} has 1 partition, not {partitions}: the order would be lost"
    if values.get(TO) and partitions > ENTRANCE_PARTITIONS_MAX:
        return (
            f"a queue with {TO} may have 1 to {ENTRANCE_PARTITIONS_MAX} partitions, not"
            f" {partitions}: each has its own way to each shard"
        )
    return None
