"""Partitions that take part in the transactions of the batches that a Produce writes to them.

A transactional batch whose partition does not take part waits for the coordinator
(`handlers.common.enlisting`).
"""

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common import enlisting
from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.handlers.produce.guard import Guard, find_or_make
from kproxy.protocol.batch import HEADER_BYTES, BatchHeader, Records, read_header
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.security.quotas import Mutations
from kproxy.shard.shard import Shard
from kproxy.transactions.beginnings import Enlisting
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.rows.transactions import OPEN_TRANSACTIONS, Participant
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.request import Request

Refusals = dict[PartitionKey, Code]
"""Partitions that cannot take part, and what a Produce answers for them."""


async def take_part(
    worker: ProduceNeeds, request: Request, body: ProduceRequest, guard: Guard | None,
    mutations: Mutations,
) -> Refusals:  # fmt: skip
    """Have partitions take part in the transactions of their batches; those that cannot."""
    refusals: Refusals = {}
    name = body.transactional_id
    if not name:
        return refusals
    enlists = request.version >= enlisting.ENLISTS_FROM
    wanted: dict[tuple[int, int], list[Participant]] = {}
    for topic, partitions in body.topics:
        if request.budget.due:
            await request.budget.rest()
        if guard is not None and guard.fault(topic):
            continue
        queue = _queue_of(worker, topic, guard, mutations)
        for index, records in partitions if queue is not None else ():
            assert queue is not None
            await request.budget.step()
            one = _absent(worker, request.version, name, queue, index, records)
            if one is not None:
                wanted.setdefault(one[0], []).append(one[1])
    for producer, participants in wanted.items():
        asked = Enlisting(name, *producer, participants)
        code = await enlisting.take_part(worker, asked, enlists=enlists)
        if code:
            code = enlisting.code_of_produce(code, request.version)
            refusals |= {one.key: code for one in participants if one.key is not None}
    return refusals


def _queue_of(
    worker: ProduceNeeds, topic: str | bytes, guard: Guard | None, mutations: Mutations
) -> Queue | None:
    if isinstance(topic, bytes):
        return worker.catalogue.find_id(QueueId(topic))
    return find_or_make(worker, topic, guard, mutations)[0]


def _absent(
    worker: ProduceNeeds,
    version: int,
    transactional_id: str,
    queue: Queue,
    index: int,
    records: Records | None,
) -> tuple[tuple[int, int], Participant] | None:
    """Return (producer id and epoch, partition) if it is not in its batch's transaction."""
    if not records or len(records) < HEADER_BYTES or not 0 <= index < queue.partitions:
        return None
    header = read_header(records)
    if not header.is_transactional or header.is_control or header.producer_id < 0:
        return None
    try:
        shard = worker.shard(queue.name, index)
    except KafkaError:
        return None
    key = (queue.queue_id, index)
    if takes_part(shard, key, header, transactional_id, version):
        return None
    return (header.producer_id, header.producer_epoch), Participant(shard.shard, key)


def takes_part(
    shard: Shard, key: PartitionKey, header: BatchHeader, transactional_id: str, version: int
) -> bool:
    """Return whether a partition takes part in the transaction that a batch is for.

    A producer's id and epoch alone are not enough: they may be another's. With KIP-890 they are the
    transaction's own; without it an earlier one may have had them, whose marker is on its way.
    """
    opened = OPEN_TRANSACTIONS.get(shard.state.get, key, header.producer_id)
    return (
        opened is not None
        and opened.epoch == header.producer_epoch
        and opened.tag == transaction_rows.tag_of(transactional_id)
        and (opened.version >= 2 or version < enlisting.ENLISTS_FROM)
    )
