"""The common part of ShareFetch and ShareAcknowledge: who asks, and who leads what is not here."""

from kproxy.common.errors import Code, KafkaError
from kproxy.fetching.streamed_response import LEADER_EPOCH
from kproxy.handlers.common.needs import ShareNeeds
from kproxy.shares.sessions import Ident
from kproxy.virtual.types import QueueId
from kproxy.worker.request import Request

_MEMBER_ID_MAX = 36

Node = tuple[int, str, int, str | None]
"""Id, host, port, rack."""


def check_member(request: Request) -> tuple[str, str]:
    """Return (group, member id) of a request. Raise KafkaError (INVALID_REQUEST)."""
    group, member = request.body.group_id, request.body.member_id
    if group is None or not member or len(member) > _MEMBER_ID_MAX:
        raise KafkaError(Code.INVALID_REQUEST)
    return str(group), str(member)


class Leaders:
    """The leaders of the partitions that another worker has: gathered for one answer."""

    def __init__(self, worker: ShareNeeds, request: Request) -> None:
        self._worker = worker
        self._cluster = worker.cluster.seen_by(request.peer.listener)
        self._named: set[int] = set()

    def of(self, ident: Ident, *codes: Code) -> tuple[int, int] | None:
        """Return (id, epoch) of a partition's leader, if that is news to the client."""
        if Code.NOT_LEADER_OR_FOLLOWER not in codes:
            return None
        topic_id, index = ident
        queue = self._worker.catalogue.find_id(QueueId(topic_id))
        if queue is None or not 0 <= index < queue.partitions:
            return None
        leader = self._cluster.leaders(queue.name, queue.partitions)[index]
        if leader >= 0:
            self._named.add(leader)
        return leader, LEADER_EPOCH

    @property
    def nodes(self) -> list[Node]:
        return [
            (broker.node_id, broker.host, broker.port, None)
            for broker in self._cluster.brokers
            if broker.node_id in self._named
        ]
