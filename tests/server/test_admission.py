"""The admission of connections, by a model: random orders of events of many addresses and users."""

import random
from collections import Counter
from dataclasses import dataclass, field

from kproxy.security.crowd import Crowd
from kproxy.security.peer import ANONYMOUS
from kproxy.server.admission import Admission, Place, Room


@dataclass(eq=False)
class One:
    """A connection, as its client knows it."""

    room: int
    address: str
    principal: str = ""  # once it is known
    place: Place | None = None
    ended: str = ""

    @property
    def key(self) -> str:
        return self.principal if self.principal not in ("", ANONYMOUS) else self.address


@dataclass
class Model:
    """The rules for connections that lose a place or get none."""

    admission: Admission
    rooms: list[Room]
    logins: list[bool]
    here: list[One] = field(default_factory=list)
    ended: list[One] = field(default_factory=list)
    refused: int = 0

    def counts(self, room: int, *, new: bool) -> Counter[str]:
        return Counter(
            one.key for one in self.here if one.room == room and (not one.principal) == new
        )

    def come(self, room: int, address: str) -> One:
        one = One(room, address, principal="" if self.logins[room] else ANONYMOUS)
        before, most = self.counts(room, new=self.logins[room]), self.rooms[room].most
        one.place = self.rooms[room].come(address, new=self.logins[room])
        if one.place is None:
            self.refused += 1
            assert not self.logins[room], "a newcomer finds a place, be it another newcomer's"
            keys = len(before) + (address not in before)
            assert (before[address] + 1) * keys > most, "refused, and its part was free"
            return one
        one.place.end = self._end(one)
        self.here.append(one)
        self.victims(one)
        return one

    def become(self, one: One, principal: str) -> None:
        """Have a handshake become a connection, or a newcomer a user."""
        assert one.place is not None
        one.place.end = self._end(one)
        one.principal = principal
        one.place.known(principal)
        self.victims(one)

    def gone(self, one: One) -> None:
        assert one.place is not None
        one.place.leave()
        one.place.leave()
        self.here.remove(one)

    def victims(self, newest: One) -> None:
        """Check the connections pushed out: each had more than its part, or as much as anybody."""
        for one in self.ended:
            counts = self.counts(one.room, new=not one.principal)
            mine, total = counts[one.key], counts.total()
            assert mine * len(counts) >= total, "pushed out, and had no more than its part"
            if one is not newest and one.key != newest.key:
                assert mine >= counts[newest.key]
            self.here.remove(one)
        self.ended.clear()

    def _end(self, one: One):  # type: ignore[no-untyped-def]
        def end(event: str) -> None:
            one.ended = event
            self.ended.append(one)

        return end

    def check(self) -> None:
        assert not self.ended
        assert self.admission.count == len(self.here) <= self.admission.most
        assert self.admission.by_network == Counter(one.address for one in self.here)
        for number, room in enumerate(self.rooms):
            assert room.newcomers == self.counts(number, new=True).total()
            assert room.count <= room.most


def model(most: int, logins: list[bool]) -> Model:
    admission = Admission(most, 10 * most)
    return Model(admission, [admission.room(logins=one) for one in logins], logins)


def played(seed: int) -> Model:
    dice = random.Random(seed)
    logins = dice.choice([[True], [False], [True, False], [True, True, False]])
    made = model(dice.choice([8, 40, 120]), logins)
    addresses = [f"10.0.{dice.randrange(3)}.{number}" for number in range(dice.choice([2, 30]))]
    names = ["User:alice", "User:bob", ANONYMOUS, "User:mallory"]
    weights = dice.choice([(5, 2, 1), (5, 5, 1), (2, 2, 2), (9, 0, 1)])
    for _ in range(500):
        (event,) = dice.choices(["come", "become", "gone"], weights)
        new = [one for one in made.here if not one.principal]
        if event == "become" and new:
            made.become(dice.choice(new), dice.choices(names, [1, 1, 1, 9])[0])
        elif event == "gone" and made.here:
            made.gone(dice.choice(made.here))
        else:
            address = dice.choice(addresses) if dice.random() < 0.5 else addresses[0]
            made.come(dice.randrange(len(logins)), address)
        made.check()
    return made


def test_nobody_whose_part_is_free_is_pushed_out_or_refused() -> None:
    plays = [played(seed) for seed in range(10)]
    assert any(made.refused for made in plays)
    for made in plays:
        for one in list(made.here):
            made.gone(one)
        made.check()


def test_one_who_logs_in_is_not_pushed_out_by_itself() -> None:
    """FAULT: a handshake and the connection made of it were two, and the older was pushed out."""
    made = model(400, [True])
    for number in range(150):
        made.come(0, f"10.0.1.{number}")
    honest = made.come(0, "10.0.0.1")
    made.become(honest, "")
    for number in range(90):
        made.come(0, f"10.0.2.{number}")
    assert not honest.ended
    made.become(honest, "User:alice")
    for number in range(400):
        made.come(0, f"10.0.3.{number}")
    assert not honest.ended


def test_idle_connections_of_one_listener_leave_room_on_another() -> None:
    """FAULT: idle plain connections took all places, and no TLS login came in."""
    made = model(1000, [False, True])
    for _ in range(1000):
        made.come(0, "10.0.0.1")
    assert made.refused == 250
    alice = made.come(1, "10.0.0.2")
    made.become(alice, "User:alice")
    assert alice in made.here


def test_one_user_cannot_have_all_places() -> None:
    """FAULT: connections of one user refused everybody else."""
    made = model(1000, [True])
    for _ in range(1200):
        made.become(made.come(0, "10.0.0.1"), "User:mallory")
    assert made.rooms[0].count == 900
    alices = [made.come(0, "10.0.0.2") for _ in range(20)]
    for one in alices:
        made.become(one, "User:alice")
    assert all(one in made.here for one in alices)


def test_an_address_of_ipv6_is_its_network() -> None:
    """FAULT: `connections_per_ip_max` counted each of the 2^64 addresses of a machine."""
    admission = Admission(100, 2)
    room = admission.room(logins=False)
    found = [room.come(f"2001:db8::{number}", new=False) for number in range(1, 4)]
    assert [one is not None for one in found] == [True, True, False]


def test_a_crowd_knows_who_has_most() -> None:
    crowd: Crowd[int] = Crowd()
    dice, held = random.Random(1), []
    for place in range(2000):
        if held and dice.random() < 0.4:
            key, old = held.pop(dice.randrange(len(held)))
            crowd.drop(key, old)
        else:
            key = f"k{int(dice.paretovariate(1)) % 20}"
            crowd.add(key, place)
            held.append((key, place))
        counts = Counter(key for key, _ in held)
        most, count = crowd.most()
        assert count == max(counts.values(), default=0) == counts[most]
        if held:
            assert crowd.oldest(most) == min(one for key, one in held if key == most)
        assert (len(crowd), crowd.count) == (len(counts), len(held))
