"""What a worker counts. To count is one addition to a plain integer: 0.05 µs.

To add a counter, name it in `__slots__` and add to it where the thing happens. SIGUSR1 has them
logged.
"""


class Counters:
    """Totals since the start of the process."""

    __slots__ = (
        "compaction_passes", "connections", "dead_letters", "dead_letters_blocked",
        "dead_letters_dropped", "dead_letters_refused", "not_compacted", "request_bytes",
        "requests", "response_bytes", "routed", "routes_held_back", "unroutable", "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.request_bytes = 0  # of frames, without their lengths
        self.response_bytes = 0
        self.compaction_passes = 0
        self.dead_letters = 0  # records that went into dead-letter queues
        self.dead_letters_blocked = 0  # times that a share partition's had to wait for theirs
        self.dead_letters_dropped = 0  # records: their queue, or that it gets any, is gone
        self.dead_letters_refused = 0  # records that were archived without: too many wait
        self.not_compacted = 0  # partitions with a batch that cannot be read
        self.routed = 0  # records that were passed on to other queues, unroutable ones among them
        self.routes_held_back = 0  # times that a route had to wait
        self.unroutable = 0  # records that have no queue to go to
        self.writes = 0  # to clients: a connection's answers of a turn of the loop are one

    def values(self) -> dict[str, int]:
        """Each counter by its name."""
        return {name: getattr(self, name) for name in self.__slots__}
