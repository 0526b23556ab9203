"""The holder that a task works for."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Asking:
    """The connection whose parts of pools, and whose turns, the requests of a task use."""

    holder: str = ""


ASKING: ContextVar[Asking] = ContextVar("asking", default=Asking())  # noqa: B039 - never changed
