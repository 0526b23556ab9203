"""StreamsGroupHeartbeat (88), as Kafka 4.4 has it (KIP-1071).

The rules are in `groups.requests.streams_heartbeat`. Internal topics are made here, with the rights
of the member that says that they are missing.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.configured_topology import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_INTERNAL_TOPICS,
    MISSING_SOURCE_TOPICS,
    Status,
)
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.model.topology import ROLES, of_request
from kproxy.groups.requests.streams_heartbeat import (
    MISSING_CLIENT_TAGS,
    OwnedTasks,
    StreamsHeartbeatRequest,
    StreamsHeartbeatResult,
    check,
    check_supported,
)
from kproxy.groups.requests.streams_heartbeat import heartbeat as beat
from kproxy.handlers.common.creations import create_internal
from kproxy.handlers.common.group_coordinators import check_streams_level, coordinator_of
from kproxy.handlers.common.needs import StreamsNeeds
from kproxy.handlers.common.permitted import HIDDEN, forbidden, hidden, need_group, need_topics
from kproxy.handlers.common.refusals import NO_ERROR, error_fields
from kproxy.handlers.groups.streams_endpoints import endpoints
from kproxy.handlers.groups.streams_tasks import FIELDS, tasks_by_role
from kproxy.loop.steps import done
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.virtual.partitioner import name_fault
from kproxy.worker.request import Request

_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_NAMING = (MISSING_SOURCE_TOPICS, INCORRECTLY_PARTITIONED_TOPICS, MISSING_INTERNAL_TOPICS)
"""Statuses that name topics of the group's topology."""
_LAG_TOLD = 1
_RECOVERY_LAG, _OFFSETS_MS = 10_000, 60_000
"""The lag that a warm-up task may have, and the time between tasks' offsets, as in Kafka 4.4."""
_PART_BYTES = 60  # about, until it is encoded


async def heartbeat(worker: StreamsNeeds, request: Request) -> Mapping[str, Any]:
    """Return a StreamsGroupHeartbeatResponse; with tasks if they have changed."""
    newer = request.version >= _LAG_TOLD
    answer: dict[str, Any] = {
        **NO_ERROR,
        "member_id": "",
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "acceptable_recovery_lag": -1 if newer else 0,
        "task_offset_interval": 0,
        "status": (),
        "active_tasks": None,
        "standby_tasks": None,
        "warmup_tasks": None,
        "endpoint_information_epoch": 0,
        "partitions_by_user_endpoint": None,
    }
    try:
        result = await _beat(worker, request)
    except KafkaError as error:
        return answer | error_fields(error)
    group, statuses = result.group, result.statuses
    answer |= {"member_id": result.member_id, "member_epoch": result.member_epoch}
    if group is not None:
        if result.missing:
            statuses = await _with_missing(worker, request, result)
        statuses = await _without_hidden(request, group, statuses)
        settings = worker.group_settings(group.id)
        answer["heartbeat_interval"] = settings.streams_heartbeat_interval_ms
        if newer:
            statuses = (*statuses, *_untagged(group, result.member_id, settings.streams_tags))
            answer["acceptable_recovery_lag"] = _RECOVERY_LAG
            answer["task_offset_interval"] = _OFFSETS_MS
        answer |= await endpoints(worker, request, result, group)
    answer["status"] = [{"status_code": one.code, "status_detail": one.detail} for one in statuses]
    if result.tasks is not None and group is not None and group.structure is not None:
        await request.budget.step(_PART_BYTES * len(result.tasks))
        by_role = await done(tasks_by_role(group.structure, result.tasks))
        answer |= {field: by_role[role] for field, role in zip(FIELDS, ROLES, strict=True)}
    return answer


def _untagged(group: StreamsGroup, member_id: str, tags: tuple[str, ...]) -> Iterator[Status]:
    """Yield what a member is told that lacks tags which its group's settings name."""
    member = group.members.get(member_id)
    missing = [] if member is None else [key for key in tags if key not in member.tags]
    if missing:
        yield Status(
            MISSING_CLIENT_TAGS,
            "Missing required client tags for rack-aware standby assignment:"
            f" [{', '.join(missing)}]. Configure them via 'client.tag.<tagKey>' in your Streams"
            " config.",
        )


async def _beat(worker: StreamsNeeds, request: Request) -> StreamsHeartbeatResult:
    body = request.body
    check_streams_level(worker)
    need_group(request, Op.READ, body.group_id)
    if body.topology is not None:
        await _check_topics(request, body.topology)
    check_supported(body, request.version)
    rebalance_ms = round(body.rebalance_timeout.total_seconds() * 1000)
    check(body, rebalance_ms)
    asked = StreamsHeartbeatRequest(
        group_id=body.group_id, member_id=body.member_id, member_epoch=body.member_epoch,
        instance=body.instance_id, rack=body.rack_id, rebalance_ms=rebalance_ms,
        topology=None if body.topology is None else await done(of_request(body.topology)),
        owned=_owned(body), process=body.process_id,
        endpoint=body.user_endpoint and (body.user_endpoint.host, body.user_endpoint.port),
        tags=None if body.client_tags is None else {tag.key: tag.value for tag in body.client_tags},
        shutdown=body.shutdown_application, client_id=request.header.client_id or "",
        host=request.host,
    )  # fmt: skip
    return await beat(coordinator_of(worker, body.group_id), asked)


async def _check_topics(request: Request, topology: Any) -> None:
    """Refuse topics that a topology must not have, or that the client may not know of."""
    names = await request.budget.count(_named(topology))
    internal = [name for name in names if name in _INTERNAL]
    if internal:
        raise KafkaError(
            Code.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is"
            " prohibited.",
        )
    wrong = []
    for name in names:
        if name_fault(name):
            wrong.append(name)
        await request.budget.step()
    if wrong:
        text = f"Topic names {','.join(wrong)} are not valid topic names."
        raise KafkaError(Code.STREAMS_INVALID_TOPOLOGY, text)
    await need_topics(request, Op.DESCRIBE, names)


def _named(topology: Any) -> Iterator[str]:
    for one in topology.subtopologies:
        yield from one.source_topics
        yield from one.repartition_sink_topics
        for topic in chain(one.repartition_source_topics, one.state_changelog_topics):
            yield topic.name


def _owned(body: Any) -> OwnedTasks | None:
    if body.active_tasks is None:
        return None
    return [
        (role, one.subtopology_id, one.partitions)
        for field, role in zip(FIELDS, ROLES, strict=True)
        for one in getattr(body, field)
    ]


# -- internal topics


async def _with_missing(
    worker: StreamsNeeds, request: Request, result: StreamsHeartbeatResult
) -> tuple[Status, ...]:
    """Create the topics that are missing, and say in their status what was not created."""
    permits, more = request.permits, ""
    if not permits.sees(Op.CREATE, Resource.CLUSTER, CLUSTER_NAME):
        names = [one.topic.name for one in result.missing]
        barred = await forbidden(request, Op.CREATE, names)
        if barred:
            more = f"; Unauthorized to CREATE on topics {', '.join(sorted(barred))}."
    if not more:
        faults = await create_internal(worker, request, result.missing)
        if faults:
            told = ", ".join(f"{name} ({faults[name]})" for name in sorted(faults))
            more = f"; Creation failed: {told}."
    return tuple(
        Status(one.code, one.detail + more) if one.code == MISSING_INTERNAL_TOPICS else one
        for one in result.statuses
    )


async def _without_hidden(
    request: Request, group: StreamsGroup, statuses: tuple[Status, ...]
) -> tuple[Status, ...]:
    """Leave out the names of topics that the client may not know of.

    The topology is the first member's: another member has said so of its own alone, and long ago.
    """
    if group.structure is None or not any(one.code in _NAMING for one in statuses):
        return statuses
    if not await hidden(request, group.structure.required(), request.budget):
        return statuses
    return tuple(Status(one.code, HIDDEN) if one.code in _NAMING else one for one in statuses)


# -- endpoints, for interactive queries
