"""Rows that all workers know, on each one's disk: a fold of the queues topic, as the catalogue is.

There are two kinds: what is set of groups, and rows of security. The owner of the shard that a row
lives in announces it; a tombstone says that there is none. Its header has the log offset as of
which that is true. The word with the later log offset holds. A row is *in doubt* while the topic's
last word may be another: the shard's next owner says it again. So a deleted row is kept, in doubt,
while the topic does not say so yet.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import orjson

from kproxy.loop.pace import lots, scanned
from kproxy.shard.shard import Shard
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.changes import Kv
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.access import SECURITY_SHARD, decode_secured
from kproxy.virtual.rows.group_settings import decode_group_configs
from kproxy.virtual.rows.kinds import CatalogueRow, RowKind
from kproxy.virtual.rows.queues import name_of

_Changes = dict[bytes, bytes | None]


class Word(Protocol):
    """A row: values, and the log offset at which they were decided."""

    @property
    def changed_at(self) -> int: ...
    def encode(self) -> bytes: ...
    def _asdict(self) -> dict[str, Any]: ...


class Subject(NamedTuple):
    """A kind of rows that are announced."""

    row: RowKind
    announced: CatalogueRow
    """The kind of a record of the queues topic, and of a worker's row."""
    decode: Callable[[bytes], Any]
    home: Callable[[str, int], int]
    """The shard that a row lives in, by its name and how many shards there are."""

    def key(self, name: str) -> bytes:
        return self.announced + name.encode()

    def seen_key(self, name: str) -> bytes:
        """Return the key that notes, while the topic is read again, that it speaks of this row.

        No queue's name begins so.
        """
        return CatalogueRow.SEEN + b"\0" + self.key(name)

    def truth(self, home: Shard, name: str) -> Word | None:
        """Return the row, as its shard has it."""
        data = home.state.get(self.row + name.encode())
        truth: Word | None = None if data is None else self.decode(data)
        return truth

    def said(self, value: bytes) -> Word:
        """Decode a record's value.

        Raises ValueError, LookupError or TypeError where no worker wrote it.
        """
        word = self.decode(value)
        values, changed_at = word
        said: Word = type(word)(dict(values), int(changed_at))
        return said


GROUPS = Subject(RowKind.GROUP_CONFIG, CatalogueRow.GROUP, decode_group_configs, shard_of)
SECURITY = Subject(
    RowKind.SECURED, CatalogueRow.SECURED, decode_secured, lambda name, shards: SECURITY_SHARD
)


def forget(kv: Kv, start: bytes, end: bytes) -> None:
    """Delete the rows with start <= key < end, some at a time: there may be millions."""
    for some in lots(kv.scan, start, end):
        kv.write(dict.fromkeys(key for key, _ in some))


def _as_of(word: Word | int) -> int:
    return word if isinstance(word, int) else word.changed_at


class RowCatalogue:
    """Rows of one kind in the catalogue's store."""

    def __init__(
        self,
        subject: Subject,
        kv: Kv,
        shards: int,
        serving: Callable[[int], Shard | None],
        gone_at: Callable[[bytes | None], int],
    ) -> None:
        """Take `gone_at`, which reads a tombstone's header."""
        self.subject = subject
        self.kv = kv
        self._shards = shards
        self._serving = serving
        self._gone_at = gone_at
        self._wrong: dict[str, Shard] = {}
        self._heard: set[str] = set()
        self._again: set[str] = set()  # while all comes again: perhaps rows that are gone since
        self._latest: dict[int, int] = {}  # log offset of the last word heard, by shard
        self.say_again: Callable[[Shard, str], None] = lambda shard, name: None
        """A callback for rows of shards served here of which the topic's last word is wrong."""
        self.changed: Callable[[str], None] = lambda name: None
        """A callback for rows that may be others than before."""

    def home(self, name: str) -> Shard | None:
        """Return the shard of a row, if it is served here."""
        return self._serving(self.subject.home(name, self._shards))

    # -- looking up

    def row(self, name: str) -> bytes | None:
        """Return a row; its shard says it, if it is served here."""
        home = self.home(name)
        if home is not None:
            return home.state.get(self.subject.row + name.encode())
        return self.kv.get(self.subject.key(name))

    def names(self) -> Iterator[str]:
        """Yield the names of the rows that exist."""
        for key, _ in self.kv.scan(*self.subject.announced.range()):
            if self.row(name_of(key)) is not None:
                yield name_of(key)

    def heard(self, name: str, truth: Word | None) -> bool:
        """Whether the topic's last word on a row of a shard served here is this."""
        known, doubted = self._known({}, name)
        return known == truth and not doubted

    # -- folding

    def forget(self) -> None:
        """Forget all rows: all of the topic comes again."""
        forget(self.kv, *self.subject.announced.range())

    async def drop_unheard(self) -> None:
        """Forget the rows that the topic did not mention when all of it came again."""
        subject = self.subject
        again, self._again = self._again, set()
        async for found in scanned(self.kv.scan, *subject.announced.range()):
            names = [name_of(key) for key, _ in found]
            unheard = [n for n in names if self.kv.get(subject.seen_key(n)) is None]
            gone = [name for name in unheard if not self.home(name)]
            self.kv.write({subject.key(name): None for name in gone})
            for name in gone:
                self.changed(name)
        for name in again:
            self.changed(name)

    def hear(self, changes: _Changes, record: Record, *, reading_again: bool) -> None:
        """Take in a record of such a row."""
        said = self._said(record)
        if said is None:
            return
        name, word = said
        if reading_again and self._may_be_gone(changes, name, word):
            self._again.add(name)
        else:
            self._heard.add(name)
            self._note_latest(name, word, first=not reading_again)
        if reading_again:
            changes[self.subject.seen_key(name)] = None if isinstance(word, int) else b""
        home = self.home(name)
        if home is None or _as_of(word) >= home.applied_through.next_offset:
            self._take(changes, name, word)  # the sender of this had read more than we have
            return
        self._wrong.pop(name, None)
        truth = self.subject.truth(home, name)
        if truth == (None if isinstance(word, int) else word):
            changes[self.subject.key(name)] = None if truth is None else truth.encode()
            return
        self._doubt(changes, name, truth or (None if isinstance(word, int) else word))
        self._wrong[name] = home

    def _may_be_gone(self, changes: _Changes, name: str, word: Word | int) -> bool:
        """Whether a row that is not known may have been dropped behind this word, unlike one that
        is later than all that was heard before.
        """
        shard, as_of = self.subject.home(name, self._shards), _as_of(word)
        latest = self._latest.get(shard)
        if latest is not None and as_of > latest:
            return False
        return not isinstance(word, int) and self._known(changes, name)[0] is None

    def _note_latest(self, name: str, word: Word | int, *, first: bool) -> None:
        shard = self.subject.home(name, self._shards)
        if first or shard in self._latest:
            self._latest[shard] = max(_as_of(word), self._latest.get(shard, -1))

    def _said(self, record: Record) -> tuple[str, Word | int] | None:
        """(name, its row or the offset as of which it has none); None where no worker wrote it."""
        try:
            name = name_of(record.key)
            if record.value is None:
                return name, self._gone_at(record.note)
            return name, self.subject.said(record.value)
        except (ValueError, LookupError, TypeError):
            return None

    def was_written(self) -> None:
        """Announce again the rows that the topic had wrong, once what was heard is in the store."""
        wrong, self._wrong = self._wrong, {}
        for name, home in wrong.items():
            self.say_again(home, name)
        heard, self._heard = self._heard, set()
        for name in heard:
            self.changed(name)

    def note(self, name: str) -> None:
        """Take a row of a shard served here that is announced now."""
        home = self.home(name)
        if home is not None:
            changes: _Changes = {}
            truth = self.subject.truth(home, name)
            self._doubt(changes, name, truth or self._known(changes, name)[0])
            self.kv.write(changes)
            self.changed(name)

    def _take(self, changes: _Changes, name: str, word: Word | int) -> None:
        known, _ = self._known(changes, name)
        if known is not None and _as_of(word) < known.changed_at:
            self._doubt(changes, name, known)
        else:
            changes[self.subject.key(name)] = None if isinstance(word, int) else word.encode()

    def _doubt(self, changes: _Changes, name: str, known: Word | None) -> None:
        if known is not None:
            doubted = orjson.dumps({**known._asdict(), "in_doubt": True})
            changes[self.subject.key(name)] = doubted

    def _known(self, changes: _Changes, name: str) -> tuple[Word | None, bool]:
        key = self.subject.key(name)
        data = changes[key] if key in changes else self.kv.get(key)
        if data is None:
            return None, False
        return self.subject.decode(data), "in_doubt" in orjson.loads(data)
