"""Values as the console shows them: bytes of anybody, as text, JSON or digits."""

import json

import pytest

pytest.importorskip("jinja2")

from kproxy.console.shown import decoded, environment, preview

EVIL = "<script>alert(1)</script>\"'&\x1b[2J\u202e\x00\x9b{{ 7*7 }}"


def show(source: str, **values: object) -> str:
    return environment().from_string(source).render(values)


def test_markup_and_invisible_characters_are_text() -> None:
    shown = show('<a title="{{ evil }}">{{ evil }}</a><pre>{{ (evil ~ "\n2") | lines }}</pre>',
                 evil=EVIL)  # fmt: skip
    assert "<script" not in shown
    assert not set(shown) & set("\x1b\u202e\x00\x9b")
    assert r"\x1b[2J\u202e\x00\x9b" in shown
    assert shown.count('"') == 2
    assert "\n2</pre>" in shown


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b"plain", "text", "plain"),
        (b"", "text", ""),
        ("ä".encode(), "text", "ä"),
        (b'{"a":[1,2.50,{}],"a":1e400}', "json",
         '{\n  "a": [\n    1,\n    2.50,\n    {}\n  ],\n  "a": 1e400\n}'),
        (b'["x: [y", "\\"]"]', "json", '[\n  "x: [y",\n  "\\"]"\n]'),
        (b"{no json", "text", "{no json"),
        (b"\xff\x00A", "hex", "000000  ff 00 41" + " " * 40 + " ..A"),
    ],
)  # fmt: skip
def test_bytes_are_shown_as_what_they_are(data: bytes, form: str, text: str) -> None:
    found = decoded(data)
    assert (found.form, found.text) == (form, text)
    if form == "json":
        assert json.loads(found.text) == json.loads(data)


def test_forms_that_are_asked_for() -> None:
    assert decoded(b"12", "json") == ("12", "json", 0)
    assert decoded(b"AB", "hex").text.startswith("000000  41 42")
    assert decoded(b"\xff", "text").text == "\\xff"
    assert decoded(None).form == preview(None, "auto", 10).form == "null"


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 20_000, b"[1," * 30_000 + b"1"])
def test_json_that_is_nested_very_deep_is_no_more_than_text(data: bytes) -> None:
    found = decoded(data)
    assert found.form == "text"
    assert len(found.text) <= 64 << 10
    assert found.left_out == len(data) - len(found.text)


def test_large_json_stays_bounded() -> None:
    data = b"[" * 300 + b"[" + b"1," * 20_000 + b"1]" + b"]" * 300
    found = decoded(data)
    assert found.form == "json"
    assert len(found.text) < 2 << 20


def test_a_preview_ends_at_a_character() -> None:
    found = preview("aä€😀".encode() * 10, "auto", 9)
    assert found.text == "aä€"
    assert found.left_out == 91
    assert preview(b"\xff" * 256, "auto", 9) == ("ff ff ff", "hex", 253)
