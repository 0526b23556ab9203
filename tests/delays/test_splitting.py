"""Batches cut by when their records are due."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.common.errors import Code
from kproxy.delays.splitting import GROUPS_MAX, grouped, split
from kproxy.metadata.delay_settings import DelaySettings
from kproxy.protocol.batch import CODECS, BadBatch, Records, check, read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, content_of_body, header
from kproxy.protocol.records import bodies, header_bytes, headers_in, unpacked
from kproxy.protocol.varint import Malformed

pytestmark = pytest.mark.usefixtures("each_lane")
NOW_MS = 1_800_000_000_000
DELAY = DelaySettings(0, True, 100_000, 1000)
MOST = 1 << 20


def made(*headers: list[tuple[str, str]], codec: int = 0) -> bytes:
    """Return a batch of numbered records with these headers."""
    return batch_of_bodies(
        [
            (body_of(Content(None, b"%d" % n), [header(*one) for one in some]), NOW_MS - n)
            for n, some in enumerate(headers)
        ],
        codec,
    )


def wait(ms: int | str) -> list[tuple[str, str]]:
    return [("kproxy.delay-ms", str(ms))]


def at(ms: int | str) -> list[tuple[str, str]]:
    return [("kproxy.deliver-at", str(ms))]


def cut(sent: bytes, delay: DelaySettings = DELAY):  # type: ignore[no-untyped-def]
    return split(read_header(sent), sent, unpacked(sent), delay, NOW_MS, MOST)


def read(data: Records) -> list[tuple[int, bytes | None]]:
    """(time, value) of each record of a sound batch."""
    head = check(data, MOST, 9)
    return [
        (time_ms, content_of_body(body).value)
        for _, time_ms, _, body, _ in bodies(head, unpacked(data), headers=False)
    ]


def test_a_batch_that_says_nothing_stays_as_it_is() -> None:
    assert cut(made([], [("other", "1")])) is None
    assert cut(made([("kproxy.delayed", "1")])) is None  # looks like it, and is none


def test_a_batch_of_one_time_is_kept_as_it_came() -> None:
    sent = made(wait(5000), at(NOW_MS + 5000), codec=CODECS.index("zstd"))
    found = cut(sent)
    assert found.whole
    assert found.header_bytes == b""
    (later,) = found.later
    assert read_header(later).is_log_append_time
    assert read_header(later).max_timestamp == NOW_MS + 5000
    assert later[61:] == sent[61:]
    assert found.waiting == 2


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_records_are_put_where_they_belong(codec: int) -> None:
    sent = made(wait(50), [], wait(0), at(NOW_MS + 20), wait(-7), wait(50), at(5), codec=codec)
    found = cut(sent)
    assert not found.whole
    assert found.header_bytes == sent[:61]
    assert read(found.now) == [(NOW_MS - n, b"%d" % n) for n in (1, 2, 4, 6)]
    assert [read(one) for one in found.later] == [
        [(NOW_MS + 20, b"3")], [(NOW_MS + 50, b"0"), (NOW_MS + 50, b"5")],
    ]  # fmt: skip
    assert found.waiting == 3
    assert {read_header(one).codec for one in (found.now, *found.later)} == {codec}


def test_records_without_a_header_wait_for_the_fixed_delay() -> None:
    fixed = DELAY._replace(fixed_ms=30)
    found = cut(made(wait(60), [], wait(0)), fixed)
    assert read(found.now) == [(NOW_MS - 2, b"2")]
    assert [read(one) for one in found.later] == [[(NOW_MS + 30, b"1")], [(NOW_MS + 60, b"0")]]
    assert cut(made([], []), fixed) is None  # as all of such a queue


def test_deliver_at_is_what_counts() -> None:
    found = cut(made(wait(5) + at(NOW_MS + 9)))
    assert read_header(found.later[0]).max_timestamp == NOW_MS + 9


@pytest.mark.parametrize(
    "value", ["", "x", "1.5", "1e3", " 1", "0x1", "1_000", "9" * 19, "\u0661", "-", "1\n"]
)
def test_a_wrong_number_is_told_by_its_record(value: str) -> None:
    with pytest.raises(BadBatch) as caught:
        cut(made([], wait(value), wait(1), at(value)))
    assert caught.value.code == Code.INVALID_RECORD
    assert [number for number, _ in caught.value.blamed] == [1, 3]
    assert "whole number of milliseconds" in str(caught.value)


@pytest.mark.parametrize("headers", [wait(100_001), at(NOW_MS + 100_001), wait("9" * 18)])
def test_record_too_far_ahead_is_refused(headers: list[tuple[str, str]]) -> None:
    cut(made(wait(100_000)))
    with pytest.raises(BadBatch, match=r"more than 100000 ms ahead \(kproxy.delay.ms.max\)"):
        cut(made(headers))


def test_a_header_without_a_value_is_wrong() -> None:
    body = body_of(Content(None, b"v", 1, b"\x1ekproxy.delay-ms\x01"), [])
    with pytest.raises(BadBatch):
        cut(batch_of_bodies([(body, NOW_MS)]))


@given(
    st.lists(st.integers(0, 100_000) | st.sampled_from((10, 20)), min_size=1, max_size=300),
    st.sampled_from((0, 1, 4)),
)
def test_nothing_is_lost_and_batches_are_few(delays: list[int], codec: int) -> None:
    pieces = [(NOW_MS + ms, body_of(Content(None, b"%d" % n), [])) for n, ms in enumerate(delays)]
    found = grouped(list(pieces), codec, 1 << 20, MOST, NOW_MS)
    assert len(found) <= GROUPS_MAX
    records = [record for one in found for record in _waiting(one)]
    assert records == [
        (NOW_MS + ms, b"%d" % n)
        for n, ms in sorted(enumerate(delays), key=lambda pair: pair[1])
    ]  # fmt: skip


def _waiting(data: bytes) -> list[tuple[int, bytes | None]]:
    head, records = read_header(data), read(data)
    assert head.max_timestamp == records[0][0], "it is due when its first record is"
    assert head.is_log_append_time == (len({time_ms for time_ms, _ in records}) == 1)
    return records


def test_records_that_pack_badly_alone_are_kept_together() -> None:
    body = body_of(Content(None, random.Random(1).randbytes(20_000)), [])
    pieces = [(NOW_MS + int(20 * 1.3**n), body) for n in range(80)]
    zstd = CODECS.index("zstd")
    assert GROUPS_MAX // 2 < len(grouped(list(pieces), zstd, 1 << 20, MOST, NOW_MS)) <= GROUPS_MAX
    found = grouped(list(pieces), zstd, 2000, MOST, NOW_MS)
    assert len(found) < GROUPS_MAX // 2
    assert sum(map(len, found)) < 400_000
    with pytest.raises(BadBatch, match="takes"):
        grouped(list(pieces), 0, 2000, MOST, NOW_MS)


@given(st.lists(st.integers(21, 10**10), min_size=1, max_size=50))
def test_adjacent_records_wait_in_one_batch(delays: list[int]) -> None:
    pieces = [(NOW_MS + ms, body_of(Content(None, b"v"), [])) for ms in delays]
    found = [_waiting(one) for one in grouped(list(pieces), 0, 1 << 20, MOST, NOW_MS)]
    for some in found:
        first, last = some[0][0], some[-1][0]
        assert last - first <= max(20, (first - NOW_MS) // 4), "a fifth is left, or less"
    for one, other in pairwise(found):
        first = one[0][0]
        assert other[0][0] - first > max(20, (first - NOW_MS) // 4)


_NAMES = st.sampled_from(["kproxy.delay-ms", "a", "kproxy.deliver-at", "n" * 200])
_SOME = st.lists(st.tuples(_NAMES, st.text(max_size=300)), max_size=4)


@given(st.lists(st.tuples(_SOME, st.none() | st.binary(max_size=300)), min_size=1, max_size=90))
def test_headers_are_those_that_lie_in_a_batch(
    records: list[tuple[list[tuple[str, str]], bytes | None]],
) -> None:
    sent = batch_of_bodies(
        [
            (body_of(Content(key, b"v" * 70), [header(*one) for one in some]), NOW_MS + n * 999)
            for n, (some, key) in enumerate(records)
        ]
    )
    data = unpacked(sent)
    found = [headers_in(some) for some in header_bytes(len(records), data)]
    assert found == [headers for *_, headers in bodies(read_header(sent), data, headers=True)]


@given(st.binary(max_size=200), st.integers(1, 9))
def test_malformed_batch_is_refused(data: bytes, count: int) -> None:
    try:
        for some in header_bytes(count, data):
            headers_in(some)
    except Malformed:
        pass
