"""The formats of records and places in queues, as `kproxy produce` and `consume` read them."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kproxy.tools import administration
from kproxy.tools.client_settings import ClientSettings
from kproxy.tools.output import Refusals
from kproxy.tools.records import consume, offsets, text, times
from kproxy.tools.records import input as record_input
from kproxy.tools.records.consume import _Reading
from kproxy.tools.records.produce import _bar, _Sender
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


@pytest.mark.parametrize(
    ("form", "line"),
    [("json", b"[" * 100_000), ("json", b'{"headers": 5}'),
     ("json", b'{"timestamp": 1%s}' % (b"0" * 20)), ("json", b'{"partition": 4294967296}'),
     ("json", b'{"headers": {"\\ud800": "x"}}'),
     ("%d:%v", b"9" * 5000 + b":v"), ("%p:%v", b"9" * 12 + b":v")],
)  # fmt: skip
def test_a_line_that_no_batch_has_room_for_is_told(form: str, line: bytes) -> None:
    """FAULT: `kproxy produce` ended with a traceback, or died, and so did what was in line."""
    with pytest.raises(record_input.BadRecord):
        read(form, line)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_pipe_is_read_as_a_file_is(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as sent:
        sent.write(b"a\nb\n")
    with os.fdopen(reading, "rb") as stream, _bar((Path(f"/dev/fd/{reading}"),)) as advance:
        cut, _ = record_input.reader("%v")
        for _piece in cut(stream):
            advance(stream)


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


class _Message:
    def __init__(self, index: int, offset: int) -> None:
        self.part, self.at = index, offset

    def topic(self) -> str:
        return "q"

    def partition(self) -> int:
        return self.part

    def offset(self) -> int:
        return self.at

    def error(self) -> None:
        return None


class _Group:
    """A consumer of the client library, whose group does what a test says."""

    def __init__(self, config: object) -> None:
        self.stored: list[tuple[int, int]] = []
        self.ours: set[int] = set()
        self.calls: list[Callable[[], list[_Message]]] = []

    def subscribe(self, names: list[str], **told: Callable[[object, list[object]], None]) -> None:
        self.told = told

    def give(self, *indexes: int) -> list[_Message]:
        self.ours = set(indexes)
        self.told["on_assign"](self, [TopicPartition("q", index) for index in indexes])
        return []

    def take(self, *indexes: int) -> list[_Message]:
        self.ours -= set(indexes)
        self.told.get("on_revoke", lambda *_: None)(
            self, [TopicPartition("q", index) for index in indexes]
        )
        return []

    def poll(self, seconds: float) -> _Message | None:
        return next(iter(self.calls.pop(0)()), None)

    def consume(self, count: int, seconds: float) -> list[_Message]:
        return self.calls.pop(0)()

    def store_offsets(self, message: _Message) -> None:
        if message.part not in self.ours:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.stored.append((message.part, message.at))


def _member(monkeypatch: pytest.MonkeyPatch) -> tuple[_Reading, _Group]:
    """Return a member of a group that reads on at the end."""
    monkeypatch.setattr(confluent_kafka, "Consumer", _Group)
    monkeypatch.setattr(consume, "librdkafka", lambda address, settings: settings)
    found = {("q", 0): offsets.Span(0, 9, None)}
    reading = _Reading(("localhost", 1), found, "g", None, True, False)
    assert isinstance(reading._consumer, _Group)
    return reading, reading._consumer


def test_follower_waits_where_another_member_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT: it ended, with status 0, once another one joined its group."""
    reading, group = _member(monkeypatch)
    group.calls = [lambda: group.give(0), lambda: group.take(0), group.give,
                   lambda: group.give(0), lambda: [_Message(0, 1)], list]  # fmt: skip
    batches = reading.batches()
    printed = [message.at for _ in range(5) for message in next(batches)]
    assert printed == [1]


def test_partitions_taken_by_the_group_are_left_to_their_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: it was printed here and there, and committing it ended in a traceback."""
    reading, group = _member(monkeypatch)
    group.calls = [lambda: group.give(0), lambda: [_Message(0, 1)], lambda: group.take(0)]
    batches = reading.batches()
    next(batches)
    some = next(batches)
    reading.note(some)
    assert (some, group.stored) == ([], [])


def test_records_to_be_sent_again_are_reported_at_an_interrupt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """FAULT: it was neither sent nor told of, and the status was 0."""

    class Idle:
        def flush(self, seconds: float) -> int:
            return 0

        def purge(self, *, blocking: bool) -> None:
            pass

        def __len__(self) -> int:
            return 0

    sender = _Sender.__new__(_Sender)
    sender._producer, sender.refusals = Idle(), Refusals()
    sender._again = [(Record(None, b"v"), "line 1")]
    sender.give_up()
    assert sender.refusals.count == 1
    assert "1 records were not acknowledged" in capsys.readouterr().err
