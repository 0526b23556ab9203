"""The APIs of operators for transactions: DescribeTransactions (65), ListTransactions (66).

WriteTxnMarkers (27) is for brokers; `kafka-transactions.sh abort` sends it, too. A marker ends a
transaction in one partition, and would tear it apart: here only the coordinator ends one.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from anyio import move_on_after

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.regex import compiled
from kproxy.handlers.common.needs import TransactionNeeds
from kproxy.handlers.common.permitted import need_transaction
from kproxy.handlers.transactions.transactions import coordinator_of
from kproxy.loop.pace import scanned
from kproxy.protocol.batch import control_batch
from kproxy.security.acls import Op, Resource
from kproxy.shard.appends import append, outcomes_of
from kproxy.virtual.commands.transactions import End, EndCause, Marker
from kproxy.virtual.rows import transactions as transaction_rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.transactions import (
    OPEN_TRANSACTIONS,
    PARTICIPANTS,
    TRANSACTIONS,
    Participant,
    Transaction,
    TransactionState,
)
from kproxy.worker.request import Request

_STATES = {state: state.name.title().replace("_", "") for state in TransactionState}
_KNOWN_STATES = {*_STATES.values(), "Dead", "PrepareEpochFence"}
_GROUPS_TOPIC = "__consumer_offsets"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_WAIT_S = 2.0
_ITEM_BYTES = 500
_LISTED_MAX = 100_000
_REFUSED: dict[str, Any] = {"unknown_state_filters": (), "transaction_states": ()}


async def describe(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeTransactionsResponse."""
    found = []
    for name in request.body.transactional_ids:
        answer: dict[str, Any] = {
            "error_code": Code.NONE,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": _EPOCH,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": (),
        }
        try:
            need_transaction(request, Op.DESCRIBE, name)
            coordinator = coordinator_of(worker, name)
        except KafkaError as error:
            missing = error.code == Code.INVALID_PRODUCER_ID_MAPPING
            code = Code.TRANSACTIONAL_ID_NOT_FOUND if missing else error.code
            found.append(answer | {"error_code": code})
            continue
        row = coordinator.row(name)
        if row is None:
            answer["error_code"] = Code.TRANSACTIONAL_ID_NOT_FOUND
        else:
            answer |= {
                "transaction_state": _STATES[row.state],
                "transaction_timeout": row.timeout_ms,
                "transaction_start_time": _EPOCH + timedelta(milliseconds=row.start_ms),
                "producer_id": row.producer_id,
                "producer_epoch": row.epoch,
                "topics": await _topics(worker, request, coordinator.shard.kv.scan, row),
            }
        found.append(answer)
        await request.budget.step(_ITEM_BYTES)
    return {"transaction_states": found}


async def _topics(
    worker: TransactionNeeds, request: Request, scan: Any, row: Transaction
) -> list[dict[str, Any]]:
    """Return the partitions of a transaction that is open or ending; groups as Kafka keeps them."""
    topics: dict[str, dict[int, None]] = {}
    if row.state.is_idle:
        return []
    rows = scanned(scan, *PARTICIPANTS.range(row.number))
    async with aclosing(rows) as lots:
        async for some in lots:
            for key, _ in some:
                name, index = _named(worker, transaction_rows.participant_of(key))
                if name is not None and request.permits.sees(Op.DESCRIBE, Resource.TOPIC, name):
                    topics.setdefault(name, {})[index] = None
            await request.budget.step(len(some) * 40)
    return [{"topic": name, "partitions": list(some)} for name, some in topics.items()]


def _named(worker: TransactionNeeds, participant: Participant) -> tuple[str | None, int]:
    if participant.key is None:
        return _GROUPS_TOPIC, participant.shard
    queue = worker.catalogue.find_id(participant.key[0])
    return None if queue is None else queue.name, participant.key[1]


async def list_all(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ListTransactionsResponse: the transactions that this worker coordinates."""
    body = request.body
    states = set(body.state_filters)
    unknown = sorted(states - _KNOWN_STATES)
    answer: dict[str, Any] = {"error_code": Code.NONE, "unknown_state_filters": unknown}
    pattern = getattr(body, "transactional_id_pattern", None)
    try:
        regex = compiled(pattern) if pattern else None
    except KafkaError as error:
        return _REFUSED | {"error_code": error.code}
    producer_ids = set(body.producer_id_filters)
    age_ms = getattr(body, "duration_filter", -1)
    now_ms = worker.now_ms()
    found: list[dict[str, Any]] = []
    async with aclosing(_rows(worker)) as rows:
        async for name, row in rows:
            await request.budget.step()
            state = _STATES[row.state]
            if states and state not in states:
                continue
            if producer_ids and row.producer_id not in producer_ids:
                continue
            if age_ms >= 0 and now_ms - row.start_ms <= age_ms:  # one that never began is old
                continue
            if regex is not None and not regex.fullmatch(name):
                continue
            if not request.permits.sees(Op.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
                continue
            one = {
                "transactional_id": name,
                "producer_id": row.producer_id,
                "transaction_state": state,
            }
            found.append(one)
            await request.budget.step(_ITEM_BYTES + len(name))
            if len(found) > _LISTED_MAX:  # name some: by state, age, producer or pattern
                return _REFUSED | {"error_code": Code.INVALID_REQUEST}
    return answer | {"transaction_states": found}


async def _rows(worker: TransactionNeeds) -> AsyncGenerator[tuple[str, Transaction], None]:
    for shard in worker.routes.all():
        async with aclosing(scanned(shard.kv.scan, *RowKind.TRANSACTION.range())) as lots:
            async for some in lots:
                for key, data in some:
                    if not shard.serving:
                        return
                    yield TRANSACTIONS.parts(key)[0], TRANSACTIONS.decode(data)
                if not shard.serving:
                    return


async def write_markers(worker: TransactionNeeds, request: Request) -> Mapping[str, Any]:
    """Return a WriteTxnMarkersResponse: an abort ends all of a transaction, a commit is refused."""
    markers = []
    for marker in request.body.markers:
        topics = []
        for topic in marker.topics:
            parts = []
            for index in topic.partition_indexes:
                code = await _abort(worker, marker, topic.name, index)
                parts.append({"partition_index": index, "error_code": code})
                await request.budget.step(_ITEM_BYTES)
            topics.append({"name": topic.name, "partitions": parts})
            await request.budget.step(_ITEM_BYTES)
        markers.append({"producer_id": marker.producer_id, "topics": topics})
        await request.budget.step(_ITEM_BYTES)
    return {"markers": markers}


async def _abort(worker: TransactionNeeds, marker: Any, name: str, index: int) -> Code:
    """Have the coordinator abort what a producer has open in a partition.

    Its shard is known by the producer id. If the coordinator knows of no such transaction, it
    hangs: then it is ended in the partition alone, as in Kafka.
    """
    if marker.transaction_result:
        return Code.CLUSTER_AUTHORIZATION_FAILED
    try:
        _, key, shard = worker.partition(name, index)
    except KafkaError as error:
        return error.code
    producer_id, epoch = marker.producer_id, marker.producer_epoch
    opened = OPEN_TRANSACTIONS.get(shard.state.get, key, producer_id)
    if opened is None:
        return Code.NONE  # it has ended
    if opened.epoch != epoch:
        return Code.INVALID_PRODUCER_EPOCH
    home, now_ms = producer_id % worker.routes.shards, worker.now_ms()
    end = End("", producer_id, epoch, 1, False, opened.number, now_ms, EndCause.OPERATOR)
    (outcome,) = await outcomes_of([worker.routes.ask(home, end.envelope())])
    coordinator = worker.routes.serving(home)
    if not outcome.code and outcome.message and coordinator is not None:
        with move_on_after(_END_WAIT_S):
            await worker.transactions.drive(coordinator, outcome.message).wait()
    elif outcome.code == Code.INVALID_TXN_STATE and not outcome.message:
        batch = control_batch(producer_id, epoch, commit=False, time_ms=now_ms)
        hanging = Marker(batch, producer_id, epoch, opened.number, False, [key], (), now_ms)
        outcome = await append(shard, hanging.envelope())
    return outcome.code
