"""Small histories, made by hand."""

from typing import Any

from tests.histories.checker import check
from tests.histories.operations import COMMITTED, OK, Operation


def at(offset: int | None, value: str, queue: str = "q", partition: int = 0) -> list[Any]:
    """Return a record."""
    return [queue, partition, offset, value]


def send(offset: int | None, value: str, queue: str = "q") -> list[Any]:
    """Return the step of a transaction that sends a record."""
    return ["send", queue, 0, offset, value]


def poll(*records: list[Any]) -> list[Any]:
    """Return the step of a transaction that polls."""
    return ["poll", list(records)]


class Made:
    """A history. Operations follow each other, unless `begins` and `ends` say their times."""

    def __init__(self, **rules: Any) -> None:
        self.operations = [Operation("test", "rules", 0, rules, 0, "info", rules)]
        self._now = 0

    def add(
        self, process: str, f: str, value: Any, *, asked: Any = None, outcome: str = OK,
        begins: float | None = None, ends: float | None = None, asked_at: float | None = None,
    ) -> "Made":  # fmt: skip
        self._now += 10
        begins = self._now if begins is None else begins
        ends = self._now + 5 if ends is None else ends
        self.operations.append(
            Operation(process, f, begins, asked, ends, outcome, value, asked_at)
        )  # fmt: skip
        return self

    def send(self, process: str, *records: list[Any], **more: Any) -> "Made":
        return self.add(process, "send", list(records), **more)

    def poll(self, process: str, *records: list[Any], level: str = COMMITTED) -> "Made":
        return self.add(process, "poll", list(records), asked=level)

    def txn(self, process: str, *steps: list[Any], **more: Any) -> "Made":
        return self.add(process, "txn", list(steps), **more)

    # -- a record of a share group, and what members say of it

    def born(self, *members: str) -> "Made":
        for member in members:
            self.add(member, "join", None)
        return self

    def given(self, member: str, count: int, value: str = "x", offset: int = 0) -> "Made":
        return self.add(member, "acquire", [["q", 0, offset, value, count]])

    def says(
        self, member: str, kind: str, error: str | None = None, offset: int = 0, **more: Any
    ) -> "Made":
        said, answered = [["q", 0, offset, kind]], [["q", 0, offset, error]]
        return self.add(member, "acknowledge", answered, asked=said, **more)

    def all(self, member: str, count: int, kind: str) -> "Made":
        """Give a record to a member, which acknowledges it with success."""
        return self.given(member, count).says(member, kind)

    def kinds(self, *allowed: str) -> list[str]:
        """Return the kinds of the anomalies found."""
        return sorted(check(sorted(self.operations, key=lambda one: one.invoked), allowed).counts)

    def said(self, *allowed: str) -> str:
        return check(sorted(self.operations, key=lambda one: one.invoked), allowed).shown()
