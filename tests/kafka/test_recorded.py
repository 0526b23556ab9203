"""A comparison with recorded answers fails where an answer, a request or a recording is missing."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Served, served
from tests.kafka.alike import compare, made
from tests.kafka.canonical import unheard
from tests.kafka.recorded import VERSION, Book, Mode, Recorded, Said
from tests.real_kafka import Kafka
from tests.wire import Wire, batch

KEY = "test_it"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data")) as running:
        yield running


def no_kafka() -> Kafka:
    raise AssertionError("a Kafka was asked")


def script(wire: Wire, queue: str, value: bytes = b"v") -> list[Any]:
    if wire.metadata(queue, create=False).topics[0].error_code:
        with unheard():
            made(wire, queue)
    return [wire.produce(queue, batch(value)).error_code, wire.fetch(queue, 999).error_code]


@pytest.fixture
def path(tmp_path: Path, server: Served) -> Path:
    """Return a recording that agrees with kproxy."""
    path = tmp_path / "test_a_module.json"
    asked = Recorded(Book(path), KEY, lambda: server, Mode.RECORD)  # type: ignore[arg-type, return-value]
    compare(asked, server, script)
    return path


def again(path: Path) -> Recorded:
    return Recorded(Book(path), KEY, no_kafka, Mode.RECORDED)


def change(path: Path, changed: Callable[[Any], None]) -> None:
    held = json.loads(path.read_text())
    changed(held)
    path.write_text(json.dumps(held))


def test_answers_as_recorded_are_alike(path: Path, server: Served) -> None:
    compare(again(path), server, script)


def test_another_answer_fails_at_its_step(path: Path, server: Served) -> None:
    change(path, lambda held: held["answers"][KEY]["said"].__setitem__(1, "NONE"))
    with pytest.raises(AssertionError, match="step 1: a real Kafka answers"):
        compare(again(path), server, script)


def test_an_answer_that_is_missing_fails(path: Path, server: Served) -> None:
    change(path, lambda held: held["answers"][KEY]["said"].pop())
    with pytest.raises(ValueError, match="longer"):
        compare(again(path), server, script)


def test_a_changed_request_fails_until_it_is_recorded(path: Path, server: Served) -> None:
    with pytest.raises(pytest.fail.Exception, match="make record"):
        compare(again(path), server, lambda wire, queue: script(wire, queue, b"other"))


def test_a_test_without_a_recording_fails(path: Path, server: Served) -> None:
    change(path, lambda held: held["answers"].clear())
    with pytest.raises(AssertionError, match="make record"):
        compare(again(path), server, script)


def test_a_recording_of_another_kafka_fails(path: Path) -> None:
    change(path, lambda held: held.update(kafka="4.2.0"))
    with pytest.raises(AssertionError, match=f"of Kafka 4.2.0, not {VERSION}"):
        Book(path)


def test_an_answer_that_is_no_longer_kafkas_fails(path: Path, server: Served) -> None:
    change(path, lambda held: held["answers"][KEY]["said"].append("more"))
    live = Recorded(Book(path), KEY, lambda: server, Mode.LIVE)  # type: ignore[arg-type, return-value]
    with pytest.raises(AssertionError, match="recorded is"):
        compare(live, server, script)


def test_how_often_a_request_is_sent_does_not_matter(path: Path, server: Served) -> None:
    def patient(wire: Wire, queue: str) -> list[Any]:
        for _ in range(3):
            wire.metadata(queue, create=False)
        return script(wire, queue)

    compare(again(path), server, patient)


def test_a_file_has_one_answer_a_line(tmp_path: Path) -> None:
    said = [["a step", "of few words"], {"another": "x" * 100, "one": 1}]
    Book(tmp_path / "a.json").record(KEY, Said("1 request", said))
    assert '["a step", "of few words"],\n' in (tmp_path / "a.json").read_text()
