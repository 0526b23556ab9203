"""A search for names as the tagged field of a request's header."""

import time
from itertools import product

import pytest
import re2  # type: ignore[import-untyped]

from kproxy.common.errors import Code, KafkaError
from kproxy.protocol.codec import decode_body, decode_header, encode_request
from kproxy.protocol.name_search import ALL, TAG, NameSearch, read_search
from kproxy.protocol.varint import uvarint

LISTED = {"states_filter": (), "types_filter": ()}
SEARCH = NameSearch("meter-", "5", "meter-.*5", "meter-2", 50)


def framed(search: bytes = b"") -> bytes:
    return encode_request(16, 5, 1, LISTED, search)[4:]


def matched(search: NameSearch, *names: str) -> list[str]:
    matches = search.matcher()
    return [name for name in names if matches(name.encode())]


def test_a_search_is_read_as_it_was_said() -> None:
    header = decode_header(framed(SEARCH.encode()))
    assert read_search(header.search) == SEARCH
    assert decode_body(framed(SEARCH.encode()), header).states_filter == ()
    assert read_search(ALL.encode()) == ALL


def test_a_request_without_it_says_none() -> None:
    assert decode_header(framed()).search == b""


def test_the_field_is_found_among_others() -> None:
    other = uvarint(TAG - 1) + b"\3abc"
    said = uvarint(TAG) + uvarint(2) + b"{}"
    plain = framed()
    at = decode_header(plain).body_at - 1
    frame = plain[:at] + b"\2" + other + said + plain[at + 1 :]
    assert decode_header(frame).search == b"{}"
    assert decode_body(frame, decode_header(frame)).types_filter == ()


def test_names_are_matched_by_all_that_is_said() -> None:
    names = "a-1", "a-15", "a-25", "a-5", "b-5", "ü-5"
    assert matched(ALL, *names) == list(names)
    assert matched(NameSearch("a-"), *names) == ["a-1", "a-15", "a-25", "a-5"]
    assert matched(NameSearch("a-", "5"), *names) == ["a-15", "a-25", "a-5"]
    assert matched(NameSearch("a-", "5", first="a-2"), *names) == ["a-25", "a-5"]
    assert matched(NameSearch(matching="a|.-5"), *names) == ["a-5", "b-5", "ü-5"]


@pytest.mark.parametrize("said", [
    b"", b"[]", b"{", b'"a"', b'{"prefix":1}', b'{"limit":"1"}', b'{"limit":true}',
    b'{"limit":-1}', b'{"limit":1.5}', b'{"prefix":null}', b'{"prefix":"' + b"a" * 9000 + b'"}',
])  # fmt: skip
def test_bytes_that_are_no_search_are_refused(said: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        read_search(said)
    assert refused.value.code == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    "expression", ["(", "a" * 1001, r"[\p{L}]{1000}[\p{L}]{1000}", r"(?=a)", r"(a)\1", "\ud800"]
)
def test_an_expression_that_is_none_or_takes_much_memory_is_refused(expression: str) -> None:
    began = time.thread_time()
    with pytest.raises(KafkaError) as refused:
        NameSearch(matching=expression).matcher()
    assert refused.value.code == Code.INVALID_REGULAR_EXPRESSION
    assert time.thread_time() - began < 0.1


EXPRESSIONS = (
    "a.*", ".*", ".*b", "(a|c)b?", "a|bc", "(?i)aB", "[^a]+", "x*", "b{2}a+", "(?:a|b)*c", "ü.*",
    r"\Aa.*", "a.*|b", "[a-b].",
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_name_that_an_expression_matches_is_outside_of_where_it_looks(expression: str) -> None:
    search = NameSearch(matching=expression)
    every = ["".join(some) for size in range(4) for some in product("AabcXxü", repeat=size)]
    found = matched(search, *every)
    assert found == [name for name in every if re2.fullmatch(expression, name)]
    for name in found:
        assert search.begin <= name
        assert not search.ends_before(name.encode())


def test_an_expression_with_a_beginning_looks_at_no_other_names() -> None:
    search = NameSearch(matching="meter-7.*")
    assert search.begin == "meter-7"
    assert search.ends_before(b"meter-8")
    assert not search.ends_before(b"meter-79")
