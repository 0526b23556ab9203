"""The settings of groups that set nothing themselves, and the bounds of what they may set.

The defaults are Kafka's, those of bounds too.
"""

from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt

from kproxy.config.setting import Count, Ms, Section, setting

_LockMs = Annotated[int, Field(ge=1, le=3_600_000)]
_Deliveries = Annotated[int, Field(ge=1, le=25)]
"""A record's deliveries are counted in 5 bits, beside those of the attempt under way."""
_Locks = Annotated[int, Field(ge=1, le=100_000)]
_LEAST, _SHORTEST, _LONGEST = (
    f"{which} one that a group may set" for which in ("least", "shortest", "longest")
)


class ConsumerGroupsConfig(Section, title="Consumer groups (KIP-848)"):
    """Groups of the consumer protocol."""

    NAMES_ARE_KAFKAS: ClassVar = True

    group_consumer_session_ms: Ms = setting(
        45_000,
        "session of a member of the consumer protocol (KIP-848)",
        kafka="group.consumer.session.timeout.ms",
    )
    group_consumer_min_session_timeout_ms: Ms = setting(45_000, _SHORTEST)
    group_consumer_max_session_timeout_ms: Ms = setting(60_000, _LONGEST)
    group_consumer_heartbeat_ms: Ms = setting(
        5000,
        "time between heartbeats of a consumer group's members",
        kafka="group.consumer.heartbeat.interval.ms",
    )
    group_consumer_min_heartbeat_interval_ms: Ms = setting(5000, _SHORTEST)
    group_consumer_max_heartbeat_interval_ms: Ms = setting(15_000, _LONGEST)
    group_consumer_assignment_interval_ms: NonNegativeInt = setting(
        1000, "least time between two assignments of a consumer group (KIP-1263)"
    )
    group_consumer_min_assignment_interval_ms: NonNegativeInt = setting(0, _SHORTEST)
    group_consumer_max_assignment_interval_ms: NonNegativeInt = setting(15_000, _LONGEST)


class ShareGroupsConfig(Section, title="Share groups (KIP-932)"):
    """Share groups, and their dead letters."""

    NAMES_ARE_KAFKAS: ClassVar = True

    group_share_max_size: Count = setting(200, "members of one share group")
    group_share_session_timeout_ms: Ms = setting(
        45_000, "session of a member of a share group (KIP-932)"
    )
    group_share_min_session_timeout_ms: Ms = setting(45_000, _SHORTEST)
    group_share_max_session_timeout_ms: Ms = setting(60_000, _LONGEST)
    group_share_heartbeat_interval_ms: Ms = setting(
        5000, "time between heartbeats of a share group's members"
    )
    group_share_min_heartbeat_interval_ms: Ms = setting(5000, _SHORTEST)
    group_share_max_heartbeat_interval_ms: Ms = setting(15_000, _LONGEST)
    group_share_assignment_interval_ms: NonNegativeInt = setting(
        1000, "least time between two assignments of a share group"
    )
    group_share_min_assignment_interval_ms: NonNegativeInt = setting(0, _SHORTEST)
    group_share_max_assignment_interval_ms: NonNegativeInt = setting(15_000, _LONGEST)
    group_share_record_lock_duration_ms: _LockMs = setting(
        30_000, "how long a member of a share group holds a record"
    )
    group_share_min_record_lock_duration_ms: _LockMs = setting(15_000, _SHORTEST)
    group_share_max_record_lock_duration_ms: _LockMs = setting(60_000, _LONGEST)
    group_share_delivery_count_limit: _Deliveries = setting(
        5, "how often a share group is given a record"
    )
    group_share_min_delivery_count_limit: _Deliveries = setting(2, _LEAST)
    group_share_max_delivery_count_limit: _Deliveries = setting(
        10, "greatest one that a group may set, 25 at most"
    )
    group_share_partition_max_record_locks: _Locks = setting(
        2000, "records of a partition that a share group holds or has behind one held"
    )
    group_share_min_partition_max_record_locks: _Locks = setting(100, _LEAST)
    group_share_max_partition_max_record_locks: _Locks = setting(
        4000, "greatest one that a group may set"
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "dlq.", "prefix of names of dead-letter queues", value="NAME"
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        False, "create a dead-letter queue at its first record"
    )


class StreamsGroupsConfig(Section, title="Streams groups (KIP-1071)"):
    """Groups of Kafka Streams' own protocol."""

    NAMES_ARE_KAFKAS: ClassVar = True

    group_streams_max_size: Count = setting(10_000, "members of one streams group")
    group_streams_session_timeout_ms: Ms = setting(
        45_000, "session of a member of a streams group (KIP-1071)"
    )
    group_streams_min_session_timeout_ms: Ms = setting(45_000, _SHORTEST)
    group_streams_max_session_timeout_ms: Ms = setting(60_000, _LONGEST)
    group_streams_heartbeat_interval_ms: Ms = setting(
        5000, "time between heartbeats of a streams group's members"
    )
    group_streams_min_heartbeat_interval_ms: Ms = setting(5000, _SHORTEST)
    group_streams_max_heartbeat_interval_ms: Ms = setting(15_000, _LONGEST)
    group_streams_assignment_interval_ms: NonNegativeInt = setting(
        1000, "least time between two assignments of a streams group"
    )
    group_streams_min_assignment_interval_ms: NonNegativeInt = setting(0, _SHORTEST)
    group_streams_max_assignment_interval_ms: NonNegativeInt = setting(15_000, _LONGEST)
    group_streams_num_standby_replicas: NonNegativeInt = setting(
        0, "standby tasks for each task that has state"
    )
    group_streams_max_standby_replicas: NonNegativeInt = setting(
        2, "greatest number of them that a group may set"
    )
    group_streams_initial_rebalance_delay_ms: NonNegativeInt = setting(
        3000, "wait for more members before the first assignment of a streams group"
    )
