"""The heartbeat of a streams group's member (KIP-1071) as a rule on a group.

Rules, order of checks, codes and messages follow Kafka's `GroupMetadataManager` (4.3). As there, a
topology does not change, warm-up tasks are not given, and there are no static members.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.assigning.configured_topology import MissingTopic, Status
from kproxy.groups.coordinator import Coordinator
from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.model.streams_member import StreamsMember
from kproxy.groups.model.topology import ROLES, Topology, task_key
from kproxy.groups.requests import assigned_heartbeat as common
from kproxy.loop.steps import EVERY, Spending, Steps, done, spent
from kproxy.virtual.types import PartitionKey

STALE_TOPOLOGY, SHUTDOWN_APPLICATION, ASSIGNMENT_DELAYED, MISSING_CLIENT_TAGS = 0, 4, 5, 6
STATIC_LEAVE_EPOCH = -2
_OFFSETS_KNOWN = 1  # version
_TAGS_MAX = 10_000  # Kafka Streams' own tags have 250 at most

OwnedTasks = list[tuple[int, str, tuple[int, ...]]]
"""Role, id of the subtopology, and partitions of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeatRequest:
    """The fields of a heartbeat. None is for what has not changed since the last."""

    group_id: str
    member_id: str
    member_epoch: int
    instance: str | None
    rack: str | None
    rebalance_ms: int  # -1: not said
    topology: Topology | None
    owned: OwnedTasks | None
    process: str | None
    endpoint: tuple[str, int] | None
    tags: dict[str, str] | None
    shutdown: bool
    client_id: str
    host: str

    @property
    def joins(self) -> bool:
        return self.member_epoch == common.JOIN_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeatResult:
    """The answer to a member. `tasks` is None where they have not changed.

    `group`: for what its members' endpoints have; None for one that left. `tells_endpoint`: a new
    group's first member has one, which is told, but not counted. `missing`: topics to be made, with
    the rights of the member, which has said itself that they are to be.
    """

    member_id: str
    member_epoch: int
    tasks: PartitionSet | None = None
    statuses: tuple[Status, ...] = ()
    missing: tuple[MissingTopic, ...] = ()
    group: StreamsGroup | None = None
    tells_endpoint: bool = False


def check_supported(body: Any, version: int) -> None:
    """Refuse what Kafka does not know yet: of version 0 Kafka 4.3, else 4.4. Raise KafkaError."""
    offsets_known = version >= _OFFSETS_KNOWN
    common.refuse_first(
        [
            (body.instance_id is not None, "Static membership is not yet supported."),
            (body.task_offsets is not None and not offsets_known,
             "TaskOffsets are not supported yet."),
            (body.task_end_offsets is not None and not offsets_known,
             "TaskEndOffsets are not supported yet."),
            (bool(body.warmup_tasks), "WarmupTasks are not supported yet."),
            (body.topology is not None
             and any(one.source_topic_regex for one in body.topology.subtopologies),
             "Regular expressions for source topics are not supported yet."),
        ]
    )  # fmt: skip


def check(body: Any, rebalance_ms: int) -> None:
    """Refuse what needs no group to be refused. Raise KafkaError."""
    tasks = (body.active_tasks, body.standby_tasks, body.warmup_tasks)
    epoch, joins = body.member_epoch, body.member_epoch == common.JOIN_EPOCH
    problems = [
        (not body.member_id.strip(), "MemberId can't be empty."),
        (not body.group_id.strip(), "GroupId can't be empty."),
        (body.rack_id is not None and not body.rack_id.strip(), "RackId can't be empty."),
    ]
    if joins:
        problems += [
            (rebalance_ms == -1, "RebalanceTimeoutMs must be provided in first request."),
            (bool(body.active_tasks) or body.active_tasks is None,
             "ActiveTasks must be empty when (re-)joining."),
            (bool(body.standby_tasks) or body.standby_tasks is None,
             "StandbyTasks must be empty when (re-)joining."),
            (bool(body.warmup_tasks) or body.warmup_tasks is None,
             "WarmupTasks must be empty when (re-)joining."),
            (body.topology is None, "Topology must be non-null when (re-)joining."),
        ]  # fmt: skip
    problems += [
        (epoch == STATIC_LEAVE_EPOCH, "InstanceId can't be null."),
        (epoch < STATIC_LEAVE_EPOCH,
         f"MemberEpoch is {epoch}, but must be greater than or equal to -2."),
        (any(one is None for one in tasks) and not all(one is None for one in tasks),
         "If one task-type is non-null, all must be non-null."),
        (not joins and body.topology is not None,
         "Topology can only be provided when (re-)joining."),
        (_size(body.client_tags) > _TAGS_MAX,
         f"ClientTags must not have more than {_TAGS_MAX} characters."),
    ]  # fmt: skip
    common.refuse_first(problems)


def _size(tags: Any) -> int:
    return sum(1 + len(tag.key) + len(tag.value) for tag in tags or ())


async def heartbeat(
    coordinator: Coordinator, asked: StreamsHeartbeatRequest
) -> StreamsHeartbeatResult:
    """Let a member join, stay or leave, and log what that changes.

    The checks have passed. Raise KafkaError: nothing was changed, or the log failed.
    """
    group = await coordinator.open_streams(asked.group_id, create=asked.joins)
    return await common.change(coordinator, group, asked, _leave, _stay, "Streams group")


async def _leave(
    coordinator: Coordinator, group: StreamsGroup, asked: StreamsHeartbeatRequest
) -> StreamsHeartbeatResult:
    if asked.shutdown:
        group.shutdown_by = group.shutdown_by or asked.member_id
    if asked.member_id not in group.members:
        raise common.unknown(asked)
    group.remove(asked.member_id)
    group.rebalance_without()
    await common.log(coordinator, group)
    return StreamsHeartbeatResult(member_id=asked.member_id, member_epoch=common.LEAVE_EPOCH)


# -- joining and staying


async def _stay(
    coordinator: Coordinator, group: StreamsGroup, asked: StreamsHeartbeatRequest
) -> StreamsHeartbeatResult:
    is_new = group.structure is None
    member, fresh = _member(coordinator, group, asked)
    structure = _structure(group, asked)
    owned, strange = None, None
    if asked.owned is not None:
        owned, strange = await done(_owned(structure, asked.owned))
    _check_epoch(group, member, asked, None if strange else owned)
    tasks = coordinator.tasks
    look = await tasks.first_look(structure) if is_new else tasks.look(group, structure)
    found = group.configured if look is None else look.configured
    if found is not None and found.fault is not None:
        raise found.fault
    if found is not None and found.ready and found.tasks is not None and asked.owned:
        await done(_check_tasks(structure, found.tasks, asked.owned))
    # Nothing is changed till here.
    if is_new:
        group.set_structure(structure)
    others = await _update(group, member, asked) or fresh
    if look is not None:
        others = tasks.take(group, look) or others
    replicas = coordinator.settings_of(group.id).streams_num_standby_replicas
    if others or replicas != group.replicas:
        group.epoch += 1
        group.replicas = replicas
    if not group.members:
        group.delay(lambda: tasks.assign_soon(group))
    if fresh:
        group.put(member)
    group.renew_session(member)
    before = member.assigned
    tasks.assign_if_due(group)
    statuses = _delays(group)
    await done(group.reconcile(member, owned))
    if asked.shutdown:
        group.shutdown_by = group.shutdown_by or member.id
    moved = member.assigned is not before and member.assigned != before
    # A member that says all that it has, and lacks some, has not had the answer that gave it. Kafka
    # 4.3 does not tell it again.
    lacks = owned is not None and not member.assigned <= owned
    serves = member.endpoint is not None and (moved or asked.joins)
    if serves and not is_new:
        group.endpoint_epoch += 1
    await common.log(coordinator, group)
    stale = _stale(group, member)
    return StreamsHeartbeatResult(
        member_id=member.id, member_epoch=member.epoch,
        tasks=member.assigned if moved or asked.joins or lacks else None,
        statuses=(*stale, *statuses, *_standing(group)),
        missing=() if found is None or stale else found.missing, group=group,
        tells_endpoint=serves and is_new,
    )  # fmt: skip


def _member(
    coordinator: Coordinator, group: StreamsGroup, asked: StreamsHeartbeatRequest
) -> tuple[StreamsMember, bool]:
    """Return (the member, whether it is new to the group). Raise KafkaError."""
    if asked.joins:
        common.check_room(group, coordinator.config.group_streams_max_size)
    member = group.members.get(asked.member_id)
    if member is not None:
        return member, False
    if not asked.joins:
        raise common.unknown(asked)
    return StreamsMember(asked.member_id), True


def _structure(group: StreamsGroup, asked: StreamsHeartbeatRequest) -> Topology:
    """Return the group's topology; the member's, if it has none yet. Raise KafkaError."""
    known, given = group.structure, asked.topology
    if known is None:
        if given is None:
            text = "The topology is null and the group topology is also null."
            raise KafkaError(Code.UNKNOWN_SERVER_ERROR, text)
        return given
    if given is not None and given.epoch >= known.epoch and given != known:
        raise KafkaError(Code.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _owned(structure: Topology, given: OwnedTasks) -> Steps[tuple[PartitionSet, str | None]]:
    """Return the tasks that a member says it has, and a subtopology that there is not."""
    numbers, strange, spending = structure.numbers(), None, Spending()
    found: set[PartitionKey] = set()
    for role, name, partitions in given:
        number = numbers.get(name)
        if number is None:
            strange = name
        else:
            key, left = task_key(role, number), iter(partitions)
            while piece := [(key, partition) for partition in islice(left, EVERY)]:
                found.update(piece)
                yield
        yield from spending.add(8)
    return frozenset(found), strange


def _check_tasks(structure: Topology, tasks: tuple[int, ...], given: OwnedTasks) -> Steps[None]:
    """Raise KafkaError for tasks that there are not."""
    numbers = structure.numbers()
    for role in ROLES:
        for of_role, name, partitions in given:
            if of_role != role:
                continue
            if name not in numbers:
                text = f"Subtopology {name} does not exist in the topology."
                raise KafkaError(Code.INVALID_REQUEST, text)
            count = tasks[numbers[name]]
            wrong = next((one for one in partitions if not 0 <= one < count), None)
            if wrong is not None:
                raise KafkaError(
                    Code.INVALID_REQUEST,
                    f"Task {wrong} for subtopology {name} is invalid. Number of tasks for this"
                    f" subtopology: {count}",
                )
            yield from spent(len(partitions))


def _check_epoch(
    group: StreamsGroup, member: StreamsMember, asked: StreamsHeartbeatRequest,
    owned: PartitionSet | None,
) -> None:  # fmt: skip
    """Raise KafkaError if the member is not as far as the group knows it to be."""
    epoch = asked.member_epoch
    if asked.joins or epoch == member.epoch:
        return
    # Its last answer was lost: it may go on if it took nothing that it has not.
    lost_answer = epoch < member.epoch and epoch == member.previous_epoch
    if not lost_answer or owned is None or not owned <= member.assigned:
        raise common.fenced(group, member, epoch)


async def _update(
    group: StreamsGroup, member: StreamsMember, asked: StreamsHeartbeatRequest
) -> bool:
    """Take over what the request says; return whether anything of it is new."""
    said: dict[str, Any] = {
        "client_id": asked.client_id, "host": asked.host, "rack": asked.rack,
        "rebalance_s": asked.rebalance_ms / 1000 if asked.rebalance_ms != -1 else None,
        "topology_epoch": None if asked.topology is None else asked.topology.epoch,
        "endpoint": asked.endpoint, "tags": asked.tags,
    }  # fmt: skip
    changed = False
    if asked.process is not None and asked.process != member.process:
        await done(group.set_process(member, asked.process))
        changed = True
    for name, value in said.items():
        if value is not None and value != getattr(member, name):
            setattr(member, name, value)
            changed = True
    if changed and member.id in group.members:
        group.changed.add(member.id)
    return changed


# -- statuses


def _stale(group: StreamsGroup, member: StreamsMember) -> list[Status]:
    structure = group.structure
    if structure is None or member.topology_epoch >= structure.epoch:
        return []
    return [
        Status(
            STALE_TOPOLOGY,
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology"
            f" epoch {structure.epoch}.",
        )
    ]


def _delays(group: StreamsGroup) -> list[Status]:
    why = None
    if group.delayed:
        why = "initial rebalance delay"
    elif group.target_epoch < group.epoch and not group.assigning:
        why = "assignment interval"
    if why is None:
        return []
    return [Status(ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {why}.")]


def _standing(group: StreamsGroup) -> list[Status]:
    found = [] if group.status is None else [group.status]
    if group.shutdown_by is not None:
        found.append(
            Status(
                SHUTDOWN_APPLICATION,
                f"Streams group member {group.shutdown_by} encountered a fatal error and requested"
                " a shutdown for the entire application.",
            )
        )
    return found
