"""StreamsGroupDescribe (89): streams groups with their topology, members and tasks."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.configured_topology import ConfiguredTopology, configured
from kproxy.groups.assigning.sticky_assignor import STICKY
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.streams_group import StreamsGroup, StreamsState
from kproxy.groups.model.streams_member import StreamsMember
from kproxy.groups.model.topology import InternalTopic, Topology, of_row
from kproxy.handlers.common.group_coordinators import check_streams_level, coordinator_of
from kproxy.handlers.common.needs import StreamsNeeds
from kproxy.handlers.common.permitted import HIDDEN, group_operations, hidden, need_group
from kproxy.handlers.common.refusals import NO_ERROR, error_fields, said
from kproxy.handlers.groups.streams_tasks import FIELDS, tasks_by_role
from kproxy.loop.steps import Spending, Steps, done
from kproxy.protocol.responses import UNKNOWN_OPERATIONS
from kproxy.security.acls import Op
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows.groups import TOPOLOGY_ROW
from kproxy.worker.request import Request

_GROUP_BYTES, _MEMBER_BYTES, _PART_BYTES, _TOPIC_BYTES = 900, 1500, 60, 400  # until encoded


async def describe(worker: StreamsNeeds, request: Request) -> Mapping[str, Any]:
    """Return a StreamsGroupDescribeResponse."""
    groups = []
    for group_id in request.body.group_ids:
        await request.budget.step(_GROUP_BYTES)
        answer: dict[str, Any] = {
            **NO_ERROR,
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "topology": None,
            "members": (),
            "authorized_operations": UNKNOWN_OPERATIONS,
            "topology_description": None,
            "topology_description_status": 0,
            "assignor_name": None,
        }
        try:
            answer |= await _described(worker, request, group_id)
        except KafkaError as error:
            answer |= error_fields(error)
        groups.append(answer)
    return {"groups": groups}


async def update(worker: StreamsNeeds, request: Request) -> Mapping[str, Any]:
    """Return a StreamsGroupTopologyDescriptionUpdateResponse, as Kafka without a plugin does."""
    try:
        need_group(request, Op.READ, request.body.group_id)
    except KafkaError as error:
        return error_fields(error)
    return said(Code.UNSUPPORTED_VERSION, "kproxy keeps no descriptions of topologies.")


async def _described(worker: StreamsNeeds, request: Request, group_id: str) -> dict[str, Any]:
    check_streams_level(worker)
    need_group(request, Op.DESCRIBE, group_id)
    coordinator = coordinator_of(worker, group_id)
    group, head = await coordinator.load(group_id), coordinator.head(group_id)
    found: dict[str, Any]
    if isinstance(group, StreamsGroup) and group.structure is not None:
        structure, known = group.structure, group.configured
        found = {"group_state": str(group.state), "group_epoch": group.epoch}
        found |= {"assignment_epoch": group.target_epoch}
        members = list(group.members.values())
    elif group is None and head is not None and head.kind == "streams":
        structure, known, members = _kept(coordinator, group_id), None, []
        found = {"group_state": StreamsState.EMPTY.value, "group_epoch": head.values["epoch"]}
        found |= {"assignment_epoch": head.values["target_epoch"]}
    else:
        what = "not found" if group is None and head is None else "is not a streams group"
        raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
    found |= {"topology_description_status": _status(request), "assignor_name": STICKY}
    found["authorized_operations"] = group_operations(request, group_id)
    if await hidden(request, structure.required(), request.budget):
        return found | said(Code.TOPIC_AUTHORIZATION_FAILED, HIDDEN)
    if known is None:
        known = await done(configured(structure, _partitions_of(worker)))
    found["topology"] = await done(_topology(structure, known))
    await request.budget.step(_TOPIC_BYTES * sum(1 for _ in structure.required()))
    described = []
    for member in members:
        described.append(await done(_member(structure, member)))
        tasks = len(member.assigned) + len(member.target)
        await request.budget.step(_MEMBER_BYTES + _PART_BYTES * tasks)
    return found | {"members": described}


def _status(request: Request) -> int:
    """Return what has become of a topology's description: it is not asked for, or not kept."""
    return int(getattr(request.body, "include_topology_description", False))


def _partitions_of(worker: StreamsNeeds) -> Any:
    def of(name: str) -> int | None:
        queue = worker.catalogue.find(name)
        return None if queue is None else queue.partitions

    return of


def _kept(coordinator: Coordinator, group_id: str) -> Topology:
    """Return the topology of a group without members."""
    data = coordinator.shard.state.get(group_rows.member_key(group_id, TOPOLOGY_ROW))
    assert data is not None, "a streams group has a topology"
    return of_row(group_rows.decode_member(data))


def _topology(structure: Topology, known: ConfiguredTopology) -> Steps[dict[str, Any]]:
    """Return a topology, with the numbers that it comes to where it fits."""
    counts = known.internal if known.ready else {}
    parts, spending = [], Spending()
    for one in structure.subtopologies:
        parts.append(
            {
                "subtopology_id": one.id,
                "source_topics": sorted(one.sources),
                "repartition_sink_topics": sorted(one.sinks),
                "state_changelog_topics": _topics(one.changelogs, counts),
                "repartition_source_topics": _topics(one.repartitions, counts),
            }
        )
        topics = chain(one.changelogs, one.repartitions)
        yield from spending.add(8 + sum(1 + len(topic.configs) for topic in topics))
    return {"epoch": structure.epoch, "subtopologies": parts}


def _topics(topics: tuple[InternalTopic, ...], counts: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": counts.get(topic.name, topic.partitions),
            "replication_factor": topic.replication_factor,
            "topic_configs": [{"key": key, "value": value} for key, value in topic.configs],
        }
        for topic in sorted(topics)
    ]


def _member(structure: Topology, member: StreamsMember) -> Steps[dict[str, Any]]:
    endpoint = member.endpoint and {"host": member.endpoint[0], "port": member.endpoint[1]}
    return {
        "member_id": member.id,
        "member_epoch": member.epoch,
        "instance_id": None,
        "rack_id": member.rack,
        "client_id": member.client_id,
        "client_host": member.host,
        "topology_epoch": member.topology_epoch,
        "process_id": member.process,
        "user_endpoint": endpoint,
        "client_tags": [{"key": key, "value": value} for key, value in member.tags.items()],
        "task_offsets": (),
        "task_end_offsets": (),
        "assignment": (yield from _assignment(structure, member.assigned)),
        "target_assignment": (yield from _assignment(structure, member.target)),
        "is_classic": False,
    }


def _assignment(structure: Topology, tasks: PartitionSet) -> Steps[dict[str, Any]]:
    return dict(zip(FIELDS, (yield from tasks_by_role(structure, tasks)), strict=True))
