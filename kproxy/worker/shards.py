"""The way to shards: those that a worker serves, and those that others do."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from kproxy.log.base import Ticket
from kproxy.shard.appends import ShardLogs
from kproxy.shard.shard import Shard
from kproxy.virtual.commands.envelope import Envelope


class ShardRouter(ShardLogs, Protocol):
    """The shards that this worker serves, and the way to those it does not."""

    def serving(self, index: int) -> Shard | None:
        """Return the shard with this number, if this worker serves it now."""
        ...

    def all(self) -> list[Shard]:
        """Return the shards that this worker serves now."""
        ...

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        """Put a command in line in the home shard of queue `name`, wherever that is."""
        ...

    async def wait_for_catalogue(self, names: Iterable[str | None]) -> None:
        """Wait until what was decided about these queues by now is known. Raises KafkaError.

        None stands for one whose name is not known here.
        """
        ...


class OneShard:
    """Embedded: one shard has everything."""

    shards = 1

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def serving(self, index: int) -> Shard:
        return self._shard

    def all(self) -> list[Shard]:
        return [self._shard]

    def submit(self, name: str, envelope: Envelope) -> Ticket:
        return self._shard.append([envelope])

    def land(self, index: int, envelopes: Sequence[Envelope]) -> Ticket:
        return self._shard.append(envelopes)

    def ask(self, index: int, envelope: Envelope) -> Ticket:
        return self._shard.append([envelope])

    async def wait_for_catalogue(self, names: Iterable[str | None]) -> None:
        pass
