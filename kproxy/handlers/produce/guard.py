"""The rights that a Produce needs of its sender, if not everybody may do anything."""

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.common.needs import ProduceNeeds
from kproxy.loop.pace import Pace, slices
from kproxy.protocol.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL,
    Records,
)
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.security.acls import Op
from kproxy.security.permits import Permits
from kproxy.security.quotas import Mutations
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import QueueId

_BATCHES_AT_ONCE = 500  # that are looked at, in some hundreds of microseconds


class Guard:
    """The guard of one request: WRITE on each queue, and on the transactional id if it has one.

    A client that may not use the transactional id may do nothing of the request, as in Kafka.
    """

    def __init__(
        self, worker: ProduceNeeds, permits: Permits, transactional_id: str | None
    ) -> None:
        """Check the id; `transactional_id`: None if no batch is transactional, or there is none."""
        self._worker = worker
        self._permits = permits
        self._fault = Code.NONE
        if transactional_id is not None and not permits.transaction(Op.WRITE, transactional_id):
            self._fault = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def fault(self, topic: str | bytes) -> Code:
        """Return why nothing may be written to a queue. An id that is nobody's is no secret."""
        if self._fault:
            return self._fault
        if isinstance(topic, bytes):
            queue = self._worker.catalogue.find_id(QueueId(topic))
            if queue is None:
                return Code.NONE
            topic = queue.name
        may = self._permits.topic(Op.WRITE, topic)
        return Code.NONE if may else Code.TOPIC_AUTHORIZATION_FAILED

    def may_create(self, name: str) -> bool:
        return self._permits.may_create(name)


def find_or_make(
    worker: ProduceNeeds, name: str, guard: Guard | None, mutations: Mutations
) -> tuple[Queue | None, Code]:
    """Return a queue, made if there is none and that is allowed; and why there still is none."""
    queue = worker.catalogue.find(name)
    if queue is not None or not worker.config.auto_create:
        return queue, Code.UNKNOWN_TOPIC_OR_PARTITION
    if guard is not None and not guard.may_create(name):
        return None, Code.UNKNOWN_TOPIC_OR_PARTITION
    if not mutations.take(worker.config.partitions_default):
        return None, Code.UNKNOWN_TOPIC_OR_PARTITION
    try:
        return worker.create_unasked(name)[0], Code.NONE
    except KafkaError as error:
        return None, error.code


def any_transactional(request: ProduceRequest) -> bool:
    """Return whether any batch of a short request is transactional."""
    for _, partitions in request.topics:
        for _, records in partitions:
            if _is_transactional(records):
                return True
    return False


async def any_transactional_of_long(request: ProduceRequest, pace: Pace) -> bool:
    """Return the same of a request of many batches, which are looked at in slices."""
    every = (records for _, partitions in request.topics for _, records in partitions)
    for some in slices(every, _BATCHES_AT_ONCE):
        if any(map(_is_transactional, some)):
            return True
        if pace.due:
            await pace.rest()
    return False


def _is_transactional(records: Records | None) -> bool:
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[ATTRIBUTES_AT] & TRANSACTIONAL != 0
        and records[MAGIC_AT] == MAGIC
    )
