"""Whether a worker lives, and whether clients may be sent to it.

It lives while its event loop turns and its disk answers. It is ready while it accepts connections
and, on Kafka, has heard which shards are its own and makes none of their local copies. One that is
being stopped is not ready. An outage of the cluster ends neither: no other worker would do better.
"""

from collections import Counter
from typing import Any

from kproxy import __version__
from kproxy.observe.loop_watch import LoopWatch
from kproxy.store import disk_calls
from kproxy.worker.worker import Worker

DISK_STUCK_S = 15.0
"""A disk on which one call takes longer hangs."""
_UNREADY = ("opening", "rebuilding", "catching_up")


class Health:
    """The health of one process. `worker` is set once it accepts connections. From any thread."""

    def __init__(self, watch: LoopWatch) -> None:
        self.watch = watch
        self.worker: Worker | None = None

    def stuck(self) -> str | None:
        """Return why the process does not live, if so."""
        if self.watch.stuck:
            return f"the event loop has not turned for {self.watch.turned_s_ago:.1f} s"
        waited_s = disk_calls.waited_s()
        if waited_s > DISK_STUCK_S:
            return f"the disk has not answered for {waited_s:.1f} s"
        return None

    def unready(self) -> list[str]:
        """Return why no client should be sent here; none: it is ready."""
        reasons = [reason for reason in [self.stuck()] if reason]
        worker = self.worker
        if worker is None:
            return [*reasons, "it does not accept connections yet"]
        if worker.stopping or worker.draining:
            reasons.append("it is being stopped")
        if worker.standing is not None and not worker.standing.assigned:
            reasons.append("it has not heard which shards are its own")
        phases = self._phases()
        reasons += [f"{phases[name]} shards: {name}" for name in _UNREADY if phases[name]]
        return reasons

    def _phases(self) -> Counter[str]:
        worker = self.worker
        if worker is None or worker.standing is None:
            return Counter()
        return Counter(one.phase for one in worker.standing.shards())

    def report(self) -> dict[str, Any]:
        """Return all of it, for people."""
        worker, reasons = self.worker, self.unready()
        standing = None if worker is None else worker.standing
        return {
            "live": self.stuck() is None,
            "ready": not reasons,
            "reasons": reasons,
            "version": __version__,
            "lane": None if worker is None else worker.lane.name,
            "node_id": None if worker is None else worker.cluster.me.node_id,
            "shards": dict(self._phases()),
            "upstream_up": None if standing is None else standing.upstream_up,
        }
