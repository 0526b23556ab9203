"""The conversion of a group between the two protocols while its members stay (KIP-848).

The first member of the consumer protocol turns a classic group into a consumer group. The members
of the classic protocol stay in it as classic members. When the last member of the consumer protocol
leaves, the rest become a classic group again.
"""

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.assigning.assignors import PartitionSet
from kproxy.groups.model.assigned_group import AssigningCoordinator
from kproxy.groups.model.classic_group import ClassicGroup
from kproxy.groups.model.classic_member import ClassicMember
from kproxy.groups.model.classic_states import State, join_answer, sync_answer
from kproxy.groups.model.consumer_group import ConsumerGroup, steps_by_queue
from kproxy.groups.model.consumer_member import ConsumerMember
from kproxy.groups.model.consumer_protocol import (
    CONSUMER_PROTOCOL,
    Named,
    NotAConsumers,
    assignment,
    encode_assignment,
    subscription,
    version_of,
)
from kproxy.groups.requests.classic_rebalance import ClassicCoordinator
from kproxy.loop.steps import EVERY, Steps, once_in_order, spent
from kproxy.metadata.catalogue import Lookup
from kproxy.virtual.types import PartitionKey


def upgraded(
    classic: ClassicGroup, coordinator: AssigningCoordinator, lookup: Lookup
) -> Steps[ConsumerGroup]:
    """Return the same members as a consumer group. Raise KafkaError."""
    if classic.protocol_type != CONSUMER_PROTOCOL:
        raise KafkaError(
            Code.GROUP_ID_NOT_FOUND, f"Group {classic.id} is not a group of consumers."
        )
    generation, members = classic.generation, list(classic.members.values())
    made = []
    try:
        for member in members:
            made.append((yield from _upgraded(member, classic, lookup)))
    except NotAConsumers:
        raise KafkaError(
            Code.GROUP_ID_NOT_FOUND, f"Group {classic.id} has members that are no consumers."
        ) from None
    if classic.generation != generation or list(classic.members.values()) != members:
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)  # again, with those who are there now
    group = ConsumerGroup(classic.id, coordinator)
    group.version = classic.version
    group.epoch = group.target_epoch = classic.generation
    for one in made:
        group.put(one)
    group.gone = classic.logged - group.members.keys()
    for member in members:
        member.answer_join(join_answer(Code.REBALANCE_IN_PROGRESS, member.id))
        member.answer_sync(sync_answer(Code.REBALANCE_IN_PROGRESS))
    classic.state = State.DEAD
    classic.alarms.end()
    return group


def _upgraded(
    member: ClassicMember, classic: ClassicGroup, lookup: Lookup
) -> Steps[ConsumerMember]:
    made = ConsumerMember(member.id)
    made.instance = member.instance
    made.client_id, made.host = member.client_id, member.host
    made.rebalance_s, made.session_s = member.rebalance_s, member.session_s
    made.protocols = member.protocols
    has = member.assignment
    wanted = yield from subscription(member.metadata(classic.protocol) or member.protocols[0][1])
    made.topics = tuple((yield from once_in_order(wanted.topics)))
    made.epoch = made.previous_epoch = classic.generation
    named = yield from assignment(has)
    made.assigned = made.target = yield from parts_named(named, lookup)
    return made


def parts_named(named: Named, lookup: Lookup) -> Steps[PartitionSet]:
    """Return the partitions that are there, of the named ones."""
    found: list[PartitionKey] = []
    for number, (name, indices) in enumerate(named, 1):
        queue = lookup.find(name)
        if queue is not None:
            found += [(queue.queue_id, index) for index in indices]
            yield from spent(len(indices))
        if number % EVERY == 0:
            yield
    return frozenset(found)


def assignment_of(member: ConsumerMember, lookup: Lookup) -> Steps[bytes]:
    """Return a classic member's assignment, as its protocol has it."""
    version, named = version_of(member.protocols[0][1]), {}
    in_queues = yield from steps_by_queue(member.assigned)
    for number, (queue_id, indices) in enumerate(in_queues.items(), 1):
        queue = lookup.find_id(queue_id)
        if queue is not None:
            named[queue.name] = indices
        if number % EVERY == 0:
            yield
    return (yield from encode_assignment(version, named))


def downgraded(
    group: ConsumerGroup, coordinator: ClassicCoordinator, lookup: Lookup
) -> Steps[ClassicGroup]:
    """Return the members that are left as a classic group, stable and about to rebalance."""
    assignments = {}
    for one in group.members.values():
        assignments[one.id] = yield from assignment_of(one, lookup)
    classic = ClassicGroup(group.id, coordinator)
    classic.version = group.version
    classic.generation = group.epoch
    classic.protocol_type = CONSUMER_PROTOCOL
    classic.logged = set(group.members) | group.gone
    for one in group.members.values():
        member = ClassicMember(
            one.id, one.instance, one.client_id, one.host, one.session_s, one.rebalance_s,
            one.protocols,
        )  # fmt: skip
        member.assignment = assignments[one.id]
        classic.add(member)
    classic.state = State.STABLE
    classic.protocol = classic.vote()
    return classic
