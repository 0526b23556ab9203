"""Commands of delays: the bytes of each, and a log in which each does all that it can do."""

from collections.abc import Callable, Sequence
from typing import Any

from kproxy.protocol.batch import HEADER_BYTES, read_header, stamped
from kproxy.virtual.commands.delays import Due, Later, keyed
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.commands.shards import Claim
from kproxy.virtual.rows.delays import digest_of
from kproxy.virtual.types import PartitionKey, QueueId
from tests.wire import batch
from tests.wire import keyed as keyed_batch

Q = QueueId(bytes(range(16)))
KEY: PartitionKey = (Q, 1)


def waiting(due_ms: int, *values: bytes, **more: Any) -> bytes:
    """Return a batch that waits until then."""
    return stamped(batch(*(values or (b"v",)), **more), due_ms)


def mixed(*dues: int) -> bytes:
    """Return a batch of records that are due one after another."""
    made = bytearray(stamped(batch(*[b"m"] * len(dues), times=dues), min(dues)))
    made[22] &= ~8
    return stamped(bytes(made), None)


def later(
    key: PartitionKey, *batches: bytes, now: bytes = b"", split: bytes = b"", delay_ms: int = 0,
    time_ms: int = 1, look_ms: int = 2,
) -> Envelope:  # fmt: skip
    return Later.envelope(
        key, batches, now=now, split=split, delay_ms=delay_ms, time_ms=time_ms, look_ms=look_ms
    )


def due(
    key: PartitionKey, removed: Sequence[int], now: Sequence[bytes] = (),
    left: Sequence[bytes] = (), *, time_ms: int, look_ms: int = 2, writer: int = 0,
) -> Envelope:  # fmt: skip
    made = Due.envelope(key, removed, now, left, time_ms=time_ms, look_ms=look_ms)
    made.writer = writer
    return made


ONE, TWO = waiting(50, b"1"), waiting(60, b"2", b"22")
BY_KEY = keyed(stamped(keyed_batch((b"a", b"k")), 50))
SENT = batch(b"s", producer_id=7, epoch=3, sequence=5)
_LENGTHS = len(ONE).to_bytes(4, "big") + len(TWO).to_bytes(4, "big")
WRITTEN: list[tuple[Any, Callable[[], Envelope] | None, Kind, tuple[int, int, int], bytes]] = [
    # as in test_commands
    (Later(KEY, read_header(ONE), None, [(20, len(ONE))], 1 << 33, 9, 8),
     lambda: later(KEY, ONE, delay_ms=1 << 33, time_ms=9, look_ms=8), Kind.LATER, (1, 8, 9),
     (1 << 33).to_bytes(8, "big") + (8 + len(ONE)).to_bytes(4, "big") + b"\1\0\0\1"
     + len(ONE).to_bytes(4, "big") + ONE),
    (Later(KEY, read_header(SENT), (85, len(ONE)), [(85 + len(ONE), len(TWO))], 0, 9, 8),
     lambda: later(KEY, TWO, now=ONE, split=SENT[:HEADER_BYTES], time_ms=9, look_ms=8),
     Kind.LATER, (1, 8, 9),
     bytes(8) + (73 + len(ONE + TWO)).to_bytes(4, "big") + b"\1\3\0\2" + SENT[:61] + _LENGTHS
     + ONE + TWO),
    (Later(KEY, read_header(SENT), None, [(117, len(BY_KEY))], 0, 9, 8,
           gone=[(b"d" * 16, True), (b"e" * 16, False)]),
     lambda: Later.envelope(KEY, [BY_KEY], split=SENT[:HEADER_BYTES], time_ms=9, look_ms=8,
                            gone=[(b"d" * 16, True), (b"e" * 16, False)]),
     Kind.LATER, (1, 8, 9),
     bytes(8) + (105 + len(BY_KEY)).to_bytes(4, "big") + b"\1\12\0\1" + SENT[:61] + b"\0\2"
     + b"d" * 16 + b"\1" + b"e" * 16 + b"\0" + len(BY_KEY).to_bytes(4, "big") + BY_KEY),
    (Due(KEY, [7, 1 << 40], [(43, len(ONE))], [(43 + len(ONE), len(TWO))], 9, 8),
     lambda: due(KEY, [7, 1 << 40], [ONE], [TWO], time_ms=9, look_ms=8), Kind.DUE, (1, 4, 9),
     (8).to_bytes(8, "big") + (31 + len(ONE + TWO)).to_bytes(4, "big") + b"\1\0\2\0\1\0\1"
     + (7).to_bytes(8, "big") + (1 << 40).to_bytes(8, "big") + _LENGTHS + ONE + TWO),
]  # fmt: skip


def story() -> list[Envelope]:
    """Return a log's next envelopes in shard 0 of 2."""
    queue = QueueId(b"d" * 16)
    key: PartitionKey = (queue, 0)
    first = waiting(50, producer_id=9, epoch=0, sequence=0)
    log = [Claim().envelope(), CreateQueue(queue, "delayed0", 4, {}).envelope()]
    keys: list[PartitionKey] = [(queue, 0), (queue, 1)]
    for key in keys:
        log += [later(key, first, delay_ms=5), later(key, first, delay_ms=5)]  # a duplicate
        log += [later(key, ONE, TWO, mixed(70, 80), now=batch(b"n"))]
        log += [due(key, [0], [ONE], time_ms=49), due(key, [0], [ONE], time_ms=50)]
        log += [due(key, [0], [ONE], time_ms=50)]  # once is enough
        log += [due(key, [3, 5], [TWO, ONE], [waiting(80)], time_ms=70)]
        for gone in ([], [(digest_of(b"a"), True)], [(digest_of(b"a"), True)]):
            log += [Later.envelope(key, [] if gone else [BY_KEY], split=batch(b"s")[:HEADER_BYTES],
                                   time_ms=9, look_ms=8, gone=gone)]  # fmt: skip
    return [*log, DeleteQueue(queue).envelope()]
