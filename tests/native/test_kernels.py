"""Kernels give None, or what Python gives, whatever the bytes are."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproxy import native
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.codecs import Unfit
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.protocol.records import header_bytes, unpacked
from kproxy.protocol.varint import Malformed
from kproxy.routes import cutting
from kproxy.routes.cutting import Cutter, Gathered
from kproxy.routes.reading import Kept, Plan, gather
from kproxy.routes.shipping import shipped
from kproxy.store.segments import Segments
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.routes import Epoch

pytestmark = pytest.mark.skipif(native._FOUND.core is None, reason=native._FOUND.reason)

TEMPLATES = ("to-{key}", "t.{header:a}", "{key}".join("xyz"), "t-{header:a}.{header:b}-{key}")
KEYS = st.sampled_from((b"a", b"b", b"c0", b"dd", b"lost", b"n", None, b"", b"a b", b"k" * 250))
PLAIN_KEYS = st.integers(0, 30).map(lambda number: b"%d" % number)
VALUES = st.sampled_from((None, b"", b"v", b"x" * 70, b"y" * 700))
HEADERS = st.lists(
    st.tuples(st.sampled_from(("a", "b", "other")), st.sampled_from(("u", "v", "", "w w"))),
    max_size=3,
)


class Stored(NamedTuple):
    """The place of a batch, as its row says it."""

    segment: int
    position: int
    length: int


class Bytes:
    """Segments that have one batch each."""

    def __init__(self, batches: list[bytes]) -> None:
        self._batches = batches

    def batch(self, segment: int, position: int, length: int) -> bytes:
        return self._batches[segment]


class Case(NamedTuple):
    """A stretch, and how it is cut."""

    batches: list[bytes]
    template: str = TEMPLATES[0]
    start: int = 0
    end: int = 10_000
    shards: int = 1
    limited: bool = True
    log_bytes_max: int = 10 << 20
    held_max: int = 16 << 20
    targets_max: int = 8000
    records_max: int = 1 << 62
    configs: str = ""


@st.composite
def batch(draw: st.DrawFn, keys: st.SearchStrategy[bytes | None], sound: bool) -> bytes:
    found = draw(st.lists(st.tuples(keys, VALUES, HEADERS, st.integers(-5, 500)), min_size=1))
    bodies = [
        (body_of(Content(key, value), [header(*one) for one in named]), time_ms)
        for key, value, named, time_ms in found
    ]
    stamp = draw(st.sampled_from((None, None, 77)))
    made = bytearray(batch_of_bodies(bodies, draw(st.sampled_from((0, 0, 1, 2, 3, 4))), stamp))
    if not sound:
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(made) - 1))
            made[at] = draw(st.integers(0, 255))
        if draw(st.booleans()):
            made = made[: max(HEADER_BYTES, draw(st.integers(0, len(made))))]
    return bytes(made)


@st.composite
def cases(draw: st.DrawFn, *, sound: bool = True) -> Case:
    keys = draw(st.sampled_from((KEYS, PLAIN_KEYS, PLAIN_KEYS)))
    batches = draw(st.lists(batch(keys, sound), min_size=1, max_size=4))
    start = draw(st.integers(0, 8))
    return Case(
        batches, draw(st.sampled_from(TEMPLATES)), start, draw(st.integers(start + 1, 60)),
        draw(st.sampled_from((1, 2, 7))), draw(st.booleans()),
        draw(st.sampled_from((2000, 10_000, 10 << 20))),
        draw(st.sampled_from((500, 5000, 16 << 20))), draw(st.sampled_from((1, 3, 8000))),
        draw(st.sampled_from((1, 5, 1 << 62))),
        draw(st.sampled_from(("", "cleanup.policy:compact"))),
    )  # fmt: skip


def gathered(case: Case, lane: str) -> Gathered:
    spec = {"name": "t-n", "kproxy.route.to": case.template, "kproxy.route.unroutable": "to-lost"}
    if case.configs:
        spec["kproxy.route.configs"] = case.configs
    cutter = Cutter(
        Epoch(0, json.dumps(spec).encode()), case.shards, case.start, case.end, 0,
        limited=case.limited, log_bytes_max=case.log_bytes_max, held_max=case.held_max,
    )  # fmt: skip
    cutter.gathered.targets_max = case.targets_max
    cutter.gathered.records_max = case.records_max
    stored, base = list[tuple[int, Any]](), 0
    for number, data in enumerate(case.batches):
        if base < case.end:
            stored.append((base, cast(Batch, Stored(number, 0, len(data)))))
        base += max(1, read_header(data).last_offset_delta + 1)
    planned = Plan(stored, {}, min(base, case.end))
    native.choose(lane)
    segments = cast(Segments, Bytes(case.batches))
    gather(segments, planned, cutter, Kept(), cutter.gathered.spec.headers)
    return cutter.gathered


def agree(case: Case) -> bool:
    """Return whether the native lane has cut it; assert that both lanes do the same."""
    try:
        python = gathered(case, "off")
    except Exception as error:
        with pytest.raises(type(error)):
            gathered(case, "auto")
        return False
    made = gathered(case, "auto")
    assert (made.through, made.records, made.held, made.unroutable, made.passed_over) == (
        python.through, python.records, python.held, python.unroutable, python.passed_over,
    )  # fmt: skip
    assert made.parts == python.parts
    for parts in {python.parts, 1, 4}:
        try:
            wanted = shipped(python, parts)
        except Unfit:  # it has not ended by its bounds
            with pytest.raises(Unfit):
                shipped(made, parts)
        else:
            assert shipped(made, parts) == wanted
    return made.native is not None


@pytest.fixture(autouse=True)
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PART_TARGETS", 3)
        yield


@settings(max_examples=100)
@given(cases())
def test_both_lanes_make_the_same_cuts(case: Case) -> None:
    agree(case)


@settings(max_examples=100)
@given(cases(sound=False))
@example(Case([batch_of_bodies([(body_of(Content(b"a"), ()), 0)])[:HEADER_BYTES]]))
def test_damaged_batches_are_none_of_its_or_the_same(case: Case) -> None:
    agree(case)


def plain(*keys: bytes, codec: int = 0, time_ms: int = 9) -> bytes:
    return batch_of_bodies([(body_of(Content(key, b"v"), ()), time_ms) for key in keys], codec)


@pytest.mark.parametrize("codec", range(5))
def test_plain_records_are_cut_natively(codec: int) -> None:
    """A lane that is not entered costs more than none."""
    batches = [plain(*[b"%d" % n for n in range(50)], codec=codec), plain(b"1", b"2")]
    for shards in (1, 3):
        for start, end in ((0, 100), (7, 51), (0, 5)):
            assert agree(Case(batches, start=start, end=end, shards=shards))
    assert agree(Case(batches, limited=False))
    assert agree(Case(batches, held_max=1000))
    assert agree(Case(batches, records_max=10))
    assert agree(Case(batches, template="a-{key}.b"))


@pytest.mark.parametrize(
    "key", [b"", b"a b", b"\xff", b"n", b"k" * 250],
    ids=["empty", "space", "no text", "itself", "long"],
)  # fmt: skip
def test_record_without_a_queue_is_pythons(key: bytes) -> None:
    template = "t-{key}"
    assert not agree(Case([plain(b"a", key)], template))
    assert agree(Case([plain(b"a", b"z")], template))


def test_batch_that_is_packed_again_is_pythons() -> None:
    data = batch_of_bodies([(body_of(Content(b"a", b"v" * 2000), ()), 1)], 4)
    assert not agree(Case([data]))


def test_after_what_is_not_plain_python_is_asked_for_a_while() -> None:
    """Else each record without a queue would have its cut read twice."""
    kept = Kept()
    native.choose("auto")
    asked = []

    def noted(*of: Any) -> None:
        asked.append(of)

    odd = plain(b"a b")
    spec = json.dumps({"name": "in", "kproxy.route.to": TEMPLATES[0]}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "gather", noted)
        for _ in range(17):
            cutter = Cutter(Epoch(0, spec), 1, 0, 1, 0, limited=True, log_bytes_max=1 << 20)
            stored = [(0, cast(Batch, Stored(0, 0, len(odd))))]
            gather(cast(Segments, Bytes([odd])), Plan(stored, {}, 1), cutter, kept, frozenset())
            assert cutter.gathered.unroutable == 1
    assert len(asked) == 2


# -- headers


def python_headers(count: int, data: bytes) -> list[bytes] | None:
    native.choose("off")
    try:
        return header_bytes(count, data)
    except Malformed:
        return None


@settings(max_examples=100)
@given(
    batch(KEYS, True),
    st.integers(-1, 1),
    st.lists(st.tuples(st.integers(0), st.binary(max_size=2)), max_size=3),
)
def test_headers_are_the_same_or_none(
    made: bytes, more: int, changes: list[tuple[int, bytes]]
) -> None:
    data, count = bytearray(unpacked(made)), read_header(made).record_count + more
    for at, change in changes:
        place = at % (len(data) + 1)
        data[place : place + len(change)] = change
    wanted = python_headers(count, bytes(data))
    native.choose("auto")
    found = native.header_bytes(count, bytes(data))
    assert found is None or found == wanted
    if not changes and not more:
        assert found == wanted


@given(st.integers(0, 5), st.binary(max_size=60))
def test_headers_of_any_bytes_are_the_same_or_none(count: int, data: bytes) -> None:
    wanted = python_headers(count, data)
    native.choose("auto")
    found = native.header_bytes(count, data)
    assert found is None or found == wanted


def test_no_records_have_no_headers() -> None:
    native.choose("auto")
    assert native.header_bytes(0, b"") == []
    assert native.header_bytes(-1, b"") is None
