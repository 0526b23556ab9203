"""The state that a shard's log comes to: a fold of its own, from the first record on."""

from kproxy.protocol.batch import read_header
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.transactions import TransactionCommit
from kproxy.virtual.fold import Fold
from kproxy.virtual.outcome import LogLocation, Outcome
from kproxy.virtual.rows.queues import decode_partition
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey, ShardId
from tests.fakes import DictKv

_OF_PARTITIONS = (b"k", b"f", b"l", b"A")


class Folded:
    """One shard, whose log is never trimmed, copied or rebuilt."""

    def __init__(self, shard: int, shards: int) -> None:
        self._kv = DictKv()
        self._state = State(self._kv)
        self._fold = Fold(self._state, ShardId(shard), shards, shared=True)
        self.next_offset = 0
        self.transactional: set[PartitionKey] = set()  # partitions with records of transactions
        self.groups: set[str] = set()  # with offsets of such

    @property
    def rows(self) -> dict[bytes, bytes]:
        return self._kv.rows

    def take(self, envelope: Envelope) -> Outcome:
        """Apply the log's next envelope."""
        place = LogLocation(0, self.next_offset, len(envelope.body))
        outcome = self._fold.apply(self.next_offset, envelope, place)
        self.next_offset += 1
        if envelope.kind == Kind.APPEND and read_header(envelope.body).is_transactional:
            self.transactional.add((envelope.queue_id, envelope.partition))
        elif envelope.kind == Kind.TRANSACTION_COMMIT:
            self.groups.add(TransactionCommit.decode(envelope).group)
        self._kv.write(self._state.drain())
        return outcome

    def of(self, kinds: bytes) -> dict[bytes, bytes]:
        return of_kinds(self.rows, kinds)


def of_kinds(found: dict[bytes, bytes], kinds: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in found.items() if key[0] in kinds}


def differing(found: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> dict[bytes, object]:
    """Return the rows that differ, by key: (found, wanted)."""
    if found == wanted:
        return {}
    keys = sorted(found.keys() | wanted.keys())
    pairs = {key: (found.get(key), wanted.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def of_the_living(found: dict[bytes, bytes], partitions: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the rows of live partitions and untrimmed batches; the others are swept some time."""
    starts = {k[1:]: decode_partition(data).log_start for k, data in partitions.items()
              if k[:1] == b"p"}  # fmt: skip

    def is_living(key: bytes) -> bool:
        if key[:1] not in _OF_PARTITIONS:
            return True
        start = starts.get(key[1:21])
        if start is None:
            return False
        return key[:1] != b"A" or ABORTED.parts(key)[1] >= start

    return {key: value for key, value in found.items() if is_living(key)}
