"""Rows of what is set of groups: `CONFIGURE_GROUP` puts them, in the shard of each group."""

from collections.abc import Callable
from typing import NamedTuple

import orjson

from kproxy.virtual.rows.forms import later_form
from kproxy.virtual.rows.kinds import RowKind

_JSON = ord("{")


def group_config_key(group: str) -> bytes:
    return RowKind.GROUP_CONFIG + group.encode()


class GroupConfigs(NamedTuple):
    """The settings of a group. A group of which nothing is set has no such row."""

    configs: dict[str, str]
    changed_at: int
    """Log offset of the group's shard."""

    def encode(self) -> bytes:
        return orjson.dumps({"configs": self.configs, "changed_at": self.changed_at})


def decode_group_configs(data: bytes) -> GroupConfigs:
    """Decode a row. Raise ValueError for a form of a later kproxy."""
    if data[0] != _JSON:
        raise later_form("a row of kind E", data[0])
    values = orjson.loads(data)
    return GroupConfigs(values["configs"], values["changed_at"])


def configs_in(get: Callable[[bytes], bytes | None], group: str) -> GroupConfigs | None:
    """Return the settings of a group, as a shard has them."""
    data = get(group_config_key(group))
    return None if data is None else decode_group_configs(data)
