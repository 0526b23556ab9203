"""ConsumerGroupHeartbeat (68): the consumer protocol of KIP-848.

Rules, codes and messages follow Kafka's `GroupMetadataManager` (4.3).
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from anyio import CancelScope

from kproxy.errors import Code, KafkaError
from kproxy.groups.assignors import ASSIGNORS, PartitionSet
from kproxy.groups.consumer_group import ConsumerGroup, steps_by_queue
from kproxy.groups.consumer_member import STATIC_LEAVE_EPOCH, ConsumerMember
from kproxy.groups.regex import compiled
from kproxy.handlers.classic_groups import coordinator_of, storage_code
from kproxy.loop.steps import EVERY, Steps, done, in_order, spent
from kproxy.virtual.types import PartitionKey, QueueId
from kproxy.worker.worker import Request, Worker

_JOIN, _LEAVE = 0, -1


async def heartbeat(worker: Worker, request: Request) -> Mapping[str, Any]:
    """A ConsumerGroupHeartbeatResponse; with an assignment where that has changed."""
    try:
        return await _Heartbeat(worker, request).answer()
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.message,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }


class _Heartbeat:
    """One request."""

    def __init__(self, worker: Worker, request: Request) -> None:
        self.body = body = request.body
        self.request = request
        self.config = worker.config
        _check(body, request.version)
        self.coordinator = coordinator_of(worker, body.group_id)
        self.owned: PartitionSet | None = None

    async def answer(self) -> dict[str, Any]:
        body, coordinator = self.body, self.coordinator
        group = await coordinator.open_consumer(body.group_id, create=body.member_epoch == _JOIN)
        with CancelScope(shield=True):  # what is begun is logged
            if body.topic_partitions is not None:
                self.owned = await done(_owned(body.topic_partitions))
            answer = await self._answered(group)
            await coordinator.downgrade_if_due(group)
        return answer

    async def _answered(self, group: ConsumerGroup) -> dict[str, Any]:
        body, coordinator = self.body, self.coordinator
        async with group.lock:
            if group.ended:
                raise KafkaError(Code.NOT_COORDINATOR)
            if body.member_epoch in (_LEAVE, STATIC_LEAVE_EPOCH):
                answer = await self._leave(group)
            else:
                try:
                    answer = await self._beat(group)
                except KafkaError:
                    if group.idle:
                        coordinator.forget(group)
                    raise
            code = await coordinator.log_changes(group)
            if code:
                raise KafkaError(storage_code(code))
        return answer

    # -- leaving

    async def _leave(self, group: ConsumerGroup) -> dict[str, Any]:
        body = self.body
        if body.instance_id is None:
            member = group.members.get(body.member_id)
            if member is None:
                raise _unknown(body)
        else:
            member = self._static(group)
        if body.member_epoch == STATIC_LEAVE_EPOCH:
            group.leave_for_now(member)
        else:
            group.take_out(member.id)
            group.go_on_without()
        return await self._answer(member.id, body.member_epoch, None)

    def _static(self, group: ConsumerGroup) -> ConsumerMember:
        body = self.body
        member = group.of_instance(body.instance_id)
        if member is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"Instance id {body.instance_id} is unknown.")
        if member.id != body.member_id:
            raise KafkaError(
                Code.FENCED_INSTANCE_ID,
                f"Static member {body.member_id} with instance id {body.instance_id} was fenced by"
                f" member {member.id}.",
            )
        return member

    # -- joining and staying

    async def _beat(self, group: ConsumerGroup) -> dict[str, Any]:
        group.reading.check_room_for(getattr(self.body, "subscribed_topic_regex", None))
        body = self.body
        member, fresh = self._member(group)
        before = member.assigned
        subscribed = await self._update(group, member)
        if subscribed or fresh:
            group.changed.add(member.id)
        if fresh:
            group.put(member)
        group.heard(member)
        bump = self.coordinator.looking.look(group, now=subscribed)
        if subscribed or bump:
            group.epoch += 1
        if group.may_assign():
            self.coordinator.looking.assign(group)
        await done(group.reconcile(member, self.owned))
        said_all = body.topic_partitions is not None and (
            body.subscribed_topic_names is not None
            or getattr(body, "subscribed_topic_regex", None) is not None
        )
        told = body.member_epoch == _JOIN or said_all
        told = told or (member.assigned is not before and member.assigned != before)
        return await self._answer(member.id, member.epoch, member.assigned if told else None)

    def _member(self, group: ConsumerGroup) -> tuple[ConsumerMember, bool]:
        """(the member, whether it is new to the group)."""
        body = self.body
        if body.instance_id is not None:
            return self._static_member(group)
        member = group.members.get(body.member_id)
        if body.member_epoch == _JOIN:
            return (member, False) if member is not None else (self._new(group), True)
        if member is None:
            raise _unknown(body)
        self._check_epoch(member)
        return member, False

    def _static_member(self, group: ConsumerGroup) -> tuple[ConsumerMember, bool]:
        body = self.body
        if body.member_epoch != _JOIN:
            member = self._static(group)
            self._check_epoch(member)
            return member, False
        known = group.of_instance(body.instance_id)
        if known is None:
            return self._new(group), True
        if known.id == body.member_id:
            return known, False
        if known.epoch != STATIC_LEAVE_EPOCH and not known.classic:
            raise KafkaError(
                Code.UNRELEASED_INSTANCE_ID,
                f"Static member {body.member_id} with instance id {body.instance_id} cannot join"
                " the group because the instance id is owned by an active member"
                f" {known.id}.",
            )
        return group.replace_static(known, body.member_id), True

    def _new(self, group: ConsumerGroup) -> ConsumerMember:
        if len(group.members) >= self.config.group_members_max:
            raise KafkaError(
                Code.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of"
                f" {self.config.group_members_max} members.",
            )
        member = ConsumerMember(self.body.member_id)
        member.instance = self.body.instance_id
        return member

    def _check_epoch(self, member: ConsumerMember) -> None:
        epoch = self.body.member_epoch
        if epoch > member.epoch:
            raise KafkaError(
                Code.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a greater member epoch ({epoch}) than the one"
                f" known by the group coordinator ({member.epoch}). The member must abandon all"
                " its partitions and rejoin.",
            )
        if epoch < member.epoch:
            # Its last answer was lost: it may go on if it took nothing that it has not.
            late = epoch == member.previous_epoch and self.owned is not None
            if not late or not self.owned <= member.assigned:  # type: ignore[operator]
                raise KafkaError(
                    Code.FENCED_MEMBER_EPOCH,
                    f"The consumer group member has a smaller member epoch ({epoch}) than the one"
                    f" known by the group coordinator ({member.epoch}). The member must abandon"
                    " all its partitions and rejoin.",
                )

    async def _update(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Take over what the request says; whether the subscription changed."""
        body = self.body
        client = self.request.header.client_id or "", self.request.host
        if client != (member.client_id, member.host):
            member.client_id, member.host = client
            group.changed.add(member.id)
        if body.rack_id is not None:
            member.rack = body.rack_id
        rebalance_s = body.rebalance_timeout.total_seconds()
        if rebalance_s >= 0:
            member.rebalance_s = rebalance_s
        assignor = member.assignor if body.server_assignor is None else body.server_assignor
        topics, regex = member.topics, member.regex
        if body.subscribed_topic_names is not None:
            names = set(body.subscribed_topic_names)
            topics = tuple(await done(in_order(names)))
        given = getattr(body, "subscribed_topic_regex", None)
        if given is not None:
            regex = given
        changed = (topics, regex) != (member.topics, member.regex)
        if changed:
            group.subscribe(member, topics, regex)
        changed |= assignor != member.assignor
        member.assignor = assignor
        if member.classic:  # it has moved on from the classic protocol
            member.protocols = ()
            group.changed.add(member.id)
        return changed

    async def _answer(
        self, member_id: str, epoch: int, assigned: PartitionSet | None
    ) -> dict[str, Any]:
        assignment = None
        if assigned is not None:
            told = await done(_topic_partitions(assigned))
            assignment = {"topic_partitions": told}
        return {
            "error_code": Code.NONE,
            "error_message": None,
            "member_id": member_id,
            "member_epoch": epoch,
            "heartbeat_interval": self.config.group_consumer_heartbeat_ms,
            "assignment": assignment,
        }


def _topic_partitions(parts: PartitionSet) -> Steps[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    for queue_id, indices in (yield from steps_by_queue(parts)).items():
        found.append({"topic_id": UUID(bytes=bytes(queue_id)), "partitions": indices})
        if len(found) % EVERY == 0:
            yield
    return found


def _owned(given: Any) -> Steps[PartitionSet]:
    found: list[PartitionKey] = []
    for number, topic in enumerate(given, 1):
        if topic.topic_id is not None:
            queue_id = QueueId(topic.topic_id.bytes)
            found += [(queue_id, index) for index in topic.partitions]
            yield from spent(len(topic.partitions))
        if number % EVERY == 0:
            yield
    return frozenset(found)


def _unknown(body: Any) -> KafkaError:
    message = f"Member {body.member_id} is not a member of group {body.group_id}."
    return KafkaError(Code.UNKNOWN_MEMBER_ID, message)


def _check(body: Any, version: int) -> None:
    """What needs no group to be refused. Raises KafkaError."""
    regex = getattr(body, "subscribed_topic_regex", None)
    problems = [
        (not body.member_id and (version > 0 or body.member_epoch != _JOIN),
         "MemberId can't be empty."),
        (not body.group_id.strip(), "GroupId can't be empty."),
        (body.instance_id is not None and not body.instance_id.strip(),
         "InstanceId can't be empty."),
        (body.rack_id is not None and not body.rack_id.strip(), "RackId can't be empty."),
        (body.member_epoch < STATIC_LEAVE_EPOCH, "MemberEpoch is invalid."),
        (body.member_epoch == STATIC_LEAVE_EPOCH and body.instance_id is None,
         "InstanceId can't be null."),
    ]  # fmt: skip
    if body.member_epoch == _JOIN:
        problems += [
            (body.rebalance_timeout.total_seconds() < 0,
             "RebalanceTimeoutMs must be provided in first request."),
            (body.topic_partitions is None or len(body.topic_partitions) > 0,
             "TopicPartitions must be empty when (re-)joining."),
            (body.subscribed_topic_names is None and not regex,
             "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
             " (re-)joining."),
        ]  # fmt: skip
    for found, message in problems:
        if found:
            raise KafkaError(Code.INVALID_REQUEST, message)
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        raise KafkaError(
            Code.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors:"
            f" {', '.join(ASSIGNORS)}.",
        )
    if regex:
        compiled(regex)
