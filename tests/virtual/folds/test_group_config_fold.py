"""The settings of a group: changes in the order of the log, and the row that they leave."""

import pytest

from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.rows.group_settings import (
    GroupConfigs,
    configs_in,
    decode_group_configs,
    group_config_key,
)
from tests.fakes import MemoryShard


def configs(shard: MemoryShard, group: str = "g") -> GroupConfigs | None:
    return configs_in(shard.state.get, group)


def test_settings_come_and_go_and_an_empty_row_is_none() -> None:
    shard = MemoryShard()
    steps: list[tuple[ConfigureGroup, dict[str, str]]] = [
        (ConfigureGroup("g", {"a": "1", "b": "2"}, []), {"a": "1", "b": "2"}),
        (ConfigureGroup("g", {"a": "3"}, ["b", "no"]), {"a": "3"}),
        (ConfigureGroup("g", {"c": "4"}, []), {"a": "3", "c": "4"}),
        (ConfigureGroup("g", {"d": "5"}, [], True), {"d": "5"}),
        (ConfigureGroup("g", {"d": "6"}, ["d"]), {"d": "6"}),
    ]
    for number, (change, kept) in enumerate(steps):
        outcome = shard.apply(change.envelope())
        assert (outcome.code, outcome.number) == (0, number)
        assert configs(shard) == (kept, number)
    assert configs(shard, "h") is None
    shard.apply(ConfigureGroup("g", {}, ["d"]).envelope())
    assert configs(shard) is None
    assert not [key for key in shard.kv.rows if key == group_config_key("g")]
    shard.apply(ConfigureGroup("g", {}, [], True).envelope())
    assert configs(shard) is None


def test_groups_with_names_of_any_kind() -> None:
    shard = MemoryShard()
    for number, group in enumerate(("", "\0", "é", "g" * 32_767, "a/b:c d")):
        shard.apply(ConfigureGroup(group, {"n": str(number)}, []).envelope())
    assert configs(shard, "é") == ({"n": "2"}, 2)
    assert configs(shard, "\0") == ({"n": "1"}, 1)


def test_a_later_form_is_refused() -> None:
    assert decode_group_configs(GroupConfigs({"a": "1"}, 5).encode()) == ({"a": "1"}, 5)
    with pytest.raises(ValueError, match="kind E has form 2"):
        decode_group_configs(b"\2{}")
