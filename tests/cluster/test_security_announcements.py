"""Rows of security are known to all workers: those of shard 0's owner first."""

from typing import Any

import pytest

from kproxy.cluster.catalogue.cache import outcome_key
from kproxy.cluster.catalogue.rows import SECURITY
from kproxy.common.errors import Code
from kproxy.security.cache import SecurityCache
from kproxy.security.scram import Credentials
from kproxy.virtual.commands.access import Secure
from kproxy.virtual.commands.envelope import Envelope, Kind
from kproxy.virtual.levels import SECURITY_FROM
from kproxy.virtual.rows.access import SECURITY_SHARD, user_name
from tests.cluster.fakes import Member, Topic

NAME = user_name("u", "M")


def row(value: int) -> dict[str, Any]:
    """Return the row of a user with so many iterations."""
    return Credentials(b"salt", value, b"stored", b"server").value()


class Worker:
    """A worker with what it has in memory."""

    def __init__(self, topic: Topic, writer: int) -> None:
        self.member = Member(topic, writer)
        self.cache = SecurityCache(self.member.cache)
        self.member.cache.security.changed = self.cache.changed

    @property
    def knows(self) -> Any:
        return (self.cache.credentials("u", "M") or {}).get("iterations")

    async def serve(self, log: list[Envelope]) -> None:
        await self.member.hear()
        holder, shard = self.member.hold(SECURITY_SHARD)
        log.append(Envelope(Kind.CLAIM, writer=self.member.link.writer))
        self.member.fold(holder, shard, *log)
        holder._serve(shard, len(log) - 1)
        await self.member.tasks.run()
        await self.member.hear()

    async def put(self, log: list[Envelope], value: Any) -> None:
        holder = self.member.holders[SECURITY_SHARD]
        log.append(Secure({NAME: None if value is None else row(value)}).envelope())
        log[-1].writer = self.member.link.writer
        self.member.fold(holder, holder.shard, log[-1])
        await self.member.tasks.run()


async def test_every_worker_follows() -> None:
    topic, log = Topic(), list[Envelope]()
    owner, other = Worker(topic, 1), Worker(topic, 2)
    await owner.serve(log)
    for value in (1, 2, None, 3):
        await owner.put(log, value)
        assert owner.knows == value  # before it is in the topic
        await other.member.hear()
        assert other.knows == value
        await owner.member.hear()
        assert owner.knows == value
    late = Worker(topic, 3)
    late.member.cache.apply(topic.compacted())
    assert late.knows == 3
    assert SecurityCache(late.member.cache).credentials("u", "M") == row(3)  # it starts again


async def test_a_new_owner_says_what_was_not_said() -> None:
    for value in (2, None):
        topic, log = Topic(), list[Envelope]()
        first, second, other = (Worker(topic, n) for n in (1, 2, 3))
        await first.serve(log)
        await first.put(log, 1)
        first.member.link.deaf = True  # and it dies
        await first.put(log, value)
        await other.member.hear()
        assert other.knows == 1
        await second.serve(log)
        await other.member.hear()
        assert other.knows == second.knows == value


async def test_a_tombstone_that_was_missed_is_no_row() -> None:
    topic, log = Topic(), list[Envelope]()
    owner, other = Worker(topic, 1), Worker(topic, 2)
    await owner.serve(log)
    await owner.put(log, 1)
    await other.member.hear()
    await owner.put(log, None)
    other.member.cache.read_again()
    other.member.cache.apply([r for r in topic.records if r.key != SECURITY.key(NAME)])
    assert other.knows == 1
    await other.member.cache.drop_unheard()
    assert other.knows is None


@pytest.mark.parametrize("heard_before", [True, False])
async def test_deleted_row_does_not_come_back_during_a_reload(heard_before: bool) -> None:
    """FAULT: a user who had been deleted could log in until the tombstone came again."""
    topic, log = Topic(), list[Envelope]()
    owner, other = Worker(topic, 1), Worker(topic, 2)
    await owner.serve(log)
    for value in (1, None, 2, None):
        await owner.put(log, value)
    await other.member.hear()
    if not heard_before:  # since it was started
        other.member.cache.security._latest.clear()
    other.member.cache.read_again()
    for number, record in enumerate(topic.records):
        other.member.cache.apply([record])
        assert other.knows is None, number
    await owner.put(log, 3)  # this is later than all that was
    other.member.cache.apply(topic.records[-1:])
    assert other.knows == (3 if heard_before else None)
    await other.member.cache.drop_unheard()
    assert other.knows == 3


async def test_a_change_is_answered_once_it_is_in_the_topic() -> None:
    """Else it would be undone for a while where its owner dies before that."""
    topic, log = Topic(), list[Envelope]()
    owner, other = Worker(topic, 1), Worker(topic, 2)
    await owner.serve(log)
    ticket = other.member.command_router.ask(SECURITY_SHARD, Secure({NAME: row(1)}).envelope())
    (_, envelope) = other.member.link.sent[-1]
    delivered: list[Any] = []
    publish = owner.member.link.publish_queue

    def slowly(key: bytes, value: bytes | None, done: Any = None, header: Any = None) -> None:
        publish(key, value, None, header)
        delivered.append(done)

    owner.member.link.publish_queue = slowly
    holder = owner.member.holders[SECURITY_SHARD]
    owner.member.fold(holder, holder.shard, envelope)

    def told() -> bool:
        link = other.member.link
        for counter, values in other.member.cache.outcomes(topic.records, link.writer):
            other.member.command_router.published(counter, values)
        return ticket.done

    assert not told()
    for done in list(delivered):
        if done is not None:
            done()
    assert told()
    assert ticket.outcomes()[0].code == 0


async def test_a_new_owner_answers_once_what_was_asked_is_in_the_topic() -> None:
    """FAULT: it answered first: a worker that had not heard still let a deleted user in."""
    topic, log = Topic(), list[Envelope]()
    first, second, other = (Worker(topic, n) for n in (1, 2, 3))
    await first.serve(log)
    await first.put(log, 1)
    asked = Secure({NAME: None}).envelope()
    asked.writer, asked.counter, asked.time_ms = other.member.link.writer, 7, 10**12
    log.append(asked)  # and the first owner dies
    await second.serve(log)
    answer = [one.key for one in topic.records].index(outcome_key(asked.writer, asked.counter))
    await other.member.hear(answer)
    assert other.knows is None


def test_a_command_above_the_level_in_force_is_not_sent_to_another_shard() -> None:
    other = Worker(Topic(), 2)
    other.member.site.level.value = SECURITY_FROM - 1
    ticket = other.member.command_router.ask(SECURITY_SHARD, Secure({NAME: row(1)}).envelope())
    assert ticket.error is not None
    assert ticket.error.code == Code.UNSUPPORTED_VERSION
    assert not other.member.link.sent
