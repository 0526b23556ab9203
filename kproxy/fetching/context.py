"""The partitions of one consumer, and which of them may have new records.

A session's poll looks only at partitions that changed since the last poll found them empty. Its
cost follows the traffic and not the size of the subscription (KIP-227).
"""

import anyio

from kproxy.fetching.aborted import AbortedSearch
from kproxy.loop.pace import Pace
from kproxy.metadata.queue_settings import DEFAULTS
from kproxy.shard.shard import Shard
from kproxy.virtual.types import PartitionKey

AT_ONCE = 500
"""Partitions that are looked at, or let go of, before others have their turn."""

Ident = tuple[str | bytes, int]
"""A partition as the client names it: topic name or id, and index."""


class FetchPartition:
    """One partition that a consumer follows, and what it was last told of it."""

    __slots__ = (
        "as_of", "epoch", "ident", "key", "last_sent", "max_bytes", "offset", "search", "settings",
        "shard",
    )  # fmt: skip

    def __init__(self, ident: Ident) -> None:
        self.ident = ident
        self.key: PartitionKey | None = None
        self.shard: Shard | None = None
        self.settings = DEFAULTS
        """The queue's settings when this was looked at last."""
        self.as_of = -1  # changes of queues that there had been
        self.offset = 0
        self.max_bytes = 0
        self.epoch = -1
        self.last_sent: tuple[int, int] | None = None  # high watermark, log start
        self.search: AbortedSearch | None = None  # that the next look goes on with

    def note_used(self) -> None:
        """Note that somebody reads the partition."""
        if self.key is not None and self.shard is not None:
            self.shard.used.add(self.key)


class FetchContext:
    """The followed partitions by ident. `dirty`, in order of turn: those to be looked at."""

    def __init__(self) -> None:
        self.partitions: dict[Ident, FetchPartition] = {}
        self.dirty: dict[FetchPartition, None] = {}
        self._by_key: dict[PartitionKey, FetchPartition] = {}
        self._event: anyio.Event | None = None
        self._watching = self._ended = False
        self._read_committed = False
        self.polled_until = 0.0  # up to when its last poll may wait, by anyio's clock
        self._generation = -1  # the generation of the rules of who may read what

    def isolate(self, read_committed: bool) -> None:
        """Note what may be read; where that is another than before, all is looked at again."""
        if self._read_committed != read_committed:
            self._read_committed = read_committed
            self.look_at_all()

    def ruled(self, generation: int) -> None:
        """Note as of which rules partitions are read; with others all is looked at again."""
        if self._generation != generation:
            self._generation = generation
            self.look_at_all()

    def look_at_all(self) -> None:
        self.dirty.update(dict.fromkeys(self.partitions.values()))

    def look_at(self, followed: FetchPartition) -> None:
        """Look at it again: what it has was not answered."""
        self.dirty[followed] = None

    def follow(self, followed: FetchPartition) -> None:
        self.partitions[followed.ident] = followed
        self.dirty[followed] = None

    def forget(self, ident: Ident) -> None:
        followed = self.partitions.pop(ident, None)
        if followed is not None:
            self.dirty.pop(followed, None)
            self.locate(followed, None, None)

    def locate(
        self, followed: FetchPartition, key: PartitionKey | None, shard: Shard | None
    ) -> None:
        """Note which queue partition an ident means now; None: there is none."""
        if followed.key == key:
            return
        if followed.key is not None:
            if self._by_key.get(followed.key) is followed:
                del self._by_key[followed.key]
            if self._watching and followed.shard is not None:
                followed.shard.watchers.discard(followed.key, self)
            if followed.settings.expires_idle_ms >= 0:
                followed.note_used()
        followed.key, followed.shard = key, shard
        if key is not None and shard is not None:
            self._by_key[key] = followed
            if self._watching and not self._ended:
                shard.watchers.add(key, self)

    @property
    def watching(self) -> bool:
        """Whether it is told of changes: what it found empty is not to be looked at again."""
        return self._watching

    async def watch(self, pace: Pace, rested: bool = False) -> bool:
        """Watch for changes from now on; return whether something may have changed before unseen.

        `rested`: others had their turn while it was looked at.
        """
        if self._watching:
            return False
        self._watching = True
        for followed in self.partitions.values():
            if followed.key is not None and followed.shard is not None:
                followed.shard.watchers.add(followed.key, self)
            if pace.due:
                await pace.rest()
        return rested or len(self.partitions) > AT_ONCE

    def let_go(self) -> bool:
        """Forget some of what is followed; whether that was all. Nobody looks at it any more."""
        if not self._watching and len(self.partitions) <= AT_ONCE:
            return True  # no shard knows of them
        self._ended = True
        for _ in range(min(AT_ONCE, len(self.partitions))):
            _, followed = self.partitions.popitem()
            self.dirty.pop(followed, None)
            self.locate(followed, None, None)
        return not self.partitions

    def changed(self, key: PartitionKey) -> None:
        followed = self._by_key.get(key)
        if followed is not None:
            self.dirty[followed] = None
            if self._event is not None:
                self._event.set()

    def expect_change(self) -> anyio.Event:
        """Return an event that the next change sets."""
        self._event = anyio.Event()
        return self._event
