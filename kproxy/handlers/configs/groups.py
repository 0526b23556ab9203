"""The changes to a group's settings: of IncrementalAlterConfigs (44) and AlterConfigs (33).

Rules, codes and texts follow Kafka's `ConfigurationControlManager` and `GroupConfig`. A group may
have settings before there is such a group, and keeps them once it is gone.
"""

from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ConfigNeeds
from kproxy.loop.pace import Pace
from kproxy.metadata.group_settings import SETTINGS
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.levels import SHARES_FROM
from kproxy.virtual.rows.group_settings import decode_group_configs

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_OF_LISTS = {_APPEND: "APPEND", _SUBTRACT: "SUBTRACT"}


async def incremental(worker: ConfigNeeds, resource: Any, pace: Pace) -> ConfigureGroup:
    """Change a group's settings; settings that are not named stay. Raise KafkaError."""
    group = _group(worker, resource)
    times = await pace.count(change.name for change in resource.configs)
    if len(times) < len(resource.configs):
        raise KafkaError(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    given: dict[str, str] = {}
    dropped: list[str] = []
    for change in resource.configs:
        await pace.step()
        operation, name = change.config_operation, change.name
        if operation == _DELETE:
            if name in SETTINGS:
                dropped.append(name)
        elif operation in _OF_LISTS:
            text = f"Can't {_OF_LISTS[operation]} to key {name} because its type is not LIST."
            raise KafkaError(Code.INVALID_CONFIG, text)
        elif operation == _SET:
            given[name] = _value(change)
        else:
            raise KafkaError(Code.INVALID_REQUEST, f"there is no operation {operation}")
    kept = {name: value for name, value in _configs(worker, group).items() if name not in dropped}
    return ConfigureGroup(group, _checked(worker, given, kept), dropped)


async def whole(worker: ConfigNeeds, resource: Any, pace: Pace) -> ConfigureGroup:
    """Replace a group's settings; the unnamed go back to their defaults. Raise KafkaError."""
    group = _group(worker, resource)
    given: dict[str, str] = {}
    for change in resource.configs:
        await pace.step()
        given[change.name] = _value(change)
    return ConfigureGroup(group, _checked(worker, given, {}), [], replace_all=True)


def _checked(worker: ConfigNeeds, given: dict[str, str], kept: dict[str, str]) -> dict[str, str]:
    """Return what is given, as it is kept. Raise KafkaError."""
    checked = worker.group_rules.check(given, kept)
    worker.group_rules.check_level(checked, worker.level)
    return checked


def _group(worker: ConfigNeeds, resource: Any) -> str:
    group = str(resource.resource_name)
    if not group:
        raise KafkaError(Code.INVALID_REQUEST, "Default group resources are not allowed.")
    if not worker.level.reaches(SHARES_FROM):
        raise KafkaError(
            Code.INVALID_CONFIG,
            f"groups have settings from level {SHARES_FROM} on: once every worker runs this"
            " release, put it in force with `kproxy upgrade --finalize`",
        )
    return group


def _value(change: Any) -> str:
    if change.value is None:
        raise KafkaError(Code.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    return str(change.value)


def _configs(worker: ConfigNeeds, group: str) -> dict[str, str]:
    row = worker.group_row(group)
    return {} if row is None else decode_group_configs(row).configs
