"""Clients that may know of the same topics."""

from collections.abc import Callable, Hashable
from typing import NamedTuple


class Audience(NamedTuple):
    """`key`: the same for all of them; `sees`: whether they may know of a topic, by its name."""

    key: Hashable
    sees: Callable[[str], bool]


ALL = Audience("all", lambda name: True)
"""The clients that may know of all."""
