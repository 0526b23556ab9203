"""Dead letters: what a share group gave up is put into its dead-letter queue, once each (KIP-1191).

SHARE archives records and files what is owed, in one step (rows of kind DEAD_LETTER). The owner of
the shard sends them, in the order of these rows for each share partition:

1. AIM_FORWARD in this shard says to which partition, where that has changed.
2. FORWARD in the target's shard has a batch of them. It is void where any was taken before.
3. SETTLE_FORWARD in this shard forgets what was taken, and only then the next FORWARD goes.

Two FORWARDs of a share partition are never under way at once: the later might land first, and the
earlier would be void. A new owner of the shard begins with what is not settled. Records that may
have been sent already go to where they were aimed at then; the target's answer says what it has.

Records without a target wait, and are counted; so much of it for each group and shard, and no more.
"""

from collections.abc import Callable

from kproxy.common.counters import Counters
from kproxy.config.server import Config
from kproxy.log.base import Ticket
from kproxy.loop.clock import Clock
from kproxy.metadata.catalogue import Catalogue
from kproxy.metadata.group_settings import GroupSettings
from kproxy.metadata.levels import Level
from kproxy.security.behalf import Anybody, Behalf
from kproxy.shard.appends import Asks
from kproxy.shard.per_shard import PerShard
from kproxy.shard.shard import Shard
from kproxy.shares.dead_letter_sender import Sender
from kproxy.shares.dead_letter_targets import DeadLetterServices, Targets

OWED_MAX = 10_000
"""Records of a group in a shard that wait; what comes on top is archived without."""


class DeadLetters:
    """The dead letters of all shards that this worker serves."""

    def __init__(
        self,
        serving: Callable[[], list[Shard]],
        routes: Asks,
        settings: Callable[[str], GroupSettings],
        catalogue: Catalogue[Ticket],
        config: Config,
        counters: Counters,
        clock: Clock,
        level: Level | None = None,
        behalf: Behalf | None = None,
    ) -> None:
        """Set up the senders; `behalf`: the rights of those who set that records are copied."""
        self._settings = settings
        behalf = behalf or Anybody()
        targets = Targets(settings, catalogue, config, clock.monotonic, behalf)
        self._shared = shared = DeadLetterServices(
            routes, targets, config, counters, clock, level or Level(), behalf
        )
        self._senders = PerShard(serving, lambda shard: Sender(shard, shared))

    def owes(self, shard: Shard, group: str, records: int = 1) -> bool:
        """Return whether records of a group that are archived now are to be sent: it asks for that.

        No more are where there is no room for what waits: they are counted.
        """
        if not self._settings(group).dead_letter_queue:
            self._shared.warn("records_archived", group=group, shard=shard.shard, records=records)
            return False
        owed = self._senders.of(shard).owed(group)
        if owed < OWED_MAX:
            return True
        self._shared.counters.dead_letters_refused += records
        self._shared.warn("dead_letters_refused", group=group, shard=shard.shard, waiting=owed)
        return False

    def waiting(self, shard: Shard, group: str) -> int:
        """Return how many records of a group are owed."""
        return self._senders.of(shard).owed(group)

    async def run(self) -> None:
        """Send what is owed in the shards that are served here."""
        await self._senders.run(lambda sender, tasks: tasks.start_soon(sender.run))
