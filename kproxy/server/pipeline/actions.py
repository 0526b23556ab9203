"""The surroundings of a request pipeline: its requests, and the actions that it has done for it."""

from collections.abc import Callable
from typing import Protocol

from kproxy.protocol.frames import Frame


class Held(Exception):
    """A request is not accepted yet: its client is to wait, and was muted."""


class PipelinedRequest(Protocol):
    """A request that was accepted."""

    size: int
    """Bytes of its frame."""
    settled: bool

    @property
    def exclusive(self) -> bool: ...
    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back once an overlapping request is settled, perhaps at once."""
        ...

    def response(self) -> bytes | None:
        """Return the answer of a settled request, or None where none is due. Raises Malformed."""
        ...


class NextRequest(Protocol):
    """A signal of whether frames wait behind the exclusive request."""

    def arrive(self) -> None: ...
    def reset(self) -> None: ...


class Actions(Protocol):
    """The actions that a pipeline has done for it."""

    def accept(self, frame: Frame) -> PipelinedRequest:
        """Take a request in; an overlapping one is under way then. Raises Malformed, Held."""
        ...

    def begin(self, request: PipelinedRequest) -> None:
        """Answer an exclusive request, then call `answered` or `fail`."""
        ...

    def flush_soon(self) -> None:
        """Call `flush` in the next turn of the loop."""
        ...

    def send(self, frames: list[bytes]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None:
        """Send what was handed over, then end."""
        ...

    def abort(self) -> None: ...
    def report(self, error: Exception) -> None:
        """Log why the connection ends."""
        ...
