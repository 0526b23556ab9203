"""The rights that handlers ask for, if one answer refuses all of a request."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kproxy.common.errors import Code, KafkaError
from kproxy.common.memory_budget import ResponseBudget
from kproxy.handlers.common.needs import Queues
from kproxy.handlers.common.refusals import TEXTS
from kproxy.loop.pace import Pace
from kproxy.metadata.setting import GROUP, TOPIC
from kproxy.protocol.responses import UNKNOWN_OPERATIONS
from kproxy.security.acls import CLUSTER_NAME, Op, Resource
from kproxy.security.permits import Permits
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request


def denied(code: Code) -> KafkaError:
    return KafkaError(code, TEXTS[code])


def need_group(request: Request, op: Op, group: str | None) -> None:
    """Raise KafkaError (GROUP_AUTHORIZATION_FAILED)."""
    if not request.permits.group(op, group or ""):
        raise denied(Code.GROUP_AUTHORIZATION_FAILED)


def need_transaction(request: Request, op: Op, name: str | None) -> None:
    """Raise KafkaError (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)."""
    if not request.permits.transaction(op, name or ""):
        raise denied(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


async def need_topics(request: Request, op: Op, names: Iterable[str]) -> None:
    """Raise KafkaError (TOPIC_AUTHORIZATION_FAILED) for any of them."""
    if request.permits.all:
        return
    for name in names:
        if not request.permits.topic(op, name):
            raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
        await request.budget.step()


async def forbidden(request: Request, op: Op, names: Iterable[str]) -> set[str]:
    """Return the topics that the client may not do this to."""
    return await _without(request, names, request.budget, partial(request.permits.topic, op))


async def hidden(request: Request, names: Iterable[str], budget: ResponseBudget) -> set[str]:
    """Return the topics that the client is not shown: nothing is logged of them."""
    sees = partial(request.permits.sees, Op.DESCRIBE, Resource.TOPIC)
    return await _without(request, names, budget, sees)


async def _without(
    request: Request, names: Iterable[str], pace: Pace, may: Callable[[str], bool]
) -> set[str]:
    found: set[str] = set()
    if request.permits.all:
        return found
    for name in names:
        if name not in found and not may(name):
            found.add(name)
        await pace.step()
    return found


def group_operations(request: Request, group: str) -> int:
    """Return `authorized_operations` of a group, if the request asks for them."""
    if not getattr(request.body, "include_authorized_operations", False):
        return UNKNOWN_OPERATIONS
    return request.permits.operations(Resource.GROUP, group)


def cluster_operations(request: Request) -> int:
    """Return the same of the cluster, if asked: nothing if the client may not describe it."""
    if not getattr(request.body, "include_cluster_authorized_operations", False):
        return UNKNOWN_OPERATIONS
    if not request.permits.sees(Op.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        return 0
    return request.permits.operations(Resource.CLUSTER, CLUSTER_NAME)


def topic_operations(request: Request, name: str) -> int:
    return request.permits.operations(Resource.TOPIC, name)


HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


async def hides_any(request: Request, members: list[dict[str, Any]]) -> bool:
    """Return whether any member of a group has a topic that the client is not to know of."""
    if request.permits.all:
        return False
    for member in members:
        for label in ("assignment", "target_assignment"):
            for part in member.get(label, {}).get("topic_partitions", ()):
                if not request.permits.sees(Op.DESCRIBE, Resource.TOPIC, part["topic_name"]):
                    return True
                await request.budget.step()
    return False


def need_settings(request: Request, op: Op, resource: Any) -> None:
    """Require rights on a topic, a group, or the cluster for all others. Raise KafkaError."""
    permits, name = request.permits, resource.resource_name
    if resource.resource_type == TOPIC:
        if not permits.topic(op, name):
            raise denied(Code.TOPIC_AUTHORIZATION_FAILED)
    elif resource.resource_type == GROUP:
        if not permits.group(op, name):
            raise denied(Code.GROUP_AUTHORIZATION_FAILED)
    elif not permits.cluster(op):
        raise denied(Code.CLUSTER_AUTHORIZATION_FAILED)


def unreadable(worker: Queues, permits: Permits, topic: str | bytes) -> Code:
    """Return why a client may not read a topic: asked at each look at one of its partitions."""
    if isinstance(topic, bytes):
        queue = worker.catalogue.find_id(QueueId(topic))
        if queue is None:
            return Code.UNKNOWN_TOPIC_ID  # a shard may have it a little longer than the catalogue
        topic = queue.name
    return Code.NONE if permits.topic(Op.READ, topic) else Code.TOPIC_AUTHORIZATION_FAILED


Refuses = Callable[[str | bytes], Code]
"""The reason why a client may not read a topic, by its name or id; NONE if it may."""


def _nothing(topic: str | bytes) -> Code:
    return Code.TOPIC_AUTHORIZATION_FAILED


def _not_replica(topic: str | bytes) -> Code:
    return Code.NOT_LEADER_OR_FOLLOWER


def reader_of(worker: Queues, request: Request) -> Refuses | None:
    """Return `unreadable` by the topic alone; None if the client may read all."""
    return None if request.permits.all else partial(unreadable, worker, request.permits)


def fetcher_of(worker: Queues, request: Request) -> Refuses | None:
    """Return the same of a Fetch. A fetch as from another broker gets nothing: there is none."""
    body = request.body
    state = getattr(body, "replica_state", None)
    replica_id = getattr(body, "replica_id", -1) if state is None else state.replica_id
    if replica_id >= 0:
        return _not_replica if request.permits.cluster(Op.CLUSTER_ACTION) else _nothing
    return reader_of(worker, request)
