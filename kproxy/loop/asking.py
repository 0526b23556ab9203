"""Whose work a task does."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Asking:
    """Whose part of pools, and whose turns, the requests of a task use: a connection's."""

    holder: str = ""


ASKING: ContextVar[Asking] = ContextVar("asking", default=Asking())  # noqa: B039 - never changed
