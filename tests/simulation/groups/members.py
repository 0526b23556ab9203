"""Members of groups, of all three protocols, that stall, crash, come back and hear nothing.

Each runs as a client library does, one request after the other. It works on what it `owned`, and
commits offsets of that alone. A static one comes back with its instance id.
"""

import random
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio

from kproxy.common.errors import Code
from kproxy.groups.model.consumer_protocol import (
    assignment,
    encode_assignment,
    encode_subscription,
    topics_of,
)
from kproxy.handlers.groups import classic, consumer, offsets
from kproxy.handlers.shares import groups as shares
from kproxy.loop.steps import at_once
from tests.simulation.groups.truth import LEFT, NONE, Part, Parts
from tests.simulation.groups.world import NAMES, SESSION_S, Handler, Line, World

PATIENCE_S = 3.0
_BEAT_S = (0.3, 0.5, 0.8)
_REBALANCE_S = 6.0
_AGAIN_S = (0.1, 0.5)
_FENCED = (
    Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.FENCED_INSTANCE_ID,
    Code.GROUP_ID_NOT_FOUND,
)  # fmt: skip
"""The last: of a group that is classic by now. An application has to begin again."""


class Fenced(Exception):
    """Another has this member's instance id: it ends."""


class Member:
    """A client. `member`, `epoch`: who it is, and as of when, as far as it knows."""

    kind: ClassVar[str]

    def __init__(self, world: World, group: str, number: int, instance: str | None) -> None:
        self.world, self.rng, self.truth = world, world.rng, world.truth
        self.group, self.number, self.instance = group, number, instance
        count = self.rng.randrange(1, len(NAMES) + 1)
        self.topics = tuple(self.rng.sample(NAMES, count)) if group != "m" else NAMES
        if instance is not None:
            self.topics = NAMES[: int(instance[1:]) % len(NAMES) + 1]
        self.had: tuple[tuple[int, int], Parts] | None = None
        """The time at which a static member went, and its part; until it has been told its own."""
        self.member, self.epoch = "", 0
        self.asked = 0  # the worker that was asked last
        self.owned: Parts = NONE
        self.offset = 0
        self.ended = False
        self.line = Line(world)
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            try:
                while not self.world.faults:
                    with self.world.noted():
                        await self.step()
            except Fenced:
                self.world.happened["instance fenced"] += 1
        self.owned, self.ended = NONE, True

    async def step(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    def is_told(self, parts: Parts) -> None:
        """Take the first part after a static member came back."""
        had, self.had = self.had, None
        if had is not None and self.instance and had[0] == self.truth.when(self.group):
            self.truth.kept(self.group, self.instance, had[1], parts)

    async def ask(self, handler: Handler, version: int, body: Any, wait_s: float = 0.0) -> Any:
        """Return the answer; None if none comes."""
        life = self.world.somebody()
        if life is None:
            await anyio.sleep(1.0)
            return None
        self.asked = life.number
        return await self.line.ask(life, handler, version, body, PATIENCE_S + wait_s)

    async def work(self) -> None:
        """Work for a while; stand still now and then for longer than a session."""
        if self.world.dice(0.01):
            self.world.happened["member stalled"] += 1
            await anyio.sleep(SESSION_S * self.rng.choice((0.5, 1.2, 2.0)))
        await anyio.sleep(self.rng.choice(_BEAT_S))
        if self.owned and self.rng.random() < 0.3:
            await self.commit(self.rng.sample(sorted(self.owned), 1))

    async def commit(self, parts: list[Part]) -> None:
        self.offset += 1
        topics = [
            SimpleNamespace(name=name, partitions=[SimpleNamespace(
                partition_index=index, committed_offset=self.offset, committed_metadata="",
                committed_leader_epoch=-1,
            )])
            for name, index in parts
        ]  # fmt: skip
        body = SimpleNamespace(
            group_id=self.group, member_id=self.member, generation_id_or_member_epoch=self.epoch,
            group_instance_id=self.instance, topics=topics,
        )  # fmt: skip
        await self.ask(offsets.commit, 9, body)


class Assigned(Member):
    """A member whose coordinator assigns. Its id is its own."""

    def __init__(self, world: World, group: str, number: int, instance: str | None) -> None:
        super().__init__(world, group, number, instance)
        self.member = f"{group}-{number}"
        self.told: Parts = NONE
        self.in_doubt = True  # it has not heard the last answer, and says everything again

    async def step(self) -> None:
        answer = await self.beat()
        if answer is None:
            self.in_doubt = True
            return
        self.take(answer)
        await self.follow()
        await self.work()

    async def beat(self) -> Any:
        raise NotImplementedError

    def take(self, answer: Any) -> None:
        code = Code(answer["error_code"])
        self.world.happened[f"{self.kind}: {code.name}"] += 1
        if code in _FENCED:
            if code == Code.FENCED_INSTANCE_ID:
                raise Fenced
            self.epoch, self.owned, self.told, self.in_doubt = 0, NONE, NONE, True
        elif code:
            self.in_doubt = True
        else:
            self.in_doubt, self.epoch = False, answer["member_epoch"]
            said = answer["assignment"]
            if said is not None:
                self.told = frozenset(
                    (self.world.names[one["topic_id"].bytes], index)
                    for one in said["topic_partitions"] for index in one["partitions"]
                )  # fmt: skip
            told = None if said is None else self.told
            self.truth.is_assigned(self.group, self.member, self.epoch, told, self.asked)
            if told is not None:
                self.is_told(told)

    async def follow(self) -> None:
        """Give up what is to go, and only then take what is new."""
        gone = self.owned - self.told
        if gone:
            if self.rng.random() < 0.5:
                await self.commit(sorted(gone))
            self.owned &= self.told
            self.world.happened[f"{self.kind} gave up"] += 1
        else:
            self.owned = self.told


class Consumer(Assigned):
    """A member of the consumer protocol (KIP-848)."""

    kind = "consumer"

    async def beat(self) -> Any:
        return await self.ask(consumer.heartbeat, 1, self.body(self.epoch))

    def body(self, epoch: int) -> Any:
        joins, whole = epoch == 0, self.in_doubt or epoch == 0
        by_name: dict[str, list[int]] = {}
        for name, index in sorted(self.owned):
            by_name.setdefault(name, []).append(index)
        owned = [
            SimpleNamespace(topic_id=SimpleNamespace(bytes=name.encode() * 16), partitions=indices)
            for name, indices in by_name.items()
        ]
        return SimpleNamespace(
            group_id=self.group, member_id=self.member, member_epoch=epoch,
            instance_id=self.instance, rack_id=None,
            rebalance_timeout=timedelta(seconds=_REBALANCE_S if whole else -0.001),
            subscribed_topic_names=self.topics if whole else None, subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=() if joins else owned,
        )  # fmt: skip

    async def leave(self) -> None:
        if self.epoch > 0:
            epoch = -1 if self.instance is None or self.rng.random() < 0.3 else LEFT
            await self.ask(consumer.heartbeat, 1, self.body(epoch))


class Sharer(Assigned):
    """A member of the share protocol (KIP-932)."""

    kind = "share"

    async def beat(self) -> Any:
        return await self.ask(shares.heartbeat, 1, self.body(self.epoch))

    def body(self, epoch: int) -> Any:
        topics = self.topics if self.in_doubt or epoch == 0 else None
        return SimpleNamespace(
            group_id=self.group, member_id=self.member, member_epoch=epoch, rack_id=None,
            subscribed_topic_names=topics,
        )  # fmt: skip

    async def follow(self) -> None:
        self.owned = self.told

    async def commit(self, parts: list[Part]) -> None:
        pass

    async def leave(self) -> None:
        if self.epoch > 0:
            await self.ask(shares.heartbeat, 1, self.body(-1))


class Classic(Member):
    """A member of the classic protocol, which gives everything up before it joins again."""

    kind = "classic"

    def __init__(self, world: World, group: str, number: int, instance: str | None) -> None:
        super().__init__(world, group, number, instance)
        self.protocol = ""
        self.leads_readers_of: frozenset[str] = frozenset()

    async def step(self) -> None:
        self.owned = NONE
        joined = await self.join()
        if joined is None or not await self.sync(joined):
            await anyio.sleep(self.rng.choice(_AGAIN_S))
            return
        while await self.beat():
            pass
        if self.owned and self.rng.random() < 0.5:
            await self.commit(sorted(self.owned))

    def failed(self, code: Code, where: str) -> bool:
        """Take a code; return whether it is one of a failure."""
        self.world.happened[f"{where}: {code.name}"] += 1
        if code == Code.FENCED_INSTANCE_ID:
            raise Fenced
        if code == Code.UNKNOWN_MEMBER_ID:
            self.member = ""
        return bool(code)

    async def join(self) -> Any:
        metadata = encode_subscription(self.topics)
        body = SimpleNamespace(
            group_id=self.group, member_id=self.member, group_instance_id=self.instance,
            session_timeout=timedelta(seconds=SESSION_S),
            rebalance_timeout=timedelta(seconds=_REBALANCE_S), protocol_type="consumer",
            protocols=[SimpleNamespace(name="range", metadata=metadata)],
        )  # fmt: skip
        answer = await self.ask(classic.join, 9, body, 2 * _REBALANCE_S)
        if answer is None:
            return None
        code = Code(answer["error_code"])
        if code == Code.MEMBER_ID_REQUIRED:
            self.member = answer["member_id"]
        if self.failed(code, "join"):
            return None
        self.member, self.epoch = answer["member_id"], answer["generation_id"]
        self.protocol = answer["protocol_name"]
        return answer

    async def sync(self, joined: Any) -> bool:
        assigns = joined["leader"] == self.member and not joined["skip_assignment"]
        read = {one["member_id"]: topics_of(one["metadata"]) for one in joined["members"]}
        self.leads_readers_of = frozenset(name for names in read.values() for name in names)
        body = self.claim() | {
            "protocol_type": "consumer", "protocol_name": self.protocol,
            "assignments": list(self.assign(read)) if assigns else [],
        }  # fmt: skip
        answer = await self.ask(classic.sync, 5, SimpleNamespace(**body), _REBALANCE_S)
        if answer is None or self.failed(Code(answer["error_code"]), "sync"):
            return False
        named = at_once(assignment(answer["assignment"]))
        parts = frozenset((name, index) for name, indices in named for index in indices)
        self.truth.is_synced(self.group, self.member, self.instance, self.epoch, parts, self.asked)
        self.owned = parts
        self.is_told(parts)
        return True

    def assign(self, read: dict[str, tuple[str, ...]]) -> Iterator[Any]:
        """Yield a part for each member, in turn, of what it reads."""
        found: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in read}
        parts = sorted(self.world.parts(self.leads_readers_of))
        self.rng.shuffle(parts)
        for number, (name, index) in enumerate(parts):
            readers = [member_id for member_id, names in read.items() if name in names]
            found[readers[number % len(readers)]].setdefault(name, []).append(index)
        for member_id, named in found.items():
            data = at_once(encode_assignment(0, named))
            yield SimpleNamespace(member_id=member_id, assignment=data)

    def claim(self) -> dict[str, Any]:
        return {
            "group_id": self.group, "member_id": self.member, "group_instance_id": self.instance,
            "generation_id": self.epoch,
        }  # fmt: skip

    async def beat(self) -> bool:
        """Work, and return whether it may go on."""
        await self.work()
        answer = await self.ask(classic.heartbeat, 4, SimpleNamespace(**self.claim()))
        if answer is None:
            return True
        code = Code(answer["error_code"])
        if code in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE,
                    Code.COORDINATOR_LOAD_IN_PROGRESS):  # fmt: skip
            return True
        return not self.failed(code, "beat") and not self.outdated()

    def outdated(self) -> bool:
        """Return whether it leads, and there are partitions that it has not assigned."""
        group = self.truth.groups[self.group]
        assigned = {part for one in group.members.values() for part in one.assigned}
        return bool(self.leads_readers_of) and assigned != self.world.parts(self.leads_readers_of)

    async def leave(self) -> None:
        if self.member and self.instance is None:
            one = SimpleNamespace(member_id=self.member, group_instance_id=None)
            body = SimpleNamespace(group_id=self.group, members=[one])
            await self.ask(classic.leave, 5, body)


KINDS: dict[str, tuple[type[Member], ...]] = {
    "c": (Classic,), "n": (Consumer,), "s": (Sharer,), "m": (Classic, Consumer),
}  # fmt: skip
"""The groups, and what members they have."""


class Crowd:
    """The members of one group, who come and go."""

    def __init__(self, world: World, group: str) -> None:
        self.world, self.group = world, group
        self.rng: random.Random = world.rng
        self.there: list[Member] = []
        self._number = 0

    def begin(
        self,
        kind: type[Member],
        instance: str | None,
        had: tuple[tuple[int, int], Parts] | None = None,
    ) -> None:
        self._number += 1
        member = kind(self.world, self.group, self._number, instance)
        member.had = had
        self.there.append(member)
        self.world.tasks.start_soon(member.run)

    def begin_some(self) -> None:
        kind = self.rng.choice(KINDS[self.group])
        static = kind is not Sharer and self.rng.random() < 0.3
        self.begin(kind, f"i{self._number}" if static else None)

    async def run(self) -> None:
        for _ in range(3):
            self.begin_some()
        while self.world.trouble:
            await anyio.sleep(self.rng.choice((0.5, 2.0, 5.0)))
            dice = self.rng.random()
            if dice < 0.3 and len(self.there) < 5:
                self.begin_some()
            elif dice < 0.6 and self.there:
                await self.end_one()
        if not self.there:
            self.begin_some()

    async def end_one(self) -> None:
        """End a member: it leaves, or dies; a static one is back soon, or late."""
        member = self.rng.choice(self.there)
        self.there.remove(member)
        member.scope.cancel()
        if self.rng.random() < 0.6:
            self.world.happened["member left"] += 1
            await member.leave()
        else:
            self.world.happened["member died"] += 1
        if member.instance is not None and self.rng.random() < 0.8:
            had = self.world.truth.part_of(self.group, member.member)
            await anyio.sleep(self.rng.choice((0.1, 1.0, 2 * SESSION_S)))
            self.world.happened["static member came back"] += 1
            self.begin(type(member), member.instance, had)

    def unsettled(self) -> str:
        found = [one for one in self.there if not one.ended]
        topics = {name for one in found for name in one.topics}
        return self.world.truth.unsettled(self.group, self.world.parts(topics), found)
