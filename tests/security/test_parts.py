"""Nobody has a whole pool."""

import random

from kproxy.security.parts import Parts


def test_one_alone_has_three_quarters_and_the_next_finds_some() -> None:
    parts = Parts(2000)
    while parts.may("mallory"):
        parts.take("mallory")
    assert parts.of("mallory") == 1500
    while parts.may("mallet"):
        parts.take("mallet")
    assert parts.of("mallet") == 375
    assert parts.may("alice")


def test_holder_of_nothing_finds_one_while_there_is_one() -> None:
    parts = Parts(3)
    for name in "abc":
        assert parts.may(name)
        parts.take(name)
    assert not parts.may("d")
    parts.give_back("a")
    assert parts.may("d")


def test_returned_places_leave_nothing() -> None:
    parts, dice, held = Parts(1000), random.Random(3), []
    for _ in range(3000):
        name, count = dice.choice("abcdef"), dice.randrange(1, 40)
        if dice.random() < 0.5 and parts.may(name, count):
            parts.take(name, count)
            held.append((name, count))
        elif held:
            parts.give_back(*held.pop(dice.randrange(len(held))))
        assert parts.used == sum(count for _, count in held) <= 1000
    for one in held:
        parts.give_back(*one)
    assert not parts._of
    assert not parts.used
