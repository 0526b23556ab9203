"""The keys that a pass of compaction has met, and which batches it takes for aborted."""

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice

from anyio.lowlevel import checkpoint

from kproxy.protocol.records import KeyedRecord
from kproxy.shard.compaction_plan import Plan
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.transactions import ABORTED
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey

_SHORT_KEY = 16
_ABORTED_AT_ONCE = 500  # rows


class Keys:
    """The last offset of each key that was met; of long keys a digest stands for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        return len(self._last) >= self._most

    def note(self, records: Iterable[KeyedRecord], base_offset: int) -> None:
        last = self._last
        for record in records:
            if record.key is not None:
                last[_id(record.key)] = base_offset + record.offset_delta

    def kept(self, record: KeyedRecord, base_offset: int, plan: Plan) -> bool:
        """Whether a record stays."""
        offset = base_offset + record.offset_delta
        if offset == plan.last_offset:
            return True
        if record.key is None:  # from before the queue was compacted: Kafka drops it as well
            return False
        if self._last.get(_id(record.key), -1) > offset:
            return False
        return record.has_value or offset >= plan.settled_end


def _id(key: bytes) -> bytes:
    if len(key) <= _SHORT_KEY:
        return b"\0" + key
    return b"\1" + blake2b(key, digest_size=_SHORT_KEY).digest()


class Aborted:
    """The batches of aborted transactions; asked in the order of their offsets."""

    def __init__(self, state: State, key: PartitionKey, start: int) -> None:
        self._state = state
        self._start, self._end = transaction_rows.aborted_range(key, start)
        self._through = start  # the rows of all that began before it are read
        self._by_producer: dict[int, deque[tuple[int, int]]] = {}  # (first offset, marker's)
        self._held, self._held_max = 0, _ABORTED_AT_ONCE

    async def read(self, start: int, end: int) -> None:
        """Read the rows that matter to the records from `start` to before `end`, in slices."""
        self._forget(start)
        while self._through < end:
            found = list(islice(self._state.kv.scan(self._start, self._end), _ABORTED_AT_ONCE))
            for key, value in found:
                self._note(ABORTED.parts(key)[1], value, start)
                self._start = key + b"\0"
                if self._through >= end:
                    return
            if len(found) < _ABORTED_AT_ONCE:
                self._through = end  # transactions that are still to end begin later
            await checkpoint()

    def _note(self, marker_offset: int, value: bytes, start: int) -> None:
        aborted = ABORTED.decode(value)
        self._through = max(self._through, aborted.last_stable)
        if marker_offset >= start:
            where = aborted.first_offset, marker_offset
            self._by_producer.setdefault(aborted.producer_id, deque()).append(where)
            self._held += 1

    def _forget(self, start: int) -> None:
        """Forget transactions whose markers lie before, where they may be many."""
        if self._held < self._held_max:
            return
        for producer_id, transactions in list(self._by_producer.items()):
            while transactions and transactions[0][1] < start:
                transactions.popleft()
            if not transactions:
                del self._by_producer[producer_id]
        self._held = sum(map(len, self._by_producer.values()))
        self._held_max = max(_ABORTED_AT_ONCE, 2 * self._held)

    def has(self, producer_id: int, offset: int) -> bool:
        """Whether a transactional record of this producer was aborted."""
        transactions = self._by_producer.get(producer_id, _NO_TRANSACTIONS)
        while transactions and transactions[0][1] < offset:
            transactions.popleft()
        return bool(transactions) and transactions[0][0] <= offset


_NO_TRANSACTIONS: deque[tuple[int, int]] = deque()
