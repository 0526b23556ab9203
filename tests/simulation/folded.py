"""What a shard's log comes to: the fold of all of it from its first record on, by itself."""

from kproxy.virtual.envelope import Envelope
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.state import State
from kproxy.virtual.types import ShardId
from tests.fakes import DictKv


class Folded:
    """One shard, whose log is never trimmed, copied or rebuilt."""

    def __init__(self, shard: int, shards: int) -> None:
        self._kv = DictKv()
        self._state = State(self._kv)
        self._fold = Fold(self._state, ShardId(shard), shards, shared=True)
        self.next_offset = 0

    @property
    def rows(self) -> dict[bytes, bytes]:
        return self._kv.rows

    def take(self, envelope: Envelope) -> Outcome:
        """The log's next envelope."""
        place = LogLocation(0, self.next_offset, len(envelope.body))
        outcome = self._fold.apply(self.next_offset, envelope, place)
        self.next_offset += 1
        self._kv.write(self._state.drain())
        return outcome

    def of(self, kinds: bytes) -> dict[bytes, bytes]:
        return of_kinds(self.rows, kinds)


def of_kinds(found: dict[bytes, bytes], kinds: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in found.items() if key[0] in kinds}


def differing(found: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> dict[bytes, object]:
    """By key: (what was found, what it should be)."""
    if found == wanted:
        return {}
    keys = sorted(found.keys() | wanted.keys())
    pairs = {key: (found.get(key), wanted.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def of_the_living(found: dict[bytes, bytes], partitions: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Producers of partitions that are there; others are swept some time."""
    there = {key[1:] for key in partitions if key[:1] == b"p"}
    return {k: v for k, v in found.items() if k[:1] != b"k" or k[1:21] in there}
