"""Histories as files, and large ones."""

import random
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.forked import ROOT
from tests.histories.checker import assert_sound, check
from tests.histories.cycles import components, shortest
from tests.histories.operations import Operation, Recorder, Sends, load


def write(directory: Path, value: str) -> None:
    recorder = Recorder(directory / "a.jsonl", "a")
    recorder.rules(whole=True, unordered=["r"])
    begun = recorder.invoke("txn", [["send", "q", 0, None, "x"]])
    begun.ok([["send", "q", 0, 0, "x"]], asked=time.monotonic_ns())
    recorder.invoke("poll")  # and dies
    recorder.close()
    recorder = Recorder(directory / "b.jsonl", "b")
    recorder.invoke("poll", "read_committed").ok([["q", 0, 0, value]])
    recorder.close()
    with (directory / "b.jsonl").open("ab") as file:
        file.write(b'{"process": "b", "ty')  # killed as it wrote


def test_a_history_of_several_files_is_read(tmp_path: Path) -> None:
    write(tmp_path, "x")
    (rules, txn, lost, poll) = assert_sound(tmp_path)
    assert rules.value == {"whole": True, "unordered": ["r"]}
    assert txn.asked == [["send", "q", 0, None, "x"]]
    assert txn.value == [["send", "q", 0, 0, "x"]]
    assert txn.asked_at is not None
    assert txn.invoked < txn.asked_at < txn.ended < lost.invoked
    assert (lost.outcome, poll.outcome, poll.asked) == ("info", "ok", "read_committed")


def test_offsets_of_a_transaction_whose_end_nobody_saw_may_be_committed(tmp_path: Path) -> None:
    """FAULT: the process was killed behind its commit, and had said of its records alone."""
    recorder = Recorder(tmp_path / "a.jsonl", "a")
    begun = recorder.invoke("txn", [["send", "q", 0, None, "x"]])
    begun.event("invoke", [["send", "q", 0, None, "x"], ["commit", "g", "in", 0, 9]])
    recorder.event("ok", "offsets", ["g", [["in", 0, 9]]])
    recorder.close()
    (txn, _) = assert_sound(tmp_path)
    assert (txn.outcome, txn.value[1]) == ("info", ["commit", "g", "in", 0, 9])


def test_a_failure_names_the_history_and_the_anomaly(tmp_path: Path) -> None:
    write(tmp_path, "y")
    command = [sys.executable, "-m", "tests.histories.checker", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "inconsistent offsets: q:0@0 is 'x' and 'y'" in done.stderr


class _Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


def test_sends_without_waiting_are_operations_of_several(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl", "a")
    sends = Sends(recorder, "producer", 2)
    first = sends.add(["q", 0, None, "x"])
    second = sends.add(["q", 0, None, "y"], ["r", 0, None, "y"], has_offset=False)
    third = sends.add(["q", 0, None, "z"])
    second(None, _Message(1))
    first(None, _Message(0))
    sends.add(["q", 0, None, "lost"])
    third("an error", _Message(-1))
    sends.close()
    recorder.close()
    (one, other) = load(tmp_path)
    assert one.value == [["q", 0, 0, "x"], ["q", 0, None, "y"], ["r", 0, None, "y"]]
    assert other.value == [["q", 0, None, "z"], ["q", 0, None, "lost"]]
    assert (one.outcome, other.outcome) == ("ok", "info")


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl", "a")

    def record() -> None:
        for _ in range(50):
            recorder.invoke("poll").ok([])

    threads = [threading.Thread(target=record) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    recorder.close()
    assert [one.outcome for one in load(tmp_path)] == ["ok"] * 200


def test_components_and_cycles_of_a_random_graph_are_right() -> None:
    """They are compared with who reaches whom, found by brute force."""
    rng = random.Random(3)
    for _ in range(50):
        count = 12
        edges = {
            node: dict.fromkeys(rng.sample(range(count), rng.randrange(3)), "")
            for node in range(count)
        }
        reach = [{*edges[node]} for node in range(count)]
        for middle in range(count):
            for some in reach:
                if middle in some:
                    some |= reach[middle]
        together = {
            frozenset(b for b in range(count) if b in reach[a] and a in reach[b])
            for a in range(count)
            if any(b != a and b in reach[a] and a in reach[b] for b in range(count))
        }
        found = list(components(edges, count))
        assert {frozenset(some) for some in found} == together
        for nodes in found:
            cycle = shortest(edges, nodes)
            assert cycle[0] == cycle[-1]
            assert all(b in edges[a] for a, b in pairwise(cycle))


def large(count: int) -> list[Operation]:
    """Return a sound history of transactions of two sends and a poll, ten at a time."""
    rng = random.Random(5)
    made: list[Operation] = []
    ends: dict[str, int] = {}
    read: dict[tuple[str, str], int] = {}
    values: dict[tuple[str, int], str] = {}
    for number in range(count):
        begins, process = number * 10, f"p{number % 10}"
        queue = f"q{rng.randrange(8)}"
        steps = []
        for part in (0, 1):
            target = f"q{rng.randrange(8)}"
            offset = ends[target] = ends.get(target, -1) + 1
            value = values[target, offset] = f"{number} {part}"
            steps.append(["send", target, 0, offset, value])
        first = read.get((process, queue), 0)
        last = read[process, queue] = min(first + 5, max(0, ends.get(queue, 0) - 60))
        records = [[queue, 0, at, values[queue, at]] for at in range(first, last)]
        steps.append(["poll", records])
        one = Operation(process, "txn", begins, steps, begins + 99, "ok", steps, begins + 1)
        made.append(one)
    return made


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_large_history_is_checked_soon(count: int) -> None:
    operations = large(count)
    began = time.process_time()
    found = check(operations)
    assert time.process_time() - began < count / 3_000, "seconds of CPU: 4 for 100,000"
    assert not found.counts, found.shown()
    last = operations[-1]
    last.value = [*last.value, ["poll", [["q0", 0, 10**9, "planted"]]]]
    assert set(check(operations).counts) >= {"never sent"}
