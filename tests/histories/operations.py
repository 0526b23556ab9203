"""Histories of operations, as Jepsen writes them, and who records and reads them.

A history is a directory of files `*.jsonl`, one for each process that records. An event is a line:

    {"process": "one.812", "type": "invoke", "f": "poll", "value": null, "time": 5123, "id": 7}

`type`: `invoke` begins an operation; `ok` says that it was done, `fail` that it was not and never
will be, `info` that nobody knows. `time`: nanoseconds of the machine's monotonic clock, which all
processes share. `id` pairs an end with its beginning; events without one pair in turn. An end
without a beginning is an operation of one moment. A process that is killed leaves operations open,
and what it has said last of them: a second `invoke` says more of the same operation.

RECORD is `[queue, partition, offset, value]`, where the sender may have a key for a fifth. A
partition or an offset that is not known is null.

| f | value |
|---|---|
| `send` | RECORDs; with offsets at its end |
| `poll` | invoke: `read_committed` (or null), `read_uncommitted`; ok: RECORDs |
| `txn` | `["send", *RECORD]`, `["poll", RECORDs]`, `["assign", as below]`, `["commit", group, \
queue, partition, offset]`; ok: committed, fail: aborted. `asked`, a field of its end: the time at \
which it asked to commit |
| `assign` | `[queue, partition, position or null]`: where the process polls from now on |
| `commit` | `[group, [[queue, partition, offset], ...]]` |
| `offsets` | the same, as a group's committed offsets were read |
| `ends` | invoke as of `poll`; ok: `[queue, partition, end]` |
| `acquire` | `[queue, partition, offset, value, delivery count]` |
| `acknowledge` | invoke: `[queue, partition, offset, accept, release or reject]`; \
ok: `[queue, partition, offset, error or null]` |
| `letters` | all dead letters: `[queue, partition, offset, value, cause, delivery count]` |
| `disturb` | from the beginning of a fault to the time at which all serve again |
| `rules` | the rules of the workload, by name: `tests/histories/checker.py` |
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import orjson

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
OK, FAIL, INFO = "ok", "fail", "info"


@dataclass(slots=True, eq=False)
class Operation:
    """An operation from its beginning to its end, if it had one."""

    process: str
    f: str
    invoked: float
    asked: Any
    """The value of its beginning."""
    ended: float = inf
    outcome: str = INFO
    value: Any = None
    """The value of its end; that of its beginning where the end has none."""
    asked_at: float | None = None
    """The time at which a transaction asked to commit."""

    def __str__(self) -> str:
        ended = "?" if self.ended == inf else f"{self.ended / 1e9:.6f}"
        return f"{self.f} of {self.process} ({self.outcome}, {self.invoked / 1e9:.6f} to {ended})"


def read_lines(lines: Iterable[bytes]) -> Iterator[Operation]:
    """Yield the operations of one file, whose last line may be cut short."""
    open_ones: dict[tuple[str, int | None], Operation] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            break
        event = orjson.loads(line)
        process, value, at = event["process"], event.get("value"), event["time"]
        key = process, event.get("id")
        if event["type"] == "invoke":
            if key[1] is not None and key in open_ones:
                open_ones[key].asked = open_ones[key].value = value
                continue
            found = open_ones[key] = Operation(process, event["f"], at, value, value=value)
            yield found
            continue
        ended = open_ones.pop(key, None)
        if ended is None:
            ended = Operation(process, event["f"], at, value)
            yield ended
        assert ended.f == event["f"], event
        ended.ended, ended.outcome, ended.asked_at = at, event["type"], event.get("asked")
        ended.value = ended.value if value is None else value


def load(directory: Path) -> list[Operation]:
    """Return all operations of a history, in the order of their beginnings."""
    found: list[Operation] = []
    for path in sorted(directory.glob("*.jsonl")):
        with path.open("rb") as lines:
            found += read_lines(lines)
    found.sort(key=lambda one: one.invoked)
    return found


class Recorder:
    """A file of a history, for one or more processes; threads may share it.

    An event is with the kernel when a call returns: it outlives a kill of who records.
    """

    def __init__(self, path: Path, process: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.process = process
        self._ids = itertools.count()

    def close(self) -> None:
        os.close(self._file)

    def event(
        self, kind: str, f: str, value: Any = None, *, process: str | None = None,
        at: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """Write one event."""
        event = {
            "process": process or self.process, "type": kind, "f": f, "value": value,
            "time": at or time.monotonic_ns(), **more,
        }  # fmt: skip
        os.write(self._file, json.dumps(event, default=_text).encode() + b"\n")

    def invoke(
        self, f: str, value: Any = None, process: str | None = None, at: int | None = None
    ) -> "Open":
        """Begin an operation."""
        begun = Open(self, process or self.process, f, next(self._ids))
        begun.event("invoke", value, at=at)
        return begun

    def rules(self, **rules: Any) -> None:
        self.event(INFO, "rules", rules)


class Open:
    """An operation that has begun. It ends by one of `ok`, `fail` and `info`, or never."""

    def __init__(self, recorder: Recorder, process: str, f: str, number: int) -> None:
        self._recorder, self.process, self._f, self._number = recorder, process, f, number

    def event(self, kind: str, value: Any = None, **more: Any) -> None:
        self._recorder.event(
            kind, self._f, value, process=self.process, id=self._number, **more
        )  # fmt: skip

    def ok(self, value: Any = None, **more: Any) -> None:
        self.event(OK, value, **more)

    def fail(self, value: Any = None, **more: Any) -> None:
        self.event(FAIL, value, **more)

    def info(self, value: Any = None, **more: Any) -> None:
        self.event(INFO, value, **more)


def _text(value: object) -> str:
    assert isinstance(value, bytes), value
    return value.decode()


class Sends:
    """The sends of a producer that does not wait: so many records are one operation."""

    def __init__(self, recorder: Recorder, process: str, size: int = 100) -> None:
        self._recorder, self._process, self._size = recorder, process, size
        self._batch: _Batch | None = None
        self._left: set[_Batch] = set()

    def add(self, *records: list[Any], has_offset: bool = True) -> Callable[[Any, Any], None]:
        """Note a record before it is produced, and return the callback of its delivery.

        It may be in several queues, or in others than it is produced to: then it has no offset.
        """
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch(time.monotonic_ns())
            self._left.add(batch)
        first = len(batch.records)
        batch.records += records
        batch.waits += 1
        if batch.waits == self._size:
            self._batch = None

        def delivered(error: Any, message: Any) -> None:
            batch.failed |= error is not None
            at = None if error is not None or not has_offset else message.offset()
            if at is not None and at >= 0:
                batch.records[first] = [*records[0][:2], at, *records[0][3:]]
            batch.done += 1
            if batch is not self._batch and batch.done == batch.waits:
                self._write(batch)

        return delivered

    def close(self) -> None:
        """Write what is left."""
        self._batch = None
        for batch in list(self._left):
            self._write(batch)

    def _write(self, batch: "_Batch") -> None:
        self._left.discard(batch)
        whole = batch.done == batch.waits and not batch.failed
        begun = self._recorder.invoke("send", batch.records, self._process, batch.began)
        begun.event(OK if whole else INFO)


class _Batch:
    """Records of one operation."""

    def __init__(self, began: int) -> None:
        self.began = began
        self.records: list[list[Any]] = []
        self.waits = self.done = 0
        self.failed = False
