"""The part of a heartbeat's answer that tells what members with an endpoint have.

A member's line is kept beside it for as long as it says the same: a group of a thousand members
writes it once, not for each of them.
"""

from collections.abc import Container
from typing import Any

from kproxy.groups.model.streams_group import StreamsGroup
from kproxy.groups.model.streams_member import EndpointLine, StreamsMember
from kproxy.groups.model.topology import Topology
from kproxy.groups.requests.streams_heartbeat import StreamsHeartbeatResult
from kproxy.handlers.common.needs import StreamsNeeds
from kproxy.handlers.common.permitted import hidden
from kproxy.handlers.groups.streams_tasks import tasks_by_role
from kproxy.loop.pace import slices
from kproxy.loop.steps import Spending, Steps, done
from kproxy.protocol.written_once import LINES, EndpointLines, endpoint_line
from kproxy.worker.request import Request

_AT_ONCE = 50
_EPOCH = "endpoint_information_epoch"


async def endpoints(
    worker: StreamsNeeds, request: Request, result: StreamsHeartbeatResult, group: StreamsGroup
) -> dict[str, Any]:
    """Return what the members with an endpoint have, if a member does not know it yet."""
    epoch, asked = group.endpoint_epoch, getattr(request.body, _EPOCH)
    if epoch == asked and not result.tells_endpoint:
        return {_EPOCH: epoch}
    unseen: set[str] = set()
    counts: dict[str, int] = {}
    if group.structure is not None:
        unseen = await hidden(request, group.structure.required(), request.budget)
        counts = await _counts(worker, request, group, group.structure)
    found: list[bytes] = []
    own: list[bytes] = []
    for some in slices(list(group.members.values()), _AT_ONCE):
        size = len(found)
        for member in some:
            if member.endpoint is None:
                continue
            if unseen:
                line = await done(_line(counts, group, member, unseen))
            else:
                line = await _kept(counts, group, member)
            (found if member.id != result.member_id else own).append(line)
        await request.budget.step(sum(map(len, found[size:])))
    return {_EPOCH: epoch, LINES: EndpointLines(found + own)}


async def _counts(
    worker: StreamsNeeds, request: Request, group: StreamsGroup, structure: Topology
) -> dict[str, int]:
    """Return the partitions of the topics that a group reads: the same object while they stay."""
    counts: dict[str, int] = {}
    for part in structure.subtopologies:
        for topic in part.inputs():
            queue = worker.catalogue.find(topic)
            counts[topic] = 0 if queue is None else queue.partitions
            await request.budget.step()
    if counts != group.counts:
        group.counts = counts
    return group.counts


async def _kept(counts: dict[str, int], group: StreamsGroup, member: StreamsMember) -> bytes:
    """Return a member's line, for who may know of all topics."""
    assigned, ready, line = member.assigned, group.status is None, member.line
    if line is None or line.assigned is not assigned or line.counts is not counts or (
        line.ready is not ready
    ) or line.endpoint != member.endpoint:  # fmt: skip
        encoded = await done(_line(counts, group, member, frozenset()))
        line = member.line = EndpointLine(assigned, counts, ready, member.endpoint, encoded)
    return line.encoded


def _line(
    counts: dict[str, int], group: StreamsGroup, member: StreamsMember, unseen: Container[str]
) -> Steps[bytes]:
    assert member.endpoint is not None
    active: list[tuple[str, list[int]]] = []
    standby: list[tuple[str, list[int]]] = []
    structure, spending = group.structure, Spending()
    if structure is not None and group.status is None:
        by_role = yield from tasks_by_role(structure, member.assigned)
        numbers = structure.numbers()
        for lines, role in ((active, 0), (standby, 1)):
            for one in by_role[role]:
                part = structure.subtopologies[numbers[one["subtopology_id"]]]
                for topic in dict.fromkeys(part.inputs()):
                    if topic in unseen:
                        continue
                    partitions = one["partitions"][: counts.get(topic, 0)]
                    lines.append((topic, partitions))
                    yield from spending.add(1 + len(partitions) // 8)
    return endpoint_line(member.endpoint, active, standby)
