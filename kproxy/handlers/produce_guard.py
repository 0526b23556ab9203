"""What a Produce asks of who sends it, where not everybody may do anything."""

from collections.abc import Callable, Iterator

from kproxy.errors import Code, KafkaError
from kproxy.loop.pace import Pace, slices
from kproxy.protocol.batch import HEADER_BYTES, Records, read_header
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.security.acls import Op
from kproxy.security.permits import Permits
from kproxy.security.quotas import Mutations
from kproxy.virtual.rows import Queue
from kproxy.virtual.types import QueueId
from kproxy.worker.worker import Worker

_BATCHES_AT_ONCE = 500  # that are looked at, in some hundreds of microseconds


class Guard:
    """Of one request: WRITE on each queue, and on the transactional id where it has transactions.

    Who may not use the transactional id may do nothing of the request, as in Kafka.
    """

    def __init__(
        self, worker: Worker, permits: Permits, transactional_id: str | None,
        orphaned: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`transactional_id`: None where no batch is transactional, or there is none.

        `orphaned`: whether a batch is transactional, and the request names no id for it.
        """
        self._orphaned = orphaned
        self._worker = worker
        self._permits = permits
        self._fault = Code.NONE
        if transactional_id is not None and not permits.transaction(Op.WRITE, transactional_id):
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
        if self._permits.topic(Op.WRITE, topic):
            return Code.NONE
        if self._orphaned():  # Kafka asks for the id first
            self._fault = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return self._fault
        return Code.TOPIC_AUTHORIZATION_FAILED

    def may_create(self, name: str) -> bool:
        return self._permits.may_create(name)


def find_or_make(
    worker: Worker, name: str, guard: Guard | None, mutations: Mutations
) -> tuple[Queue | None, Code]:
    """A queue, made where there is none and that is allowed; and why there still is none."""
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


def guard_of(worker: Worker, permits: Permits, request: ProduceRequest) -> Guard:
    """The guard of a short request, of a client that may not do anything it likes."""
    name = request.transactional_id

    def transactional() -> bool:
        return any(map(_is_transactional, _batches(request)))

    if name is None:
        return Guard(worker, permits, None, transactional)
    return Guard(worker, permits, name if transactional() else None, _no)


async def guard_of_long(
    worker: Worker, permits: Permits, request: ProduceRequest, pace: Pace
) -> Guard | None:
    """The same of a request of many batches, which are looked at in slices."""
    if permits.all:
        return None
    name, transactional = request.transactional_id, await _any_transactional(request, pace)
    if name is None:
        return Guard(worker, permits, None, lambda: transactional)
    return Guard(worker, permits, name if transactional else None, _no)


def _no() -> bool:
    return False


async def _any_transactional(request: ProduceRequest, pace: Pace) -> bool:
    """Whether any batch is: it walks them until one is."""
    for some in slices(_batches(request), _BATCHES_AT_ONCE):
        if any(map(_is_transactional, some)):
            return True
        if pace.due:
            await pace.rest()
    return False


def _batches(request: ProduceRequest) -> Iterator[Records | None]:
    return (records for _, partitions in request.topics for _, records in partitions)


def _is_transactional(records: Records | None) -> bool:
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and read_header(records).is_transactional
    )
