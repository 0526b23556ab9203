"""The checker of share groups under kills finds each anomaly, planted into notes that are right."""

import pytest

from tests.clients.shares.notes import History, Letter, problems

LIMIT = 3
RECORD = "q", 0, 5
REJECTED, POISON = "rejected", "delivery limit"


class Notes:
    """Notes of some members over one record; each has a clock that all share."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._now = 0

    def note(self, who: str, kind: str, rest: str = "") -> "Notes":
        self._now += 1
        about = "" if kind == "born" else f" q 0 5{rest and ' '}{rest}"
        self._lines.setdefault(who, []).append(f"{kind} {self._now}{about}\n")
        return self

    def born(self, *who: str) -> "Notes":
        for one in who:
            self.note(one, "born")
        return self

    def given(self, who: str, count: int, value: str = "x") -> "Notes":
        return self.note(who, "given", f"{count} {value}")

    def says(self, who: str, kind: str) -> "Notes":
        return self.note(who, "says", kind)

    def done(self, who: str) -> "Notes":
        return self.note(who, "done")

    def failed(self, who: str, error: str = "INVALID_RECORD_STATE") -> "Notes":
        return self.note(who, "failed", error)

    def all(self, who: str, count: int, kind: str) -> "Notes":
        return self.given(who, count).says(who, kind).done(who)

    def problems(self, *letters: tuple[str, int]) -> list[str]:
        history = History()
        for lines in self._lines.values():
            history.read([*lines, "given 99 q 0"])  # cut short as it died
        dead = [Letter(RECORD, cause, count, "x") for cause, count in letters]
        found = problems(history, {RECORD: "x"}, LIMIT, dead)
        return [one.removeprefix(f"{RECORD}: ") for one in found]


def notes(*born: str) -> Notes:
    return Notes().born(*(born or ("a", "b")))


def test_possible_histories_pass() -> None:
    assert notes().all("a", 1, "accept").problems() == []
    assert notes().all("a", 1, "release").all("b", 2, "accept").problems() == []
    assert notes().all("a", 1, "reject").problems((REJECTED, 1)) == []
    # Its answer was lost: it may count, or not.
    assert notes().given("a", 1).says("a", "accept").problems() == []
    assert notes().given("a", 1).says("a", "accept").all("b", 2, "accept").problems() == []
    assert notes().given("a", 1).says("a", "accept").problems((POISON, 3)) == []
    # The first delivery is forgotten with its worker.
    assert notes().given("a", 1).born("c").all("c", 1, "accept").problems() == []
    # Its time ran out: it is refused, or what it says means nothing as the record is done.
    late = notes().given("a", 1).given("b", 2).says("b", "accept").done("b").says("a", "release")
    assert late.failed("a").problems() == []
    late = notes().given("a", 1).given("b", 2).says("b", "reject").done("b").says("a", "accept")
    assert late.done("a").problems((REJECTED, 2)) == []
    late = notes().given("a", 3).says("a", "accept").done("a")
    assert late.problems((POISON, 3)) == []
    # It was stopped before it could note what it had been given.
    assert notes().all("b", 2, "accept").given("a", 1).problems() == []
    # All who had it died, some before they could note it.
    assert notes().given("a", 2).problems((POISON, 3)) == []


@pytest.mark.parametrize(
    ("planted", "letters", "said"),
    [
        (notes(), (), ["lost: neither accepted nor a dead letter"]),
        (notes().given("a", 1), (), ["lost: neither accepted nor a dead letter"]),
        (notes().all("a", 1, "release"), (), ["lost: neither accepted nor a dead letter"]),
        (
            notes().given("a", 1).says("a", "accept").failed("a"), (),
            ["lost: neither accepted nor a dead letter"],
        ),
        (notes().all("a", 1, "accept"), ((REJECTED, 1),), [
            "a dead letter though nobody rejected it at 1", "accepted, and a dead letter",
        ]),
        (notes().all("a", 2, "accept"), ((POISON, 3),), ["accepted, and a dead letter"]),
        (notes().all("a", 1, "reject"), (), [
            "rejected, and no dead letter", "lost: neither accepted nor a dead letter",
        ]),
        (notes().all("a", 1, "reject"), ((REJECTED, 1), (REJECTED, 1)), ["2 dead letters"]),
        (notes().all("a", 2, "release"), ((POISON, 2),), ["given up after 2"]),
        (
            notes().all("a", 1, "accept").all("b", 2, "accept"), (),
            ["accept at 1 was answered, then given with 2"],
        ),
        (
            notes().all("a", 1, "accept").born("c").all("c", 1, "accept"), (),
            ["accept at 1 was answered, then given with 1"],
        ),
        (
            notes().all("a", 1, "reject").all("b", 2, "accept"), ((REJECTED, 1),),
            ["reject at 1 was answered, then given with 2", "accepted, and a dead letter"],
        ),
        (
            notes().all("a", 1, "release").born("c").all("c", 1, "accept"), (),
            ["released at 1, then given with count 1"],
        ),
        (
            notes().given("a", 2).given("b", 2).says("b", "accept").done("b"), (),
            ["given 2 times with count 2"],
        ),
        (
            notes().given("a", 2).born("c").all("c", 1, "accept"), (),
            ["given with count 1 after 2"],
        ),
        (notes().all("a", 4, "accept"), (), ["given with count 4"]),
        (notes().given("a", 1, "y").says("a", "accept").done("a"), (), [
            "given as y, written as x",
        ]),
    ],
)  # fmt: skip
def test_impossible_histories_fail(
    planted: Notes, letters: tuple[tuple[str, int], ...], said: list[str]
) -> None:
    assert planted.problems(*letters) == said


def test_records_that_nobody_wrote_fail() -> None:
    history = History()
    history.read(["born 1\n", "given 2 q 0 7 1 z\n"])
    dead = [Letter(("q", 1, 0), REJECTED, 1, "z")]
    assert sorted(problems(history, {}, LIMIT, dead)) == [
        "('q', 0, 7): was never written", "('q', 1, 0): was never written",
    ]  # fmt: skip
