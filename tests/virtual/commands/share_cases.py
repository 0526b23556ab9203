"""Commands of share groups: the bytes of each, and a log in which each does all that it can do."""

from collections.abc import Callable
from typing import Any

from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.commands.shares import (
    DEAD_LETTERS,
    EARLIEST,
    LATEST,
    OWED,
    AimForward,
    Cause,
    ChangeShares,
    Forward,
    FreeLanes,
    Hold,
    LookAtShares,
    NoteShareQueues,
    Run,
    SetShares,
    SettleForward,
    ShareAction,
    ShareChange,
    ShareRuns,
)
from kproxy.virtual.rows.shares import Position, RecordState, state_byte
from kproxy.virtual.types import PartitionKey, QueueId
from tests.wire import batch

Q, OTHER = QueueId(bytes(range(16))), QueueId(bytes(range(16, 32)))
KEY: PartitionKey = (Q, 1)
SOURCE: PartitionKey = (OTHER, 2)
_Q, _OTHER = Q + b"\0\0\0\1", OTHER + b"\0\0\0\2"
BATCH = batch(b"v", times=(5,))
AVAILABLE_2 = state_byte(RecordState.AVAILABLE, 2)
ACCEPTED_1 = state_byte(RecordState.ACKNOWLEDGED, 1)
ARCHIVED_3 = state_byte(RecordState.ARCHIVED, 3)
LOST = Cause.REJECTED | OWED

SET = SetShares(
    "g",
    [
        ShareChange(KEY, ShareAction.INITIALISE, 7, EARLIEST),
        ShareChange(SOURCE, ShareAction.RESET, 8, 5, 6),
        ShareChange(KEY, ShareAction.DROP, 9),
        ShareChange(KEY, ShareAction.RESOLVE, 10, 11),
    ],
    12,
    6,
)
CHANGE = ChangeShares(
    "g",
    [
        ShareRuns(KEY, 7, [Run(1 << 40, 2, ACCEPTED_1), Run((1 << 40) + 5, 3, ARCHIVED_3, LOST)]),
        ShareRuns(SOURCE, 8, []),
    ],
    12,
)
HOLDING = CHANGE._replace(partitions=(), holds=(Hold(KEY, (1 << 64) - 2, 1 << 40),))
FORWARD = Forward(
    KEY, DEAD_LETTERS, SOURCE, "g", Position(7, 1, 5), Position(8, 2, 6), BATCH, look_ms=9
)
ON = FORWARD._replace(passed_on=True)

WRITTEN: list[tuple[Any, Callable[[], Envelope] | None, Kind, tuple[int, int, int], bytes]] = [
    # as in test_commands
    (SET, None, Kind.SHARE_SET, (0, 6, 12),
     b"\1\0\1\0\0\0\4g"
     + _Q + b"\0" + (7).to_bytes(8, "big") + b"\xff" * 7 + b"\xfe" + b"\xff" * 8
     + _OTHER + b"\1" + (8).to_bytes(8, "big") + (5).to_bytes(8, "big") + (6).to_bytes(8, "big")
     + _Q + b"\2" + (9).to_bytes(8, "big") + b"\xff" * 8 + b"\xff" * 8
     + _Q + b"\3" + (10).to_bytes(8, "big") + (11).to_bytes(8, "big") + b"\xff" * 8),
    (CHANGE, None, Kind.SHARE, (0, 0, 12),
     b"\1\0\1\0\0\0\2g"
     + _Q + (7).to_bytes(8, "big") + (1 << 40).to_bytes(8, "big") + b"\0\0\0\2\0\0\0\0"
     + b"\0\0\0\0" b"\0\0\0\2" b"\x0a\0" + b"\0\0\0\5" b"\0\0\0\3" b"\x1c\x81"
     + _OTHER + (8).to_bytes(8, "big") + bytes(8) + bytes(8)),
    (HOLDING._replace(partitions=[]), None, Kind.SHARE, (0, 0, 12),
     b"\2\0\1\0\0\0\0g" + _Q + b"\xff" * 7 + b"\xfe" + (1 << 40).to_bytes(8, "big")),
    (FreeLanes(KEY, "g", [(5,), ((1 << 64) - 2,)]), None, Kind.FREE_LANES, (0, 0, 0),
     b"\1" + _Q + b"\0\1g" + (5).to_bytes(8, "big") + b"\xff" * 7 + b"\xfe"),
    (NoteShareQueues("g", 5, [(Q, 3), (OTHER, 0)]), None, Kind.SHARE_QUEUES, (0, 5, 0),
     b"\1\0\1\0\0\0\2g" + Q + b"\0\0\0\3" + OTHER + b"\0\0\0\0"),
    (LookAtShares("g", [KEY, SOURCE]), None, Kind.SHARE_LOOK, (0, 0, 0),
     b"\1\0\1\0\0\0\2g" + _Q + _OTHER),
    (FORWARD, None, Kind.FORWARD, (1, 9, 0),
     BATCH + b"g\1\1" + _OTHER
     + (7).to_bytes(8, "big") + b"\0\0\0\1" + (5).to_bytes(8, "big")
     + (8).to_bytes(8, "big") + b"\0\0\0\2" + (6).to_bytes(8, "big") + b"\0\1"),
    (ON, None, Kind.FORWARD, (1, 9, 0),
     BATCH + b"g\2\1" + _OTHER
     + (7).to_bytes(8, "big") + b"\0\0\0\1" + (5).to_bytes(8, "big")
     + (8).to_bytes(8, "big") + b"\0\0\0\2" + (6).to_bytes(8, "big") + b"\0\1"),
    (AimForward(SOURCE, "g", KEY, 7), None, Kind.AIM_FORWARD, (2, 7, 0), b"\1" + _Q + b"g"),
    (SettleForward([(7, 1), (8, 2)]), None, Kind.SETTLE_FORWARD, (0, 0, 0),
     b"\1\0\0\0\0\0\2" + (7).to_bytes(8, "big") + b"\0\0\0\1" + (8).to_bytes(8, "big")
     + b"\0\0\0\2"),
]  # fmt: skip


def story(start: int, queue_id: QueueId, group: Callable[[str], Envelope]) -> list[Envelope]:
    """Return a log's next envelopes, from this log offset on.

    `group` makes a group, which is not there yet.
    """
    key = (queue_id, 1)  # this partition of "shared" lives in shard 0 of 2

    def put(action: ShareAction, epoch: int, at: int = LATEST, since_ms: int = -1) -> Envelope:
        return SetShares("s", [ShareChange(key, action, epoch, at, since_ms)], 1).envelope()

    def share(epoch: int, *runs: Run) -> Envelope:
        return ChangeShares("s", [ShareRuns(key, epoch, runs)], 1).envelope()

    def forward(number: int) -> Envelope:
        at = Position(5, number, number)
        return Forward(key, DEAD_LETTERS, SOURCE, "s", at, at, BATCH).envelope()

    log = [group("s"), NoteShareQueues("s", start, [(queue_id, 1)]).envelope()]
    log += [NoteShareQueues("s", start, [(queue_id, 0)]).envelope()]
    log += [Claim().envelope(), CreateQueue(queue_id, "shared", 3, {}).envelope()]
    log += [Envelope(Kind.APPEND, *key, body=BATCH) for _ in range(300)]
    log += [put(ShareAction.INITIALISE, 1, EARLIEST), share(1, Run(1, 290, ARCHIVED_3, LOST))]
    owed = start + len(log) - 1, 0
    dead = ChangeShares("s", [ShareRuns(key, 1, [Run(293, 1, ARCHIVED_3, Cause.REJECTED)])], 1,
                        (Hold(key, 7, 293),))  # fmt: skip
    log += [dead.envelope(), FreeLanes(key, "s", [(7,)]).envelope()]
    log += [share(1, Run(0, 1, ACCEPTED_1)), SettleForward([owed]).envelope()]
    log += [share(1, Run(295, 1, AVAILABLE_2)), put(ShareAction.RESET, 2, 3, 5)]
    log += [put(ShareAction.RESOLVE, 2, 4), share(2, Run(5, 1, ACCEPTED_1))]
    log += [AimForward(key, "s", SOURCE).envelope(), forward(1), forward(1)]
    log += [LookAtShares("s", [key]).envelope(), put(ShareAction.DROP, 3)]
    return log
