"""Produce (0), versions 3 to 13. ApiVersions names versions 0 to 2 too; they are refused."""

from anyio import Event

from kproxy.common.errors import KafkaError
from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.handlers.produce.call import BATCHES_AT_ONCE, NotReady, ProduceCall
from kproxy.handlers.produce.guard import Guard, any_transactional, any_transactional_of_long
from kproxy.handlers.produce.inspection import inspect
from kproxy.handlers.produce.transactions import take_part
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.protocol.varint import Malformed
from kproxy.security.permits import EVERYTHING, Permits
from kproxy.security.quotas import NO_LIMIT, Mutations
from kproxy.worker.request import Request

_PART_BYTES = 1000  # about what a batch takes beside its bytes, till it is answered


def is_long(request: ProduceRequest) -> bool:
    """Return whether to take a request in slices (`handle`): it then overlaps with no other."""
    topics = request.topics
    if len(topics) == 1:
        return len(topics[0].partitions) > BATCHES_AT_ONCE
    if len(topics) > BATCHES_AT_ONCE:
        return True
    return sum(len(topic.partitions) for topic in topics) > BATCHES_AT_ONCE


def append(
    worker: ProduceNeeds, version: int, request: ProduceRequest, permits: Permits = EVERYTHING,
    mutations: Mutations = NO_LIMIT,
) -> ProduceCall | None:  # fmt: skip
    """Append what a short Produce carries, all of it in this turn of the loop.

    None: nothing was appended, as somebody is to look into it first (`handle`).
    """
    name, guard = request.transactional_id, None
    transactional = (name is None or not permits.all) and any_transactional(request)
    if not permits.all:
        guard = Guard(worker, permits, name if transactional else None)
    orphaned = transactional and name is None
    call = ProduceCall(
        worker, version, request, guard=guard, mutations=mutations, orphaned=orphaned
    )
    try:
        for topic in request.topics:
            call.take(topic)
    except NotReady:
        return None
    call.send()
    return call


async def handle(worker: ProduceNeeds, request: Request) -> bytes:
    """Return the response body of a Produce of many batches, or of such as are to be looked into.

    Empty where acks=0 asks for none. Raise Malformed where acks=0 hides a failure. One of a few,
    each named very often, is short.
    """
    budget, body = request.budget, request.body
    name, guard, permits = body.transactional_id, None, request.permits
    asked = name is None or not permits.all
    transactional = asked and await any_transactional_of_long(body, budget)
    if not permits.all:
        guard = Guard(worker, permits, name if transactional else None)
    inspected = await inspect(worker, request, body)
    mutations = worker.mutations(request)
    refusals = await take_part(worker, request, body, guard, mutations)
    orphaned = transactional and name is None
    call = ProduceCall(
        worker, request.version, body, inspected, refusals, guard, mutations, orphaned
    )
    taken = 0
    for topic in body.topics:
        for start in range(0, len(topic.partitions) or 1, BATCHES_AT_ONCE):
            call.take(topic, start)
            some = min(BATCHES_AT_ONCE, len(topic.partitions) - start)
            taken += some
            if taken >= BATCHES_AT_ONCE:
                call.send()
                taken = 0
                await budget.rest()
            await budget.step(_PART_BYTES * (some + 1))
    call.send()
    done = Event()
    call.add_done_callback(done.set)
    await done.wait()
    try:
        return await worker.encoded(budget, call.body) or b""
    except KafkaError as error:
        raise Malformed(f"{error.code.name}: {error}") from error
