"""Planning what a fetch returns, and reading it straight into the answer's buffer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from anyio import to_thread

from kproxy.errors import Code
from kproxy.fetching.interest import Followed
from kproxy.protocol.batch import place
from kproxy.store.segments import Segments
from kproxy.virtual.rows import Batch

_RUN_MAX = 500  # batches, with what lies between them: readv takes 1,024 buffers
_GAP_MAX = 4096  # bytes between two batches that are read along rather than skipped
_GAP = memoryview(bytearray(_GAP_MAX))  # where they go
LEADER_EPOCH = 0  # constant while embedded: there is never another leader


class Found(NamedTuple):
    """One partition's part of an answer. `batches`: (base offset, where it lies)."""

    followed: Followed
    code: Code
    high_watermark: int
    log_start: int
    batches: Sequence[tuple[int, Batch]]
    size: int

    @property
    def held_back(self) -> bool:
        """Whether there is something for which the answer had no room left."""
        return not self.size and self.followed.offset < self.high_watermark


@dataclass(slots=True)
class Budget:
    """What is left of an answer's size; the first batch of all goes in whatever its size."""

    bytes_left: int
    first: bool = True


def look(followed: Followed, budget: Budget) -> Found:
    """What the partition has for this consumer now, within the budget (KIP-74)."""
    assert followed.key is not None
    assert followed.shard is not None
    state = followed.shard.state
    row = state.partition(followed.key)
    if row is None:
        return Found(followed, Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, (), 0)
    if followed.epoch > LEADER_EPOCH:
        return Found(followed, Code.UNKNOWN_LEADER_EPOCH, -1, -1, (), 0)
    high_watermark, log_start = row.next_offset, row.log_start
    if not log_start <= followed.offset <= high_watermark:
        return Found(followed, Code.OFFSET_OUT_OF_RANGE, -1, -1, (), 0)
    batches: list[tuple[int, Batch]] = []
    size = 0
    if followed.offset < high_watermark and (budget.bytes_left > 0 or budget.first):
        limit = min(followed.max_bytes, budget.bytes_left)
        for last_offset, batch in state.batches(followed.key, followed.offset, high_watermark):
            if size + batch.length > limit and not (budget.first and not batches):
                break
            batches.append((last_offset - batch.last_delta, batch))
            size += batch.length
        if batches:
            budget.first = False
            budget.bytes_left -= size
        elif not budget.first and budget.bytes_left <= followed.max_bytes:
            budget.bytes_left = 0  # full, but for less than one batch
    return Found(followed, Code.NONE, high_watermark, log_start, batches, size)


class Read(NamedTuple):
    """One stored batch and where in the answer it belongs."""

    position: int
    base_offset: int
    batch: Batch
    segments: Segments


async def read_all(answer: bytearray, reads: Sequence[Read]) -> None:
    """Fill in the batches: from the page cache at once, what is not there on another thread."""
    view = memoryview(answer)
    missing = [run for run in _runs(reads) if not _read(view, run, wait=False)]
    if missing:
        with ExitStack() as pins:
            for run in missing:
                pins.enter_context(run[0].segments.pinned({run[0].batch.segment}))
            await to_thread.run_sync(_read_waiting, view, missing)
    for read in reads:
        place(view[read.position : read.position + 16], read.base_offset, LEADER_EPOCH)


def _runs(reads: Sequence[Read]) -> Iterator[list[Read]]:
    """Batches that lie one behind the other, with little between them, are read together."""
    run: list[Read] = []
    end = 0
    for read in reads:
        batch = read.batch
        if run:
            last = run[-1]
            together = (
                end <= batch.position <= end + _GAP_MAX
                and batch.segment == last.batch.segment
                and read.segments is last.segments
                and len(run) < _RUN_MAX
            )
            if not together:
                yield run
                run = []
        run.append(read)
        end = batch.position + batch.length
    yield run


def _read(view: memoryview, run: list[Read], wait: bool) -> bool:
    first = run[0].batch
    buffers: list[memoryview] = []
    end = first.position
    for read in run:
        batch = read.batch
        if batch.position > end:
            buffers.append(_GAP[: batch.position - end])
        buffers.append(view[read.position : read.position + batch.length])
        end = batch.position + batch.length
    return run[0].segments.read_run(buffers, first.segment, first.position, wait)


def _read_waiting(view: memoryview, runs: list[list[Read]]) -> None:
    for run in runs:
        _read(view, run, wait=True)
