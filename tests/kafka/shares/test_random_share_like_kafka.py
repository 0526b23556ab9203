"""Random lives of share groups: three members on two partitions, right and wrong requests.

Locks last longer than a test. A fetch takes all there is, in as many requests as that needs: which
partition or piece comes first is not compared. A real Kafka fails where a range begins below the
start of a share partition and nothing is left above it, so that is not asked.
"""

import random
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.harness import Served
from tests.kafka.canonical import unheard
from tests.kafka.cluster import name
from tests.kafka.recorded import Recorded
from tests.kafka.shares.cluster import Part, ShareCluster, alike_in_shares
from tests.kafka.shares.sharer import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acks,
    Sharer,
    another,
    sharing,
)
from tests.kafka.transactions.producer import Producer, compare_said
from tests.wire import Wire

STEPS = 40
SOME_MS, NONE_MS = 1000, 30  # how long a fetch waits that is to find something, or nothing


class Play:
    """Three members of a group, a topic of two partitions; all by one seed."""

    def __init__(
        self, cluster: ShareCluster, queue: str, seed: int, *, one_session: bool = True
    ) -> None:
        self.dice = random.Random(seed)
        self.cluster = cluster
        self.one_session = one_session  # whether both partitions are led by one node
        self.limit = self.dice.choice((2, 3, 5, 10))
        self.isolation = self.dice.choice(("read_committed", "read_uncommitted"))
        first = sharing(
            cluster, queue, partitions=2, share_delivery_count_limit=str(self.limit),
            share_isolation_level=self.isolation, share_record_lock_duration_ms="60000",
        )  # fmt: skip
        self.producer = Producer(cluster, queue).init()
        self.members = [first, another(first, "two"), another(first, "three")]
        self.parts: list[Part] = [(queue, 0), (queue, 1)]
        self.holds: dict[tuple[str, Part], dict[int, int]] = {
            (one.id, part): {} for one in self.members for part in self.parts
        }
        self.free: dict[Part, dict[int, int]] = {part: {} for part in self.parts}
        """Offsets that were released, and how often they were given."""
        self.seen = dict.fromkeys(self.parts, 3)
        """The first offset that was never given."""
        self.ends = dict.fromkeys(self.parts, 3)
        for part in self.parts:
            cluster.write(queue, 3, partition=part[1])
            first.fetch(part)  # so that a real Kafka has read its state
        for part in self.parts:
            first.ack({part: [(0, 2, RELEASE)]})
            self.free[part] = dict.fromkeys(range(3), 1)

    def run(self) -> None:
        steps = [
            (self.write, 8), (self.transact, 3), (self.take, 12), (self.settle, 14),
            (self.settle_on_the_way, 4), (self.renew, 3), (self.wrong, 8), (self.close, 3),
            (self.wrong_epoch, 2), (self.look, 3),
        ]  # fmt: skip
        chosen, weights = zip(*steps, strict=True)
        for step in self.dice.choices(chosen, weights, k=STEPS):
            step(self.dice.choice(self.members))
        for one in self.members:
            self.close(one)
        self.take(self.members[0])
        held = {part: self._all_of(self.members[0], part) for part in self.parts}
        self._ack(self.members[0], {part: acks for part, acks in held.items() if acks})
        self.take(self.members[0])
        self.look(self.members[0])

    # -- what is written

    def write(self, _: Sharer) -> None:
        topic, partition = self.dice.choice(self.parts)
        sizes = self.dice.choices((1, 2, 3, 7), k=self.dice.randrange(1, 4))
        self.cluster.write(topic, *sizes, partition=partition)
        self.ends[topic, partition] += sum(sizes)

    def transact(self, _: Sharer) -> None:
        topic, partition = self.dice.choice(self.parts)
        self.producer.add((topic, partition))
        size = self.dice.randrange(1, 4)
        self.producer.write(topic, *[b"v"] * size, partition=partition)
        self.producer.end(self.dice.random() < 0.5)
        self.ends[topic, partition] += size + 1  # the marker is given too
        self.cluster.settle(self.producer.id)

    # -- what a member does

    def take(self, one: Sharer, acks: Acks | None = None) -> None:
        """Take all that it is given now, and say how its acknowledgements went."""
        said = len(self.cluster.said)
        found: dict[Part, dict[int, int]] = {part: {} for part in self.parts}
        codes: list[str] = []
        end = time.monotonic() + 20
        for wire, parts in self._by_leader(self.parts).items():
            of_these = {part: listed for part, listed in (acks or {}).items() if part in parts}
            if one.sessions.get(wire, 0) == 0:
                one.fetch(*parts, at=wire, wait_ms=self._wait_ms(parts))
                self._got(one, found)
            answer = one.fetch(at=wire, wait_ms=NONE_MS, acks=of_these)
            codes += self._codes(one, answer, of_these)
            self._acked(one, answer, of_these)
            with unheard():
                while self._got(one, found) or self._wait_ms(parts) == SOME_MS:
                    assert time.monotonic() < end, (self.free, self.seen)
                    one.fetch(at=wire, wait_ms=self._wait_ms(parts))
        del self.cluster.said[said:]
        shown = {part: runs(found[part]) for part in self.parts}
        self.cluster.say(f"take {one.id} {acks or ''}", f"{sorted(codes)} {shown}")

    def settle(self, one: Sharer) -> None:
        if acks := self._some_of(one, (ACCEPT, ACCEPT, RELEASE, REJECT, GAP)):
            self._ack(one, acks)

    def settle_on_the_way(self, one: Sharer) -> None:
        if all(one.sessions.get(wire, 0) for wire in self._by_leader(self.parts)):
            self.take(one, self._some_of(one, (ACCEPT, RELEASE, REJECT)))

    def renew(self, one: Sharer) -> None:
        if acks := self._some_of(one, (RENEW, RENEW, ACCEPT)):
            self._ack(one, acks, renew=self.dice.random() < 0.8)

    def close(self, one: Sharer) -> None:
        """End its sessions, with the last acknowledgements."""
        acks = self._some_of(one, (ACCEPT, RELEASE)) if self.dice.random() < 0.5 else {}
        if any(one.sessions.get(wire, 0) for wire in self._by_leader(self.parts)):
            self._ack(one, acks, last=True)

    def wrong(self, one: Sharer) -> None:
        """Acknowledge ranges at random, which may be another's, done with, or not there yet."""
        part = self.dice.choice(self.parts)
        above = sorted(self.free[part]) + sorted(
            offset for other in self.members for offset in self.holds[other.id, part]
        )
        if not above:
            return
        listed = []
        first = self.dice.randrange(max(above) + 3)
        for _ in range(self.dice.randrange(1, 3)):
            last = first + self.dice.choice((0, 0, 1, 2, 5, -1))
            types = [self.dice.choice((ACCEPT, RELEASE, REJECT, GAP, RENEW, 7))]
            if self.dice.random() < 0.2:
                types *= self.dice.randrange(4)
            listed.append((first, last, *types))
            first = last + self.dice.choice((1, 1, 2, -2))
        self._ack(one, {part: listed})

    def wrong_epoch(self, one: Sharer) -> None:
        if self.one_session:
            one.ack(
                {}, epoch=self.dice.choice((0, 999, -2)), at=self.cluster.leader(*self.parts[0])
            )

    def look(self, _: Sharer) -> None:
        """Say the lag; a real Kafka does not count aborted records until they are written."""
        if self.isolation == "read_uncommitted":
            self.cluster.share_offsets(self.parts[0][0], *self.parts)

    # -- requests

    def _by_leader(self, parts: list[Part]) -> dict[Wire, list[Part]]:
        found: dict[Wire, list[Part]] = {}
        for part in parts:
            found.setdefault(self.cluster.leader(*part), []).append(part)
        return found

    def _ack(self, one: Sharer, acks: Acks, *, renew: bool = False, last: bool = False) -> None:
        said = len(self.cluster.said)
        codes: list[str] = []
        for wire, parts in self._by_leader(self.parts).items():
            of_these = {part: acks[part] for part in parts if part in acks}
            opened = one.sessions.get(wire, 0) > 0
            if not of_these and not (last and opened):
                continue
            if not opened:
                one.fetch(*parts, at=wire, records=0, wait_ms=0)
            answer = one.ack(of_these, at=wire, renew=renew, epoch=-1 if last else None)
            codes += self._codes(one, answer, of_these)
            self._acked(one, answer, of_these)
        if last:
            for part in self.parts:
                self._released(one, part, dict(self.holds[one.id, part]))
        del self.cluster.said[said:]
        self.cluster.say(
            f"ack {one.id} {acks}{' renew' if renew else ''}{' last' if last else ''}",
            sorted(codes),
        )

    def _codes(self, one: Sharer, answer: Any, acks: Acks) -> list[str]:
        top = [name(answer.error_code)] if answer.error_code else []
        return top + [
            f"{key[0]}/{key[1]} {code_of(part)}"
            for key, part in one.parts_of(answer)
            if key in acks
        ]

    # -- what is held, as far as it must be known to ask what may be asked

    def _wait_ms(self, parts: list[Part]) -> int:
        some = any(self.free[part] or self.seen[part] < self.ends[part] for part in parts)
        return SOME_MS if some else NONE_MS

    def _got(self, one: Sharer, found: dict[Part, dict[int, int]]) -> bool:
        """Whether the last fetch gave anything."""
        for part, ranges in one.got.items():
            for low, high, count in ranges:
                for offset in range(low, high + 1):
                    found[part][offset] = count
                    self.holds[one.id, part][offset] = count
                    self.free[part].pop(offset, None)
                    self.seen[part] = max(self.seen[part], offset + 1)
        return any(one.got.values())

    def _acked(self, one: Sharer, answer: Any, acks: Acks) -> None:
        for key, part in one.parts_of(answer):
            if key not in acks or code_of(part) != "NONE":
                continue
            for first, last, *types in acks[key]:
                for offset in range(first, last + 1):
                    kind = types[offset - first] if len(types) > 1 else types[0]
                    held = self.holds[one.id, key]
                    if offset in held and kind == RELEASE:
                        self._released(one, key, {offset: held[offset]})
                    elif kind != RENEW:
                        held.pop(offset, None)

    def _released(self, one: Sharer, part: Part, given: dict[int, int]) -> None:
        for offset, count in given.items():
            self.holds[one.id, part].pop(offset)
            if count < self.limit:
                self.free[part][offset] = count

    def _all_of(self, one: Sharer, part: Part) -> list[tuple[Any, ...]]:
        return [(low, high, ACCEPT) for low, high, _ in runs(self.holds[one.id, part])]

    def _some_of(self, one: Sharer, types: tuple[int, ...]) -> Acks:
        """Acknowledge some of its records, by ranges or record by record."""
        acks: Acks = {}
        for part in self.parts:
            listed: list[tuple[Any, ...]] = []
            for low, high, _ in runs(self.holds[one.id, part]):
                first = self.dice.randrange(low, high + 1)
                last = self.dice.randrange(first, high + 1)
                if self.dice.random() < 0.3:
                    continue
                if self.dice.random() < 0.5:
                    listed.append((first, last, self.dice.choice(types)))
                else:
                    each = self.dice.choices(types, k=last - first + 1)
                    listed.append((first, last, *each))
            if listed:
                acks[part] = listed
        return acks


def code_of(part: Any) -> str:
    """Return the code of the acknowledgements in an answer to either request."""
    if hasattr(part, "acknowledge_error_code"):
        return name(ErrorCode(part.acknowledge_error_code))
    return name(part.error_code)


def runs(offsets: dict[int, int]) -> list[tuple[int, int, int]]:
    """Return (first, last, count) of offsets that follow each other and were given as often."""
    found: list[tuple[int, int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1:] == (offset - 1, offsets[offset]):
            found[-1] = found[-1][0], offset, offsets[offset]
        else:
            found.append((offset, offset, offsets[offset]))
    return found


@pytest.mark.parametrize("seed", range(20))
@alike_in_shares
def test_seed(cluster: ShareCluster, queue: str, seed: int) -> None:
    Play(cluster, queue, seed).run()


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 220, 50))
@alike_in_shares
def test_many_seeds(cluster: ShareCluster, queue: str, first: int) -> None:
    for seed in range(first, first + 50):
        with cluster.anew() as one:
            Play(one, f"{queue}-{seed}", seed).run()


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_two_workers(recorded: Recorded, two_workers: Served, seed: int) -> None:
    def script(cluster: ShareCluster, queue: str) -> None:
        Play(cluster, queue, seed, one_session=False).run()

    compare_said(ShareCluster, recorded, two_workers, script, asked="as is said")
