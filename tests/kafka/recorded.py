"""A real Kafka's answers: recorded in `golden`, made anew by --record, compared anew by --live.

A test runs its script against kproxy and gets Kafka's answers beside its own. They come from the
recording, which has a digest of the requests too: a script that asks otherwise fails until it is
recorded. A test that is marked long and has no recording asks a Kafka each time.
"""

import json
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness import KAFKA_LIBS, Served
from tests.kafka.canonical import canonical, listening
from tests.real_kafka import Kafka

VERSION = "4.3.1"
NEWEST = "4.4.0"
"""The release that modules with KAFKA = NEWEST compare with: of its own requests."""
GOLDEN = Path(__file__).parent / "golden"
Target = Kafka | Served
_WIDTH = 120


class Mode(Enum):
    """A source of Kafka's answers."""

    RECORDED = "the recording"
    RECORD = "a Kafka, whose answers are recorded"
    LIVE = "a Kafka, whose answers are those recorded"


class Said(NamedTuple):
    """The digest of a script's requests, and what it said of the answers."""

    asked: str
    said: Any


class Book:
    """The recordings of a module."""

    def __init__(self, path: Path, version: str = VERSION) -> None:
        self.path, self.version = path, version
        self._answers: dict[str, dict[str, Any]] = {}
        if path.exists():
            held = json.loads(path.read_text())
            assert held["kafka"] == version, f"{path} is of Kafka {held['kafka']}, not {version}"
            self._answers = held["answers"]

    def find(self, key: str) -> Said | None:
        found = self._answers.get(key)
        return None if found is None else Said(**found)

    def record(self, key: str, said: Said) -> None:
        self._answers[key] = said._asdict()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        listed = {"kafka": self.version, "answers": dict(sorted(self._answers.items()))}
        self.path.write_text(_lines(listed) + "\n")


def _lines(value: Any) -> str:
    """Return JSON with one value a line, but for what is short."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _WIDTH or not isinstance(value, dict | list):
        return text
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_lines(v)}" for key, v in value.items()]
    else:
        parts = [_lines(one) for one in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(parts) + f"\n{last}"


@cache
def book(path: Path, version: str) -> Book:
    return Book(path, version)


_live: dict[tuple[Path, str], Said] = {}
"""A Kafka is asked once in a run, for all kinds of servers."""


class Recorded:
    """Kafka's side of a test."""

    def __init__(
        self, held: Book, key: str, kafka: Callable[[], Kafka], mode: Mode, *, is_long: bool = False
    ) -> None:
        self._book, self._key, self._kafka = held, key, kafka
        self._mode, self._is_long = mode, is_long

    @property
    def name(self) -> str:
        """A name of the test's own, the same in each run, for queues and groups."""
        module = self._book.path.stem.removeprefix("test_").removesuffix("_like_kafka")
        name = f"{module}-{self._key.removeprefix('test_')}"
        return "".join(c if c.isalnum() else "-" for c in name).strip("-")

    def theirs(self, ask: Callable[[], Any], asked: str | None = None) -> Said:
        """Return what a script said of Kafka. `asked` stands for requests that no wire sends."""
        found = self._book.find(self._key)
        if self._mode == Mode.RECORDED and not (found is None and self._is_long):
            assert found is not None, f"{self._key} of {self._book.path} is not there: make record"
            return found
        at = self._book.path, self._key
        if at not in _live:
            _live[at] = heard(ask, asked)
        if self._is_long and found is None:
            return _live[at]
        if self._mode == Mode.RECORD:
            self._book.record(self._key, _live[at])
        assert found is None or self._mode == Mode.RECORD or _live[at] == found, (
            f"a real Kafka answers {_live[at]}, recorded is {found}"
        )
        return _live[at]

    def both(
        self, ask: Callable[[Any], Any], server: Served, asked: str | None = None
    ) -> tuple[Any, Any]:
        """Run a script against kproxy; return what it said of Kafka, and of kproxy."""
        theirs = self.theirs(lambda: ask(self._kafka()), asked)
        ours = heard(lambda: ask(server), asked)
        if ours.asked != theirs.asked:
            pairs = zip(theirs.said, ours.said, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), "none")
            pytest.fail(f"Kafka was asked something else: make record. First that differs: {first}")
        return theirs.said, ours.said


def heard(ask: Callable[[], Any], asked: str | None = None) -> Said:
    with listening() as requests:
        said = canonical(ask())
    return Said(asked or requests.digest(), json.loads(json.dumps(said)))


def mode_of(config: pytest.Config) -> Mode:
    if config.getoption("--record"):
        (jar,) = KAFKA_LIBS.glob("kafka-clients-*.jar")
        assert jar.stem.removeprefix("kafka-clients-") == VERSION, f"{jar} is not of {VERSION}"
        return Mode.RECORD
    return Mode.LIVE if config.getoption("--live") else Mode.RECORDED
