"""Keys of records held against the reader of whole records."""

import random
from contextlib import suppress

import pytest

from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.record_starts import dense_keys, record_keys
from kproxy.protocol.records import bodies
from kproxy.protocol.varint import Malformed
from tests.wire import keyed


def sent(count: int, key_bytes: int) -> bytes:
    rng = random.Random(count)
    return keyed(
        *[
            (bytes(rng.randrange(key_bytes + 1)) if at % 7 else None, bytes(rng.randrange(300)))
            for at in range(count)
        ]
    )


@pytest.mark.parametrize(("count", "key_bytes"), [(1, 6), (3, 0), (40, 100), (700, 90), (9000, 3)])
def test_keys_are_those_of_whole_records(count: int, key_bytes: int) -> None:
    batch = sent(count, key_bytes)
    header, data = read_header(batch), batch[HEADER_BYTES:]
    whole = bodies(header, data, headers=False)
    assert record_keys(header, data) == ([one[0] for one in whole], [one[2] for one in whole])
    keys = dense_keys(header, data)
    assert keys == (None if count > 8192 else [one[2] for one in whole])


def test_damaged_records_are_refused_or_read() -> None:
    batch, rng = sent(5, 20), random.Random(1)
    header, data = read_header(batch), batch[HEADER_BYTES:]
    for end in range(len(data)):
        assert dense_keys(header, data[:end]) is None
        with pytest.raises(Malformed):
            record_keys(header, data[:end])
    for _ in range(500):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] = rng.randrange(256)
        quickly = dense_keys(header, bytes(changed))
        if quickly is not None:
            assert record_keys(header, bytes(changed)) == ([*range(5)], quickly)
        with suppress(Malformed):
            deltas, keys = record_keys(header, bytes(changed))
            assert len(deltas) == len(keys) == 5
