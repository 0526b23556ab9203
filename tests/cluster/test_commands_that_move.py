"""A command of a client whose shard is handed over before it is decided."""

import json
from collections.abc import Sequence
from typing import Any

from kproxy.cluster.catalogue.cache import outcome_key
from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.outcome import Outcome
from tests.cluster.fakes import Member, Topic
from tests.cluster.test_announcer import HOME, NAME, claim, create, delete


class _Leaving:
    """A worker that serves a shard whose log takes what it is given, and decides nothing."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.member = Member(self.topic, 1)
        self.tickets: list[Ticket] = []
        self.shard: Any = None

    async def served(self) -> "_Leaving":
        holder, self.shard = self.member.hold(HOME)
        self.member.fold(holder, self.shard, claim(1))
        holder._serve(self.shard, 0)
        await self.member.tasks.run()
        self.shard.append = self._append
        return self

    def _append(self, envelopes: Sequence[Envelope]) -> Ticket:
        (envelope,) = envelopes
        link = self.member.link
        envelope.writer, envelope.counter = link.writer, link.next_counter()
        self.tickets.append(Ticket(list(envelopes)))
        return self.tickets[-1]


async def test_the_next_owner_of_a_shard_that_leaves_answers() -> None:
    """FAULT: CreateTopics was answered with NOT_CONTROLLER, which librdkafka does not retry."""
    story, asked = await _Leaving().served(), create()
    ticket = story.member.command_router.submit(NAME, asked)
    (local,) = story.tickets
    local.set_outcomes([Outcome(Code.NOT_LEADER_OR_FOLLOWER)])  # as a log that is given up
    assert not ticket.done
    next_owner = Member(story.topic, 2)
    holder, shard = next_owner.hold(HOME)
    next_owner.fold(holder, shard, claim(1), asked, claim(2))
    holder._serve(shard, 2)
    await next_owner.tasks.run()
    key = outcome_key(1, asked.counter)
    (told,) = [one.value for one in story.topic.records if one.key == key and one.value]
    story.member.command_router.published(asked.counter, json.loads(told))
    (outcome,) = ticket.outcomes()
    assert outcome.code == Code.NONE
    assert outcome.queue is not None
    assert outcome.queue.queue_id == asked.queue_id


async def test_deletion_is_answered_while_its_name_is_made_again() -> None:
    """FAULT: the next owner announced nothing, and a client heard of it after 10 s."""
    story, old, new = await _Leaving().served(), create(), create(partitions=40)
    asked = delete(old)
    ticket = story.member.command_router.submit(NAME, asked)
    story.tickets[0].set_outcomes([Outcome(Code.NOT_LEADER_OR_FOLLOWER)])
    next_owner = Member(story.topic, 2)
    holder, shard = next_owner.hold(HOME)
    next_owner.fold(holder, shard, claim(1), old, asked, new, claim(2))
    holder._serve(shard, 4)
    await next_owner.command_router._take_up(shard, 4)
    key = outcome_key(1, asked.counter)
    told = [one.value for one in story.topic.records if one.key == key and one.value]
    assert told, "no other shard has said yet that it has its partitions"
    story.member.command_router.published(asked.counter, json.loads(told[0]))
    assert ticket.outcomes()[0].code == Code.NONE
    await story.member.hear()
    assert story.member.cache.find(NAME) is None
    for task in next_owner.tasks.waiting:
        task.close()  # they would tell other shards


async def test_command_refused_by_a_closing_log_goes_to_the_next_owner() -> None:
    story, asked = await _Leaving().served(), create()

    def closed(envelopes: Sequence[Envelope]) -> Ticket:
        ticket = Ticket(list(envelopes))
        ticket.set_error(KafkaError(Code.NOT_LEADER_OR_FOLLOWER))
        return ticket

    story.shard.append = closed
    assert not story.member.command_router.submit(NAME, asked).done
    assert story.member.link.sent == [(HOME, asked)]


async def test_refusal_of_the_log_is_answered_at_once() -> None:
    story = await _Leaving().served()
    ticket = story.member.command_router.submit(NAME, create())
    story.tickets[0].set_outcomes([Outcome(Code.REQUEST_TIMED_OUT)])
    assert ticket.outcomes()[0].code == Code.REQUEST_TIMED_OUT
