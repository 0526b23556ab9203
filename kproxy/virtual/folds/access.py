"""The fold's part for security. It reads none of it."""

from kproxy.common.errors import Code
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows.access import Secured, secured_key
from kproxy.virtual.state import State


class SecurityFold:
    """The application of SECURE to a shard's state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def change(self, log_offset: int, envelope: Envelope, location: LogLocation) -> Outcome:
        for name, value in Secure.decode(envelope).changes.items():
            row = None if value is None else Secured(value, log_offset).encode()
            self._state.put(secured_key(name), row)
        return Outcome(Code.NONE, log_offset)
