"""The catalogue every worker caches on its disk: the queues topic, folded.

Home shards' owners announce; a later announcement of a queue is known by its log offset there. What
outcomes of commands are published beside it go to who waits for them.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kproxy.metadata.catalogue import StateLookup, home_of
from kproxy.shard import Shard
from kproxy.store.rocks import RocksKv
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import Queue, decode_queue, name_key, queue_key
from kproxy.virtual.types import LogOffset, QueueId

_NEXT = b"m"
_OUTCOME = struct.Struct(">cQQ")


def outcome_key(writer: int, counter: int) -> bytes:
    """The key under which the outcome of a command is published for who sent it."""
    return _OUTCOME.pack(b"o", writer, counter)


def announcement(queue: Queue | None) -> bytes | None:
    """The value of a queue's record in the queues topic; None: it is gone."""
    if queue is None:
        return None
    values = {
        "id": queue.queue_id.hex(),
        "partitions": queue.partitions,
        "configs": queue.configs,
        "created_at": queue.created_at,
        "changed_at": queue.changed_at,
    }
    return json.dumps(values, separators=(",", ":")).encode()


def announced(name: str, value: bytes) -> Queue:
    """Raises ValueError, KeyError or TypeError for what no worker wrote."""
    values = json.loads(value)
    return Queue(
        name=name,
        queue_id=QueueId(bytes.fromhex(values["id"])),
        partitions=int(values["partitions"]),
        wanted=int(values["partitions"]),
        created_at=LogOffset(values["created_at"]),
        changed_at=LogOffset(values["changed_at"]),
        configs=dict(values["configs"]),
    )


def _nothing(_: object) -> None:
    pass


def _same(one: Queue | None, other: Queue | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.queue_id, one.changed_at, one.partitions) == (
        other.queue_id, other.changed_at, other.partitions,
    )  # fmt: skip


class QueueCache:
    """`Lookup` over what was announced, and over the state of home shards served here."""

    def __init__(
        self, directory: Path, cache_bytes: int, shards: int, serving: Callable[[int], Shard | None]
    ) -> None:
        self.kv = RocksKv(directory, cache_bytes)
        self._shards = shards
        self._serving = serving
        self.changes = 0
        self.gone: Callable[[QueueId], None] = _nothing
        """Told of ids that stand for no queue any more."""
        self.reconfigured: Callable[[Queue], None] = _nothing
        """Told of queues with other settings than before."""

    @property
    def next_offset(self) -> int:
        data = self.kv.get(_NEXT)
        return 0 if data is None else int.from_bytes(data, "big")

    # -- looking up

    def _home(self, name: str) -> Shard | None:
        """The home shard of a queue, if it is served here."""
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
        for key, value in self.kv.scan(queue_key(first), b"r"):
            yield decode_queue(key[1:].decode(), value)

    def _announced(self, name: str) -> Queue | None:
        data = self.kv.get(queue_key(name))
        return None if data is None else decode_queue(name, data)

    # -- folding

    def begin_again(self) -> None:
        """All of the topic comes again: forget what it said."""
        for first in (b"q", b"i"):
            keys = [key for key, _ in self.kv.scan(first, bytes([first[0] + 1]))]
            self.kv.write(dict.fromkeys(keys))
        self.kv.write({_NEXT: None})

    def apply(self, records: list[tuple[int, bytes, bytes | None]]) -> list[str]:
        """Take in (offset, key, value); the names of queues whose announcement is wrong here."""
        changes: dict[bytes, bytes | None] = {}
        doubtful = []
        for offset, key, value in records:
            changes[_NEXT] = (offset + 1).to_bytes(8, "big")
            if key[:1] != b"q":
                continue
            try:
                name = key[1:].decode()
                queue = None if value is None else announced(name, value)
            except (ValueError, KeyError, TypeError):
                continue  # someone else wrote it
            home = self._home(name)
            if home is not None:  # nobody knows it better
                truth = StateLookup(home.state).find(name)
                if not _same(truth, queue):
                    doubtful.append(name)
                    queue = truth
            self._put(changes, name, queue)
        self.kv.write(changes)
        return doubtful

    def note(self, names: Iterable[str]) -> None:
        """Queues of home shards served here were announced: the same without waiting for it."""
        changes: dict[bytes, bytes | None] = {}
        for name in names:
            home = self._home(name)
            if home is not None:
                self._put(changes, name, StateLookup(home.state).find(name))
        self.kv.write(changes)

    def _put(self, changes: dict[bytes, bytes | None], name: str, queue: Queue | None) -> None:
        self.changes += 1
        key = queue_key(name)
        data = changes[key] if key in changes else self.kv.get(key)
        if data is not None:
            known = decode_queue(name, data)
            if queue is not None and queue.changed_at < known.changed_at:
                return
            changes[name_key(known.queue_id)] = None
            if queue is None or queue.queue_id != known.queue_id:
                self.gone(known.queue_id)
            elif queue.configs != known.configs:
                self.reconfigured(queue)
        changes[key] = None if queue is None else queue.encode()
        if queue is not None:
            changes[name_key(queue.queue_id)] = name.encode()

    def outcomes(
        self, records: list[tuple[int, bytes, bytes | None]], writer: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(counter, outcome) of our commands among the records."""
        prefix = outcome_key(writer, 0)[:-8]
        for _, key, value in records:
            if value is not None and key.startswith(prefix):
                yield int.from_bytes(key[len(prefix) :], "big"), json.loads(value)

    def close(self) -> None:
        self.kv.flush()
        self.kv.close()
