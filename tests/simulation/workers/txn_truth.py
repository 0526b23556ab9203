"""The record of clients with transactional ids, and what must hold of it in the end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from kproxy.fetching.aborted import AbortedSearch
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.shard.shard import Shard
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import TRANSACTIONS, TRANSACTIONS_DUE
from kproxy.virtual.types import PartitionKey
from tests.simulation.workers.cluster import World

_ABORT_TYPE = 0
_UNDECIDED = (
    RowKind.PARTICIPANT, RowKind.OPEN_TRANSACTION, RowKind.OPEN_FIRST, RowKind.OPEN_GROUP,
    RowKind.PENDING_OFFSET, RowKind.PENDING_BY_PARTITION, RowKind.TRANSACTION_DUE,
)  # fmt: skip

Given = tuple[int, int]
"""Producer id and epoch; a later one of a transactional id is greater."""


class Fate(Enum):
    """The outcome of a transaction, as far as its client knows."""

    ABORTED = auto()
    UNKNOWN = auto()
    COMMITTED = auto()


@dataclass(eq=False)
class Told:
    """One transaction, as its client knows it."""

    label: str
    doomed: bool  # it began when another had its transactional id
    serial: int
    fate: Fate = Fate.ABORTED  # unless it is asked to be committed
    asked: bool = False
    sent: list[bytes] = field(default_factory=list)
    written: list[tuple[PartitionKey, list[bytes]]] = field(default_factory=list)
    committing: list[tuple[str, PartitionKey, int]] = field(default_factory=list)
    offsets: list[tuple[str, PartitionKey, int]] = field(default_factory=list)


class Truth:
    """The record of all clients."""

    def __init__(self, given: set[int]) -> None:
        """Begin one. `given`: producer ids of clients without a transactional id."""
        self.reliable = True  # acknowledged records are there
        self.faults: list[str] = []
        self.transactions: list[Told] = []
        self._others = given
        self._owners: dict[Given, str] = {}
        self._ids: dict[int, str] = {}
        self._begun: dict[str, list[tuple[Given, str]]] = {}

    def power_failed(self) -> None:
        self.reliable = False

    def given(self, name: str, label: str, producer_id: int, epoch: int) -> None:
        if not self.reliable:
            return
        owner = self._owners.setdefault((producer_id, epoch), label)
        if owner != label:
            self.faults.append(f"{producer_id} {epoch} is given to {owner} and {label}")
        other = self._ids.setdefault(producer_id, name)
        if other != name or producer_id in self._others:
            self.faults.append(f"producer id {producer_id} is given twice")

    def begins(self, name: str, label: str, given: Given, now: float) -> None:
        self._begun.setdefault(name, []).append((given, label))

    def open(self, name: str, label: str, given: Given, now: float) -> Told:
        later = any(g > given and who != label for g, who in self._begun[name])
        told = Told(label, later, len(self.transactions))
        self.transactions.append(told)
        return told

    # -- in the end

    def check(self, world: World, served: list[Shard]) -> None:
        """Check all of it. Raises AssertionError."""
        assert not self.faults, self.faults[:3]
        if not self.reliable:
            return
        for shard in served:
            _check_quiet(shard)
        visible = _visible(world, served)
        assert len(visible) == len(set(visible)), "a record is seen twice"
        starts = {
            rows.partition_of(key): rows.decode_partition(data).log_start
            for shard in served
            for key, data in shard.kv.scan(*RowKind.PARTITION.range())
        }
        seen = set(visible)
        for told in self.transactions:
            _check_whole(told, seen, starts)
        _check_offsets(self.transactions, served, seen, starts)


def _check_quiet(shard: Shard) -> None:
    """Check that nothing is open or ending, and that nothing holds readers back."""
    for kind in _UNDECIDED:
        found = list(shard.kv.scan(*kind.range()))
        if kind == RowKind.TRANSACTION_DUE:  # one that is not up to date is dropped some time
            found = [one for one in found if _is_due(shard, one[0])]
        assert not found, f"shard {shard.shard} has {kind.name}: {found[:2]}"
    for key, data in shard.kv.scan(*RowKind.PARTITION.range()):
        row = rows.decode_partition(data)
        assert row.first_open < 0, f"{key.hex()} is held back"
    assert not shard.state.pending_offsets, "offsets are counted that wait"
    for key, data in shard.kv.scan(*RowKind.TRANSACTION.range()):
        name = TRANSACTIONS.parts(key)[0]
        found_row = TRANSACTIONS.decode(data)
        assert found_row.state.is_idle, f"{name} is {found_row.state.name}"
        due = transaction_rows.transaction_due_key(found_row, name)
        assert shard.kv.get(due) is not None, f"{name} is not filed"
    filed = {
        transaction_rows.producer_id_of_key(key)
        for key, _ in shard.kv.scan(*RowKind.PRODUCER_DUE.range())
    }
    for key, _ in shard.kv.scan(*RowKind.TRANSACTIONAL_PRODUCER.range()):
        assert transaction_rows.producer_id_of_key(key) in filed, "a producer is not filed"


def _is_due(shard: Shard, key: bytes) -> bool:
    _, name = TRANSACTIONS_DUE.parts(key)
    data = shard.kv.get(TRANSACTIONS.key(name))
    if data is None:
        return False
    row = TRANSACTIONS.decode(data)
    return transaction_rows.transaction_due_key(row, name) == key


def _visible(world: World, served: list[Shard]) -> list[bytes]:
    """Return the transactional records that a read_committed consumer sees, of all partitions."""
    found: list[bytes] = []
    for shard in served:
        for key, data in shard.kv.scan(*RowKind.PARTITION.range()):
            row = rows.decode_partition(data)
            partition = rows.partition_of(key)
            whole = list(consumed(shard, partition, row.log_start, row.last_stable))
            found += [value for _, value in whole]
            middle = (row.log_start + row.last_stable) // 2
            half = list(consumed(shard, partition, middle, row.last_stable))
            seen_there = [one for one in whole if one[0] >= middle]
            assert [one for one in half if one[0] >= middle] == seen_there, "seen from there only"
    return found


def consumed(shard: Shard, key: PartitionKey, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, value) of transactional records, by the consumer's own algorithm."""
    batches = [
        (batch_rows.batch_key_offset(k), batch_rows.decode_batch(data))
        for k, data in shard.kv.scan(
            batch_rows.batch_key(*key, start), batch_rows.batch_key(*key, end)
        )
    ]
    search = AbortedSearch(key, start, end)
    while search.look(shard.state) < end:
        pass
    aborted = sorted(search.found, key=lambda one: one[1])
    dropped: set[int] = set()
    for last_offset, one in batches:
        body = _read(shard, one)
        header = read_header(body)
        while aborted and aborted[0][1] <= last_offset:
            dropped.add(aborted.pop(0)[0])
        if header.is_control:
            if body[HEADER_BYTES + 8] == _ABORT_TYPE:
                dropped.discard(header.producer_id)
        elif header.is_transactional and header.producer_id not in dropped:
            base = last_offset - header.last_offset_delta
            for number, value in enumerate(_values(body, header.record_count)):
                yield base + number, value


def _read(shard: Shard, batch: batch_rows.Batch) -> bytes:
    buffer = bytearray(batch.length)
    assert shard.segments.read_into(memoryview(buffer), batch.segment, batch.position, True)
    return bytes(buffer)


def _values(body: bytes, count: int) -> Iterator[bytes]:
    """Yield the values of records as `tests.wire.record` makes them: short, without keys."""
    at = HEADER_BYTES
    for _ in range(count):
        length = body[at] >> 1
        record = body[at + 1 : at + 1 + length]
        size = record[4] >> 1  # behind attributes, two deltas, and the length of no key
        yield record[5 : 5 + size]
        at += 1 + length


def _check_whole(told: Told, seen: set[bytes], starts: Mapping[PartitionKey, int]) -> None:
    there = [values for key, values in told.written if key in starts]
    shown = [value in seen for values in there for value in values]
    if told.doomed:
        assert not seen & set(told.sent), f"{told.label} was fenced, and is seen"
    match told.fate:
        case Fate.COMMITTED:
            assert all(shown), f"{told.label}: {told.serial} was committed, and is not whole"
        case Fate.ABORTED:
            assert not seen & set(told.sent), (
                f"{told.label}: {told.serial} was aborted, and is seen"
            )
        case Fate.UNKNOWN:
            assert all(shown) or not any(shown), f"{told.label}: {told.serial} is torn"


def _check_offsets(
    transactions: list[Told],
    served: list[Shard],
    seen: set[bytes],
    starts: Mapping[PartitionKey, int],
) -> None:
    """Check that each partition's offsets are of one transactional id alone."""
    by_offset = {one[2]: told for told in transactions for one in told.committing}
    newest: dict[tuple[str, PartitionKey], int] = {}
    for told in transactions:
        if told.fate == Fate.COMMITTED:
            for group, key, offset in told.offsets:
                if key in starts:
                    newest[group, key] = max(newest.get((group, key), 0), offset)
    found: dict[tuple[str, PartitionKey], int] = {}
    for group, key in {one[:2] for told in transactions for one in told.committing}:
        shard = served[shard_of(group, len(served))]
        committed = shard.state.committed(group, key)
        if committed is not None:
            found[group, key] = committed.offset
    for slot, offset in found.items():
        told = by_offset[offset]
        assert told.fate != Fate.ABORTED, f"{told.label}: {offset} of {slot} was aborted"
        there = [value for key, values in told.written if key in starts for value in values]
        assert all(value in seen for value in there), "its offset is seen, and not its records"
    for slot, offset in newest.items():
        assert found.get(slot, -1) >= offset, f"{slot}: a committed offset is lost"
