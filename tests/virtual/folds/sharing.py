"""A share group on a memory shard: each command as its sender would append it, at once."""

from collections.abc import Sequence

from kproxy.common.errors import Code
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.commands.records import Trim
from kproxy.virtual.commands.shares import (
    EARLIEST,
    LATEST,
    OWED,
    Cause,
    ChangeShares,
    LookAtShares,
    Run,
    SetShares,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.shares import (
    DEAD_LETTERS,
    NOWHERE,
    SHARE_PARTITIONS,
    SHARE_STATES,
    STATE_BITS,
    Owed,
    RecordState,
    SharePartition,
    state_byte,
)
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import MemoryShard
from tests.present import present
from tests.wire import batch

__all__ = ["EARLIEST", "LATEST", "OWED", "Cause", "Run", "ShareAction"]

GROUP = "g"
AVAILABLE, ACKNOWLEDGED, ARCHIVED = (
    RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED,
)  # fmt: skip


def run(
    first: int, last: int, state: RecordState = ACKNOWLEDGED, count: int = 1, cause: int = 0
) -> Run:
    """Return a run of records from `first` to `last`."""
    return Run(first, last - first + 1, state_byte(state, count), cause)


class Sharing:
    """A queue of some partitions; `key` is the first of them."""

    def __init__(
        self, *, records: int = 0, partitions: int = 1, shared: bool = False, started: bool = False
    ) -> None:
        self.shard = MemoryShard(shared=shared)
        self.key: PartitionKey = self.make(partitions)
        if records:
            self.append(records)
        if started:
            self.start()

    def make(self, partitions: int = 1) -> PartitionKey:
        number = len(self.shard.log) + 1
        queue_id = QueueId(number.to_bytes(16, "big"))
        self.apply(CreateQueue(queue_id, f"q{number}", partitions, {}).envelope())
        return queue_id, 0

    def apply(self, envelope: Envelope) -> Outcome:
        return self.shard.apply(envelope)

    def append(self, records: int, key: PartitionKey | None = None) -> None:
        """Append as many records in a batch as it can have: one batch each would take long."""
        while records > 0:
            count = min(records, 1 << 30)
            body = batch(b"v", count=count, last_delta=count - 1)
            assert not self.apply(Envelope(Kind.APPEND, *(key or self.key), body=body)).code
            records -= count

    def trim(self, log_start: int, key: PartitionKey | None = None) -> None:
        queue_id, index = key or self.key
        assert not self.apply(Trim(queue_id, index, log_start).envelope()).code

    def delete(self) -> None:
        assert not self.apply(DeleteQueue(self.key[0]).envelope()).code

    # -- the group

    def set(
        self, action: ShareAction, epoch: int, start: int = LATEST, since_ms: int = NOWHERE,
        *, time_ms: int = 1, key: PartitionKey | None = None, group: str = GROUP, since: int = 0,
    ) -> None:  # fmt: skip
        change = ShareChange(key or self.key, action, epoch, start, since_ms)
        outcome = self.apply(SetShares(group, [change], time_ms, since).envelope())
        assert outcome.code == Code.NONE

    def start(self, epoch: int = 1, start: int = EARLIEST, *, group: str = GROUP) -> None:
        self.set(ShareAction.INITIALISE, epoch, start, group=group)

    def share(
        self, *runs: Run, epoch: int = 1, key: PartitionKey | None = None, writer: int = 0,
        group: str = GROUP,
    ) -> Code:  # fmt: skip
        """Share; return the partition's code, or else the outcome's."""
        outcome = self.change([ShareRuns(key or self.key, epoch, runs)], writer, group)
        return outcome.codes[0] if outcome.codes else outcome.code

    def change(
        self, partitions: Sequence[ShareRuns], writer: int = 0, group: str = GROUP
    ) -> Outcome:
        envelope = ChangeShares(group, partitions, 1).envelope()
        envelope.writer = writer
        return self.apply(envelope)

    # -- what is there

    def row(self, key: PartitionKey | None = None, group: str = GROUP) -> SharePartition | None:
        return SHARE_PARTITIONS.get(self.shard.state.get, key or self.key, group)

    def stands(self) -> tuple[int, int, int]:
        """(start, end, done)."""
        return present(self.row())[:3]

    def look(self, *keys: PartitionKey, group: str = GROUP) -> tuple[int, ...]:
        before = dict(self.shard.kv.rows)
        outcome = self.apply(LookAtShares(group, keys or [self.key]).envelope())
        assert self.shard.kv.rows == before
        return outcome.numbers

    def states(self, first: int, last: int) -> list[tuple[RecordState, int]]:
        found = share_rows.states(self.shard.state.get, self.key, GROUP, first, last + 1)
        return [(RecordState(byte & STATE_BITS), byte >> 3) for byte in found]

    def chunks(self, group: str = GROUP) -> list[int]:
        """Return the rows of states that there are."""
        prefix = SHARE_STATES.key(self.key, group)
        return [
            int.from_bytes(key[-8:], "big")
            for key in sorted(self.shard.kv.rows)
            if key.startswith(prefix)
        ]

    def owed(self) -> dict[tuple[int, int], Owed]:
        return {
            DEAD_LETTERS.parts(key): DEAD_LETTERS.decode(value)
            for key, value in self.shard.kv.scan(*RowKind.DEAD_LETTER.range())
        }
