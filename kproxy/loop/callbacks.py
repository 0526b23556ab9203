"""Callbacks that several places need."""

from collections.abc import Callable


def nothing(*_: object) -> None:
    """Do nothing: a callback before one is set."""


def after(calls: int, then: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that calls `then` once it was called so often."""
    left = calls

    def called() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    return called
