"""A ShareFetch that acknowledges: what it finds while the log has not answered, and what after."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel

from kproxy.common.errors import Code, KafkaError
from kproxy.log.base import Ticket
from tests.handlers.test_handlers import Client
from tests.shares.test_polls import ACCEPT, RELEASE, Member, a_queue, set_group


class HeldLog:
    """A log that takes envelopes, and settles them only later."""

    def __init__(self, shard: Any) -> None:
        self._shard, self._append = shard, shard.append
        self.tickets: list[Ticket] = []

    def append(self, envelopes: Any) -> Ticket:
        ticket = Ticket(list(envelopes))
        self.tickets.append(ticket)
        return ticket

    def go_on(self) -> None:
        self._shard.append = self._append
        for ticket in self.tickets:
            ticket.set_outcomes([self._shard.apply(envelope) for envelope in ticket.envelopes])

    def refuse(self) -> None:
        self._shard.append = self._append
        for ticket in self.tickets:
            ticket.set_error(KafkaError(Code.KAFKA_STORAGE_ERROR))


@contextmanager
def held(client: Client) -> Iterator[HeldLog]:
    shard: Any = client.worker.any_shard()
    log = HeldLog(shard)
    shard.append = log.append
    yield log


async def fetched(client: Client, member: Member, *acks: Any, refused: bool = False) -> Any:
    """(partition's answer, records that were taken before the log had answered)."""
    answers: list[Any] = []
    with held(client) as log:
        async with anyio.create_task_group() as tasks:

            async def fetch() -> None:
                answers.append(await member.fetch(0, *acks, records=1))

            tasks.start_soon(fetch)
            while not log.tickets:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            assert not answers
            (share,) = client.worker.shares
            taken = share.window.held
            (log.refuse if refused else log.go_on)()
    ((part,),) = [topic.partitions for topic in answers[0].responses]
    return part, taken


def given(part: Any) -> list[tuple[int, int, int]]:
    return [(a.first_offset, a.last_offset, a.delivery_count) for a in part.acquired_records]


async def test_records_are_found_while_the_log_takes_what_is_accepted() -> None:
    client = await a_queue(3)
    one = Member(client, "one")
    assert await one.given(records=1) == [(0, 0, 1)]
    part, taken = await fetched(client, one, (0, 0, (ACCEPT,)))
    assert taken == 1
    assert (part.error_code, part.acknowledge_error_code) == (0, 0)
    assert given(part) == [(1, 1, 1)]


async def test_released_records_are_looked_for_once_the_log_has_them() -> None:
    client = await a_queue(3)
    one = Member(client, "one")
    assert await one.given(records=1) == [(0, 0, 1)]
    append = client.worker.any_shard().append
    part, taken = await fetched(client, one, (0, 0, (RELEASE,)))
    assert client.worker.any_shard().append == append
    assert taken == 0
    assert given(part) == [(0, 0, 2)]


async def test_nothing_is_given_where_the_log_refuses_what_was_said() -> None:
    client = await a_queue(3)
    one, other = Member(client, "one"), Member(client, "other")
    assert await one.given(records=1) == [(0, 0, 1)]
    part, taken = await fetched(client, one, (0, 0, (ACCEPT,)), refused=True)
    assert taken == 1
    assert part.acknowledge_error_code == Code.KAFKA_STORAGE_ERROR
    assert given(part) == [(1, 1, 1)]  # by another look: the log takes appends again
    assert await other.given(records=1) == [(2, 2, 1)]
    assert await one.says((0, 1, (ACCEPT,))) == 0


async def test_room_that_an_acknowledgement_makes_is_used_by_its_fetch() -> None:
    client = await a_queue(300)
    await set_group(client, "share.partition.max.record.locks", "100")
    one = Member(client, "one")
    assert await one.given(records=100) == [(0, 99, 1)]
    assert await one.given(records=1) == []
    part, taken = await fetched(client, one, (0, 49, (ACCEPT,)))
    assert taken == 50
    assert given(part) == [(100, 100, 1)]
