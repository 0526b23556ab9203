"""Groups of stock consumers, on both kinds of storage."""

import threading

import pytest

from tests.clients.calls import create, producer
from tests.clients.groups.members import KINDS, JavaByRegex, LibrdkafkaCooperative, Member, Seen
from tests.harness import eventually, java
from tests.workers import Site

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Load(threading.Thread):
    """A writer to all partitions of a queue until told to stop; `written` has every record."""

    def __init__(self, address: str, queue: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._producer = producer(address, linger_ms=5, enable_idempotence=True)
        self._queue, self._partitions = queue, partitions
        self.written: set[Seen] = set()
        self.stopping = False

    def run(self) -> None:
        number = 0
        while not self.stopping:
            for index in range(self._partitions):
                self._producer.produce(
                    self._queue, b"%d" % number, partition=index, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0.02)
        self._producer.flush(60)

    def _delivered(self, error: object, record: object) -> None:
        assert error is None, error
        self.written.add((record.topic(), record.partition(), record.offset()))  # type: ignore[attr-defined]

    def end(self) -> set[Seen]:
        self.stopping = True
        self.join(90)
        assert not self.is_alive()
        return self.written


def everything(members: list[Member]) -> set[Seen]:
    return {seen for member in members for seen in member.seen}


def spread(members: list[Member], partitions: int) -> bool:
    """Whether the members have all partitions between them, each some."""
    held = [part for member in members for part in member.assigned]
    return len(held) == len(set(held)) == partitions and all(m.assigned for m in members)


@pytest.mark.parametrize("kind", KINDS)
def test_two_members_come_and_go_under_load(site: Site, kind: str) -> None:
    queue, group = f"load-{kind}", f"group-{kind}"
    create(site.address, queue, partitions=4)
    load = Load(site.address, queue, 4)
    load.start()
    make = KINDS[kind]
    first = make(site.address, group, [queue]).start()
    members = [first]
    try:
        eventually(lambda: spread([first], 4), 40)
        second = make(site.address, group, [queue]).start()
        members.append(second)
        eventually(lambda: spread([first, second], 4), 60)
        before = len(second.seen)
        eventually(lambda: len(second.seen) > before + 100, 30)
        first.stop()
        eventually(lambda: spread([second], 4), 60)
        written = load.end()
        eventually(lambda: written <= everything(members), 60)
        second.stop()
    finally:
        load.stopping = True
        for member in members:
            member.stopping = True
    assert everything(members) == written
    described = java(GROUPS, "--bootstrap-server", site.address, "--describe", "--group", group)
    lags = [line.split()[5] for line in described.splitlines() if queue in line]
    assert lags == ["0"] * 4


def held(site: Site, group: str) -> list[int]:
    """Return the number of partitions of each member, as Kafka's own tool says."""
    out = java(
        GROUPS, "--bootstrap-server", site.address, "--describe", "--group", group, "--members"
    )
    return sorted(int(line.split()[4]) for line in out.splitlines() if line.startswith(group))


@pytest.mark.parametrize("make", [LibrdkafkaCooperative, JavaByRegex])
def test_a_thousand_queues_in_one_subscription(site: Site, make: type[Member]) -> None:
    group = f"many-{make.__name__}"
    names = [f"{group}-{i}" for i in range(1000)]
    for start in range(0, 1000, 250):
        create(site.address, *names[start : start + 250])
    client = producer(site.address)

    def write(offset: int) -> None:
        for name in names:
            client.produce(name, f"{name}:{offset}")
            client.poll(0)
        assert client.flush(60) == 0

    write(0)
    topics = [f"{group}-.*"] if make is JavaByRegex else names
    members = [make(site.address, group, topics).start() for _ in range(2)]
    try:
        first = {(name, 0, 0) for name in names}
        eventually(lambda: first <= everything(members), 90)  # before a tool is asked
        eventually(lambda: held(site, group) == [500, 500], 90, 1)
        write(1)
        wanted = {(name, 0, offset) for name in names for offset in (0, 1)}
        eventually(lambda: wanted <= everything(members), 60)
        members[0].stop()
        write(2)
        eventually(lambda: {(name, 0, 2) for name in names} <= set(members[1].seen), 60)
        eventually(lambda: held(site, group) == [1000], 60, 1)
        members[1].stop()
    finally:
        for member in members:
            member.stopping = True


def test_lag_is_what_was_left_unread(site: Site, queue: str) -> None:
    create(site.address, queue, partitions=2)
    client = producer(site.address)
    for i in range(300):
        client.produce(queue, b"x", partition=i % 2)
    client.flush(20)
    member = KINDS["librdkafka"](site.address, queue, [queue]).start()
    eventually(lambda: len(member.seen) == 300, 30)
    member.stop()
    for _ in range(7):
        client.produce(queue, b"x", partition=1)
    assert client.flush(20) == 0
    at = ("--bootstrap-server", site.address)
    described = java(GROUPS, *at, "--describe", "--group", queue)
    rows = {line.split()[2]: line.split()[3:6] for line in described.splitlines() if queue in line}
    assert rows == {"0": ["150", "150", "0"], "1": ["150", "157", "7"]}
