"""The formats of records and places in queues, as `kproxy produce` and `consume` read them."""

import io

import click
import pytest

from kproxy.tools import administration
from kproxy.tools.client_settings import ClientSettings
from kproxy.tools.records import input as record_input
from kproxy.tools.records import offsets, text, times
from kproxy.tools.records.text import Record


def read(form: str, data: bytes) -> list[Record]:
    cut, parse = record_input.reader(form)
    return [parse(piece) for piece in cut(io.BufferedReader(io.BytesIO(data)))]  # type: ignore[arg-type]


def test_a_format_is_read_as_it_was_written() -> None:
    record = Record(b"k", b"a:b", [("h", b"1"), ("i", b"")], 12, 3)
    written = text.formatted(text.parsed(r"%p %d %h\t%k:%v%%\x2e\n"), escape=False)(record)
    assert written == b"3 12 h=1,i=\tk:a:b%.\n"
    assert read(r"%p %d %h\t%k:%v%%\x2e\n", written) == [record]


def test_lines_are_cut_wherever_the_input_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 2, 3, 100):
        monkeypatch.setattr(record_input, "_CHUNK", size)
        assert [r.value for r in read("%v--", b"a--b-c----d")] == [b"a", b"b-c", b"", b"d"]


def test_json_lines_keep_every_byte() -> None:
    record = Record(b"\xff", None, [("h", None), ("h", b"\x80")], 5, 1, 9, "q")
    (again,) = read("json", text.as_json(record))
    assert again == record._replace(offset=-1, queue="")
    (short,) = read("json", b'{"value": "v", "headers": {"a": "b"}}\n')
    assert (short.key, short.value, short.headers) == (None, b"v", [("a", b"b")])


def test_control_characters_are_escaped() -> None:
    evil = Record(None, b"\x1b[2J\xff\n", queue="q")
    made = text.formatted(text.parsed("%t %v\\n"), escape=True)(evil)
    assert made == b"q \\x1b[2J\\xff\\n\n"


@pytest.mark.parametrize(
    ("form", "says"),
    [("%q", "no %q"), ("\\q", "no \\q"), ("%v\\", "no \\"), ("x", "names no field"),
     ("%k%v", "put a text between"), ("%v %v", "twice"), ("%o", "`kproxy consume` alone")],
)  # fmt: skip
def test_wrong_formats_are_told(form: str, says: str) -> None:
    with pytest.raises(click.BadParameter) as told:
        record_input.reader(form)
    assert says in told.value.message


@pytest.mark.parametrize(
    ("form", "line"),
    [("%k:%v", b"x"), ("%d %v", b"now v"), ("%h %v", b"h v"), ("json", b"{"), ("json", b"[]"),
     ("json", b'{"value": 1}'), ("json", b'{"headers": [1]}'), ("json", b'{"key_base64": "!"}')],
)  # fmt: skip
def test_wrong_lines_are_told(form: str, line: bytes) -> None:
    with pytest.raises(record_input.BadRecord):
        read(form, line)


def test_places() -> None:
    place = offsets.Place
    assert offsets.parsed("start") == (place("start"), None)
    assert offsets.parsed("-3") == (place("last", 3), None)
    assert offsets.parsed("5:end") == (place("offset", 5), place("end"))
    assert offsets.parsed(":7") == (place("start"), place("offset", 7))
    assert offsets.parsed("@1970-01-01T00:00:01Z:@2000") == (
        place("time", 1000), place("time", 2000),
    )  # fmt: skip
    for wrong in ("x", "5:x", "@", "1.5", "--1"):
        with pytest.raises(click.BadParameter):
            offsets.parsed(wrong)


def test_durations() -> None:
    assert [times.duration(None, None, one) for one in ("500ms", "8s", "2h")] == [
        500,
        8000,
        7200000,
    ]
    with pytest.raises(click.BadParameter, match="8s"):
        times.duration(None, None, "8")


def test_the_client_library_logs_in_as_the_commands_do() -> None:
    assert ClientSettings().librdkafka() == {"security.protocol": "PLAINTEXT"}
    both = ClientSettings(tls=True, ca="ca", certificate="c", mechanism="PLAIN", user="u",
                          password="p").librdkafka()  # fmt: skip
    assert both["security.protocol"] == "SASL_SSL"
    assert (both["ssl.ca.location"], both["ssl.key.location"]) == ("ca", "c")
    assert (both["sasl.mechanisms"], both["sasl.username"], both["sasl.password"]) == (
        "PLAIN", "u", "p",
    )  # fmt: skip


def test_queues_beyond_a_quota_are_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes two in a request; it says how long to wait with the others."""
    waits: list[float] = []
    monkeypatch.setattr(administration.time, "sleep", waits.append)
    asked: list[list[str]] = []

    class Throttling:
        def call(self, key: int, version: int, values: dict[str, list[dict[str, str]]]) -> object:
            names = [topic["name"] for topic in values["topics"]]
            asked.append(names)
            return Answer(names)

    class Answer:
        throttle_time = 700

        def __init__(self, names: list[str]) -> None:
            self.topics = [Topic(name, 0 if i < 2 else 89) for i, name in enumerate(names)]

    class Topic:
        error_message = None

        def __init__(self, name: str, error_code: int) -> None:
            self.name, self.error_code = name, error_code

    made = list(administration.create(Throttling(), list("abcde"), 1, {}, dry=False))  # type: ignore[arg-type]
    assert [(one.name, one.code) for one in made] == [(name, 0) for name in "abcde"]
    assert (asked, waits) == ([list("abcde"), list("cde"), ["e"]], [0.7, 0.7])
