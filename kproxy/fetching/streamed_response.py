"""Plans what a Fetch returns, and reads it from disk while the connection sends it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from anyio import to_thread
from anyio.lowlevel import checkpoint

from kproxy.common.errors import Code
from kproxy.common.memory_budget import AnswerBudget
from kproxy.fetching.aborted import AbortedSearch, AbortedTransaction
from kproxy.fetching.context import FetchPartition
from kproxy.protocol.batch import place
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import StoredBatch
from kproxy.virtual.state import State

CHUNK_BYTES = 1 << 20  # bytes of an answer that are read before it is sent; one batch more at most
_READS_MAX = 1000  # batches in a chunk: some milliseconds of the loop
_BATCHES_AT_ONCE = 1000  # batches of a partition, in one turn of the loop
BATCHES_MAX = 20_000  # in an answer
_ROW_BYTES = 400  # bytes that a batch's row takes till it is read
_ABORTED_BYTES = 17  # bytes that an aborted transaction takes in an answer
_BUFFERS_MAX = 1000  # in a run: readv takes 1,024
_GAP_MAX = 4096  # bytes between two batches that are read along rather than skipped
_GAP = memoryview(bytearray(_GAP_MAX))  # a target of what is not read
LEADER_EPOCH = 0  # constant while embedded: there is never another leader


class PartitionRead(NamedTuple):
    """One partition's part of an answer."""

    followed: FetchPartition
    code: Code
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    batches: Sequence[StoredBatch] = ()
    size: int = 0
    segments: Segments | None = None  # that the batches lie in
    aborted: Sequence[AbortedTransaction] | None = None
    """The transactions that begin in what is returned, or reach into it; None: whatever was written
    is read."""
    records: int = 0  # about how many: offsets from the first batch to what comes next

    @property
    def stored(self) -> "Stored":
        assert self.segments is not None
        return Stored(self.batches, self.segments)

    @property
    def held_back(self) -> bool:
        """Whether there is something for which the answer had no room left."""
        end = self.high_watermark if self.aborted is None else self.last_stable
        return not self.size and self.followed.offset < end


@dataclass(slots=True)
class Budget:
    """The rest of an answer's size; the first batch of all goes in whatever its size.

    `searching`: of some partition nothing could be returned, for it is not known yet what of it
    was aborted: the next look at it goes on with that.
    """

    bytes_left: int
    read_committed: bool = False
    batches_left: int = BATCHES_MAX
    first: bool = True
    searching: bool = False


def plan_read(followed: FetchPartition, budget: Budget) -> PartitionRead:
    """Return what the partition has for this consumer now, within the budget (KIP-74)."""
    assert followed.key is not None
    assert followed.shard is not None
    state = followed.shard.state
    row = state.partition(followed.key)
    if row is None:
        return PartitionRead(followed, Code.UNKNOWN_TOPIC_OR_PARTITION)
    if followed.epoch > LEADER_EPOCH:
        return PartitionRead(followed, Code.UNKNOWN_LEADER_EPOCH)
    high_watermark, log_start = row.next_offset, row.log_start
    if not log_start <= followed.offset <= high_watermark:
        return PartitionRead(followed, Code.OFFSET_OUT_OF_RANGE)
    last_stable = high_watermark if row.first_open < 0 else row.last_stable
    committed = budget.read_committed
    end = last_stable if committed else high_watermark
    aborted: Sequence[AbortedTransaction] | None = () if committed else None
    batches: list[StoredBatch] = []
    code, size, damage = Code.NONE, 0, followed.shard.segments.damage
    if followed.offset < end and (budget.bytes_left > 0 or budget.first):
        limit = min(followed.max_bytes, budget.bytes_left)
        for batch in state.stored_batches(followed.key, followed.offset, end):
            if damage.seen and damage.at(batch[1], batch[2]):
                code, end = Code.NONE if batches else Code.CORRUPT_MESSAGE, batch[0]
                break
            size += batch[3]
            if len(batches) == _BATCHES_AT_ONCE or (size > limit and (batches or not budget.first)):
                size -= batch[3]
                end = batch[0]
                break
            batches.append(batch)
        if batches and committed and row.any_aborted:
            batches, aborted = _with_aborted(followed, state, batches, end, budget)
            size = sum([batch[3] for batch in batches])
            budget.bytes_left -= _ABORTED_BYTES * len(aborted)
        if batches:
            budget.first = False
            budget.bytes_left -= size
            budget.batches_left -= len(batches)
            if budget.batches_left <= 0:
                budget.bytes_left = 0
        elif not code and not budget.first and budget.bytes_left <= followed.max_bytes:
            budget.bytes_left = 0  # full, but for less than one batch
    return PartitionRead(
        followed, code, high_watermark, last_stable, log_start, batches, size,
        followed.shard.segments, aborted, end - batches[0][0] if batches else 0,
    )  # fmt: skip


def _with_aborted(
    followed: FetchPartition, state: State, batches: list[StoredBatch], end: int, budget: Budget
) -> tuple[list[StoredBatch], Sequence[AbortedTransaction]]:
    """Return the batches, which end at `end`, whose aborted transactions are known; and these."""
    assert followed.key is not None
    search = followed.search
    if search is None or not search.is_of(followed.key, followed.offset):
        search = AbortedSearch(followed.key, followed.offset, end)
    through = search.look(state)
    followed.search = None
    if through >= end:
        return batches, search.found
    # A batch ends where the next one begins, or before that.
    ends = [*(batch[0] for batch in batches[1:]), end]
    if known := bisect_right(ends, through):
        return batches[:known], [one for one in search.found if one[1] < through]
    budget.searching = True
    if through < search.end:
        followed.search = search
    return [], ()


class Stored(NamedTuple):
    """Batches of one partition, and the log that they lie in."""

    batches: Sequence[StoredBatch]
    segments: Segments


class Pins:
    """A hold on readable batches, whatever is deleted meanwhile, until `release`."""

    def __init__(self) -> None:
        self._held: dict[Segments, set[int]] = {}

    def hold(self, stored: Iterable[Stored]) -> None:
        for batches, segments in stored:
            held = self._held.get(segments)
            if held is None:
                held = self._held[segments] = set()
            wanted = {batch[1] for batch in batches} - held
            if wanted:
                segments.pin(wanted)
                held |= wanted

    def release(self) -> None:
        pinned, self._held = self._held, {}
        for segments, held in pinned.items():
            segments.unpin(held)


class StreamedResponse:
    """A response frame that is read in chunks, for what is in memory to be bounded.

    Nothing may be awaited between finding what is stored, where no `pins` hold it, and `kept` or
    `pinned`, inside which `read` is for. `memory`: of what is found, besides what is read.
    """

    def __init__(
        self,
        pieces: Sequence[bytes | Stored],
        pins: Pins | None = None,
        memory: AnswerBudget | None = None,
    ) -> None:
        self._stored = [piece for piece in pieces if isinstance(piece, Stored)]
        self._pins = pins or Pins()
        self._memory = memory
        self.code = 0  # the first error that it says
        self._size = _ROW_BYTES * sum(len(batches) for batches, _ in self._stored)
        self._chunks = _chunks(pieces)
        self._over: tuple[int, bytes] | None = None

    def overwrite(self, position: int, data: bytes) -> None:
        """Have these bytes there, in the frame's head."""
        self._over = position, data

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep what is stored readable, whatever is deleted meanwhile."""
        memory = None if self._memory is None else self._memory.found.mine()
        try:
            self._pins.hold(self._stored)
            if memory is not None:
                memory.take(self._size)
            yield
        finally:
            self._pins.release()
            if memory is not None:
                memory.give_back(self._size)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the same segments from now on till it was `pinned`, unless the block fails."""
        self._pins.hold(self._stored)
        try:
            yield
        except BaseException:
            self._pins.release()
            raise

    async def read(self) -> bytearray | None:
        """Return the next chunk; None behind the last. Raise OSError, of which DamagedBatch."""
        for size, texts, reads in self._chunks:
            chunk = bytearray(size)
            for position, text in texts:
                chunk[position : position + len(text)] = text
            if self._over is not None:
                position, text = self._over
                chunk[position : position + len(text)] = text
                self._over = None
            if reads:
                await _fill(chunk, reads)
            if len(reads) == _READS_MAX:
                await checkpoint()
            return chunk
        return None


Read = tuple[int, int, int, int, int, Segments]
"""One stored batch: where in the chunk it belongs, and as `StoredBatch`; its log."""


class _Run(NamedTuple):
    """The bytes that one call reads: `size` from `position` on into `buffers`."""

    segments: Segments
    segment: int
    position: int
    buffers: list[memoryview]
    size: int

    def read(self, wait: bool) -> bool:
        return self.segments.read_run(self.buffers, self.segment, self.position, self.size, wait)


def _chunks(
    pieces: Sequence[bytes | Stored],
) -> Iterator[tuple[int, list[tuple[int, bytes]], list[Read]]]:
    """Yield (size, texts with their positions, what to read) of each chunk."""
    size = 0
    texts: list[tuple[int, bytes]] = []
    reads: list[Read] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            texts.append((size, piece))
            size += len(piece)
            continue
        batches, segments = piece
        for base_offset, segment, position, length in batches:
            if size >= CHUNK_BYTES or len(reads) == _READS_MAX:
                yield size, texts, reads
                size, texts, reads = 0, [], []
            reads.append((size, base_offset, segment, position, length, segments))
            size += length
    yield size, texts, reads


async def _fill(chunk: bytearray, reads: Sequence[Read]) -> None:
    """Fill in the batches: from the page cache at once, what is not there on another thread."""
    view = memoryview(chunk)
    try:
        missing = [run for run in _runs(view, reads) if not run.read(wait=False)]
        if missing:
            await to_thread.run_sync(_read_waiting, missing)
    except (OSError, EOFError):
        await to_thread.run_sync(_read_apart, view, reads)
    for at, base_offset, segment, position, length, segments in reads:
        segments.check(view[at : at + length], segment, position)
        place(chunk, at, length, base_offset, LEADER_EPOCH)


def _runs(view: memoryview, reads: Sequence[Read]) -> Iterator[_Run]:
    """Yield batches that lie one behind the other, with little between them, to be read together.

    Queues that are written in turn have their batches in turn: in the order of the log many are.
    """
    if len(reads) > 1:
        reads = sorted(reads, key=_where)
    segments, segment, begin, end = reads[0][5], -1, 0, 0
    buffers: list[memoryview] = []
    for at, _, number, position, length, of in reads:
        if number == segment and end <= position <= end + _GAP_MAX and of is segments:
            if len(buffers) < _BUFFERS_MAX:
                if position > end:
                    buffers.append(_GAP[: position - end])
                buffers.append(view[at : at + length])
                end = position + length
                continue
        if buffers:
            yield _Run(segments, segment, begin, buffers, end - begin)
        segments, segment, begin, end = of, number, position, position + length
        buffers = [view[at : at + length]]
    yield _Run(segments, segment, begin, buffers, end - begin)


def _where(read: Read) -> tuple[int, int, int]:
    return id(read[5]), read[2], read[3]


def _read_apart(view: memoryview, reads: Sequence[Read]) -> None:
    """Read one batch after the other, up to the one that cannot be read. Raises DamagedBatch."""
    for at, _, segment, position, length, segments in reads:
        view[at : at + length] = segments.batch(segment, position, length) or b""


def _read_waiting(runs: list[_Run]) -> None:
    for run in runs:
        run.read(wait=True)
