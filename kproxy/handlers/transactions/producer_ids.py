"""InitProducerId (22), versions 0 to 5: an id for an idempotent producer (KIP-98, KIP-360).

A producer without a transactional id gets a new id at each call, as from Kafka. One with such an id
gets what its coordinator says (`handlers.transactions.transactions`).
"""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import TransactionNeeds
from kproxy.handlers.transactions import transactions
from kproxy.handlers.transactions.transactions import producer_answer
from kproxy.security.acls import Op
from kproxy.shard.appends import append
from kproxy.virtual.commands.producers import AllocateProducerId
from kproxy.worker.request import Request


async def handle(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return an InitProducerIdResponse; the allocation is durable, so no id is ever given twice."""
    name, permits = request.body.transactional_id, request.permits
    if name is not None:
        if not permits.transaction(Op.WRITE, name):
            return producer_answer(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return await transactions.init(worker, request)
    if not permits.all and not await permits.any_topic(Op.WRITE, request.budget):
        if not permits.cluster(Op.IDEMPOTENT_WRITE):
            return producer_answer(Code.CLUSTER_AUTHORIZATION_FAILED)
    try:
        shard = worker.any_shard()
    except KafkaError as error:
        return producer_answer(error.code)
    outcome = await append(shard, AllocateProducerId().envelope())
    if outcome.code:
        return producer_answer(Code.COORDINATOR_NOT_AVAILABLE)
    return producer_answer(Code.NONE, outcome.number, 0)
