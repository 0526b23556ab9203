"""Each anomaly of share groups, planted once into a history that is sound without it."""

from typing import Any

import pytest

from tests.histories.making import Made
from tests.histories.shares import DELIVERY_LIMIT, REFUSED, REJECTED

LOST = ["never ended"]


def members(*born: str, **rules: Any) -> Made:
    """Begin a history of one record, with a lock that has run out whenever another has it."""
    made = Made(limit=3, **{"lock_ns": 0} | rules)
    return made.send("p", ["q", 0, 0, "x"]).born(*(born or ("a", "b")))


def dead(made: Made, *letters: tuple[str, int], value: str = "x") -> Made:
    found = [["q", 0, 0, value, cause, count] for cause, count in letters]
    return made.add("test", "letters", found)


def test_possible_histories_are_sound() -> None:
    assert members().all("a", 1, "accept").kinds() == []
    assert members().all("a", 1, "release").all("b", 2, "accept").kinds() == []
    assert dead(members().all("a", 1, "reject"), (REJECTED, 1)).kinds() == []
    # Its answer was lost: it may count, or not.
    lost = members().given("a", 1).says("a", "accept", outcome="info")
    assert lost.kinds() == []
    assert lost.all("b", 2, "accept").kinds() == []
    lost = members().given("a", 1).says("a", "accept", outcome="info")
    assert dead(lost, (DELIVERY_LIMIT, 3)).kinds() == []
    # The first delivery is forgotten with its worker.
    assert members().given("a", 1).born("c").all("c", 1, "accept").kinds() == []
    # Its time ran out: it is refused, or what it says means nothing as the record is done.
    late = members().given("a", 1).all("b", 2, "accept").says("a", "release", REFUSED)
    assert late.kinds() == []
    late = members().given("a", 1).all("b", 2, "reject").says("a", "accept")
    assert dead(late, (REJECTED, 2)).kinds() == []
    assert dead(members().all("a", 3, "accept"), (DELIVERY_LIMIT, 3)).kinds() == []
    # A member held it again when what it said of its earlier delivery came.
    again = members().all("a", 1, "accept").given("a", 2).says("a", "accept", REFUSED)
    assert again.kinds() == []
    # It was stopped before it could note what it had been given.
    assert members().all("b", 2, "accept").given("a", 1).kinds() == []
    # All who had it died, some before they could note it.
    assert dead(members().given("a", 2), (DELIVERY_LIMIT, 3)).kinds() == []


@pytest.mark.parametrize(
    ("made", "kinds"),
    [
        (members().given("a", 1), LOST),
        (members().all("a", 1, "release"), LOST),
        (members().given("a", 1).says("a", "accept", REFUSED), LOST),
        (dead(members().all("a", 1, "accept"), (REJECTED, 1)), ["wrong letter"]),
        (dead(members().all("a", 2, "accept"), (DELIVERY_LIMIT, 3)), ["wrong letter"]),
        (members().all("a", 1, "reject"), [*LOST, "wrong letter"]),
        (dead(members().all("a", 1, "reject"), (REJECTED, 1), (REJECTED, 1)), ["wrong letter"]),
        (dead(members().all("a", 1, "reject"), (REJECTED, 1), value="y"), ["wrong letter"]),
        (dead(members().all("a", 2, "release"), (DELIVERY_LIMIT, 2)), ["wrong letter"]),
        (members().all("a", 1, "accept").all("b", 2, "accept"), ["given after its end"]),
        (members().all("a", 1, "accept").born("c").all("c", 1, "accept"), ["given after its end"]),
        (
            dead(members().all("a", 1, "reject").all("b", 2, "accept"), (REJECTED, 1)),
            ["given after its end", "wrong letter"],
        ),
        (members().all("a", 1, "release").born("c").all("c", 1, "accept"), ["wrong count"]),
        (members().given("a", 2).all("b", 2, "accept"), ["wrong count"]),
        (members().given("a", 2).born("c").all("c", 1, "accept"), ["wrong count"]),
        (members().all("a", 4, "accept"), ["wrong count"]),
        (members().given("a", 1, "y").says("a", "accept"), ["inconsistent offsets"]),
        (members().all("a", 1, "accept").given("a", 1, "z", 7), ["never sent"]),
    ],
)  # fmt: skip
def test_planted_anomalies_are_found(made: Made, kinds: list[str]) -> None:
    assert made.kinds() == kinds, made.said()


def test_a_record_that_no_member_was_given_is_found() -> None:
    made = members().all("a", 1, "accept").send("p", ["q", 0, 1, "y"])
    assert made.kinds() == LOST
    assert Made().send("p", ["q", 0, 1, "y"]).kinds() == []  # nobody was a member


def both(*, first_is_done: bool) -> Made:
    """Return a history in which two members accept the record at 1 with success."""
    made = members().send("p", ["q", 0, 1, "y"]).given("b", 1)
    if first_is_done:
        made.says("b", "accept")
    made.given("a", 1, "y", 1).given("b", 2, "y", 1).says("b", "accept", offset=1)
    made.says("a", "accept", offset=1)
    return made if first_is_done else made.says("b", "accept")


def test_a_record_that_is_accepted_twice_is_found() -> None:
    """The second acceptance means nothing where the start is behind the record."""
    assert both(first_is_done=True).kinds() == []
    assert both(first_is_done=False).kinds() == ["accepted twice"]


def given_to_both(lock_ns: int, *, silent: bool = True, dies: bool = False) -> Made:
    made = members(lock_ns=lock_ns).given("a", 1)
    if not silent:
        made.says("a", "release")
    made.all("b", 2, "accept")
    return made if dies else made.add("a", "poll", [])


def test_a_record_that_two_members_hold_is_found() -> None:
    """It is sound where the lock ran out, the first gave it back or died, or the worker did."""
    assert given_to_both(1000).kinds() == ["held by two"]
    assert given_to_both(1).kinds() == []
    assert given_to_both(1000, silent=False).kinds() == []
    assert given_to_both(1000, dies=True).kinds() == []
    disturbed = given_to_both(1000)
    assert disturbed.add("test", "disturb", None, begins=45, ends=46).kinds() == []
    disturbed = given_to_both(1000)
    assert disturbed.add("test", "disturb", None, begins=1000, ends=2000).kinds() == ["held by two"]
