"""DescribeTopicPartitions (75): queues by name, a page at a time (KIP-966)."""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge

from kproxy.common.errors import Code
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.common.permitted import topic_operations
from kproxy.handlers.topics.metadata import TOPIC_OPERATIONS
from kproxy.loop.pace import slices
from kproxy.metadata.catalogue import absent
from kproxy.protocol.responses import described_body, described_topic
from kproxy.security.acls import Op, Resource
from kproxy.virtual.commands.envelope import NO_QUEUE
from kproxy.virtual.rows.queues import Queue
from kproxy.worker.request import Request

_SORTED_AT_ONCE = 2000
_PAGE_MAX = 2000  # Kafka's max.request.partition.size.limit


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
    for name, queue in _asked(worker, runs, first_name):
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
    return described_body(topics, None)


def _asked(
    worker: TopicNeeds, runs: list[list[str]], first: str
) -> Iterator[tuple[str, Queue | None]]:
    """Yield queues by name from the first on: the named ones, in sorted runs, or all."""
    if runs:
        for run in runs:
            del run[: bisect_left(run, first)]
        for name in merge(*runs):
            yield name, worker.catalogue.find(name)
    else:
        for queue in worker.catalogue.all(first):
            if queue.partitions:
                yield queue.name, queue
