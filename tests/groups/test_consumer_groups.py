"""Consumer groups simulated: members come, go and lose answers, coordinators change.

In every case, no partition is ever with two members that have heard their last answers. (One that
has not may take what it was told before; its next heartbeat and its commits are refused.)
"""

import random
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from kproxy.groups.model.consumer_group import ConsumerGroup, by_queue
from kproxy.handlers.groups import consumer as consumer_groups
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request
from kproxy.worker.worker import Worker
from tests.fakes import memory_worker
from tests.running.together import together

Parts = set[PartitionKey]


class Client:
    """A member's own view: what it works on, what it was told to have."""

    def __init__(self, name: str, topics: tuple[str, ...]) -> None:
        self.name = name
        self.topics = topics
        self.epoch = 0
        self.owned: Parts = set()
        self.told: Parts = set()
        self.in_doubt = False  # it has not heard the last answer, and says everything again

    def body(self) -> Any:
        first = self.epoch == 0
        whole = first or self.in_doubt
        owned = [
            SimpleNamespace(topic_id=SimpleNamespace(bytes=bytes(q)), partitions=indices)
            for q, indices in by_queue(self.owned).items()
        ]
        return SimpleNamespace(
            group_id="g", member_id=self.name, member_epoch=self.epoch, instance_id=None,
            rack_id=None, rebalance_timeout=timedelta(seconds=60 if whole else -0.001),
            subscribed_topic_names=self.topics if whole else None, subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=() if first else owned,
        )  # fmt: skip

    def take(self, answer: Any) -> None:
        self.in_doubt = False
        if answer["error_code"]:
            self.epoch, self.owned, self.told = 0, set(), set()
            return
        self.epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            self.told = {
                (QueueId(t["topic_id"].bytes), i)
                for t in answer["assignment"]["topic_partitions"]
                for i in t["partitions"]
            }

    def follow(self) -> None:
        """Give up what is to go, and only then take what is new."""
        if self.owned - self.told:
            self.owned &= self.told
        else:
            self.owned = set(self.told)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.worker: Worker = memory_worker(group_consumer_assignment_interval_ms=0)
        self.clients: list[Client] = []
        self.number = 0

    async def beat(self, client: Client, *, lost: bool = False, leave: bool = False) -> None:
        body = client.body()
        if leave:
            body.member_epoch = -1
        header: Any = SimpleNamespace(client_id="c", api_version=1)
        answer = await consumer_groups.heartbeat(self.worker, Request(header=header, body=body))
        if lost:
            client.in_doubt = True
        elif not leave:
            client.take(answer)

    def group(self) -> ConsumerGroup | None:
        shard: Any = self.worker.coordinated("g")
        found = self.worker.groups.of(shard).find("g")
        assert found is None or isinstance(found, ConsumerGroup)
        return found

    def new_coordinator(self) -> None:
        """Have another worker take over: nothing but the rows is known."""
        self.worker.groups._by_shard.clear()

    async def step(self) -> None:
        dice = self.rng.random()
        if (dice < 0.08 and len(self.clients) < 6) or not self.clients:
            self.number += 1
            topics = tuple(self.rng.sample(["a", "b", "c"], self.rng.randint(1, 3)))
            self.clients.append(Client(f"m{self.number}", topics))
            return
        client = self.rng.choice(self.clients)
        if dice < 0.12:
            self.clients.remove(client)
            await self.beat(client, leave=True)
        elif dice < 0.16:
            self.new_coordinator()
        elif dice < 0.45:
            client.follow()
        else:
            await self.beat(client, lost=self.rng.random() < 0.1)

    def check(self) -> None:
        group = self.group()
        held = [
            part for client in self.clients
            if group is not None and client.name in group.members and not client.in_doubt
            for part in client.owned
        ]  # fmt: skip
        assert len(held) == len(set(held))

    async def settle(self) -> None:
        for _ in range(60):
            for client in self.clients:
                await self.beat(client)
                client.follow()
                self.check()
        group = self.group()
        if group is None:
            assert not self.clients
            return
        assert group.state == "Stable"
        held: list[PartitionKey] = [part for client in self.clients for part in client.owned]
        wanted = {name for client in self.clients for name in client.topics}
        queues = [self.worker.catalogue.find(name) for name in wanted]
        there = {(q.queue_id, i) for q in queues if q is not None for i in range(q.partitions)}
        assert sorted(held) == sorted(there)


@together("seed", range(60))
async def test_partitions_are_with_one_member_at_a_time(seed: int) -> None:
    simulation = Simulation(seed)
    for name, partitions in (("a", 3), ("b", 1), ("c", 5)):
        await simulation.worker.catalogue.create(name, partitions)[1].wait()
    for _ in range(150):
        await simulation.step()
        simulation.check()
    await simulation.settle()
