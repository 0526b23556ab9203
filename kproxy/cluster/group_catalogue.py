"""What is set of groups, on each worker's disk: a fold of the queues topic, as the catalogue is.

The owner of a group's shard announces what is set; a tombstone says that nothing is. Its header has
the log offset as of which that is true. Of two words the one with the later log offset holds. A row
is *in doubt* while the topic's last word may be another: who serves the group's shard next says it
again. So a row is kept, in doubt, where nothing is set any more and the topic does not say so yet.
"""

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from kproxy.loop.pace import scanned
from kproxy.metadata.catalogue import StateLookup
from kproxy.shard.shard import Shard
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.group_config_rows import GroupConfigs, decode_group_configs
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.row_kinds import CatalogueRow
from kproxy.virtual.rows import name_of
from kproxy.virtual.state import Kv

_Changes = dict[bytes, bytes | None]
_SEEN = CatalogueRow.SEEN + b"\0"  # no queue's name begins so


def announced_key(group: str) -> bytes:
    """The key of a group's record in the queues topic, and of its row."""
    return CatalogueRow.GROUP + group.encode()


def _said(record: Record, gone_at: Callable[[bytes | None], int]) -> tuple[str, Any] | None:
    """(group, what is set or the offset as of which nothing is); None where no worker wrote it."""
    try:
        group = name_of(record.key)
        if record.value is None:
            return group, gone_at(record.note)
        configs, changed_at = decode_group_configs(record.value)
        return group, GroupConfigs(dict(configs), int(changed_at))
    except (ValueError, LookupError, TypeError):
        return None


def _as_of(word: GroupConfigs | int) -> int:
    return word if isinstance(word, int) else word.changed_at


class GroupCatalogue:
    """Rows of groups in the catalogue's store."""

    def __init__(
        self,
        kv: Kv,
        shards: int,
        serving: Callable[[int], Shard | None],
        gone_at: Callable[[bytes | None], int],
    ) -> None:
        """`gone_at` reads a tombstone's header."""
        self.kv = kv
        self._shards = shards
        self._serving = serving
        self._gone_at = gone_at
        self._wrong: dict[str, Shard] = {}
        self.say_again: Callable[[Shard, str], None] = lambda shard, group: None
        """Told of groups of shards served here of which the topic's last word is wrong."""

    def home(self, group: str) -> Shard | None:
        """The shard of a group, if it is served here."""
        return self._serving(shard_of(group, self._shards))

    # -- looking up

    def row(self, group: str) -> bytes | None:
        """What is set of a group; its shard says it, if it is served here."""
        home = self.home(group)
        if home is not None:
            return StateLookup(home.state).group_row(group)
        return self.kv.get(announced_key(group))

    def configured(self) -> Iterator[str]:
        """Groups of which something is set."""
        for key, _ in self.kv.scan(*CatalogueRow.GROUP.range()):
            if self.row(name_of(key)) is not None:
                yield name_of(key)

    def heard(self, group: str, truth: GroupConfigs | None) -> bool:
        """Whether the topic's last word on a group of a shard served here is this."""
        known, doubted = self._known({}, group)
        return known == truth and not doubted

    # -- folding

    def forget(self) -> None:
        """All of the topic comes again."""
        keys = [key for key, _ in self.kv.scan(*CatalogueRow.GROUP.range())]
        self.kv.write(dict.fromkeys(keys))

    async def drop_unheard(self) -> None:
        """All of the topic came again: what it does not speak of is not set any more."""
        async for found in scanned(self.kv.scan, *CatalogueRow.GROUP.range()):
            groups = [name_of(key) for key, _ in found]
            gone = [g for g in groups if self.kv.get(_seen_key(g)) is None and not self.home(g)]
            self.kv.write({announced_key(group): None for group in gone})

    def hear(self, changes: _Changes, record: Record, *, reading_again: bool) -> None:
        """Take in a record of a group."""
        said = _said(record, self._gone_at)
        if said is None:
            return
        group, word = said
        if reading_again:
            changes[_seen_key(group)] = None if isinstance(word, int) else b""
        home = self.home(group)
        if home is None or _as_of(word) >= home.applied_through.next_offset:
            self._take(changes, group, word)  # who said this had read more than we have
            return
        self._wrong.pop(group, None)
        truth = truth_of(home, group)
        if truth == (None if isinstance(word, int) else word):
            changes[announced_key(group)] = None if truth is None else truth.encode()
            return
        self._doubt(changes, group, truth or (None if isinstance(word, int) else word))
        self._wrong[group] = home

    def say_wrong(self) -> None:
        """Have said again what the topic had wrong."""
        wrong, self._wrong = self._wrong, {}
        for group, home in wrong.items():
            self.say_again(home, group)

    def note(self, group: str) -> None:
        """It is announced now what is set of a group of a shard served here."""
        home = self.home(group)
        if home is not None:
            changes: _Changes = {}
            self._doubt(changes, group, truth_of(home, group) or self._known(changes, group)[0])
            self.kv.write(changes)

    def _take(self, changes: _Changes, group: str, word: GroupConfigs | int) -> None:
        known, _ = self._known(changes, group)
        if known is not None and _as_of(word) < known.changed_at:
            self._doubt(changes, group, known)
        else:
            changes[announced_key(group)] = None if isinstance(word, int) else word.encode()

    def _doubt(self, changes: _Changes, group: str, known: GroupConfigs | None) -> None:
        if known is not None:
            changes[announced_key(group)] = orjson.dumps({**known._asdict(), "in_doubt": True})

    def _known(self, changes: _Changes, group: str) -> tuple[GroupConfigs | None, bool]:
        key = announced_key(group)
        data = changes[key] if key in changes else self.kv.get(key)
        if data is None:
            return None, False
        return decode_group_configs(data), "in_doubt" in orjson.loads(data)


def _seen_key(group: str) -> bytes:
    return _SEEN + group.encode()


def truth_of(home: Shard, group: str) -> GroupConfigs | None:
    """What is set of a group, as its shard has it."""
    row = StateLookup(home.state).group_row(group)
    return None if row is None else decode_group_configs(row)
