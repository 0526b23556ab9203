"""The cut of a stretch of a source: pure, so two owners that ship one cut make the same parts."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.protocol import record_runs
from kproxy.protocol.batch import TRANSACTIONAL, read_header
from kproxy.protocol.codecs import pack
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.records import bodies, keyed_records, repacked, unpacked
from kproxy.protocol.varint import Malformed
from kproxy.routes import cutting
from kproxy.routes.batch_reading import Reading
from kproxy.routes.cutting import Cutter
from kproxy.routes.shipping import parts_of
from kproxy.virtual.partitioner import hash_of, shard_of
from kproxy.virtual.rows.routes import Epoch
from tests.wire import batch, keyed, record

LOG = 10 << 20
MANY = body_of(Content(b"a", b"v"), ())

Made = dict[str, list[tuple[bytes | None, bytes | None]]]


def spec(template: str = "to-{key}", **more: str) -> bytes:
    return json.dumps(
        {"name": "in", "kproxy.route.to": template, "kproxy.route.unroutable": "lost"} | more
    ).encode()


def filtered(text: str) -> bytes:
    return json.dumps({"name": "red", "kproxy.route.filter": text}).encode()


def cut(
    data: bytes, text: bytes, *, shards: int = 1, start: int = 0, end: int = 1 << 40,
    base: int = 0, limited: bool = True,
) -> Cutter:  # fmt: skip
    cutter = Cutter(Epoch(0, text), shards, start, end, 0, limited=limited, log_bytes_max=LOG)
    cutter.take(reading(data, base, cutter.gathered.spec.headers))
    return cutter


def reading(data: bytes, base: int = 0, headers: bool | frozenset[bytes] = False) -> Reading:
    return Reading(base, read_header(data), data, headers)


def contents(made: bytes) -> list[tuple[bytes | None, bytes | None]]:
    head = read_header(made)
    found = []
    for one in keyed_records(head, unpacked(made)):
        body = one.data
        value = cutting.content_of_body(body[len(body) - len(_body(head, made, one)) :]).value
        found.append((one.key, value))
    return found


def _body(head: Any, made: bytes, one: Any) -> bytes:
    for delta, _, _, body, _ in bodies(head, unpacked(made), headers=False):
        if delta == one.offset_delta:
            return body
    raise AssertionError


def shipped(cutter: Cutter, parts: int | None = None) -> Made:
    found: Made = {}
    for _, _, batches in parts_of(cutter.gathered, parts or cutter.gathered.parts):
        for name, data in batches:
            found.setdefault(name, []).extend(contents(data))
    return found


def with_headers(*records: tuple[bytes | None, dict[str, str]]) -> bytes:
    made = [
        (body_of(Content(key, b"v"), [header(*one) for one in named.items()]), 7)
        for key, named in records
    ]
    return batch_of_bodies(made)


def test_each_key_has_its_queue_and_keeps_its_order() -> None:
    cutter = cut(keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3")), spec())
    assert shipped(cutter) == {"to-a": [(b"a", b"1"), (b"a", b"3")], "to-b": [(b"b", b"2")]}
    assert (cutter.gathered.records, cutter.gathered.through) == (3, 3)


def test_only_the_records_of_the_stretch_count() -> None:
    cutter = cut(keyed(*[(b"k", b"%d" % n) for n in range(9)]), spec(), start=12, end=15, base=10)
    assert shipped(cutter) == {"to-k": [(b"k", b"2"), (b"k", b"3"), (b"k", b"4")]}
    assert cutter.gathered.through == 15


@pytest.mark.parametrize("codec", range(5))
def test_batches_are_unpacked_and_large_ones_packed_as_they_came(codec: int) -> None:
    value = b"v" * 5000
    cutter = cut(keyed(*[(b"k", value)] * 20, (b"other", b"v"), codec=codec), spec())
    made = dict(parts_of(cutter.gathered, 1)[0][2])
    assert read_header(made["to-k"]).codec == codec
    assert read_header(made["to-other"]).codec == 0
    assert len(contents(made["to-k"])) == 20


@pytest.mark.parametrize("codec", range(1, 5))
def test_targets_take_no_more_room_than_their_source(codec: int) -> None:
    """Batches of less than 64 KiB were not packed: they took ten times as much."""
    value = b'{"temperature":21.5,"status":"ok","unit":"celsius"}'
    data = keyed(*[(b"d%d" % (n % 20), value) for n in range(800)], codec=codec)
    made = parts_of(cut(data, spec()).gathered, 1)[0][2]
    assert {read_header(one).codec for _, one in made} == {codec}
    plain = len(unpacked(data))
    assert sum(len(one) for _, one in made) < plain / 3


def test_times_are_kept() -> None:
    data = keyed((b"a", b"1"), (b"a", b"2"), time_ms=1234)
    ((_, made),) = parts_of(cut(data, spec()).gathered, 1)[0][2]
    head = read_header(made)
    assert (head.base_timestamp, head.max_timestamp, head.producer_id) == (1234, 1234, -1)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "no key"),
        (b"", "key"),
        (b"a b", "the key is not a part of a queue name"),
        (b"\xff", "the key is not a part of a queue name"),
        (b"k" * 300, "long"),
    ],
)
def test_record_without_a_queue_goes_to_the_unroutable_ones_and_says_why(
    key: bytes | None, why: str
) -> None:
    cutter = cut(keyed((b"fine", b"1"), (key, b"2")), spec())
    found = dict(parts_of(cutter.gathered, 1)[0][2])
    assert list(found) == ["to-fine", "lost"]
    ((_, _, kept, body, named),) = bodies(
        read_header(found["lost"]), unpacked(found["lost"]), headers=True
    )
    assert (kept, cutting.content_of_body(body).value) == (key, b"2")
    assert why.encode() in (named.pop(b"kproxy.route.error") or b"")
    assert named == {b"kproxy.route.partition": b"0", b"kproxy.route.offset": b"1"}
    assert cutter.gathered.unroutable == 1


def test_an_entrance_does_not_go_to_itself_nor_to_queues_of_kafkas_own() -> None:
    assert list(shipped(cut(keyed((b"n", b"1")), spec("i{key}")))) == ["lost"]
    assert list(shipped(cut(keyed((b"_x", b"1")), spec("_{key}")))) == ["lost"]


def test_headers_make_names() -> None:
    text = spec("t.{header:tenant}.{header:kind}x{key}")
    data = with_headers(
        (b"k", {"tenant": "acme", "kind": "a"}), (b"k", {"tenant": "acme"}),
        (None, {"tenant": "b", "kind": "c"}),
    )  # fmt: skip
    assert list(shipped(cut(data, text))) == ["t.acme.axk", "lost"]
    assert cut(data, text).gathered.unroutable == 2


def test_a_filter_lets_through_what_matches_and_nothing_else() -> None:
    data = with_headers((b"1", {"tag": "red"}), (b"2", {"tag": "green"}), (b"3", {}))
    names = {
        "header:tag:red|blue": [b"1"],
        "header:tag": [b"1", b"2"],
        "!header:tag": [b"3"],
        "key:2|3": [b"2", b"3"],
        "header:tag&key:2": [b"2"],
        "": [b"1", b"2", b"3"],
    }
    for text, keys in names.items():
        found = shipped(cut(data, filtered(text)))
        assert [key for key, _ in found.get("red", [])] == keys, text


def test_routed_part_of_a_batch_does_not_come_again_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: the batch went to the unroutable queue as a batch, with those that it began with."""
    monkeypatch.setattr(record_runs, "RUN_RECORDS", 2)
    data = bytearray(keyed(*[(b"k%d" % n, b"v") for n in range(5)]))
    data[data.index(b"k3") - 5] = 0x7F  # its length
    for start in (0, 1, 2):
        found = shipped(cut(bytes(data), spec(), start=start))
        lost = found.pop("lost")
        assert found == {f"to-k{n}": [(b"k%d" % n, b"v")] for n in range(start, 2)}
        assert lost == [(None, bytes(data))]
    assert "lost" not in shipped(cut(bytes(data), spec(), end=2, limited=False))
    cutter = cut(bytes(data), spec(), limited=False)
    assert (cutter.gathered.unroutable, cutter.gathered.through) == (3, 5)


def test_a_batch_that_cannot_be_told_goes_whole_and_alone() -> None:
    """Another owner finds the same, wherever the cut before it ended."""
    broken = bytearray(keyed((b"a", b"1"), (b"b", b"2"), producer_id=5, epoch=1, sequence=0))
    broken[61] = 0x7F
    cutter = Cutter(Epoch(0, spec()), 1, 0, 100, 0, limited=True, log_bytes_max=LOG)
    sound = keyed((b"a", b"1"))
    for base, data in ((0, sound), (1, bytes(broken))):
        found = reading(data, base)
        if not cutter.take(found):
            break
    assert (cutter.gathered.through, list(shipped(cutter))) == (1, ["to-a"])
    alone = Cutter(Epoch(0, spec()), 1, 1, 100, 0, limited=True, log_bytes_max=LOG)
    assert not alone.take(found)
    ((_, _, ((name, made),)),) = parts_of(alone.gathered, 1)
    head = read_header(made)
    assert (name, head.producer_id, head.record_count, alone.gathered.through) == ("lost", -1, 2, 3)
    assert alone.gathered.unroutable == 2


def test_filter_passes_on_all_that_matches_however_much_a_batch_unpacks_to() -> None:
    """It passed on nothing of a batch of more than 200,000 records, or of more than 16 MiB."""
    many = batch_of_bodies([(MANY, 5)] * 250_000, 4)
    large = keyed(*[(b"a", bytes(6 << 20))] * 4, (b"b", b"1"), codec=4)
    for data, text, wanted in ((many, "key:a", 250_000), (large, "key:b", 1)):
        cutter, start, found = cut(data, filtered(text)), 0, 0
        batch_read = reading(data)
        while start < read_header(data).record_count:
            cutter = Cutter(
                Epoch(0, filtered(text)), 1, start, 1 << 40, 0, limited=True, log_bytes_max=LOG
            )
            cutter.take(batch_read)
            start = cutter.gathered.through
            found += cutter.gathered.records
        assert (found, cutter.gathered.passed_over) == (wanted, 0)


def packed_hard(key: bytes, size: int) -> bytes:
    """Return a batch of one record that takes more bytes when it is packed as usual."""
    words = [b"%x" % random.Random(n).getrandbits(40) for n in range(300)]
    chosen = random.Random(1)
    value = b" ".join(chosen.choices(words, k=size // 11))
    data = keyed((key, value))
    return repacked(read_header(data), unpacked(data), 4, 19)


def test_record_that_grows_when_packed_again_is_packed_harder_or_not_passed_on() -> None:
    data = packed_hard(b"a", 100_000)
    usual = keyed((b"a", cutting.content_of_body(unpacked(data)[6:]).value), codec=4)
    assert len(usual) > len(data) + 400
    frame = cutting.SHIP_FRAME_BYTES
    for text, name in ((spec(), "to-a"), (filtered("key:a"), "red")):
        cutter = Cutter(
            Epoch(0, text), 1, 0, 9, 0, limited=True, log_bytes_max=len(data) + 200 + frame
        )
        cutter.take(reading(data))
        ((_, _, ((found, made),)),) = parts_of(cutter.gathered, 1)
        assert (found, contents(made)[0][0]) == (name, b"a")
        assert len(made) <= cutter.gathered.batch_bytes_max
    less = len(data) - 500 + frame
    cutter = Cutter(Epoch(0, spec()), 1, 0, 9, 0, limited=True, log_bytes_max=less)
    cutter.take(reading(data))
    assert shipped(cutter) == {"lost": [(b"a", None)]}
    cutter = Cutter(Epoch(0, filtered("key:a")), 1, 0, 9, 0, limited=True, log_bytes_max=less)
    cutter.take(reading(data))
    assert (cutter.gathered.records, cutter.gathered.passed_over) == (0, 1)


def test_cut_that_is_made_again_has_the_same_of_what_cannot_be_told() -> None:
    """Records of a long batch are passed on before its fault is seen."""
    sound = b"".join(record(n, b"v", b"%d" % (n % 3)) for n in range(6000))
    data = batch(*[b""] * 7000, packed=sound + b"\x7f")
    first, one = cut(data, spec()), reading(data)
    ends = [0]
    while ends[-1] < 7000:
        first = Cutter(Epoch(0, spec()), 1, ends[-1], 1 << 40, 0, limited=True, log_bytes_max=LOG)
        first.take(one)
        ends.append(first.gathered.through)
        again = cut(data, spec(), start=ends[-2], end=ends[-1], limited=False)
        assert parts_of(again.gathered, 1) == parts_of(first.gathered, 1)
        assert again.gathered.through == ends[-1]
    assert shipped(first)["lost"] == [(None, data)]
    assert len(ends) == 2


def test_filter_says_what_it_cannot_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = bytearray(keyed((b"a", b"1"), (b"b", b"2")))
    broken[61] = 0x7F
    gathered = cut(bytes(broken), filtered("key:a")).gathered
    assert (gathered.records, gathered.passed_over, gathered.through) == (0, 2, 2)
    assert "cannot be told" in gathered.why
    monkeypatch.setattr(record_runs, "RECORD_BYTES_MAX", 1 << 20)
    data = keyed((b"a", bytes(2 << 20)), (b"a", b"1"), (b"b", bytes(3 << 20)), codec=4)
    gathered = cut(data, filtered("key:a")).gathered
    assert (gathered.records, gathered.passed_over, gathered.through) == (1, 2, 3)
    assert shipped(cut(data, spec())) == {"lost": [(None, None)] * 2, "to-a": [(b"a", b"1")]}


@pytest.mark.parametrize("codec", range(5))
def test_runs_are_the_records_of_a_batch(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_runs, "RUN_RECORDS", 7)
    monkeypatch.setattr(record_runs, "PIECE_BYTES", 50)
    data = keyed(*[(b"k%d" % n, bytes(n * 3)) for n in range(40)], codec=codec)
    head = read_header(data)
    runs = list(body_runs(head, data, headers=True))
    assert [one for run in runs for one in run] == bodies(head, unpacked(data), headers=True)
    assert max(map(len, runs)) <= 7
    for damaged in (head._replace(record_count=39), head._replace(record_count=41)):
        with pytest.raises(Malformed):
            list(body_runs(damaged, data, headers=True))


def test_oversized_record_keeps_its_key_and_headers() -> None:
    data = keyed((b"a", bytes(9 << 20)), (b"b", b"1"), codec=4)
    assert shipped(cut(data, spec())) == {
        "lost": [(b"a", None)], "to-b": [(b"b", b"1")],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first_ms", "delta_ms"),
    [((1 << 63) - 1, 1000), (-(1 << 63), -1), (0, 1 << 62), (0, -(1 << 63)), (1 << 62, 0)],
)
def test_times_that_fit_no_batch_are_malformed(first_ms: int, delta_ms: int) -> None:
    """No client's own: the largest time in the header may say otherwise."""
    data = batch(b"", times=(first_ms,), packed=record(0, b"v", b"a", delta_ms))
    cutter = cut(data, spec())
    assert cutter.gathered.whole == ("lost", data)
    assert cutter.gathered.unroutable == 1
    assert parts_of(cutter.gathered, 1) == [(0, 0, [("lost", data)])]
    assert not parts_of(cut(data, filtered("key:a")).gathered, 1)


def test_only_headers_that_a_route_looks_at_are_held() -> None:
    """A small batch may unpack to millions of them: 300 MB, as long as it is passed on."""
    said = [header(f"h{n}", "1") for n in range(50)]
    body = body_of(Content(b"a", b"v"), said)
    data = batch_of_bodies([(body, 5)])
    for text, names in ((spec(), set()), (spec("to-{header:h3}"), {b"h3"}),
                        (filtered("key:a&!header:no"), set())):  # fmt: skip
        wanted = cut(data, text).gathered.spec.headers
        (((_, _, key, found, held),),) = body_runs(read_header(data), data, headers=wanted)
        assert (key, found, set(held)) == (b"a", body, names)


def test_record_that_compaction_would_drop_has_no_target() -> None:
    body = body_of(Content(None, b"1"), [header("h", "x")])
    data = batch_of_bodies([(body, 5)])
    for configs, name in (("cleanup.policy:compact,delete", "lost"), ("retention.ms:5", "to-x")):
        text = spec("to-{header:h}", **{"kproxy.route.configs": configs})
        assert list(shipped(cut(data, text))) == [name]


def test_a_whole_batch_is_of_no_transaction() -> None:
    data = batch(b"x", producer_id=5, epoch=0, sequence=0, attributes=TRANSACTIONAL, packed=b"?")
    assert not read_header(reading(data).whole).is_transactional


def test_a_cut_ends_where_it_is_large_enough_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cutting, "CUT_TARGETS", 3)
    data = keyed(*[(b"%d" % n, b"v") for n in range(8)])
    ends, start, seen = [], 0, []
    while start < 8:
        cutter = cut(data, spec(), start=start)
        ends.append(start := cutter.gathered.through)
        seen += list(shipped(cutter))
    assert ends == [3, 6, 8]
    assert seen == [f"to-{n}" for n in range(8)]
    monkeypatch.setattr(cutting, "CUT_TARGETS", 8000)
    monkeypatch.setattr(cutting, "CUT_BYTES", 1)
    assert cut(data, spec()).gathered.through == 1  # one always has room


def test_cut_takes_a_bounded_amount_of_memory_over_all_shards() -> None:
    """It was 768 KiB for each shard, and 32 passages of each were under way at once."""
    data = keyed(*[(b"%d" % n, bytes(1000)) for n in range(3000)], codec=4)
    for held_max in (100_000, 1_000_000):
        cutter = Cutter(
            Epoch(0, spec()), 64, 0, 1 << 40, 0, limited=True, log_bytes_max=LOG, held_max=held_max
        )
        cutter.take(reading(data))
        assert 0.9 * held_max < cutter.gathered.held < held_max + 2000
        assert cutter.gathered.full


def test_a_part_has_not_too_many_targets_whatever_names_a_peer_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cutting, "PART_TARGETS", 5)
    same = [b"%d" % n for n in range(3000) if hash_of(f"to-{n}") // 3 % 64 == 7]
    data = keyed(*[(key, b"v") for key in same])
    start, most = 0, 0
    while start < len(same):
        cutter = cut(data, spec(), shards=3, start=start)
        start = cutter.gathered.through
        found = parts_of(cutter.gathered, cutter.gathered.parts)
        most = max(most, *(len(batches) for _, _, batches in found))
    assert most == 5
    spread = cut(keyed(*[(b"%d" % n, b"v") for n in range(100)]), spec(), shards=3)
    assert spread.gathered.parts in (16, 32, 64)


names = st.text("abcdefgh", min_size=1, max_size=3).map(str.encode)


@given(
    st.lists(names, min_size=1, max_size=60),
    st.integers(1, 5),
    st.sampled_from((1, 2, 4, 64)),
    st.data(),
)
def test_a_targets_part_follows_from_its_name_alone(
    keys: list[bytes], shards: int, parts: int, data: st.DataObject
) -> None:
    """Records trimmed between two shippings of a cut are missing, and nothing else moves."""
    made = keyed(*[(key, b"%d" % n) for n, key in enumerate(keys)])
    whole = cut(made, spec(), shards=shards, limited=False)
    start = data.draw(st.integers(0, len(keys) - 1))
    rest = cut(made, spec(), shards=shards, start=start, limited=False)
    places = {
        name: (shard, part)
        for shard, part, batches in parts_of(whole.gathered, parts)
        for name, _ in batches
    }
    for shard, part, batches in parts_of(rest.gathered, parts):
        for name, _ in batches:
            assert places[name] == (shard, part)
            assert shard == shard_of(name, shards)
    kept = shipped(rest, parts)
    assert sorted(value for found in kept.values() for _, value in found) == sorted(
        b"%d" % n for n in range(start, len(keys))
    )


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=300)),
        min_size=1, max_size=40,
    )
)  # fmt: skip
def test_records_are_read_as_compaction_reads_them(
    records: list[tuple[bytes | None, bytes | None]],
) -> None:
    data = keyed(*records)
    head, raw = read_header(data), unpacked(data)
    slow = [(one.offset_delta, one.time_ms, one.key) for one in keyed_records(head, raw)]
    fast = bodies(head, raw, headers=True)
    assert [one[:3] for one in fast] == slow
    assert [cutting.content_of_body(one[3]).value for one in fast] == [v for _, v in records]


@given(st.binary(max_size=80), st.integers(1, 5))
def test_any_bytes_are_records_or_malformed(raw: bytes, count: int) -> None:
    data = batch(*[b""] * count, packed=pack(raw, 0))
    one = reading(data, headers=True)
    while one.read_on():
        assert one.run
    assert one.fault or one.told == count
