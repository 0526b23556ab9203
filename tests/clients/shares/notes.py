"""The notes of members of a share group, and the promises of a share group that they break.

The delivery count says whose acknowledgement counts: a member that was stopped, or whose lock timed
out, acknowledges an earlier delivery. It is answered with success where the record is done already.
Therefore an acknowledgement counts only where no later delivery was noted before it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

Record = tuple[str, int, int]
"""Queue, partition, offset."""
REFUSED = "INVALID_RECORD_STATE"


@dataclass(slots=True)
class Delivery:
    """A record in a member's hands."""

    born: int
    """The time at which its member began."""
    at: int
    count: int
    value: str
    said: str = ""
    said_at: int = 0
    answered_at: float = inf
    error: str = ""

    @property
    def is_done(self) -> bool:
        return self.answered_at < inf and not self.error

    @property
    def may_be_done(self) -> bool:
        """Its acknowledgement may have been taken, though no answer said so."""
        return bool(self.said) and self.error != REFUSED


@dataclass
class History:
    """All deliveries of all records."""

    deliveries: dict[Record, list[Delivery]] = field(default_factory=dict)
    answered: int = 0

    def read(self, lines: Iterable[str]) -> None:
        """Read one member's notes; the last line may be cut short."""
        born = 0
        mine: dict[Record, Delivery] = {}
        for line in lines:
            if not line.endswith("\n"):
                break
            kind, at, *words = line.split()
            if kind == "born":
                born = int(at)
                continue
            record = words[0], int(words[1]), int(words[2])
            if kind == "given":
                mine[record] = Delivery(born, int(at), int(words[3]), words[4])
                self.deliveries.setdefault(record, []).append(mine[record])
            elif kind == "says":
                mine[record].said, mine[record].said_at = words[3], int(at)
            else:
                self.answered += 1
                mine[record].answered_at = int(at)
                mine[record].error = words[3] if kind == "failed" else ""


def read(directory: Path) -> History:
    history = History()
    for path in sorted(directory.glob("*.notes")):
        with path.open() as lines:
            history.read(lines)
    return history


class Letter(NamedTuple):
    """A dead letter: of which record, why, and after how many deliveries."""

    record: Record
    cause: str
    count: int
    value: str


def problems(
    history: History, written: dict[Record, str], limit: int, letters: Iterable[Letter]
) -> list[str]:
    """List the promises that were broken."""
    said = []
    dead: dict[Record, list[Letter]] = {}
    for letter in letters:
        dead.setdefault(letter.record, []).append(letter)
    for record in (history.deliveries.keys() | dead.keys()) - written.keys():
        said.append(f"{record}: was never written")
    for record, value in written.items():
        deliveries = history.deliveries.get(record, [])
        mine = [
            *_of_deliveries(deliveries, value, limit), *_after_answers(deliveries, limit),
            *_of_letters(deliveries, dead.get(record, []), value, limit),
            *_of_ends(deliveries, dead.get(record, []), limit),
        ]  # fmt: skip
        said += [f"{record}: {one}" for one in mine]
    return said


def _of_deliveries(deliveries: list[Delivery], value: str, limit: int) -> Iterator[str]:
    """Check each delivery by itself, and against the others."""
    counts = Counter(one.count for one in deliveries)
    for count, times in counts.items():
        if not 1 <= count <= limit:
            yield f"given with count {count}"
        if times > 1 and count > 1:
            yield f"given {times} times with count {count}"
    for one in deliveries:
        if one.value != value:
            yield f"given as {one.value}, written as {value}"
        for later in deliveries:
            same = later.count == 1 and one.count == 1  # that it was given once is not in the log
            if later.born > one.at and later.count <= one.count and not same:
                yield f"given with count {later.count} after {one.count}"


def _after_answers(deliveries: list[Delivery], limit: int) -> Iterator[str]:
    """Check that an acknowledgement with success is final."""
    for one in deliveries:
        others = [other for other in deliveries if other is not one]
        if not one.is_done or any(
            other.count >= one.count and other.at < one.answered_at for other in others
        ):
            continue
        for other in others:
            newborn = other.born > one.answered_at
            if one.said == "release":
                if newborn and other.count <= one.count:
                    yield f"released at {one.count}, then given with count {other.count}"
            elif newborn or one.count < other.count < limit:
                yield f"{one.said} at {one.count} was answered, then given with {other.count}"


def _of_letters(
    deliveries: list[Delivery], letters: list[Letter], value: str, limit: int
) -> Iterator[str]:
    """Check that each dead letter has a reason."""
    if len(letters) > 1:
        yield f"{len(letters)} dead letters"
    for letter in letters:
        if letter.value != value:
            yield f"written as {value}, its dead letter is of {letter.value}"
        if letter.cause == "rejected":
            if not any(
                one.said == "reject" and one.may_be_done and one.count == letter.count
                for one in deliveries
            ):
                yield f"a dead letter though nobody rejected it at {letter.count}"
        elif letter.count != limit:
            yield f"given up after {letter.count}"


def _of_ends(deliveries: list[Delivery], letters: list[Letter], limit: int) -> Iterator[str]:
    """Check that each record ends once: accepted, or as a dead letter."""
    dead = bool(letters)
    last = max(deliveries, key=lambda one: (one.count, one.at), default=None)
    if last is not None and last.is_done and last.said == "accept":
        for letter in letters:
            # Its time ran out at the last delivery, before it said so: that it is done is true.
            if (letter.cause, letter.count, last.count) != ("delivery limit", limit, limit):
                yield "accepted, and a dead letter"
    if last is not None and last.is_done and last.said == "reject" and not dead:
        yield "rejected, and no dead letter"
    if not dead and not any(one.said == "accept" and one.may_be_done for one in deliveries):
        yield "lost: neither accepted nor a dead letter"
