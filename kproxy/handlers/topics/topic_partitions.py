"""DescribeTopicPartitions (75): queues by name, a page at a time (KIP-966).

A request may search for names (`NameSearch`): it gets those queues alone. A page then ends where it
is full, or where many names were looked at: it may have no queue, and a cursor.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator
from heapq import merge
from itertools import islice

import anyio

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.common.permitted import topic_operations
from kproxy.handlers.topics.metadata import TOPIC_OPERATIONS
from kproxy.loop.pace import slices
from kproxy.metadata.catalogue import absent
from kproxy.protocol.name_search import ALL, read_search
from kproxy.protocol.responses import described_body, described_topic
from kproxy.security.acls import Op, Resource
from kproxy.virtual.commands.envelope import NO_QUEUE
from kproxy.virtual.rows.queues import Queue, decode_queue, name_of, raw_name_of
from kproxy.worker.request import Request

_SORTED_AT_ONCE = 2000
_PAGE_MAX = 2000  # Kafka's max.request.partition.size.limit
_LOT = 500  # names in one scan: none is open while others are served
_EIGHTH = 7  # every eighth name: an expression may take milliseconds for one
_LOOKED_MAX = 200_000
_LOOKED_S = 1.0
"""The names that a search looks at for one page, and for how long: its client waits for it."""


async def handle(worker: TopicNeeds, request: Request) -> bytes:
    """Return a DescribeTopicPartitionsResponse body, with a cursor if there is more."""
    body = request.body
    left = max(1, min(body.response_partition_limit, _PAGE_MAX))
    first_name = "" if body.cursor is None else body.cursor.topic_name
    first_index = 0 if body.cursor is None else body.cursor.partition_index
    named = await request.budget.count(topic.name for topic in body.topics)
    topics: list[bytes] = []
    if first_index < 0 or (body.cursor is not None and named and first_name not in named):
        for name in named:
            topics.append(described_topic(Code.INVALID_REQUEST, name, NO_QUEUE, ()))
            await request.budget.step(len(topics[-1]))
        return described_body(topics, None)
    runs = []
    for some in slices(named, _SORTED_AT_ONCE):
        runs.append(sorted(some))
        await request.budget.step()
    permits, operations = request.permits, TOPIC_OPERATIONS
    try:
        walk = _Walk(worker, request, runs, first_name)
    except KafkaError as error:
        return described_body([described_topic(error.code, "", NO_QUEUE, ())], None)
    async for name, queue in walk.queues():
        if not permits.all:
            if not permits.sees(Op.DESCRIBE, Resource.TOPIC, name):
                if runs:
                    code = Code.TOPIC_AUTHORIZATION_FAILED
                    topics.append(described_topic(code, name, NO_QUEUE, ()))
                await request.budget.step(len(topics[-1]) if runs else 0)
                continue
            operations = topic_operations(request, name)
        start = first_index if name == first_name else 0
        if left == 0:
            return described_body(topics, (name, start))
        if queue is None:
            code = absent(name)[0]
            topics.append(described_topic(code, name, NO_QUEUE, (), 0, operations))
            await request.budget.step(len(topics[-1]))
            continue
        end = min(queue.partitions, start + left)
        leaders = worker.cluster.leaders(name, queue.partitions)[start:end]
        queue_id = queue.queue_id
        topics.append(described_topic(Code.NONE, name, queue_id, leaders, start, operations))
        left -= len(leaders)
        await request.budget.step(len(topics[-1]))
        if end < queue.partitions:
            return described_body(topics, (name, end))
    return described_body(topics, walk.after)


class _Walk:
    """A walk over the queues that a request asks for, from a name on."""

    def __init__(
        self, worker: TopicNeeds, request: Request, runs: list[list[str]], first: str
    ) -> None:
        """Take `runs`: the named queues, in sorted runs; none: all. Raise KafkaError."""
        self._worker, self._budget, self._runs, self._first = worker, request.budget, runs, first
        said = request.header.search
        self._search = read_search(said) if said and not runs else ALL
        self._search.matcher()
        self.after: tuple[str, int] | None = None
        """The place to go on from where not all were looked at."""

    async def queues(self) -> AsyncIterator[tuple[str, Queue | None]]:
        """Yield them by name; None: there is none of this name."""
        catalogue = self._worker.catalogue
        if self._runs:
            for run in self._runs:
                del run[: bisect_left(run, self._first)]
            for name in merge(*self._runs):
                yield name, catalogue.find(name)
        elif self._search == ALL:
            for queue in catalogue.all(self._first):
                if queue.partitions:
                    yield queue.name, queue
        else:
            async for queue in self._found():
                if queue.partitions:
                    yield queue.name, queue

    async def _found(self) -> AsyncIterator[Queue]:
        search, budget = self._search, self._budget
        start, looked, until_s = max(self._first, search.begin), 0, anyio.current_time() + _LOOKED_S
        matches = search._replace(first="").matcher()
        while True:
            lot = list(islice(self._worker.catalogue.rows(start), _LOT + 1))
            following = lot.pop()[0] if len(lot) > _LOT else None
            for number, (key, row) in enumerate(lot):
                if matches(raw_name_of(key)):
                    yield decode_queue(name_of(key), row)
                if not number & _EIGHTH and budget.due:
                    await budget.rest()
            if following is None or search.ends_before(raw_name_of(following)):
                return
            start = name_of(following)
            looked += len(lot)
            if looked >= _LOOKED_MAX or anyio.current_time() >= until_s:
                self.after = start, 0
                return
            await budget.step()
