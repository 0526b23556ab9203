"""The holder that a task works for, and what threads do for it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from time import thread_time
from typing import TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


@dataclass(slots=True)
class Asking:
    """The connection whose parts of pools, and whose turns, the requests of a task use."""

    holder: str = ""
    threads_s: float = 0.0
    """The seconds of CPU of threads that worked for it, since they were taken."""

    def take_threads_s(self) -> float:
        """Return them, and begin anew."""
        taken, self.threads_s = self.threads_s, 0.0
        return taken


_NOBODY = Asking()
ASKING: ContextVar[Asking] = ContextVar("asking", default=_NOBODY)


def counted(work: Callable[[*Args], Result]) -> Callable[[*Args], Result]:
    """Return work for a thread, whose time counts for who asks for it."""
    asking = ASKING.get()
    if asking is _NOBODY:
        return work

    def timed(*arguments: *Args) -> Result:
        began = thread_time()
        try:
            return work(*arguments)
        finally:
            asking.threads_s += thread_time() - began

    return timed
