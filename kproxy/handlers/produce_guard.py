"""What a Produce asks of who sends it, where not everybody may do anything."""

from kproxy.errors import Code
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.security.acls import Op
from kproxy.security.permits import Permits
from kproxy.virtual.types import QueueId
from kproxy.worker.worker import Worker


class Guard:
    """Of one request: WRITE on each queue, and on the transactional id where it has transactions.

    Who may not use the transactional id may do nothing of the request, as in Kafka.
    """

    def __init__(self, worker: Worker, permits: Permits, request: ProduceRequest) -> None:
        self._worker = worker
        self._permits = permits
        name = request.transactional_id
        self._fault = Code.NONE
        if name is not None and _is_transactional(request):
            if not permits.transaction(Op.WRITE, name):
                self._fault = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def fault(self, topic: str | bytes) -> Code:
        """Why nothing may be written to a queue. An id that is nobody's is no secret."""
        if self._fault:
            return self._fault
        if isinstance(topic, bytes):
            queue = self._worker.catalogue.find_id(QueueId(topic))
            if queue is None:
                return Code.NONE
            topic = queue.name
        allowed = self._permits.topic(Op.WRITE, topic)
        return Code.NONE if allowed else Code.TOPIC_AUTHORIZATION_FAILED

    def may_create(self, name: str) -> bool:
        return self._permits.may_create(name)


def _is_transactional(request: ProduceRequest) -> bool:
    """Whether any batch is: it walks them until one is."""
    return any(
        records is not None
        and len(records) >= HEADER_BYTES
        and read_header(records).is_transactional
        for _, partitions in request.topics
        for _, records in partitions
    )
