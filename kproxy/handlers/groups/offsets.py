"""FindCoordinator (10), OffsetCommit (8), OffsetDelete (47).

A commit is judged twice: by the coordinator, which knows of rebalances under way, and by the fold.
"""

import re
from collections.abc import Mapping
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common import committing
from kproxy.handlers.common.committing import (
    PART_BYTES,
    Committer,
    Wanted,
    committer,
    lots,
    note,
    sort_out,
)
from kproxy.handlers.common.group_coordinators import coordinator_of
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.handlers.common.permitted import need_group
from kproxy.handlers.common.refusals import TEXTS
from kproxy.loop.pace import slices
from kproxy.metadata.cluster_view import Cluster
from kproxy.security.acls import Op
from kproxy.security.permits import Permits
from kproxy.shard.appends import append, append_all
from kproxy.virtual.commands.offsets import CommitOffsets, DeleteOffsets
from kproxy.virtual.types import PartitionKey
from kproxy.worker.request import Request

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2  # kinds of coordinators
_SHARE_ASKED = 6  # FindCoordinator version
_SHARE_KEY = re.compile(r"(.+):[\w-]{22}:[0-9]+", re.ASCII | re.DOTALL)
_COMMIT_BY_ID = 10
_COMMIT_NOT_FOUND = 9  # says that the group is not there
_MEMBER_FAULTS = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.STALE_MEMBER_EPOCH)


async def find_coordinator(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return a FindCoordinatorResponse: the worker of a group's or transactional id's shard."""
    body = request.body
    keys = body.coordinator_keys if request.version >= 4 else (body.key,)
    cluster = worker.cluster.seen_by(request.peer.listener)
    found = []
    for key in keys:
        kind = getattr(body, "key_type", _GROUP)
        code = _unfindable(request.permits, kind, key)
        if code:
            found.append(_no_coordinator(key, code, TEXTS[code]))
        else:
            found.append(_coordinator(cluster, key, kind, request.version))
        await request.budget.step(PART_BYTES)
    return {"coordinators": found} | (found[0] if request.version < 4 else {})


def _unfindable(permits: Permits, kind: int, key: str) -> Code:
    """Return why the client is not told who a coordinator is."""
    if kind == _GROUP and not permits.group(Op.DESCRIBE, key):
        return Code.GROUP_AUTHORIZATION_FAILED
    if kind == _TRANSACTION and not permits.transaction(Op.DESCRIBE, key):
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if kind == _SHARE and not permits.cluster(Op.CLUSTER_ACTION):
        return Code.CLUSTER_AUTHORIZATION_FAILED
    return Code.NONE


def _coordinator(cluster: Cluster, key: str, key_type: int, version: int) -> dict[str, Any]:
    name = key
    if key_type == _SHARE:  # a share partition, by group, queue id and index
        found = _SHARE_KEY.fullmatch(key)
        if found is None or version < _SHARE_ASKED:
            return _no_coordinator(key, Code.INVALID_REQUEST, "")
        name = found[1]
    if key_type not in (_GROUP, _TRANSACTION, _SHARE):
        message = "kproxy has no coordinator of this kind"
        return _no_coordinator(key, Code.INVALID_REQUEST, message)
    node = cluster.coordinator(name)
    if node is None:
        return _no_coordinator(key, Code.COORDINATOR_NOT_AVAILABLE, "nobody serves it right now")
    found_node = {"node_id": node.node_id, "host": node.host, "port": node.port}
    return {"key": key, "error_code": Code.NONE, "error_message": None} | found_node


def _no_coordinator(key: str, code: Code, message: str) -> dict[str, Any]:
    no_node = {"node_id": -1, "host": "", "port": -1}
    return {"key": key, "error_code": code, "error_message": message} | no_node


async def commit(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return an OffsetCommitResponse; answered when the commit is durable."""
    body, by_id = request.body, request.version >= _COMMIT_BY_ID
    worker.counters.busy_groups.add(body.group_id, 1)
    by = Committer(body.generation_id_or_member_epoch)
    if request.permits.group(Op.READ, body.group_id):
        group_fault, by = await _group_fault(worker, request)
    else:
        group_fault = Code.GROUP_AUTHORIZATION_FAILED
    if not group_fault and not by_id:
        try:
            await worker.routes.wait_for_catalogue(topic.name for topic in body.topics)
        except KafkaError:
            group_fault = Code.COORDINATOR_NOT_AVAILABLE
    absent = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
    topics, wanted = await sort_out(worker, request, group_fault, by_id=by_id, fault_in=by.fault_in)
    for lot in lots(wanted):
        note(lot, await _append(worker, body, by.epoch, lot), absent)
    return {"topics": topics}


async def _append(worker: GroupNeeds, body: Any, epoch: int, lot: list[Wanted]) -> tuple[Code, ...]:
    """Append offsets; return what became of each. The last one of a partition holds."""
    offsets = [offset for _, offset in lot]
    commit = CommitOffsets(body.group_id, body.member_id, epoch, offsets, worker.now_ms())
    try:
        shard = worker.coordinated(body.group_id)
        outcome = await append(shard, commit.envelope(worker.level.value))
    except KafkaError as error:
        return (error.code,) * len(lot)
    return outcome.codes or (_refused(outcome.code),) * len(lot)


def _refused(code: Code) -> Code:
    """Return the code that Kafka's coordinator answers with when its log did not take a commit."""
    if code in _MEMBER_FAULTS:
        return code
    if code == Code.MESSAGE_TOO_LARGE:
        return Code.INVALID_COMMIT_OFFSET_SIZE
    return Code.COORDINATOR_NOT_AVAILABLE


async def _group_fault(worker: GroupNeeds, request: Request) -> tuple[Code, Committer]:
    """Return the coordinator's fault before the log is asked, and who commits.

    The fold has the last word.
    """
    body = request.body
    group_id, epoch = body.group_id, body.generation_id_or_member_epoch
    by = Committer(epoch)
    try:
        coordinator = coordinator_of(worker, group_id, named=False)
        group = await coordinator.load(group_id)
    except KafkaError as error:
        return error.code, by
    head = coordinator.head(group_id) if group is None else None
    if head is not None and head.kind == "share":
        return Code.GROUP_ID_NOT_FOUND, by
    if group is None and epoch < 0:
        return Code.NONE, by
    if head is not None:
        return Code.UNKNOWN_MEMBER_ID, by
    if group is None:
        known_code = request.version >= _COMMIT_NOT_FOUND
        return Code.GROUP_ID_NOT_FOUND if known_code else Code.ILLEGAL_GENERATION, by
    instance = getattr(body, "group_instance_id", None)
    fault = group.commit_fault(body.member_id, instance, epoch, request.version)
    return fault, committer(group, body.member_id, epoch)


async def delete(worker: GroupNeeds, request: Request) -> Mapping[str, Any]:
    """Return an OffsetDeleteResponse (KIP-496)."""
    body = request.body
    try:
        need_group(request, Op.DELETE, body.group_id)
        coordinator = coordinator_of(worker, body.group_id, named=False)
        try:
            await worker.routes.wait_for_catalogue(topic.name for topic in body.topics)
        except KafkaError:
            return {"error_code": Code.COORDINATOR_NOT_AVAILABLE, "topics": ()}
        group = await coordinator.load(body.group_id)
    except KafkaError as error:
        return {"error_code": error.code, "topics": ()}
    shard, head = coordinator.shard, coordinator.head(body.group_id)
    kind = group.kind if group is not None else (None if head is None else head.kind)
    if kind is None or kind == "share":
        return {"error_code": Code.GROUP_ID_NOT_FOUND, "topics": ()}
    used = frozenset() if group is None else group.subscribed()
    if used is None:
        return {"error_code": Code.NON_EMPTY_GROUP, "topics": ()}
    forgotten: dict[PartitionKey, None] = {}
    topics = []
    for topic in body.topics:
        await request.budget.step(PART_BYTES)
        queue = worker.catalogue.find(topic.name)
        readable = request.permits.topic(Op.READ, topic.name)
        parts = []
        for part in topic.partitions:
            index = part.partition_index
            code = Code.NONE
            if not readable:
                code = Code.TOPIC_AUTHORIZATION_FAILED
            elif queue is None or not 0 <= index < queue.partitions:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.name in used:
                code = Code.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                forgotten[queue.queue_id, index] = None
            parts.append({"partition_index": index, "error_code": code})
            await request.budget.step(PART_BYTES)
        topics.append({"name": topic.name, "partitions": parts})
    deletions = [
        DeleteOffsets(body.group_id, some).envelope(worker.level.value)
        for some in slices(forgotten, committing.OFFSETS_AT_ONCE)
    ]
    while deletions:
        outcomes = await append_all((shard, deletion) for deletion in deletions)
        if any(outcome.code for outcome in outcomes):
            return {"error_code": Code.COORDINATOR_NOT_AVAILABLE, "topics": ()}
        pairs = zip(deletions, outcomes, strict=True)
        deletions = [one for one, outcome in pairs if outcome.number]  # more offsets wait there
    return {"error_code": Code.NONE, "topics": topics}
