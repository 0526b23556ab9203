"""The quotas of a client on this worker: the rates that are set, and how much there was.

A rate is set for an *entity*: a user, a client id, both together, or the default of either; or for
an address. The most specific rate applies to a client, as in Kafka. Clients that one entity is
about share what it allows: all client ids of a user, where the user's rate applies. Each worker
counts for itself, as Kafka's brokers do.

If no rate is set, `active` is False and nothing is called. The counts lie in meters, one for each
user and client id that a rate is for. A meter that says nothing a new one would not is dropped
after an hour, or as soon as there are too many. If too many are in use, later clients of the same
user or address share one meter. If too many users do so, later users share one. A meter in use is
never dropped: a client with ever new client ids would begin anew with each, and have no limit.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Any

from kproxy.common.counters import Counters
from kproxy.security.cache import Entity, SecurityCache
from kproxy.security.meters import WINDOW_S, Bucket, Rate
from kproxy.security.peer import Peer, plain_ip
from kproxy.virtual.rows.access import QUOTA, quota_name, quota_of

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCED, CONSUMED = "producer_byte_rate", "consumer_byte_rate"
WORKED, MUTATED = "request_percentage", "controller_mutation_rate"
CONNECTED = "connection_creation_rate"
_THROTTLING = (PRODUCED, CONSUMED, WORKED, MUTATED)

METERS_MAX = 50_000
_FOUND_MAX = 20_000
_SHARED_MAX = 10_000
"""Meters that those share who come when there are too many."""
_IDLE_S = 3600.0
_LOOKED_AT, _LOOK_S = 1000, 0.02
"""Meters that are looked at in one turn, and how often where room is sought: all in a second."""
_AT_ONCE_WAIT_S_MAX = 1.0
"""The longest wait for time and for connections: clients wait no longer at once, as in Kafka."""
_WAIT_MS_MAX = 0x7FFFFFFF
_MORE = "\0"  # no user, client id or address: who comes when there are too many
_LONG = "\0long"
CLIENT_ID_MAX = 256
"""Characters. All longer client ids are one: what is kept of them has a bound."""

Meter = Rate | Bucket
Asked = tuple[str, str, str]  # a key, and who: principal and client id


def milliseconds(wait_s: float) -> int:
    """Return a wait as an answer tells it."""
    return round(min(wait_s * 1000, _WAIT_MS_MAX))


def levels(user: str, client_id: str) -> Iterator[tuple[Entity, str, str]]:
    """Yield (entity, whose user and client id its meter is for), the most specific first.

    A client without a client id has the default's rate.
    """
    if client_id:
        yield ((CLIENT_ID, client_id), (USER, user)), user, client_id
        yield ((CLIENT_ID, None), (USER, user)), user, client_id
    yield ((USER, user),), user, ""
    if client_id:
        yield ((CLIENT_ID, client_id), (USER, None)), user, client_id
        yield ((CLIENT_ID, None), (USER, None)), user, client_id
    yield ((USER, None),), user, ""
    if client_id:
        yield ((CLIENT_ID, client_id),), "", client_id
        yield ((CLIENT_ID, None),), "", client_id


class Mutations:
    """One request's new, larger and deleted queues, counted as their partitions."""

    def __init__(
        self, bucket: Bucket | None = None, monotonic: Callable[[], float] = float,
        counters: Counters | None = None, *, strict: bool = True,
    ) -> None:  # fmt: skip
        """Take `strict`: excess is refused; else its client is to wait afterwards."""
        self._bucket = bucket
        self._monotonic = monotonic
        self._counters = counters
        self._strict = strict
        self.wait_s = 0.0
        """The seconds for which the client is to change nothing more."""

    @property
    def room(self) -> int | None:
        """The number that may be made or dropped at once; None: without a limit."""
        return None if self._bucket is None else self._bucket.left(self._monotonic())

    @property
    def wait(self) -> float:
        """The seconds for which nothing may be made or dropped."""
        return 0.0 if self._bucket is None else self._bucket.wait(self._monotonic())

    def take(self, partitions: int) -> bool:
        """Whether they may be made or dropped, which is counted. The limit may be passed once."""
        bucket = self._bucket
        if bucket is None:
            return True
        now = self._monotonic()
        if not self._strict:
            self._note(bucket.record(partitions, now), bucket, now)
            return True
        if wait_s := bucket.wait(now):
            self._note(wait_s, bucket, now)
            return False
        bucket.record(partitions, now)
        return True

    def _note(self, wait_s: float, bucket: Bucket, now: float) -> None:
        bucket.until = max(bucket.until, now + wait_s)
        if wait_s and not self.wait_s and self._counters is not None:
            self._counters.throttled[MUTATED] += 1
        self.wait_s = max(self.wait_s, wait_s)


class Quotas:
    """The quotas of a worker. They return the seconds for which a client is to be left waiting."""

    def __init__(
        self, security: SecurityCache, monotonic: Callable[[], float], counters: Counters
    ) -> None:
        self.active = False
        """Whether there is any for users or client ids."""
        self.limits_connections = False
        self._limits = security.quotas
        self._monotonic = monotonic
        self._counters = counters
        self._rows: dict[str, set[str]] = {}  # names of rows, by what they limit
        self._ips: dict[str | None, float] = {}
        self._meters: dict[Asked, Meter] = {}
        self._found: dict[Asked, Meter | None] = {}
        self._looked_at = -inf
        for entity, rates in security.quotas.items():
            for key, limit in rates.items():
                self._changed(quota_name(entity, key), {"value": limit})
        security.on_change.append(self._changed)

    def __len__(self) -> int:
        return len(self._meters)

    # -- what clients do

    def produced(self, peer: Peer, client_id: str | None, size: int) -> float:
        """Count bytes that a client has sent to be appended."""
        meter = self._of(PRODUCED, peer, client_id)
        return 0.0 if meter is None else self._record(PRODUCED, meter, size)

    def consumes_at_most(self, peer: Peer, client_id: str | None) -> int | None:
        """Return the bytes that a client can have at once. More could not be given to it ever."""
        meter = self._of(CONSUMED, peer, client_id)
        return None if meter is None else max(1, int(meter.limit * WINDOW_S))

    def consumed(self, peer: Peer, client_id: str | None, size: int) -> tuple[float, bool]:
        """Return (seconds, whether so many bytes are given to the client).

        Excess is not given and not counted. But a client that had nothing gets a batch that is
        larger than all that may be had at once: it could not go on otherwise.
        """
        meter = self._of(CONSUMED, peer, client_id)
        if meter is None:
            return 0.0, True
        assert isinstance(meter, Rate)
        nothing = meter.empty(self._monotonic())
        wait_s = self._record(CONSUMED, meter, size)
        if wait_s and not nothing:
            meter.take_back(size)
            return wait_s, False
        return wait_s, True

    def gave(self, peer: Peer, client_id: str | None, size: int) -> float:
        """Count bytes that a client was given, be it too much."""
        meter = self._of(CONSUMED, peer, client_id)
        return 0.0 if meter is None else self._record(CONSUMED, meter, size)

    def worked(self, peer: Peer, client_id: str | None, seconds: float) -> float:
        """Count the seconds that this worker was busy with a client's request."""
        meter = self._of(WORKED, peer, client_id)
        if meter is None:
            return 0.0
        return self._record(WORKED, meter, 100 * seconds, _AT_ONCE_WAIT_S_MAX)

    def owes(self, peer: Peer, client_id: str | None, keys: tuple[str, ...] = _THROTTLING) -> float:
        """Return for how long a client is still to wait, by whatever connection it was told so."""
        now, until = self._monotonic(), 0.0
        for key in keys:
            if key in self._rows and (meter := self._of(key, peer, client_id)) is not None:
                until = max(until, meter.until)
        return max(0.0, until - now)

    def mutations(self, peer: Peer, client_id: str | None, *, strict: bool = True) -> Mutations:
        """Return the meter of a request's changes of queues."""
        meter = self._of(MUTATED, peer, client_id)
        if meter is None:
            return NO_LIMIT
        assert isinstance(meter, Bucket)
        return Mutations(meter, self._monotonic, self._counters, strict=strict)

    def connected(self, ip: str) -> float:
        """Count a connection of an address; return how long it waits to be refused, or 0."""
        limit = self._ips.get(ip) or self._ips.get(None)
        if limit is None:
            return 0.0
        asked = (CONNECTED, ip, "")
        meter = self._found.get(asked) or self._metered(asked, asked, limit)
        assert isinstance(meter, Rate)
        if wait_s := self._record(CONNECTED, meter, 1):
            meter.take_back(1)
        return min(wait_s, _AT_ONCE_WAIT_S_MAX)

    def _record(
        self, key: str, meter: Meter, amount: float, most: float = _WAIT_MS_MAX / 1000
    ) -> float:
        now = self._monotonic()
        wait_s = min(meter.record(amount, now), most)
        if not milliseconds(wait_s):
            return 0.0
        meter.until = max(meter.until, now + wait_s)
        self._counters.throttled[key] += 1
        return wait_s

    # -- which rate it is

    def _of(self, key: str, peer: Peer, client_id: str | None) -> Meter | None:
        name = client_id or ""
        asked = (key, peer.principal, name if len(name) <= CLIENT_ID_MAX else _LONG)
        found = self._found.get(asked)
        if found is None and asked not in self._found:
            found = self._look_up(asked)
        return found

    def _look_up(self, asked: Asked) -> Meter | None:
        key, principal, client_id = asked
        if key in self._rows:
            for entity, user, client in levels(principal.partition(":")[2], client_id):
                limit = self._limits.get(entity, {}).get(key)
                if limit is not None:
                    return self._metered(asked, (key, user, client), limit)
        self._remember(asked, None)
        return None

    def _metered(self, asked: Asked, whose: Asked, limit: float) -> Meter:
        meters = self._meters
        if whose not in meters and len(meters) >= METERS_MAX:
            self._make_room()
            if len(meters) >= METERS_MAX:
                whose = self._shared(asked)
        meter = meters.get(whose)
        if meter is None:
            now = self._monotonic()
            meter = Bucket(limit, now) if whose[0] == MUTATED else Rate(limit, now)
            meters[whose] = meter
        if meter.limit != limit:  # the debt was another limit's
            meter.limit, meter.until = limit, 0.0
        self._remember(asked, meter)
        return meter

    def _shared(self, asked: Asked) -> Asked:
        """Return the meter that clients without their own share."""
        key, who, _ = asked
        whose = (key, who, _MORE)
        if whose in self._meters or len(self._meters) < METERS_MAX + _SHARED_MAX:
            return whose
        return (key, _MORE, "")

    def _remember(self, asked: Asked, meter: Meter | None) -> None:
        if len(self._found) >= _FOUND_MAX:
            self._found.clear()
        self._found[asked] = meter

    # -- letting go

    def tidy(self) -> None:
        """Drop meters that nobody used for an hour. Called every second."""
        since = self._monotonic() - _IDLE_S
        self._drop(lambda meter: max(meter.used_at, meter.until) <= since)

    def _make_room(self) -> None:
        """Drop meters that say nothing."""
        now = self._monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._drop(lambda meter: meter.until <= now and meter.empty(now))

    def _drop(self, useless: Callable[[Meter], bool]) -> None:
        """Look at some meters: those that were not looked at for longest are first."""
        meters, dropped = self._meters, False
        for who in list(islice(meters, _LOOKED_AT)):
            meter = meters.pop(who)
            if useless(meter):
                dropped = True
            else:
                meters[who] = meter
        if dropped:
            self._found.clear()

    # -- what is set

    def _changed(self, row: str, value: Any) -> None:
        if row[:1] != QUOTA:
            return
        entity, key = quota_of(row)
        rows = self._rows.setdefault(key, set())
        if value is None:
            rows.discard(row)
            if not rows:
                del self._rows[key]
        else:
            rows.add(row)
        if key == CONNECTED:
            name = entity[0][1]
            ip = None if name is None else plain_ip(name)
            if value is None:
                self._ips.pop(ip, None)
            else:
                self._ips[ip] = float(value["value"])
        self._found.clear()
        self.limits_connections = CONNECTED in self._rows
        self.active = len(self._rows) > self.limits_connections


NO_LIMIT = Mutations()
