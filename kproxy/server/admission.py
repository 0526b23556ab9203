"""The admission of connections: a part for each listener, user and address.

A connection has one `Place` from its first packet to its end, whatever is made of it meanwhile: a
TLS handshake, a client that has not said who it is, a user. So nothing of it is counted twice.

The rules. Each of several listeners has a reserve that the others leave alone. On a listener,
clients that have not logged in (*newcomers*) have a quarter of the places at most, and a few that
nobody else takes; they count for their address. A client that has logged in counts for its user, or
without one for its address. If there is no place, the holder with most places loses the one that it
has held longest. A holder with no more than its part, which is as many places as there are for
each, loses none. So an address pushes out its own, and nobody is refused whose part is free. A
login takes milliseconds: an honest client is mostly through before newcomers from thousands of
other addresses push it out.
"""

from collections import Counter
from collections.abc import Callable

import structlog

from kproxy.loop.callbacks import nothing
from kproxy.security.crowd import Crowd
from kproxy.security.peer import ANONYMOUS, network_of

_log = structlog.get_logger()

_NEWCOMERS, _NEWCOMERS_MIN = 4, 100
_FEW, _FEW_MIN = 16, 100
_RESERVED = 2
"""The divisor of all places that gives the reserves."""

End = Callable[[str], None]
"""Ends a connection that loses its place: the event to log."""


class Place:
    """The place of one connection, which sets `end`."""

    __slots__ = ("_key", "_network", "_new", "_room", "end")

    def __init__(self, room: "Room", network: str, *, new: bool) -> None:
        self._room: Room | None = room
        self._network = self._key = network
        self._new = new
        self.end: End = nothing

    def known(self, principal: str) -> None:
        """Count the place for a client that has logged in, or is let in without.

        It may lose it by that.
        """
        room = self._room
        key = self._network if principal == ANONYMOUS else principal
        if room is None or (key == self._key and not self._new):
            return
        room.drop(self._key, self, new=self._new)
        self._new, self._key = False, key
        may = room.make_room_for(key)
        room.add(key, self, new=False)
        if not may:
            self.push_out("connection_refused")

    def leave(self) -> None:
        """Give the place back when the connection has gone.

        Do nothing where it was gone already.
        """
        room, self._room = self._room, None
        if room is not None:
            self.end = nothing
            room.drop(self._key, self, new=self._new)
            room.let_go(self._network)

    def push_out(self, event: str = "") -> None:
        end = self.end
        self.leave()
        end(event or ("login_pushed_out" if self._new else "connection_pushed_out"))


class Admission:
    """All connections of a server. `most`: how many; `per_ip`: of one address."""

    def __init__(self, most: int, per_ip: int) -> None:
        self.most = most
        self.per_ip = per_ip
        self.by_network: Counter[str] = Counter()
        self.rooms: list[Room] = []

    @property
    def count(self) -> int:
        return sum(room.count for room in self.rooms)

    @property
    def reserve(self) -> int:
        """The places of each listener that others leave alone."""
        several = len(self.rooms) > 1
        return max(2, self.most // (_RESERVED * len(self.rooms))) if several else self.most

    def room(self, *, logins: bool) -> "Room":
        """Return the room of one more listener, before any is used. `logins`: it has newcomers."""
        self.rooms.append(Room(self, logins))
        return self.rooms[-1]


class Room:
    """The places of one listener."""

    def __init__(self, admission: Admission, logins: bool) -> None:
        self._admission = admission
        self._logins = logins
        self._newcomers: Crowd[Place] = Crowd()
        self._known: Crowd[Place] = Crowd()

    @property
    def count(self) -> int:
        return self._newcomers.count + self._known.count

    @property
    def newcomers(self) -> int:
        return self._newcomers.count

    @property
    def few(self) -> int:
        """Places for newcomers alone."""
        if not self._logins:
            return 0
        most = self._admission.most
        return max(1, min(max(most // _FEW, _FEW_MIN), self._admission.reserve // _NEWCOMERS))

    @property
    def claimed(self) -> int:
        """Places that other listeners leave alone."""
        used = self._known.count + max(self._newcomers.count, self.few)
        several = len(self._admission.rooms) > 1
        return max(used, self._admission.reserve) if several else used

    @property
    def most(self) -> int:
        """The number of places that there are here, as others use theirs now."""
        others = sum(room.claimed for room in self._admission.rooms if room is not self)
        return max(1, self._admission.most - others)

    def add(self, key: str, place: Place, *, new: bool) -> None:
        (self._newcomers if new else self._known).add(key, place)

    def drop(self, key: str, place: Place, *, new: bool) -> None:
        (self._newcomers if new else self._known).drop(key, place)

    def come(self, ip: str, *, new: bool) -> Place | None:
        """Return a place for a connection; None: there is none for it."""
        network, admission = network_of(ip), self._admission
        room = self._newcomer_fits if new else self.make_room_for
        if admission.by_network[network] >= admission.per_ip or not room(network):
            if not admission.by_network[network]:
                del admission.by_network[network]
            _log.warning("connection_refused", peer=ip, connections=admission.count)
            return None
        place = Place(self, network, new=new)
        self.add(network, place, new=new)
        admission.by_network[network] += 1
        return place

    def let_go(self, network: str) -> None:
        by_network = self._admission.by_network
        by_network[network] -= 1
        if not by_network[network]:
            del by_network[network]

    def _newcomer_fits(self, network: str) -> bool:
        """Whether there is a place for a newcomer, which another may have lost for it."""
        newcomers, most = self._newcomers, self.most
        quarter = max(most // _NEWCOMERS, min(most, _NEWCOMERS_MIN))
        if newcomers.count < quarter and self.count < most:
            return True
        if not newcomers.count:
            return False
        mine = newcomers.of(network)
        keys = len(newcomers) + (not mine)
        own = mine and (mine + 1) * keys > newcomers.count + 1
        newcomers.oldest(network if own else newcomers.most()[0]).push_out()
        return True

    def make_room_for(self, key: str) -> bool:
        """Whether there is a place for who is known, which another may have lost for it."""
        known = self._known
        if known.count < max(1, self.most - max(self.few, self._newcomers.count)):
            return True
        most, count = known.most()
        if count <= known.of(key) + 1:
            return False
        known.oldest(most).push_out()
        return True
