"""The settings of groups that set nothing themselves, and the bounds of what they may set.

Names are those of Kafka's broker settings, with `_` for `.`: `broker_settings` relies on it. The
defaults are Kafka's, those of bounds too.
"""

from typing import Annotated

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

_OTHER_NAMES = {
    "group_consumer_session_ms": "group.consumer.session.timeout.ms",
    "group_consumer_heartbeat_ms": "group.consumer.heartbeat.interval.ms",
}
_LockMs = Annotated[int, Field(ge=1, le=3_600_000)]
_Deliveries = Annotated[int, Field(ge=1, le=25)]
"""A record's deliveries are counted in 5 bits, beside those of the attempt under way."""
_Locks = Annotated[int, Field(ge=1, le=100_000)]


class GroupsConfig(BaseModel):
    """The settings of `Config` that groups take their own from."""

    group_consumer_session_ms: PositiveInt = Field(
        45_000, description="session of a member of the consumer protocol (KIP-848)"
    )
    group_consumer_min_session_timeout_ms: PositiveInt = Field(
        45_000, description="shortest one that a group may set"
    )
    group_consumer_max_session_timeout_ms: PositiveInt = Field(
        60_000, description="longest one that a group may set"
    )
    group_consumer_heartbeat_ms: PositiveInt = Field(
        5000, description="time between its heartbeats"
    )
    group_consumer_min_heartbeat_interval_ms: PositiveInt = Field(
        5000, description="shortest one that a group may set"
    )
    group_consumer_max_heartbeat_interval_ms: PositiveInt = Field(
        15_000, description="longest one that a group may set"
    )
    group_consumer_assignment_interval_ms: NonNegativeInt = Field(
        1000, description="least time between two assignments of such a group (KIP-1263)"
    )
    group_consumer_min_assignment_interval_ms: NonNegativeInt = Field(
        0, description="shortest one that a group may set"
    )
    group_consumer_max_assignment_interval_ms: NonNegativeInt = Field(
        15_000, description="longest one that a group may set"
    )
    group_share_max_size: PositiveInt = Field(200, description="members of one share group")
    group_share_session_timeout_ms: PositiveInt = Field(
        45_000, description="session of a member of a share group (KIP-932)"
    )
    group_share_min_session_timeout_ms: PositiveInt = Field(
        45_000, description="shortest one that a group may set"
    )
    group_share_max_session_timeout_ms: PositiveInt = Field(
        60_000, description="longest one that a group may set"
    )
    group_share_heartbeat_interval_ms: PositiveInt = Field(
        5000, description="time between the heartbeats of such a member"
    )
    group_share_min_heartbeat_interval_ms: PositiveInt = Field(
        5000, description="shortest one that a group may set"
    )
    group_share_max_heartbeat_interval_ms: PositiveInt = Field(
        15_000, description="longest one that a group may set"
    )
    group_share_assignment_interval_ms: NonNegativeInt = Field(
        1000, description="least time between two assignments of a share group"
    )
    group_share_min_assignment_interval_ms: NonNegativeInt = Field(
        0, description="shortest one that a group may set"
    )
    group_share_max_assignment_interval_ms: NonNegativeInt = Field(
        15_000, description="longest one that a group may set"
    )
    group_share_record_lock_duration_ms: _LockMs = Field(
        30_000, description="how long a member of a share group holds a record"
    )
    group_share_min_record_lock_duration_ms: _LockMs = Field(
        15_000, description="shortest one that a group may set"
    )
    group_share_max_record_lock_duration_ms: _LockMs = Field(
        60_000, description="longest one that a group may set"
    )
    group_share_delivery_count_limit: _Deliveries = Field(
        5, description="how often a share group is given a record"
    )
    group_share_min_delivery_count_limit: _Deliveries = Field(
        2, description="least one that a group may set"
    )
    group_share_max_delivery_count_limit: _Deliveries = Field(
        10, description="greatest one that a group may set, 25 at most"
    )
    group_share_partition_max_record_locks: _Locks = Field(
        2000, description="records of a partition that a share group holds or has behind one held"
    )
    group_share_min_partition_max_record_locks: _Locks = Field(
        100, description="least one that a group may set"
    )
    group_share_max_partition_max_record_locks: _Locks = Field(
        4000, description="greatest one that a group may set"
    )
    errors_deadletterqueue_topic_name_prefix: str = Field(
        "dlq.", description="prefix of names of dead-letter queues"
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = Field(
        False, description="create a dead-letter queue at its first record"
    )

    def broker_settings(self) -> dict[str, tuple[bool | int | str, str]]:
        """Return the settings and what they are, by the names of Kafka's broker settings."""
        return {
            _OTHER_NAMES.get(name, name.replace("_", ".")): (
                getattr(self, name),
                f"{field.description}"[:1].upper() + f"{field.description}."[1:],
            )
            for name, field in GroupsConfig.model_fields.items()
        }

    def broker_values(self) -> dict[str, int]:
        """Return the settings that are numbers."""
        return {
            name: value
            for name, (value, _) in self.broker_settings().items()
            if isinstance(value, int) and not isinstance(value, bool)
        }
