"""Transactional producers: InitProducerId (22) with a transactional id, AddPartitionsToTxn (24),
AddOffsetsToTxn (25) and EndTxn (26).

Each goes to the coordinator of its transactional id. Rules and codes: KIP-98, KIP-360, KIP-890,
Kafka's `TransactionCoordinator`. The fold decides; a handler checks what needs no fold, appends the
command and waits for what the client may rely on.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from anyio import move_on_after

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import TransactionNeeds
from kproxy.handlers.common.permitted import need_transaction
from kproxy.log.base import Ticket
from kproxy.protocol.varint import Superseded
from kproxy.security.acls import Op
from kproxy.shard.appends import append, outcomes_of
from kproxy.shard.shard import Shard
from kproxy.transactions.beginnings import Enlisting
from kproxy.transactions.coordinator import TransactionCoordinator
from kproxy.virtual.commands.transactions import End, InitProducer
from kproxy.virtual.levels import TRANSACTIONS_FROM
from kproxy.virtual.partitioner import INTERNAL_TOPICS, shard_of
from kproxy.virtual.rows.transactions import (
    NO_NUMBER,
    Participant,
    TransactionState,
)
from kproxy.worker.request import Request

_FENCED_SAID = 2  # versions of three APIs from which a fenced producer is told so
_FENCED_SAID_AT_INIT = 4
_BATCHED = 4  # versions of AddPartitionsToTxn that only brokers use
_EPOCH_BUMPED = 5  # the version of EndTxn that ends a transaction by KIP-890
_END_WAIT_S = 2.0  # for those who take part, when one is away
_PART_BYTES = 400
_MS = timedelta(milliseconds=1)


def coordinator_of(worker: TransactionNeeds, transactional_id: str) -> TransactionCoordinator:
    """Return the coordinator of a transactional id, which this worker must be.

    Raise KafkaError: INVALID_REQUEST, NOT_COORDINATOR, INVALID_PRODUCER_ID_MAPPING.
    """
    if not transactional_id:
        raise KafkaError(Code.INVALID_REQUEST, "the transactional id is empty")
    shard = worker.coordinated(transactional_id)
    if not worker.level.reaches(TRANSACTIONS_FROM):  # so nobody has it, and nothing is to be logged
        raise KafkaError(Code.INVALID_PRODUCER_ID_MAPPING)
    return worker.transactions.of(shard)


async def init(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return an InitProducerIdResponse, for a producer with a transactional id."""
    body = request.body
    try:
        shard, command = _checked(worker, body)
    except KafkaError as error:
        return producer_answer(error.code)
    outcome = await append(shard, command.envelope())
    code = _by_version(outcome.code, request.version, _FENCED_SAID_AT_INIT)
    if code:
        if code == Code.CONCURRENT_TRANSACTIONS and shard.serving:
            worker.transactions.drive(shard, body.transactional_id)
        return producer_answer(_retriable(code))
    return producer_answer(Code.NONE, outcome.number, outcome.epoch)


def producer_answer(code: Code, producer_id: int = -1, epoch: int = -1) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": producer_id, "producer_epoch": epoch}


def _checked(worker: TransactionNeeds, body: Any) -> tuple[Shard, InitProducer]:
    """Return where an INIT_PRODUCER goes, and what it says. Raise KafkaError."""
    expected = getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1)
    if (expected[0] == -1) != (expected[1] == -1):
        raise KafkaError(Code.INVALID_REQUEST)
    if body.transactional_id and not worker.level.reaches(TRANSACTIONS_FROM):
        raise KafkaError(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    coordinator = coordinator_of(worker, body.transactional_id)
    timeout_ms = body.transaction_timeout // _MS
    if not 0 < timeout_ms <= worker.config.transaction_max_timeout_ms:
        raise KafkaError(Code.INVALID_TRANSACTION_TIMEOUT)
    command = InitProducer(body.transactional_id, timeout_ms, *expected, worker.now_ms())
    return coordinator.shard, command


def _by_version(code: Code, version: int, said_from: int = _FENCED_SAID) -> Code:
    """Replace PRODUCER_FENCED, which older versions do not know."""
    if code == Code.PRODUCER_FENCED and version < said_from:
        return Code.INVALID_PRODUCER_EPOCH
    return code


def _retriable(code: Code) -> Code:
    """Make refusals of the log retriable; clients know no other code for that here."""
    refused = (Code.KAFKA_STORAGE_ERROR, Code.REQUEST_TIMED_OUT, Code.MESSAGE_TOO_LARGE)
    if code in refused:
        return Code.COORDINATOR_NOT_AVAILABLE
    return Code.NOT_COORDINATOR if code == Code.NOT_LEADER_OR_FOLLOWER else code


# -- the participants


async def add_partitions(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AddPartitionsToTxnResponse: all of its partitions take part, or none.

    The form of version 4 on is for brokers alone, and refused.
    """
    body, version = request.body, request.version
    if version >= _BATCHED:
        return {"error_code": Code.CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": ()}
    topics = body.v3_and_below_topics
    found: list[Participant] = []
    unknown: dict[tuple[str, int], Code] = {}
    usable = request.permits.transaction(Op.WRITE, body.v3_and_below_transactional_id)
    if usable:
        found, unknown = await _participants(worker, request, topics)
    if not usable:
        every = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif unknown:
        every = Code.OPERATION_NOT_ATTEMPTED
    else:
        asked = Enlisting(
            body.v3_and_below_transactional_id, body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch, found,
        )  # fmt: skip
        every = await _take_part(worker, request, asked)
    results = []
    for topic in topics:
        parts = []
        for index in topic.partitions:
            code = unknown.get((topic.name, index), every)
            parts.append({"partition_index": index, "partition_error_code": code})
            await request.budget.step(_PART_BYTES)
        results.append({"name": topic.name, "results_by_partition": parts})
        await request.budget.step(_PART_BYTES)
    return {"results_by_topic_v3_and_below": results}


async def _participants(
    worker: TransactionNeeds, request: Request, topics: Sequence[Any]
) -> tuple[list[Participant], dict[tuple[str, int], Code]]:
    """Return the partitions that are there, and those that are not."""
    found: dict[Participant, None] = {}
    unknown: dict[tuple[str, int], Code] = {}
    shards = worker.routes.shards
    await worker.routes.wait_for_catalogue(topic.name for topic in topics)
    for topic in topics:
        queue = worker.catalogue.find(topic.name)
        writable = request.permits.topic(Op.WRITE, topic.name)
        for index in topic.partitions:
            if not writable or topic.name in INTERNAL_TOPICS:
                unknown[topic.name, index] = Code.TOPIC_AUTHORIZATION_FAILED
            elif queue is None or not 0 <= index < queue.partitions:
                unknown[topic.name, index] = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found[Participant(shard_of(topic.name, shards, index), (queue.queue_id, index))] = (
                    None
                )
            await request.budget.step()
        await request.budget.step()
    return list(found), unknown


async def add_offsets(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AddOffsetsToTxnResponse: a group takes part."""
    body = request.body
    if not request.permits.transaction(Op.WRITE, body.transactional_id):
        return {"error_code": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    if not request.permits.group(Op.READ, body.group_id):
        return {"error_code": Code.GROUP_AUTHORIZATION_FAILED}
    group = Participant(shard_of(body.group_id, worker.routes.shards), group=body.group_id)
    asked = Enlisting(body.transactional_id, body.producer_id, body.producer_epoch, [group])
    return {"error_code": await _take_part(worker, request, asked)}


async def _take_part(worker: TransactionNeeds, request: Request, asked: Enlisting) -> Code:
    """Have them take part in a producer's transaction, in all shards, without KIP-890."""
    name = asked.transactional_id
    try:
        coordinator = coordinator_of(worker, name)
    except KafkaError as error:
        return error.code
    connection = request.next_request.connection
    if coordinator.is_late(name, connection):
        raise _late(name)
    shard, tickets = coordinator.shard, []
    for enlistment in asked.enlists(1, worker.now_ms()):
        tickets.append(shard.append([enlistment]))
        await request.budget.step()
    outcomes = await outcomes_of(tickets)
    code = next((outcome.code for outcome in outcomes if outcome.code), Code.NONE)
    if code:
        return _by_version(_retriable(code), request.version)
    number = outcomes[0].number
    coordinator.note_begun(name, number, connection)
    if any(outcome.number != number for outcome in outcomes):
        return Code.CONCURRENT_TRANSACTIONS  # it ended in between, and they opened another
    began = await outcomes_of(_begin_elsewhere(worker, shard, asked, number))
    return Code.COORDINATOR_NOT_AVAILABLE if any(one.code for one in began) else Code.NONE


def _begin_elsewhere(
    worker: TransactionNeeds, coordinator: Shard, asked: Enlisting, number: int
) -> list[Ticket]:
    """Tell all other shards who takes part, and give the tickets of that."""
    begins = asked.begins(1, number, worker.now_ms())
    return [worker.routes.land(index, [one]) for index, one in begins if index != coordinator.shard]


def _late(transactional_id: str) -> Superseded:
    return Superseded(
        "a request for a transaction came on a connection older than the one that began it"
        f" (transactional id {transactional_id!r:.100})"
    )


# -- the end


async def end(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return an EndTxnResponse: answered once no participant can be told of it a second time.

    Raise Superseded if it came on a connection that its client has given up.
    """
    body = request.body
    version = 2 if request.version >= _EPOCH_BUMPED else 1
    name = body.transactional_id
    try:
        need_transaction(request, Op.WRITE, name)
        coordinator = coordinator_of(worker, name)
    except KafkaError as error:
        return producer_answer(error.code)
    if version == 1 and coordinator.is_late(name, request.next_request.connection):
        raise _late(name)
    row = coordinator.row(name)
    opened = row is not None and row.state == TransactionState.ONGOING
    number = row.number if row is not None and opened else NO_NUMBER
    command = End(
        name, body.producer_id, body.producer_epoch, version, body.committed, number,
        worker.now_ms(),
    )  # fmt: skip
    outcome = await append(coordinator.shard, command.envelope())
    if outcome.code:
        return producer_answer(_by_version(_retriable(outcome.code), request.version))
    await _ended(worker, coordinator, name)
    return producer_answer(Code.NONE, outcome.number, outcome.epoch)


async def _ended(worker: TransactionNeeds, coordinator: TransactionCoordinator, name: str) -> None:
    """Wait until all know, or for as long as the client is to wait: it is decided in any case."""
    row = coordinator.row(name)
    if row is None or not row.state.is_ending or not coordinator.shard.serving:
        return
    event = worker.transactions.drive(coordinator.shard, name)
    with move_on_after(_END_WAIT_S):
        await event.wait()
