"""The fold's part for what is set of groups. It reads none of it: the members' owners do."""

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.group_settings import ConfigureGroup
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows.group_settings import GroupConfigs, configs_in, group_config_key
from kproxy.virtual.state import State


class GroupConfigFold:
    """The application of CONFIGURE_GROUP to a shard's state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def configure(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        asked = ConfigureGroup.decode(envelope)
        known = configs_in(self._state.get, asked.group)
        kept = {} if known is None or asked.replace_all else dict(known.configs)
        for name in asked.dropped:
            kept.pop(name, None)
        kept |= asked.given
        row = GroupConfigs(kept, log_offset).encode() if kept else None
        self._state.put(group_config_key(asked.group), row)
        return Outcome(Code.NONE, log_offset)
