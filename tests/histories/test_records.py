"""Each anomaly of records, planted once into a history that is sound without it."""

import pytest

from tests.histories.making import Made, at, poll, send
from tests.histories.operations import FAIL, INFO, UNCOMMITTED

A, B, C = at(0, "a"), at(1, "b"), at(2, "c")


def test_sound_histories_have_no_anomaly() -> None:
    """A record that was aborted is passed by; unknown ones are there, or not; markers are gaps."""
    made = Made(whole=True)
    made.send("p", A).send("p", at(None, "b"), at(None, "of a lost answer"), outcome=INFO)
    made.txn("t", send(3, "aborted"), outcome=FAIL).txn("t", send(5, "d"), send(0, "e", "r"))
    made.txn("u", send(8, "f"), outcome=INFO).txn("v", send(9, "of none"), outcome=INFO)
    made.poll("c", A, B).poll("c", at(5, "d"), at(8, "f")).poll("d", at(5, "d"), at(8, "f"))
    made.add("c", "assign", [["q", 0, 1]]).poll("c", B, at(5, "d")).poll("c", at(0, "e", "r"))
    made.poll("e", A, B, at(3, "aborted"), at(5, "d"), at(8, "f"), level=UNCOMMITTED)
    assert made.kinds() == []


def test_a_transaction_that_is_read_only_after_it_asked_to_commit_is_sound() -> None:
    made = Made().txn("t", send(0, "a"), begins=1, ends=100, asked_at=50)
    assert made.add("c", "poll", [A], begins=20, ends=60).kinds() == []


def test_records_that_compaction_has_replaced_may_be_missing() -> None:
    sends = [[*at(offset, value), key] for offset, value, key in ((0, "a", "k"), (1, "b", "l"))]
    made = Made(compacted=["q"], whole=True).send("p", *sends, [*at(2, "c"), "k"])
    assert made.poll("c", B, C).kinds() == []
    made = Made(compacted=["q"], whole=True).send("p", *sends, [*at(2, "c"), "k"])
    assert made.poll("c", A, C).kinds() == ["internally skipped", "lost"]


def test_queues_by_several_ways_have_no_order() -> None:
    made = Made(unordered=["q"], whole=True).send("p", at(None, "b"), at(None, "a"))
    assert made.poll("c", A, B).kinds() == []


@pytest.mark.parametrize(
    ("made", "kinds"),
    [
        (Made().send("p", A, B, C).poll("c", A).poll("d", B, C), []),
        (Made().send("p", A, B).poll("d", B), ["lost"]),
        (Made(whole=True).send("p", A, B).poll("d", A), ["unseen"]),
        (Made(whole=True).txn("p", send(0, "a"), send(None, "b")).poll("d", A), ["unseen"]),
        (Made().send("p", A, at(None, "b")).poll("c", A, B, at(2, "b")), ["doubled"]),
        (Made().send("p", A, at(None, "b", "r")).poll("c", A, B), ["moved"]),
        (Made().send("p", A, at(None, "b", "q", 1)).poll("c", A, B), ["moved"]),
        (Made().send("p", A).poll("c", A, B), ["never sent"]),
        (
            Made().send("p", A).send("o", at(0, "o")).poll("c", A),
            ["inconsistent offsets", "lost"],
        ),
        (Made().send("p", B).poll("c", at(2, "b")), ["inconsistent offsets"]),
        (Made().send("p", B).send("p", A), ["nonmonotonic send"]),
        (Made().send("p", at(None, "b")).send("p", A).poll("c", A, B), ["nonmonotonic send"]),
        (Made().send("p", B, A), ["internal nonmonotonic send"]),
        (Made().send("p", A, B).poll("c", A, B).poll("c", A, B), ["nonmonotonic poll"]),
        (Made().send("p", A, B).poll("c", B, A), ["internal nonmonotonic poll"]),
        (Made().send("p", A, B, C).poll("c", A, B).poll("d", A).poll("d", C), ["skipped"]),
        (Made().send("p", A, B, C).poll("c", A, B).poll("d", A, C), ["internally skipped"]),
        (
            Made().send("p", A, B).poll("c", A, B).add("d", "assign", [["q", 0, 0]]).poll("d", B),
            ["skipped"],
        ),
        (
            Made().txn("p", send(0, "a"), send(1, "b"), outcome=FAIL).send("p", C)
            .poll("c", A, C, level=UNCOMMITTED),
            ["internally skipped"],
        ),
        (Made().txn("p", send(0, "a"), outcome=FAIL).poll("c", A), ["G1a"]),
        (Made().send("p", A, outcome=FAIL).poll("c", A), ["G1a"]),
        (
            Made().txn("p", send(0, "a"), begins=1, ends=100, asked_at=90)
            .add("c", "poll", [A], begins=20, ends=30),
            ["G1b"],
        ),
        (Made().txn("p", send(0, "a"), send(1, "b"), outcome=INFO).send("p", C).poll("c", A, C),
         ["G1b", "internally skipped"]),
        (Made(whole=True).txn("p", send(0, "a"), send(None, "b"), outcome=INFO).poll("c", A),
         ["G1b"]),
    ],
)  # fmt: skip
def test_planted_anomalies_are_found(made: Made, kinds: list[str]) -> None:
    assert made.kinds() == kinds, made.said()


def test_an_interleaved_history_is_sound() -> None:
    """Their writes make a cycle of G0, which Kafka's transactions do not rule out."""
    made = Made(whole=True)
    made.txn("t", send(0, "a"), send(2, "c"), begins=1, ends=100, asked_at=80)
    made.txn("u", send(1, "b"), begins=2, ends=99, asked_at=80)
    made.add("c", "poll", [A, B, C], begins=90, ends=110)
    assert made.kinds("G0") == []
    assert made.kinds() == ["G0"]
    made.operations[0].value["isolated_writes"] = True
    assert made.kinds("G0") == ["G1c"]


def test_transactions_that_read_from_each_other_are_found() -> None:
    made = Made()
    made.txn("t", send(0, "a"), poll(at(0, "b", "r")), begins=1, ends=100, asked_at=3)
    made.txn("u", poll(A), send(0, "b", "r"), begins=2, ends=99, asked_at=3)
    assert made.kinds() == ["G1c"]
    assert "2 operations" in made.said()
    assert "was read by it, 'b' at r:0@0" in made.said()


def test_a_record_that_is_read_before_it_was_sent_is_found() -> None:
    assert Made().poll("c", A).send("p", A).kinds() == ["G1c"]
    # Over a third: it began when the reader had ended, and the sender when it had.
    made = Made().txn("t", poll(A), send(0, "x", "r")).poll("c", at(0, "x", "r")).send("p", A)
    assert made.kinds() == ["G1c"]
    assert "ended before it began" in made.said()
    made.operations[0].value["real_time"] = False
    assert made.kinds() == []
    made = Made().send("p", A, begins=1, ends=100).add("c", "poll", [A], begins=2, ends=3)
    assert made.kinds() == []


def test_the_shortest_cycle_is_told() -> None:
    """Ten transactions read around in a ring, and two of them from each other."""
    made = Made()
    for number in range(10):
        back = [at(0, "8", "q8")] if number == 7 else []
        steps = [send(0, str(number), f"q{number}")]
        steps.append(poll(at(0, str((number - 1) % 10), f"q{(number - 1) % 10}"), *back))
        made.txn(f"p{number}", *steps, begins=1, ends=100, asked_at=2)
    assert made.kinds() == ["G1c"]
    assert "2 operations" in made.said()
    assert "G1c (circular information flow" in made.said()


def ends(made: Made, value: int, level: str = UNCOMMITTED) -> Made:
    return made.add("e", "ends", [["q", 0, value]], asked=level)


def test_ends_are_registers_that_only_grow() -> None:
    assert ends(ends(Made().send("p", A), 1).send("p", B), 2).kinds() == []
    assert ends(ends(Made(), 2), 1).kinds() == ["end went back"]
    assert ends(Made().send("p", A), 0).kinds() == ["end went back"]
    assert ends(Made().send("p", A), 0, "read_committed").kinds() == []
    made = Made().send("p", A).poll("c", A)
    assert ends(made, 0, "read_committed").kinds() == ["end went back"]
    assert ends(Made(), 1).send("p", A).kinds() == ["end ahead"]
    # A send that is under way may count or not.
    made = Made().send("p", A, begins=1, ends=100)
    made.add("e", "ends", [["q", 0, 1]], asked=UNCOMMITTED, begins=2, ends=50)
    made.add("f", "ends", [["q", 0, 0]], asked=UNCOMMITTED, begins=40, ends=60)
    assert made.kinds() == []


def test_committed_offsets_only_grow() -> None:
    def read(made: Made, offset: int) -> Made:
        return made.add("g", "offsets", ["g", [["q", 0, offset]]])

    commit = ["commit", "g", "q", 0]
    made = Made().add("c", "commit", ["g", [["q", 0, 1]]]).txn("t", [*commit, 4])
    assert read(made, 4).kinds() == []
    assert read(made, 1).kinds() == ["committed went back"]
    lost = Made().txn("t", [*commit, 1]).txn("t", [*commit, 4], outcome=INFO)
    assert read(read(lost, 1), 4).kinds() == []
    assert read(read(lost, 4), 1).kinds() == ["committed went back"]
    aborted = Made().txn("t", [*commit, 1]).txn("t", [*commit, 4], outcome=FAIL)
    assert read(read(aborted, 1), 4).kinds() == ["never committed"]
