"""The counters of a worker. To count is one addition to a plain integer: 0.05 µs.

To add a counter, name it in `__slots__` and add to it where the thing happens. `kproxy.observe`
reads them for `/metrics`, on another thread, and SIGUSR1 has them logged.
"""

from bisect import bisect_left
from collections import Counter
from contextvars import ContextVar

APIS = 100
"""More than the highest API key."""
REQUEST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
APPEND_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TIMED = {0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit",
         9: "OffsetFetch", 78: "ShareFetch", 79: "ShareAcknowledge"}  # fmt: skip
"""The hot APIs, by key: how long their requests take is counted."""
TIMED_EVERY = 17
"""The number of requests of which one Produce is timed: two looks at the clock are 1 % of one.

A prime, for clients whose requests come in some rhythm.
"""
WAITED: ContextVar[list[float] | None] = ContextVar("waited", default=None)
"""The seconds that a request waits for records: they are no part of how long it takes."""


class Histogram:
    """The numbers of values below each bound. `observe` is 0.2 µs."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = REQUEST_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Busiest:
    """The approximate amounts of the names that there was most of: for a look, not for a bill.

    Bounded: if there are too many names, the half with the least goes.
    """

    __slots__ = ("_names_max", "amounts")

    def __init__(self, names_max: int = 500) -> None:
        self._names_max = names_max
        self.amounts: dict[str | bytes, int] = {}

    def add(self, name: str | bytes, amount: int) -> None:
        amounts = self.amounts
        amounts[name] = amounts.get(name, 0) + amount
        if len(amounts) > self._names_max:
            self.amounts = dict(self.top(self._names_max // 2))

    def top(self, count: int) -> list[tuple[str | bytes, int]]:
        """Return the names with most, most first."""
        return sorted(self.amounts.items(), key=lambda item: -item[1])[:count]


class Counters:
    """Totals since the start of the process."""

    __slots__ = (
        "answered", "batches_not_compacted", "busy_groups", "busy_in", "busy_out", "certificates",
        "compaction_passes", "connections", "connections_ended", "connections_open", "dead_letters",
        "dead_letters_blocked",
        "dead_letters_dropped", "dead_letters_refused", "expired_at_once", "failed",
        "fetched_bytes", "fetched_records", "garbage_found", "garbage_looks",
        "handshakes", "logins", "loop_lag",
        "not_compacted",
        "produced_bytes", "produced_records", "producers_forgotten", "producers_forgotten_early",
        "request_bytes", "request_seconds", "requests",
        "response_bytes", "route_passed_over", "routed",
        "routes_held_back", "share_accepted", "share_archived", "share_delivered", "share_rejected",
        "share_released", "share_timed_out", "takeover_seconds", "throttled", "unroutable",
        "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connections = 0
        self.connections_open = 0
        self.connections_ended: Counter[str] = Counter()  # by why kproxy ended or refused them
        self.certificates: dict[str, float] = {}  # when they end, by listener: seconds since 1970
        self.handshakes: Counter[str] = Counter()  # TLS handshakes, by protocol or "failed"
        self.logins: Counter[tuple[str, str]] = Counter()  # by mechanism, and in, again or failed
        self.requests = 0
        self.request_bytes = 0  # bytes of frames, without their lengths
        self.response_bytes = 0
        self.answered = [0] * APIS  # requests answered without an error, by API key
        self.failed: Counter[tuple[int, int]] = Counter()  # others, by API key and first error
        self.request_seconds = {key: Histogram() for key in TIMED}
        self.busy_in = Busiest()  # bytes by queue, of one Produce in `TIMED_EVERY` requests
        self.busy_out = Busiest()  # the same of Fetch
        self.busy_groups = Busiest()  # commits
        self.produced_bytes = 0  # bytes of batches, taken for the log
        self.produced_records = 0
        self.producers_forgotten = 0  # by partitions, as they were not used for long
        self.producers_forgotten_early = 0  # for there were too many: below level 8 alone
        self.fetched_bytes = 0  # bytes of batches, in answers to Fetch and ShareFetch
        self.fetched_records = 0  # offsets of Fetch, acquired records of ShareFetch
        self.garbage_found = 0  # objects in cycles that were old: somebody should have cut them
        self.garbage_looks = 0  # at old objects
        self.loop_lag = Histogram((0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
        self.takeover_seconds = Histogram((0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800))
        self.batches_not_compacted = 0  # that stay as they are, each time that a pass comes by
        self.compaction_passes = 0
        self.dead_letters = 0  # records that went into dead-letter queues
        self.dead_letters_blocked = 0  # times that a share partition's had to wait for theirs
        self.dead_letters_dropped = 0  # records: their queue, or that it gets any, is gone
        self.dead_letters_refused = 0  # records that were archived without: too many wait
        self.not_compacted = 0  # partitions with a batch that cannot be read
        self.route_passed_over = 0  # records that a route could not look at, or pass on
        self.expired_at_once = 0  # records taken that are older than their queue keeps them
        self.routed = 0  # records that were passed on to other queues, unroutable ones among them
        self.routes_held_back = 0  # times that a route had to wait
        self.share_accepted = 0  # records, as all of these: members of share groups accepted them
        self.share_archived: Counter[str] = Counter()  # by cause: nobody is given them any more
        self.share_delivered = 0  # each time that they were given
        self.share_rejected = 0
        self.share_released = 0  # members gave them back
        self.share_timed_out = 0  # members held them for too long
        self.throttled: Counter[str] = Counter()  # times that a client was to wait, by quota
        self.unroutable = 0  # records that have no queue to go to
        self.writes = 0  # to clients: a connection's answers of a turn of the loop are one

    def answer(self, key: int, code: int) -> None:
        """Count an answer to a request of an API; `code`: the first error in the answer, or 0."""
        if code:
            self.failed[key, code] += 1
        else:
            self.answered[key] += 1

    def values(self) -> dict[str, int]:
        """Return each counter that is one number by its name."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in named.items() if isinstance(value, int)}
