"""The place of an envelope as the fold needs it, and the fold's decision."""

from typing import NamedTuple

from kproxy.common.errors import Code
from kproxy.virtual.rows.queues import Queue


class LogLocation(NamedTuple):
    """The place where the local copy keeps an envelope's body: segment, byte position, length."""

    segment: int
    position: int
    length: int


class Outcome(NamedTuple):
    """The decision of `apply`. `number`: base offset, new log start, partition count, producer id,
    number of a transaction, what is left to do."""

    code: Code = Code.NONE
    number: int = -1
    time_ms: int = -1  # log append time
    log_start: int = -1
    message: str | None = None
    queue: Queue | None = None
    codes: tuple[Code, ...] = ()  # one for each item of a command that has several
    epoch: int = -1  # epoch of the producer whose id is in `number`
    numbers: tuple[int, ...] = ()  # that were asked for
    made: tuple[Queue, ...] = ()  # queues that were not there before

    @property
    def code_by_name(self) -> Code:
        """The code for who named the queue: it knows of no id."""
        missing = self.code == Code.UNKNOWN_TOPIC_ID
        return Code.UNKNOWN_TOPIC_OR_PARTITION if missing else self.code
