"""Rows of share groups: their bytes are those on disk, and a form of a later kproxy is refused."""

from collections.abc import Callable

import pytest

from kproxy.virtual.rows import shares as share_rows
from kproxy.virtual.rows.kinds import INDEX_BYTES, PUBLISHED_BYTES, RowKind, swept_ranges
from kproxy.virtual.rows.shares import (
    CHUNK,
    COUNT_MAX,
    COUNT_SHIFT,
    DEAD_LETTERS,
    FORWARD_TARGETS,
    FORWARDED,
    NOWHERE,
    SHARE_PARTITIONS,
    SHARE_QUEUES,
    SHARE_STATES,
    STATE_BITS,
    TERMINAL,
    Aimed,
    Owed,
    Position,
    RecordState,
    SharePartition,
    state_byte,
)
from kproxy.virtual.types import PartitionKey, QueueId
from tests.fakes import DictKv

Q, OTHER = QueueId(bytes(range(16))), QueueId(bytes(range(16, 32)))
KEY: PartitionKey = (Q, 1)
KEY_HEX = "000102030405060708090a0b0c0d0e0f00000001"
SHARE = SharePartition(start=5, end=300, done=7, epoch=9, made_ms=11)
LONG = "g" * 300

VALUES: list[tuple[bytes, str, Callable[[bytes], object], object]] = [
    (SHARE_PARTITIONS.encode(SHARE),
     "01 0000000000000005 000000000000012c 00000007 0000000000000009 000000000000000b"
     "ffffffffffffffff",
     SHARE_PARTITIONS.decode, SHARE),
    (SHARE_PARTITIONS.encode(SHARE._replace(since_ms=6)),
     "01 0000000000000005 000000000000012c 00000007 0000000000000009 000000000000000b"
     "0000000000000006",
     SHARE_PARTITIONS.decode, SHARE._replace(since_ms=6)),
    (DEAD_LETTERS.encode(Owed(KEY, 5, 3, 2, 1, "g")),
     "01" + KEY_HEX + "0000000000000005 00000003 02 01 67",
     DEAD_LETTERS.decode, Owed(KEY, 5, 3, 2, 1, "g")),
    (FORWARDED.encode(Position(9, 2, -1)), "01 0000000000000009 00000002 ffffffffffffffff",
     FORWARDED.decode, Position(9, 2, -1)),
    (FORWARD_TARGETS.encode(Aimed(KEY, 9)), "01" + KEY_HEX + "0000000000000009",
     FORWARD_TARGETS.decode, Aimed(KEY, 9)),
]  # fmt: skip
KEYS: list[tuple[bytes, RowKind, str]] = [
    (SHARE_PARTITIONS.key(KEY, "g"), RowKind.SHARE_PARTITION, KEY_HEX + "67"),
    (SHARE_STATES.key(KEY, "g", 2), RowKind.SHARE_STATES,
     KEY_HEX + "0001 67 0000000000000002"),
    (DEAD_LETTERS.key(9, 2), RowKind.DEAD_LETTER, "0000000000000009 00000002"),
    (FORWARDED.key(KEY, 1, (OTHER, 2), "g"), RowKind.FORWARDED,
     KEY_HEX + "01" + OTHER.hex() + "00000002 67"),
    (FORWARD_TARGETS.key(KEY, "g"), RowKind.FORWARD_TARGET, KEY_HEX + "67"),
    (SHARE_QUEUES.key("g", Q), RowKind.SHARE_QUEUE, "0001 67" + KEY_HEX[:32]),
]  # fmt: skip


@pytest.mark.parametrize(("data", "written", "decode", "row"), VALUES)
def test_values_are_those_on_disk(
    data: bytes, written: str, decode: Callable[[bytes], object], row: object
) -> None:
    assert data == bytes.fromhex(written)
    assert decode(data) == row
    with pytest.raises(ValueError, match="later one"):
        decode(b"\x02" + data[1:])


@pytest.mark.parametrize(("key", "kind", "written"), KEYS)
def test_keys_are_those_on_disk(key: bytes, kind: RowKind, written: str) -> None:
    assert key == kind.letter + bytes.fromhex(written)
    assert kind.byte in PUBLISHED_BYTES
    assert (kind.byte in INDEX_BYTES) == (kind == RowKind.DEAD_LETTER)


def test_a_count_of_partitions_is_that_on_disk() -> None:
    assert share_rows.encode_initialised(3) == bytes.fromhex("00000003")
    assert share_rows.decode_initialised(bytes.fromhex("00000003")) == 3


def test_a_state_and_a_count_are_one_byte() -> None:
    """As it is on disk: three bits of state, five of count."""
    numbers = {state.name: int(state) for state in RecordState}
    assert numbers == {"AVAILABLE": 0, "ACQUIRED": 1, "ACKNOWLEDGED": 2, "ARCHIVED": 4}
    for state in RecordState:
        for count in range(COUNT_MAX + 1):
            byte = state_byte(state, count)
            assert (byte & STATE_BITS, byte >> COUNT_SHIFT) == (state, count)
            ended = state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
            assert TERMINAL[byte] == ended
    assert state_byte(RecordState.ARCHIVED, 3) == 0b00011_100
    assert state_byte(RecordState.ACKNOWLEDGED, 1) == 0b00001_010
    assert state_byte(RecordState.AVAILABLE, 40) == state_byte(RecordState.AVAILABLE, 31)


@pytest.mark.parametrize("group", ["g", LONG, "é", "g\0", "\U0010ffff"])
def test_keys_say_what_they_are_of(group: str) -> None:
    assert SHARE_PARTITIONS.parts(SHARE_PARTITIONS.key(KEY, group)) == (
        KEY,
        group,
    )
    assert DEAD_LETTERS.parts(DEAD_LETTERS.key(9, 2)) == (9, 2)
    assert SHARE_QUEUES.parts(SHARE_QUEUES.key(group, Q))[1] == Q


def test_groups_with_a_common_prefix_are_not_mixed_up() -> None:
    start, end = SHARE_QUEUES.range("g")
    for queue in (QueueId(bytes(16)), QueueId(b"\xff" * 16)):
        assert start <= SHARE_QUEUES.key("g", queue) < end
        for other in ("", "gg", "f", "h", "g\0"):
            assert not start <= SHARE_QUEUES.key(other, queue) < end
    of_states = [SHARE_STATES.key(KEY, group) for group in ("g", "gg", "g\0")]
    for prefix in of_states:
        assert [other for other in of_states if other.startswith(prefix)] == [prefix]


@pytest.mark.parametrize("index", [0, (1 << 32) - 1])
@pytest.mark.parametrize("group", ["", "g", LONG, "\U0010ffff"])
def test_all_of_a_queue_lies_in_its_ranges(index: int, group: str) -> None:
    of_queue = [
        SHARE_PARTITIONS.key((Q, index), group),
        SHARE_STATES.key((Q, index), group, (1 << 64) - 1),
        FORWARDED.key((Q, index), 1, (QueueId(b"\xff" * 16), index), group),
        FORWARD_TARGETS.key((Q, index), group),
    ]
    ranges = list(swept_ranges(Q))
    for key in of_queue:
        assert sum(start <= key < end for start, end in ranges) == 1
        for at in (1, 16):
            for byte in (b"\0", b"\xff"):
                other = key[:at] + byte + key[at + 1 :]
                assert other == key or not any(start <= other < end for start, end in ranges)


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 0), (0, 1), (5, 5), (0, CHUNK), (1, CHUNK + 1), (CHUNK - 1, CHUNK), (CHUNK, 2 * CHUNK),
     (CHUNK - 1, 3 * CHUNK + 1), (2 * CHUNK, 2 * CHUNK + 1), (700, 5000)],
)  # fmt: skip
def test_states_of_a_stretch_are_those_of_its_chunks(start: int, end: int) -> None:
    every = bytes(at % 251 for at in range(4 * CHUNK))
    kv = DictKv()
    for chunk in (0, 1, 3):  # nothing is known of the third
        row = every[chunk * CHUNK : (chunk + 1) * CHUNK]
        kv.rows[SHARE_STATES.key(KEY, "g", chunk)] = row
    known = every[: 2 * CHUNK] + bytes(CHUNK) + every[3 * CHUNK :] + bytes(5000)
    found = share_rows.states(kv.get, KEY, "g", start, end)
    assert found == known[start:end]
    assert share_rows.states(kv.get, KEY, "h", start, end) == bytes(end - start)


def test_a_share_partition_is_found_by_what_gets_rows() -> None:
    kv = DictKv({SHARE_PARTITIONS.key(KEY, "g"): SHARE_PARTITIONS.encode(SHARE)})
    assert SHARE_PARTITIONS.get(kv.get, KEY, "g") == SHARE
    assert SHARE_PARTITIONS.get(kv.get, KEY, "h") is None
    assert SHARE_PARTITIONS.get(kv.get, (Q, 2), "g") is None
    assert SHARE.since_ms == NOWHERE
