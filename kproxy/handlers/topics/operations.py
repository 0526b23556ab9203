"""The APIs of operators' tools: DescribeLogDirs (35), DescribeProducers (61), DescribeQuorum (55),
ListConfigResources (74).
"""

import shutil
from collections.abc import AsyncIterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import ResponseBudget
from kproxy.handlers.common.items import Refusing
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.common.permitted import denied
from kproxy.loop.threads import on_disk
from kproxy.metadata.setting import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kproxy.security.acls import Op
from kproxy.shard.shard import Shard
from kproxy.virtual.producers import remembered
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.producers import ProducerState
from kproxy.virtual.rows.transactions import OPEN_TRANSACTIONS, TRANSACTIONAL_PRODUCERS
from kproxy.virtual.state import State
from kproxy.virtual.types import PartitionKey
from kproxy.worker.request import Request

_PARTITIONS_MAX = 100_000  # in one answer
_ROWS_AT_ONCE = 500
_PART_BYTES, _PRODUCER_BYTES = 600, 500  # about what they take until they are encoded
_RESOURCES = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
_QUORUM_TOPIC = "__cluster_metadata"


async def log_dirs(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeLogDirsResponse: bytes of live records, of what this worker serves."""
    topics = request.body.topics
    found: dict[str, list[dict[str, Any]]] = {}
    asked = _all(worker) if topics is None else _named(worker, request.budget, topics)
    number = 0
    async for name, index, shard, key in asked:
        number += 1
        if number > _PARTITIONS_MAX:
            return {"error_code": Code.INVALID_REQUEST, "results": ()}  # name some
        part = {
            "partition_index": index,
            "partition_size": shard.state.live_size(key),
            "offset_lag": 0,
            "is_future_key": False,
        }
        found.setdefault(name, []).append(part)
        await request.budget.step(_PART_BYTES)
    disk = await on_disk(partial(shutil.disk_usage, worker.config.data_dir))
    directory = {
        "error_code": Code.NONE,
        "log_dir": directory_name(worker),
        "topics": [{"name": name, "partitions": parts} for name, parts in found.items()],
        "total_bytes": disk.total,
        "usable_bytes": disk.free,
        "is_cordoned": False,
    }
    return {"error_code": Code.NONE, "results": [directory]}


def directory_name(worker: TopicNeeds) -> str:
    """Return the directory's name without its place, which is nobody's business."""
    return worker.config.data_dir.absolute().name


_Found = tuple[str, int, Shard, tuple[Any, int]]


async def _all(worker: TopicNeeds) -> AsyncIterator[_Found]:
    for shard in worker.routes.all():
        start, end = RowKind.PARTITION.range()
        while shard.serving and (found := list(islice(shard.kv.scan(start, end), _ROWS_AT_ONCE))):
            start = found[-1][0] + b"\0"
            for key, _ in found:
                if rows.is_hidden(key):
                    continue
                partition = rows.partition_of(key)
                queue = worker.catalogue.find_id(partition[0])
                if queue is not None and shard.serving:
                    yield queue.name, partition[1], shard, partition


async def _named(worker: TopicNeeds, budget: ResponseBudget, topics: Any) -> AsyncIterator[_Found]:
    """Yield each once, however often it is named."""
    seen = set()
    for topic in topics:
        await budget.step()
        for index in topic.partitions:
            await budget.step()
            if (topic.topic, index) in seen:
                continue
            try:
                queue, key, shard = worker.partition(topic.topic, index)
            except KafkaError as error:
                if error.code == Code.KAFKA_STORAGE_ERROR:
                    raise
                continue  # there is none, or another worker says
            seen.add((topic.topic, index))
            yield queue.name, index, shard, key


async def producers(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeProducersResponse: the idempotent producers that a partition remembers."""
    topics = []
    for topic in request.body.topics:
        await request.budget.step(_PART_BYTES)
        parts = []
        readable = request.permits.topic(Op.READ, topic.name)
        for index in topic.partition_indexes:
            part: dict[str, Any] = {"partition_index": index, "error_message": None}
            part["active_producers"] = ()
            with Refusing(part):
                if not readable:
                    raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
                part |= await _producers(worker, request.budget, topic.name, index)
            parts.append(part)
            await request.budget.step(_PART_BYTES)
        topics.append({"name": topic.name, "partitions": parts})
    return {"topics": topics}


async def _producers(
    worker: TopicNeeds, budget: ResponseBudget, name: str, index: int
) -> dict[str, Any]:
    """Return a partition's producers, maybe 100,000s: one used meanwhile is told of once."""
    _, key, shard = worker.partition(name, index)
    state = shard.state
    row = state.partition(key)
    found: dict[int, dict[str, Any]] = {}
    for producer_id, producer in () if row is None else remembered(state, key, row):
        found[producer_id] = _producer(
            state, key, producer_id, producer, row is not None and row.first_open >= 0
        )
        await budget.step(_PRODUCER_BYTES)
    return {"error_code": Code.NONE, "active_producers": [*found.values()]}


def _producer(
    state: State, key: PartitionKey, producer_id: int, producer: ProducerState, any_open: bool
) -> dict[str, Any]:
    """Describe a producer. A marker brings epoch 0; the shard as a whole remembers that it came.

    One that has cleared a producer's batches was the last that it wrote.
    """
    opened = state.get(OPEN_TRANSACTIONS.key(key, producer_id)) if any_open else None
    data = state.get(TRANSACTIONAL_PRODUCERS.key(producer_id))
    time_ms = producer.newest.time_ms
    if data is not None and not producer.batches:
        time_ms = TRANSACTIONAL_PRODUCERS.decode(data).used_ms
    return {
        "producer_id": producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.newest.last_sequence,
        "last_timestamp": time_ms,
        "coordinator_epoch": -1 if data is None else 0,
        "current_txn_start_offset": (
            -1 if opened is None else OPEN_TRANSACTIONS.decode(opened).first_offset
        ),
    }


async def quorum(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a DescribeQuorumResponse: the controller as a quorum of its own."""
    cluster = worker.cluster.seen_by(request.peer.listener)
    leader = cluster.controller_id
    voter = {
        "replica_id": leader,
        "replica_directory_id": None,
        "log_end_offset": 0,
        "last_fetch_timestamp": -1,
        "last_caught_up_timestamp": -1,
    }
    topics, any_known = [], False
    for topic in request.body.topics:
        await request.budget.step(_PART_BYTES)
        parts = []
        for part in topic.partitions:
            known = topic.topic_name == _QUORUM_TOPIC and part.partition_index == 0
            any_known = any_known or known
            parts.append(
                {
                    "partition_index": part.partition_index,
                    "error_code": Code.NONE if known else Code.UNKNOWN_TOPIC_OR_PARTITION,
                    "error_message": None,
                    "leader_id": leader if known else -1,
                    "leader_epoch": 0,
                    "high_watermark": 0,
                    "current_voters": [voter] if known else (),
                    "observers": (),
                }
            )
            await request.budget.step(_PART_BYTES)
        topics.append({"topic_name": topic.topic_name, "partitions": parts})
    nodes = [
        {
            "node_id": b.node_id,
            "listeners": [{"name": "CONTROLLER", "host": b.host, "port": b.port}],
        }
        for b in cluster.brokers
        if any_known and b.node_id == leader
    ]
    return {"error_code": Code.NONE, "error_message": None, "topics": topics, "nodes": nodes}


async def config_resources(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ListConfigResourcesResponse: queues, brokers, and groups that have settings."""
    wanted = set(getattr(request.body, "resource_types", ()))
    if request.version and not wanted:
        wanted = set(_RESOURCES)
    if not wanted <= set(_RESOURCES):
        return {"error_code": Code.UNSUPPORTED_VERSION, "config_resources": ()}
    found: list[dict[str, Any]] = []
    brokers = [str(broker.node_id) for broker in worker.cluster.brokers]
    for kind in (BROKER, BROKER_LOGGER):
        if kind in wanted:
            found += [{"resource_name": name, "resource_type": kind} for name in brokers]
    if TOPIC in wanted:
        for queue in islice(worker.catalogue.all(), _PARTITIONS_MAX):
            found.append({"resource_name": queue.name, "resource_type": TOPIC})
            await request.budget.step(_PART_BYTES)
    if GROUP in wanted:
        for group in islice(worker.configured_groups(), _PARTITIONS_MAX):
            found.append({"resource_name": group, "resource_type": GROUP})
            await request.budget.step(_PART_BYTES)
    return {"error_code": Code.NONE, "config_resources": found}
