"""The catalogue on each worker's disk: a fold of the queues topic.

Owners of home shards announce queues. The announcement of a queue with the later log offset holds.
A tombstone says that no queue has the name; its header carries the log offset as of which that is
true, so later announcements stand. Tombstones of releases before levels carry no header: such a
tombstone hides the name until the owner corrects it, and deletes no queue. Outcomes of commands are
published in the same topic; the cache hands them to the `CommandRouter`.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from kproxy.cluster.catalogue.rows import GROUPS, SECURITY, RowCatalogue, forget
from kproxy.loop.callbacks import nothing
from kproxy.loop.pace import scanned
from kproxy.metadata.catalogue import StateLookup, decoded, home_of
from kproxy.shard.shard import Shard
from kproxy.upstream.native_producer import Header
from kproxy.upstream.topic_tailer import NOTE, Record
from kproxy.virtual.changes import Kv
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.kinds import CatalogueRow
from kproxy.virtual.rows.queues import Queue, decode_queue, name_key, name_of, queue_key
from kproxy.virtual.types import LogOffset, QueueId

_NEXT = CatalogueRow.NEXT_OFFSET.letter
_CURRENT = CatalogueRow.CURRENT.letter
_OUTCOME_RECORD = b"o"  # the first byte of a record of the queues topic, as `link.CALL`
_OUTCOME = struct.Struct(">cQQ")
_GONE = struct.Struct(">Q16s")
_ENDED_MAX = 10_000
_NO_ID = bytes(16)
_NOBODYS = b"-"


class Tombstone(NamedTuple):
    """A name is nobody's as of a log offset of its home shard; whose it was, where that is known.

    At -1: it is not known since when, as tombstones of earlier releases do not say.
    """

    at: int = -1
    queue_id: QueueId | None = None

    def header(self) -> Header:
        """Return the header of a tombstone: the log offset as of which it holds, and the queue's
        id.
        """
        return NOTE, _GONE.pack(self.at, self.queue_id or _NO_ID)


def _gone(note: bytes | None) -> Tombstone:
    if note is None or len(note) != _GONE.size:
        return Tombstone()
    at, queue_id = _GONE.unpack(note)
    return Tombstone(at, None if queue_id == _NO_ID else QueueId(queue_id))


def outcome_key(writer: int, counter: int) -> bytes:
    """Return the key under which the outcome of a command is published for its sender."""
    return _OUTCOME.pack(_OUTCOME_RECORD, writer, counter)


def announcement(queue: Queue) -> bytes:
    """Return the value of a queue's record in the queues topic."""
    values = {
        "id": queue.queue_id.hex(),
        "partitions": queue.partitions,
        "configs": queue.configs,
        "created_at": queue.created_at,
        "changed_at": queue.changed_at,
    }
    return orjson.dumps(values)


def announced(name: str, value: bytes) -> Queue:
    """Decode an announcement. Raises ValueError, KeyError or TypeError where no worker wrote it."""
    values = orjson.loads(value)
    return Queue(
        name=name,
        queue_id=QueueId(bytes.fromhex(values["id"])),
        partitions=int(values["partitions"]),
        wanted=int(values["partitions"]),
        created_at=LogOffset(values["created_at"]),
        changed_at=LogOffset(values["changed_at"]),
        configs=dict(values["configs"]),
    )


def _said(record: Record) -> tuple[str, Queue | Tombstone] | None:
    """Return a name, and what a record says of it; None where someone else wrote the record."""
    try:
        name = name_of(record.key)
        if record.value is None:
            return name, _gone(record.note)
        return name, announced(name, record.value)
    except (ValueError, KeyError, TypeError):
        return None


def _agrees(truth: Queue | None, word: Queue | Tombstone) -> bool:
    if truth is None or isinstance(word, Tombstone):
        return truth is None and isinstance(word, Tombstone)
    return (truth.queue_id, truth.changed_at, truth.partitions) == (
        word.queue_id, word.changed_at, word.partitions,
    )  # fmt: skip


def _is_ahead(home: Shard, word: Queue | Tombstone | None) -> bool:
    """Whether who said this had read more of the home shard's log than we have."""
    if word is None:
        return False
    as_of = word.at if isinstance(word, Tombstone) else word.changed_at
    return as_of >= home.applied_through.next_offset


def _seen_key(name: str) -> bytes:
    """Return the key that notes, while the topic is read again, that it speaks of this queue."""
    return CatalogueRow.SEEN + name.encode()


def doubt_key(name: str) -> bytes:
    """Return the key that notes that the topic's last word on a name may not be what is held here.

    `_NOBODYS`: the last word is that the name is nobody's, or there is none.
    """
    return CatalogueRow.DOUBT + name.encode()


class CatalogueCache:
    """`Lookup` over what was announced, and over the state of home shards served here."""

    def __init__(self, kv: Kv, shards: int, serving: Callable[[int], Shard | None]) -> None:
        self.kv = kv
        self._shards = shards
        self._serving = serving
        means = kv, shards, serving, lambda note: _gone(note).at
        self.groups = RowCatalogue(GROUPS, *means)
        self.security = RowCatalogue(SECURITY, *means)
        self._row_catalogues = {
            GROUPS.announced.byte: self.groups,
            SECURITY.announced.byte: self.security,
        }
        self.changes = 0
        self.reading_again = False
        self._ended: dict[str, int] = {}  # names that were nobody's a while ago, as of when
        self.gone: Callable[[QueueId], None] = nothing
        """A callback for ids that stand for no queue any more, as the log has it."""
        self.reconfigured: Callable[[Queue], None] = nothing
        """A callback for queues with other settings than before."""
        for key, _ in list(kv.scan(*CatalogueRow.DOUBT.range())):
            self.retract(name_of(key))

    @property
    def next_offset(self) -> int:
        return self._number(_NEXT)

    def _number(self, key: bytes) -> int:
        data = self.kv.get(key)
        return 0 if data is None else int.from_bytes(data, "big")

    # -- how old it is

    def is_current(self, time_ms: int) -> None:
        """Note that all of the topic as of this time is cached."""
        self.kv.write({_CURRENT: time_ms.to_bytes(8, "big")})

    def has_missed(self, now_ms: int, kept_ms: int) -> bool:
        """Whether tombstones may be gone that were never read: the topic keeps them for so long."""
        return bool(self.next_offset) and not 0 <= now_ms - self._number(_CURRENT) < kept_ms

    # -- looking up

    def _home(self, name: str) -> Shard | None:
        """Return the home shard of a queue, if it is served here."""
        return self._serving(shard_of(name, self._shards))

    def find(self, name: str) -> Queue | None:
        home = self._home(name)
        return self._announced(name) if home is None else StateLookup(home.state).find(name)

    def find_id(self, queue_id: QueueId) -> Queue | None:
        home = self._serving(home_of(queue_id, self._shards))
        if home is not None:
            return StateLookup(home.state).find_id(queue_id)
        name = self.kv.get(name_key(queue_id))
        return None if name is None else self._announced(name.decode())

    def all(self, first: str = "") -> Iterator[Queue]:
        return decoded(self.rows(first))

    def rows(self, first: str = "") -> Iterator[tuple[bytes, bytes]]:
        return self.kv.scan(queue_key(first), CatalogueRow.QUEUE.range()[1])

    def group_row(self, group: str) -> bytes | None:
        return self.groups.row(group)

    def configured_groups(self) -> Iterator[str]:
        return self.groups.names()

    def secured_row(self, name: str) -> bytes | None:
        return self.security.row(name)

    def secured(self) -> Iterator[str]:
        return self.security.names()

    def _announced(self, name: str) -> Queue | None:
        data = self.kv.get(queue_key(name))
        return None if data is None else decode_queue(name, data)

    def heard(self, name: str) -> bool:
        """Whether the topic's last word on a name of a home shard served here is true."""
        home = self._home(name)
        if home is None or self.kv.get(doubt_key(name)) is not None:
            return False
        known, truth = self._announced(name), StateLookup(home.state).find(name)
        return truth is None if known is None else _agrees(truth, known)

    def held_id(self, name: str) -> QueueId | None:
        """Return the id under which a name was announced, where its home shard is served here and
        knows it.
        """
        home, known = self._home(name), self._announced(name)
        if home is None or known is None or _is_ahead(home, known):
            return None
        return known.queue_id

    # -- folding

    def begin_again(self) -> None:
        """Forget all that the topic said: all of it comes again."""
        for kind in (CatalogueRow.QUEUE, CatalogueRow.NAME, CatalogueRow.DOUBT, CatalogueRow.SEEN):
            forget(self.kv, *kind.range())
        for catalogue in self._row_catalogues.values():
            catalogue.forget()
        self.kv.write({_NEXT: None, _CURRENT: None})
        self._ended.clear()

    def read_again(self) -> None:
        """Read all of the topic again; `drop_unheard` then forgets the names that it did not
        mention.
        """
        self.reading_again = True
        self.kv.write({_NEXT: None})

    async def drop_unheard(self) -> None:
        """Forget the names that the topic did not mention again: their tombstones were missed."""
        async for found in scanned(self.kv.scan, *CatalogueRow.QUEUE.range()):
            changes: dict[bytes, bytes | None] = {}
            for row, _ in found:
                name = name_of(row)
                if self.kv.get(_seen_key(name)) is None and self._home(name) is None:
                    self._put(changes, name, None)
            self.kv.write(changes)
        for catalogue in self._row_catalogues.values():
            await catalogue.drop_unheard()
        self.reading_again = False
        async for found in scanned(self.kv.scan, *CatalogueRow.SEEN.range()):
            self.kv.write(dict.fromkeys(key for key, _ in found))

    def apply(self, records: Iterable[Record]) -> list[str]:
        """Take in records of the topic; the names that it has wrong, of home shards served here."""
        changes: dict[bytes, bytes | None] = {}
        right: dict[str, bool] = {}
        for record in records:
            changes[_NEXT] = (record.offset + 1).to_bytes(8, "big")
            catalogue = self._row_catalogues.get(record.key[0]) if record.key else None
            if catalogue is not None:
                catalogue.hear(changes, record, reading_again=self.reading_again)
            if not CatalogueRow.QUEUE.of(record.key):
                continue
            said = _said(record)
            if said is not None:
                self._hear(changes, right, *said)
                if self.reading_again:
                    changes[_seen_key(said[0])] = None if isinstance(said[1], Tombstone) else b""
        self.kv.write(changes)
        for catalogue in self._row_catalogues.values():
            catalogue.was_written()
        return [name for name, it_is in right.items() if not it_is]

    def _hear(
        self,
        changes: dict[bytes, bytes | None],
        right: dict[str, bool],
        name: str,
        word: Queue | Tombstone,
    ) -> None:
        home = self._home(name)
        if home is None or _is_ahead(home, word):
            holds = self._take(changes, name, word)
        elif _is_ahead(home, self._known(changes, name)):
            holds = False  # the sender of that will say it again
        else:  # nobody knows it better
            truth = StateLookup(home.state).find(name)
            self._put(changes, name, truth)
            right[name] = holds = _agrees(truth, word)
        if not holds or self.kv.get(doubt_key(name)) is not None or doubt_key(name) in changes:
            doubted = _NOBODYS if isinstance(word, Tombstone) else b""
            changes[doubt_key(name)] = None if holds else doubted

    def _take(self, changes: dict[bytes, bytes | None], name: str, word: Queue | Tombstone) -> bool:
        """Believe what is said of another's queue, unless something later is known."""
        known = self._known(changes, name)
        if isinstance(word, Tombstone):
            self._remember(name, word)
        if isinstance(word, Queue):
            if word.changed_at < (known.changed_at if known else self._ended.get(name, 0)):
                return False
            self._put(changes, name, word)
        elif known is not None and word.at < 0:
            self._put(changes, name, None, ended=False)
        elif known is not None:
            if known.queue_id != word.queue_id and known.changed_at > word.at:
                return False
            self._put(changes, name, None)
        return True

    def _remember(self, name: str, gone: Tombstone) -> None:
        """Remember a queue that is gone, so that a late announcement does not bring it back."""
        at = max(self._ended.pop(name, 0), gone.at)
        self._ended[name] = at
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def note(self, names: Iterable[str]) -> None:
        """Take announcements of queues of home shards served here without waiting for the topic."""
        changes: dict[bytes, bytes | None] = {}
        for name in names:
            home = self._home(name)
            if home is not None and not _is_ahead(home, self._known(changes, name)):
                changes[doubt_key(name)] = self._doubt(name)  # until the topic says so
                self._put(changes, name, StateLookup(home.state).find(name))
        self.kv.write(changes)

    def _doubt(self, name: str) -> bytes:
        doubted = self.kv.get(doubt_key(name))
        if doubted is None:
            return b"" if self.kv.get(queue_key(name)) is not None else _NOBODYS
        return doubted

    def retract(self, name: str) -> None:
        """Forget a queue noted here that the topic says is nobody's.

        The note has not reached the topic. If the home shard is another's, the topic holds: the
        owner may have nothing else to say.
        """
        if self._home(name) is None and self.kv.get(doubt_key(name)) == _NOBODYS:
            changes: dict[bytes, bytes | None] = {}
            self._put(changes, name, None, ended=False)
            self.kv.write(changes)

    def _known(self, changes: dict[bytes, bytes | None], name: str) -> Queue | None:
        key = queue_key(name)
        data = changes[key] if key in changes else self.kv.get(key)
        return None if data is None else decode_queue(name, data)

    def _put(
        self,
        changes: dict[bytes, bytes | None],
        name: str,
        queue: Queue | None,
        *,
        ended: bool = True,
    ) -> None:
        """Store the announcement of a name.

        `ended`: a queue that had the name before is known to be gone.
        """
        known = self._known(changes, name)
        if known == queue:
            return
        self.changes += 1
        if known is not None:
            changes[name_key(known.queue_id)] = None
            if queue is None or queue.queue_id != known.queue_id:
                if ended:
                    self.gone(known.queue_id)
            elif queue.configs != known.configs:
                self.reconfigured(queue)
        changes[queue_key(name)] = None if queue is None else queue.encode()
        if queue is not None:
            changes[name_key(queue.queue_id)] = name.encode()

    def outcomes(
        self, records: Iterable[Record], writer: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (counter, outcome) of our commands among the records."""
        prefix = outcome_key(writer, 0)[:-8]
        for record in records:
            key, value = record.key, record.value
            if value is not None and key.startswith(prefix):
                yield int.from_bytes(key[len(prefix) :], "big"), orjson.loads(value)
