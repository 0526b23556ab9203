"""The reading of one stored batch that a route passes on, run by run."""

from kproxy.protocol.batch import HEADER_BYTES, BatchHeader
from kproxy.protocol.codecs import held_while_unpacked
from kproxy.protocol.record_runs import body_runs
from kproxy.protocol.records import Body, without_producer
from kproxy.protocol.varint import Malformed

_RECORD_BYTES = 256  # that a record takes in memory, about


class Reading:
    """A stored batch as it is read: run by run, and once, also where several cuts take of it."""

    def __init__(
        self, base_offset: int, head: BatchHeader, data: bytes, headers: bool | frozenset[bytes]
    ) -> None:
        self.base_offset = base_offset
        self.head = head
        self.end = base_offset + head.last_offset_delta + 1
        self.first = self.behind = base_offset
        """Offsets: where `run` begins, and where what is told so far ends."""
        self.run: list[Body] = []
        self.told = 0
        self.fault = ""
        """The reason why no more records can be told."""
        self.stored = data
        self._held = len(data) + held_while_unpacked(data[HEADER_BYTES:], head.codec)
        self._runs = body_runs(head, data, headers=headers)

    def read_on(self) -> bool:
        """Go on to the next run; whether there is one."""
        try:
            run = next(self._runs, None)
        except Malformed as error:
            run, self.fault = None, str(error)
        self.first = self.behind
        self.run = [] if run is None else run
        if not self.run:
            return False
        self.told += len(self.run)
        self.behind = self.base_offset + self.run[-1][0] + 1
        return True

    @property
    def whole(self) -> bytes:
        """The batch as it is, of no producer."""
        return without_producer(self.head, self.stored)

    @property
    def size(self) -> int:
        """The records that it holds in memory, and what else it holds, as if it were records."""
        return len(self.run) + self._held // _RECORD_BYTES
