"""Templates and filters: what is read, what is refused with a line that says what it must be."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproxy.metadata.routing import (
    CONFIGS_MAX,
    TEXT_MAX,
    read_configs,
    read_filter,
    read_template,
)
from kproxy.virtual.partitioner import name_fault

LEGAL = "abcXYZ019._-"


@pytest.mark.parametrize(
    ("template", "key", "headers", "name"),
    [
        ("device-{key}", b"7", {}, "device-7"),
        ("device-{key}.in", b"7", {}, "device-7.in"),
        ("t.{header:tenant}.{header:kind}", None, {b"tenant": b"a", b"kind": b"b"}, "t.a.b"),
        ("t{key}{key}", b"7", {}, "t77"),
        ("t-{header:a=b}", None, {b"a=b": b"1"}, "t-1"),
        ("t-{header:a%7Db%25}", None, {b"a}b%": b"1"}, "t-1"),
        ("t-{header:größe}", None, {"größe".encode(): b"1"}, "t-1"),
        ("t-{header:%FF}", None, {b"\xff": b"1"}, "t-1"),
        ("t-{header:key}", b"no", {b"key": b"1"}, "t-1"),
        (".{key}", b"a", {}, ".a"),
        ("_{key}", b"a_", {}, "_a_"),
        ("-{key}", b"-", {}, "--"),
        ("d{key}", b"k" * 248, {}, "d" + "k" * 248),
    ],
)
def test_a_name_is_made(
    template: str, key: bytes | None, headers: dict[bytes, bytes | None], name: str
) -> None:
    assert read_template(template).fill(key, headers) == (name, None)


@pytest.mark.parametrize(
    ("template", "key", "headers", "why"),
    [
        ("d-{key}", None, {}, "no key"),
        ("d-{key}", b"", {}, "the key is empty"),
        ("d-{key}", b"a b", {}, "the key is not a part of a queue name"),
        ("d-{key}", b"\xff", {}, "the key is not a part of a queue name"),
        ("d-{key}", "ä".encode(), {}, "the key is not a part of a queue name"),
        ("d-{key}", b"a\n", {}, "the key is not a part of a queue name"),
        ("d-{key}", b"k" * 248, {}, "the queue name is longer than 249 characters"),
        ("d-{key}", b"\n" * 1_000_000, {}, "the queue name is longer than 249 characters"),
        ("d-{key}{key}", b"k" * 249, {}, "the queue name is longer than 249 characters"),
        ("d-{header:h}", b"k", {}, "no header h"),
        ("d-{header:h}", b"k", {b"h": None}, "no header h"),
        ("d-{header:h}", b"k", {b"h": b""}, "the header h is empty"),
        ("d-{header:h}.{key}", b"k", {b"h": b"/"}, "the header h is not a part of a queue name"),
        ("d-{key}.{header:h}", b"k", {b"h": b"/"}, "the header h is not a part of a queue name"),
        ("d-{header:%1B[31m%FF}", b"k", {}, r"no header \x1b[31m\xff"),
        ("_{key}", b"_consumer_offsets", {}, "__consumer_offsets is not a queue"),
        ("_{key}", b"_", {}, "__ is not a queue"),
        (".{key}", b".", {}, ".. is not a queue"),
    ],
)
def test_a_record_has_no_target(
    template: str, key: bytes | None, headers: dict[bytes, bytes | None], why: str
) -> None:
    name, said = read_template(template).fill(key, headers)
    assert name == ""
    assert (said or "").startswith(why)
    in_a_line(said or "")


KEYS = [
    "ann@example.com", "device:42", "eu/berlin/7", "+491701234567", "a b", "größe", "_", "__x",
    "%41", b"\0\0\0\0\0\0\0*", UUID(int=1 << 100).bytes, b"\xff", "device-42", "v1.2", "..",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", ["%", "hex", "hash"])
def test_any_key_names_a_queue_of_its_own(key: str | bytes, kind: str) -> None:
    """11 of 14 ordinary keys named none."""
    value = key if isinstance(key, bytes) else key.encode()
    template = read_template(f"d-{{key:{kind}}}.in")
    name, why = template.fill(value, {})
    assert why is None
    assert name_fault(name) is None
    others = [one if isinstance(one, bytes) else one.encode() for one in KEYS if one != key]
    assert name not in {template.fill(one, {})[0] for one in others}


@pytest.mark.parametrize(
    ("template", "key", "name"),
    [
        ("d-{key:%}", b"ann@example.com", "d-ann_40example.com"),
        ("d-{key:%}", b"a_b", "d-a_5Fb"),
        ("d-{key:hex}", b"\0*", "d-002a"),
        ("d-{key:hash}", b"k" * 100_000, "d-5a150fe4028ef8c49e638fb525ec9325"),
        ("_{key:%}", b"@", None),
        ("d-{key:%}", b"/" * 83, None),
        ("d-{key:hex}", b"k" * 125, None),
        ("t-{header:a:b:%}", b"k", "t-x_2Fy"),
        ("t-{header:a:b:%hex}", b"k", "t-782f79"),
        ("t-{header:a%3Ab:%hash}.{key}", b"k", "t-63a33e8c9f5763ede46578903d394d94.k"),
        ("t-{header:a:b:%}.{key:%}", b"1.2", "t-x_2Fy.1.2"),
        ("t-{key:%}.{header:a:b:%}", b"1.2", "t-1_2E2.x_2Fy"),
        ("t-{key:%}xy{header:a:b:%}", b"xy", "t-_78yxyx_2Fy"),
        ("t-{key:%}.{header:a:b}", b"k", None),
        ("t-{header:a:hex}", b"k", "t-1"),
    ],
)
def test_an_encoded_name_is_made(template: str, key: bytes, name: str | None) -> None:
    found, why = read_template(template).fill(key, {b"a:b": b"x/y", b"a:hex": b"1"})
    assert found == (name or "")
    assert bool(why) is (name is None)


def test_unclear_end_of_an_encoded_field_is_refused() -> None:
    for text in ("d-{key:%}{header:a:%}", "d-{key:hex}_{key}", "d-{key:%}F{key}", "d-{key:bin}",
                 "d-{header:a:%x}"):  # fmt: skip
        with pytest.raises(ValueError):
            read_template(text)


_FIELD = st.text("._-x%ab/", min_size=1, max_size=3).map(str.encode)
_FIELDS = st.tuples(_FIELD, _FIELD)


@given(st.sets(_FIELDS, min_size=2, max_size=20), st.sampled_from([".", "-", "x", ".in-"]))
@settings(deadline=None, max_examples=200)
def test_encoded_fields_are_told_apart(values: set[tuple[bytes, bytes]], between: str) -> None:
    for kind in ("%", "hex"):
        template = read_template(f"t-{{key:{kind}}}{between}{{header:h:%}}")
        filled = [template.fill(key, {b"h": header}) for key, header in values]
        names = [name for name, why in filled if why is None]
        assert len(set(names)) == len(names)


def test_fields_that_a_template_reads() -> None:
    assert not read_template("a{key}").headers
    assert read_template("a{key}{header:h}{header:g}").headers == {b"g", b"h"}
    assert read_template("a{key}").prefix == "a"


@pytest.mark.parametrize(
    "text",
    [
        "", "device", "{key}", "{header:h}-x", "d-{", "d-{}", "d-}{key}", "d-{key", "d-{{key}}",
        "d-{value}", "d-{Key}", "d-{key }", "d-{header}", "d-{header:}", "d-{header:%}",
        "d-{header:%G0}", "d-{header:a b}", "d-{header:a%2}", "__{key}",
        "__consumer_offsets{key}", "a b{key}",
        "d-{key}/x", "d-{key} ", "d\x00{key}", "d-{header:\x1b[2J}", "d-{header:\u202e}",
        "ä-{key}", "d/{key}", "d-{key}=", "a" * 249 + "{key}", "a" * 248 + "{key}b",
        "a" * 250 + "{key}", "d-" + "{key}" * 17, "d-{key}" * 143, "d" * TEXT_MAX + "{key}",
        "{" * TEXT_MAX, "a" + "{" * 500 + "}" * 499, "(" * 500 + "{key}", "(a+)+${key}",
        "a" * 100_000, "{key}" * 100_000,
    ],
)  # fmt: skip
def test_malformed_template_is_refused(text: str) -> None:
    refused(read_template, text)


@pytest.mark.parametrize(
    "text",
    [
        "tag", "tag:red", "header", "header:", "header::red", "header:tag:", "header:tag:|red",
        "header:tag:red|", "header:tag:red&", "&", "&header:tag", "header:tag&&header:b",
        "!header:tag:red", "!key:a", "key", "key:", "key:|", "!", "!!header:a", "Header:tag",
        "header:%", "header:tag:%zz", "key:%4", "header:tag:\x00", "header:\x1b[2J",
        "header:tag:\u202e", "header:tag:a\nb", "header:tag | header:b", "header:tag: red",
        "key:eu -", "tag='red' OR 1",
        "header:a&" * 16 + "header:a", "header:tag:" + "(a+)+$|" * 200, "a" * 1_000_000,
        "&" * 500, "|" * 500, "%" * 500, "header:tag:" + "%25" * 400, "key:" + "%" * 300,
    ],
)  # fmt: skip
def test_malformed_filter_is_refused(text: str) -> None:
    refused(read_filter, text)


@pytest.mark.parametrize(
    "text",
    [
        "retention.ms", ":1", ";", "a:1;", ";a:1", "a:1;;b:2", "a:1;a:2", "a:1\x00",
        "a:1\nb:2", "\x1b[2J:1", "retention.ms:1;" + "b" * CONFIGS_MAX, ";" * 1000,
    ],
)  # fmt: skip
def test_malformed_list_of_settings_is_refused(text: str) -> None:
    refused(read_configs, text)


def refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"must|there is") as error:
        read(text)
    in_a_line(str(error.value))


def in_a_line(said: str) -> None:
    assert said.isprintable()
    assert len(said) < 400


@pytest.mark.parametrize(
    ("text", "key", "headers", "matches"),
    [
        ("", None, {}, True),
        ("header:tag:red|blue", None, {b"tag": b"blue"}, True),
        ("header:tag:red|blue", None, {b"tag": b"red|blue"}, False),
        ("header:tag:red", None, {b"tag": None}, False),
        ("header:tag:red", None, {}, False),
        ("header:tag", None, {b"tag": None}, True),
        ("header:tag", None, {}, False),
        ("!header:tag", None, {}, True),
        ("!header:tag", None, {b"tag": None}, False),
        ("key:eu-|us-", b"us-1", {}, True),
        ("key:eu-", b"us-1", {}, False),
        ("key:eu-", None, {}, False),
        ("header:a:1 & key:x", b"xy", {b"a": b"1"}, True),
        ("header:a:1 & key:x", b"xy", {b"a": b"2"}, False),
        ("header:tag:a%7Cb|%25", None, {b"tag": b"a|b"}, True),
        ("header:tag:a%7cb|%25", None, {b"tag": b"%"}, True),
        ("header:a%3Ab", None, {b"a:b": b""}, True),
        ("header:t:a%26b", None, {b"t": b"a&b"}, True),
        ("header:tag:a:b", None, {b"tag": b"a:b"}, True),
        ("header:tag:%00%FF", None, {b"tag": b"\x00\xff"}, True),
        ("header:tag:grün", None, {b"tag": "grün".encode()}, True),
        ("key:%EF", b"\xef\xbb\xbfx", {}, True),
    ],
)
def test_filters(
    text: str, key: bytes | None, headers: dict[bytes, bytes | None], matches: bool
) -> None:
    assert read_filter(text).matches(key, headers) is matches


def test_fields_that_a_filter_reads() -> None:
    assert not read_filter("").headers
    assert not read_filter("key:a").headers
    assert read_filter("key:a&!header:b").headers == {b"b"}


def test_settings_of_made_queues() -> None:
    found = read_configs("retention.ms:1; cleanup.policy:compact,delete;a:b:c;d:")
    assert found == {"retention.ms": "1", "cleanup.policy": "compact,delete", "a": "b:c", "d": ""}
    assert read_configs("") == {}


# -- properties

words = st.sampled_from([*LEGAL, "{key}", "{", "}", "{header:", "%", ":", " ", "\n", "ä"])
texts = st.lists(words, max_size=12).map("".join)
values = st.none() | st.binary(max_size=8) | st.text(LEGAL, max_size=260).map(str.encode)
headers_of = st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), values)
fields = st.sampled_from(["{key}", "{header:a}", "{header:b}"])
templates = st.builds(
    lambda prefix, rest: prefix + "".join(field + behind for field, behind in rest),
    st.sampled_from(["_", ".", "..", "-", "dev-", "a" * 240]),
    st.lists(st.tuples(fields, st.text(LEGAL, max_size=4)), min_size=1, max_size=4),
)


@given(templates, values, headers_of)
@example("_{key}", b"_", {})
@example(".{key}", b".", {})
@settings(deadline=None, max_examples=200)
def test_a_name_is_legal_and_begins_with_the_prefix(
    text: str, key: bytes | None, headers: dict[bytes, bytes | None]
) -> None:
    try:
        template = read_template(text)
    except ValueError:
        assert len(text) > 240  # too long with the texts between
        return
    name, why = template.fill(key, headers)
    wanted = plain(text, key, headers)
    if why is None:
        assert name == wanted
        assert name_fault(name) is None
        assert name.startswith(template.prefix)
        assert not name.startswith("__")
    else:
        assert name == ""
        assert wanted is None or name_fault(wanted) or wanted.startswith("__")


def plain(text: str, key: bytes | None, headers: dict[bytes, bytes | None]) -> str | None:
    """Return the name as plain replacement of texts has it.

    None where it has no value, or an empty one.
    """
    for field, value in (
        ("{key}", key), ("{header:a}", headers.get(b"a")), ("{header:b}", headers.get(b"b"))
    ):  # fmt: skip
        if field in text:
            if not value:
                return None
            text = text.replace(field, value.decode("latin-1"))
    return text


@given(texts)
@settings(deadline=None, max_examples=200)
def test_every_parsed_template_can_name_a_queue(text: str) -> None:
    try:
        template = read_template(text)
    except ValueError:
        return
    assert len(text) <= TEXT_MAX
    heads = {name: b"v" for name, _ in template.fields if name is not None}
    name, why = template.fill(b"v", heads)
    assert why is None
    assert name_fault(name) is None


@given(st.text(max_size=60) | texts)
@settings(deadline=None, max_examples=200)
def test_anything_is_read_or_refused_in_a_line(text: str) -> None:
    for read in (read_template, read_filter, read_configs):
        try:
            read(text)
        except ValueError as error:
            in_a_line(str(error))


def quoted(value: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in value)


marked = st.binary(min_size=1, max_size=3)


@given(
    st.lists(marked, min_size=1, max_size=4), st.none() | st.binary(max_size=4), headers_of, marked
)
@settings(deadline=None, max_examples=300)
def test_any_bytes_can_be_said(
    said: list[bytes], key: bytes | None, headers: dict[bytes, bytes | None], name: bytes
) -> None:
    some = "|".join(map(quoted, said))
    headers = {**headers, name: key}
    chosen = read_filter(f"header:{quoted(name)}:{some}")
    assert chosen.matches(None, headers) is (key in said)
    begins = key is not None and any(key.startswith(one) for one in said)
    assert read_filter(f"key:{some}").matches(key, {}) is begins
    both = read_filter(f"header:{quoted(name)}:{some} & key:{some}")
    assert both.matches(key, headers) is (key in said and begins)
    assert read_filter(f"!header:{quoted(name)}").matches(key, headers) is False
