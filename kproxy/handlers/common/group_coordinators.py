"""The coordinator that a request about a group goes to."""

from kproxy.common.errors import Code, KafkaError
from kproxy.groups.coordinator import Coordinator
from kproxy.handlers.common.needs import GroupNeeds
from kproxy.virtual.levels import SHARES_FROM, STREAMS_FROM


def coordinator_of(worker: GroupNeeds, group: str, *, named: bool = True) -> Coordinator:
    """Return the coordinator of a group, which this worker must be.

    `named` is false where an empty id is one, as for offsets in Kafka.

    Raise KafkaError: INVALID_GROUP_ID, NOT_COORDINATOR for another worker's group, or
    COORDINATOR_LOAD_IN_PROGRESS while the group is being deleted.
    """
    if named and not group:
        raise KafkaError(Code.INVALID_GROUP_ID)
    coordinator = worker.groups.of(worker.coordinated(group))
    if coordinator.going(group):
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
    return coordinator


def check_streams_level(worker: GroupNeeds) -> None:
    """Raise KafkaError below the level of streams groups, as Kafka where they are off."""
    if not worker.level.reaches(STREAMS_FROM):
        raise KafkaError(Code.UNSUPPORTED_VERSION)


def check_share_level(worker: GroupNeeds) -> None:
    """Raise KafkaError below the level of share groups, as Kafka where they are off."""
    if not worker.level.reaches(SHARES_FROM):
        raise KafkaError(Code.UNSUPPORTED_VERSION)
