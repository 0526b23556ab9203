"""The places of partitions: ElectLeaders (43), AlterPartitionReassignments (45),
ListPartitionReassignments (46), AlterReplicaLogDirs (34), UnregisterBroker (64).

A queue's partition has one replica, at the worker that serves its shard. Workers share the shards
by themselves, so nobody moves one by hand: what asks for what is so is done, all else is refused.
"""

from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.hearing import hear_of
from kproxy.handlers.common.items import Refusing
from kproxy.handlers.common.needs import TopicNeeds
from kproxy.handlers.topics.operations import directory_name
from kproxy.worker.request import Request

_PART_BYTES = 600  # about what one takes until it is encoded
_ELECTIONS = (0, 1)  # preferred, unclean


async def elect_leaders(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return an ElectLeadersResponse: the leader is always the preferred one."""
    results, is_kind = [], getattr(request.body, "election_type", 0) in _ELECTIONS
    asked = request.body.topic_partitions or ()
    await hear_of(worker, (topic.topic for topic in asked), request.budget)
    for topic in asked:
        await request.budget.step(_PART_BYTES)
        queue = worker.catalogue.find(topic.topic)
        parts = []
        for index in topic.partitions:
            there = queue is not None and 0 <= index < queue.partitions
            code = Code.ELECTION_NOT_NEEDED if there else Code.UNKNOWN_TOPIC_OR_PARTITION
            code = code if is_kind else Code.INVALID_REQUEST
            parts.append({"partition_id": index, "error_code": code, "error_message": None})
            await request.budget.step(_PART_BYTES)
        results.append({"topic": topic.topic, "partition_result": parts})
    code = Code.NONE if is_kind else Code.INVALID_REQUEST
    return {"error_code": code, "replica_election_results": results}


async def reassign(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AlterPartitionReassignmentsResponse."""
    nodes = {broker.node_id for broker in worker.cluster.brokers}
    responses = []
    await hear_of(worker, (topic.name for topic in request.body.topics), request.budget)
    for topic in request.body.topics:
        await request.budget.step(_PART_BYTES)
        queue = worker.catalogue.find(topic.name)
        found = () if queue is None else worker.cluster.leaders(queue.name, queue.partitions)
        leaders, parts = dict(enumerate(found)), []
        for part in topic.partitions:
            answer: dict[str, Any] = {
                "partition_index": part.partition_index,
                "error_code": Code.NONE,
                "error_message": None,
            }
            with Refusing(answer):
                _reassign(leaders, part.partition_index, part.replicas, nodes)
            parts.append(answer)
            await request.budget.step(_PART_BYTES)
        responses.append({"name": topic.name, "partitions": parts})
    return {
        "error_code": Code.NONE, "error_message": None, "responses": responses,
        "allow_replication_factor_change":
            getattr(request.body, "allow_replication_factor_change", True),
    }  # fmt: skip


def _reassign(
    leaders: dict[int, int], index: int, replicas: tuple[int, ...] | None, nodes: set[int]
) -> None:
    """Raise KafkaError unless the partition is where it is to be."""
    if index not in leaders:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
    if replicas is None:
        raise KafkaError(Code.NO_REASSIGNMENT_IN_PROGRESS)
    if not replicas:
        raise KafkaError(Code.INVALID_REPLICA_ASSIGNMENT, "the list of replicas is empty")
    if unknown := set(replicas) - nodes:
        raise KafkaError(Code.INVALID_REPLICA_ASSIGNMENT, f"there is no worker {min(unknown)}")
    if list(replicas) != [leaders[index]]:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            "workers share the partitions by themselves: none is moved by hand",
        )


async def reassignments(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return a ListPartitionReassignmentsResponse: there never are any."""
    return {"error_code": Code.NONE, "error_message": None, "topics": ()}


async def move_directories(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return an AlterReplicaLogDirsResponse: there is one directory, and all is in it."""
    here = directory_name(worker)
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in request.body.dirs:
        await request.budget.step()
        for topic in directory.topics:
            await request.budget.step(_PART_BYTES)
            parts = results.setdefault(topic.name, [])
            for index in topic.partitions:
                code = Code.LOG_DIR_NOT_FOUND
                if directory.path == here:
                    code = _there(worker, topic.name, index)
                parts.append({"partition_index": index, "error_code": code})
                await request.budget.step(_PART_BYTES)
    return {"results": [{"topic_name": n, "partitions": p} for n, p in results.items()]}


def _there(worker: TopicNeeds, name: str, index: int) -> Code:
    try:
        worker.partition(name, index)
    except KafkaError as error:
        elsewhere = error.code == Code.NOT_LEADER_OR_FOLLOWER
        return Code.REPLICA_NOT_AVAILABLE if elsewhere else error.code
    return Code.NONE


async def unregister(worker: TopicNeeds, request: Request) -> Mapping[str, Any]:
    """Return an UnregisterBrokerResponse: a worker leaves by being stopped, and is forgotten."""
    node = request.body.broker_id
    if node in {broker.node_id for broker in worker.cluster.brokers}:
        message = f"worker {node} lives: stop it, and it is forgotten"
        return {"error_code": Code.INVALID_REQUEST, "error_message": message}
    message = f"Broker ID {node} is not currently registered"
    return {"error_code": Code.BROKER_ID_NOT_REGISTERED, "error_message": message}
