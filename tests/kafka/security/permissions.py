"""Requests of every API, for one who may little: what they name is there, or does no harm.

`CASES` has at least one request of each API of the table. Names begin with `t` for topics that a
rule of one topic is about (but `u…`, about which no rule is), and are `g` and `x` for a group and
a transactional id.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple
from uuid import UUID

from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import OPERATIONS, Op, Pattern, Resource
from tests.wire import batch, fetch_values, produce_values

TOPIC, OTHER, ABSENT, GROUP, TXN = "t-there", "u-there", "t-absent", "g", "x"
DOOMED = "u-doomed"  # there whenever other rules are made
ALICE = "User:alice"
NO_ID = UUID(int=0)
ELSEWHERE = UUID(int=77)
Ids = dict[str, UUID]


class Case(NamedTuple):
    """A request; `values` gets the ids of topics."""

    key: ApiKey
    version: int
    values: Callable[[Ids], dict[str, Any]]
    what: str = ""


def _plain(key: ApiKey, version: int, what: str = "", **values: Any) -> Case:
    return Case(key, version, lambda ids: values, what)


def _both(label: str = "name", **more: Any) -> list[dict[str, Any]]:
    return [{label: name, **more} for name in (TOPIC, OTHER)]


def _transactional(queue: str) -> dict[str, Any]:
    records = batch(b"v", producer_id=1 << 40, epoch=0, sequence=0, attributes=16)
    return {**produce_values(queue, records), "transactional_id": TXN}


def _orphaned(*queues: str, plain: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a Produce without a transactional id, with transactional batches and others."""
    orphan = batch(b"v", producer_id=1 << 40, epoch=0, sequence=0, attributes=16)
    return {
        "transactional_id": None, "acks": -1, "timeout": 1000,
        "topic_data": [
            {"name": name, "partition_data": [{"index": 0, "records": records}]}
            for names, records in ((plain, batch(b"v")), (queues, orphan)) for name in names
        ],
    }  # fmt: skip


def _as_follower(values: dict[str, Any], version: int) -> dict[str, Any]:
    """Return a Fetch as another broker sends it."""
    if version < 15:
        return {**values, "replica_id": 1}
    return {**values, "replica_state": {"replica_id": 1, "replica_epoch": -1}}


def _metadata(names: list[dict[str, Any]] | None, *, create: bool = False) -> dict[str, Any]:
    return {
        "topics": names, "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }  # fmt: skip


def _named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "topic_id": NO_ID} for name in names]


def _settings(kind: int, name: str) -> dict[str, Any]:
    change = {"name": "no.such.setting", "config_operation": 0, "value": "1"}
    resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
    return {"resources": [resource], "validate_only": True}


def _described(kind: int, name: str) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return {"resources": [resource], "include_synonyms": False, "include_documentation": False}


_COMMITTED = {
    "partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1,
    "committed_metadata": "",
}  # fmt: skip
_LISTED = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
_EPOCH = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
_NOBODY = {"resource_type_filter": 2, "resource_name_filter": "nobodys", "pattern_type_filter": 3,
           "principal_filter": None, "host_filter": None, "operation": 1,
           "permission_type": 1}  # fmt: skip
_MEMBER = "abcdefghijklmnopqrstuw"
_TXN_V3 = {
    "v3_and_below_transactional_id": TXN, "v3_and_below_producer_id": 1 << 40,
    "v3_and_below_producer_epoch": 0,
}  # fmt: skip


def _share(ids: Ids, *, epoch: int = 0, said: bool = False) -> dict[str, Any]:
    said_of = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}] if said else []
    topics = [
        {"topic_id": ids[name],
         "partitions": [{"partition_index": 0, "acknowledgement_batches": said_of}]}
        for name in (TOPIC, OTHER)
    ]  # fmt: skip
    values = {"group_id": GROUP, "member_id": _MEMBER, "share_session_epoch": epoch}
    if said:
        return {**values, "topics": topics}
    return {
        **values, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "max_records": 1,
        "batch_size": 1, "topics": topics, "forgotten_topics_data": [],
    }  # fmt: skip


def _new(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (),
            "configs": ()}  # fmt: skip


K = ApiKey
CASES = (
    _plain(K.PRODUCE, 9, "named", **produce_values(TOPIC, batch(b"v"))),
    _plain(K.PRODUCE, 9, "no name", **produce_values("t!", batch(b"v"))),
    Case(K.PRODUCE, 13, lambda ids: produce_values(ids[TOPIC], batch(b"v")), "by id"),
    Case(K.PRODUCE, 13, lambda ids: produce_values(ELSEWHERE, batch(b"v")), "by no id"),
    _plain(K.PRODUCE, 9, "transactional", **_transactional(TOPIC)),
    _plain(K.PRODUCE, 9, "transactional, no id", **_orphaned(TOPIC)),
    _plain(K.PRODUCE, 9, "transactional, no id, both", **_orphaned(TOPIC, OTHER)),
    _plain(K.PRODUCE, 9, "transactional, no id, one of two", **_orphaned(OTHER, plain=(TOPIC,))),
    _plain(K.PRODUCE, 9, "transactional, no id, behind", **_orphaned(TOPIC, plain=(OTHER,))),
    _plain(K.FETCH, 12, "follower",
           **_as_follower(fetch_values({(TOPIC, 0): 0, (OTHER, 0): 0}), 12)),
    _plain(K.FETCH, 12, "follower's session",
           **_as_follower(fetch_values({(TOPIC, 0): 0, (OTHER, 0): 0}, epoch=0), 12)),
    Case(K.FETCH, 17, lambda ids: _as_follower(
        fetch_values({(ids[TOPIC], 0): 0, (ELSEWHERE, 0): 0}), 17), "follower by id"),
    _plain(K.FETCH, 12, "named", **fetch_values({(TOPIC, 0): 0, (OTHER, 0): 0})),
    _plain(K.FETCH, 12, "session", **fetch_values({(TOPIC, 0): 0, (OTHER, 0): 0}, epoch=0)),
    Case(K.FETCH, 17, lambda ids: fetch_values({(ids[TOPIC], 0): 0, (ELSEWHERE, 0): 0}), "by id"),
    _plain(K.LIST_OFFSETS, 10, replica_id=-1, isolation_level=0, timeout=1000,
           topics=_both(partitions=[_LISTED])),
    _plain(K.LIST_OFFSETS, 10, "follower", replica_id=1, isolation_level=0, timeout=1000,
           topics=_both(partitions=[_LISTED])),
    _plain(K.METADATA, 12, "all", **_metadata(None)),
    _plain(K.METADATA, 12, "named", **_metadata(_named(TOPIC, OTHER, ABSENT))),
    _plain(K.METADATA, 12, "to be made", **_metadata(_named("t!", "u!"), create=True)),
    Case(K.METADATA, 12, lambda ids: _metadata(
        [{"name": None, "topic_id": i} for i in (ids[TOPIC], ELSEWHERE)]), "by id"),
    _plain(K.OFFSET_COMMIT, 9, group_id=GROUP, generation_id_or_member_epoch=-1, member_id="",
           group_instance_id=None, topics=_both(partitions=[_COMMITTED])),
    Case(K.OFFSET_COMMIT, 10, lambda ids: {
        "group_id": GROUP, "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None,
        "topics": [{"topic_id": i, "partitions": [_COMMITTED]} for i in (ids[TOPIC], ELSEWHERE)],
    }, "by id"),
    _plain(K.OFFSET_FETCH, 9, "named", require_stable=False, groups=[
        {"group_id": GROUP, "member_id": None, "member_epoch": -1,
         "topics": _both(partition_indexes=[0])}]),
    _plain(K.OFFSET_FETCH, 9, "all", require_stable=False, groups=[
        {"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": None}]),
    _plain(K.FIND_COORDINATOR, 6, "group", key_type=0, coordinator_keys=[GROUP, "other"]),
    _plain(K.FIND_COORDINATOR, 6, "id", key_type=1, coordinator_keys=[TXN, "other"]),
    _plain(K.FIND_COORDINATOR, 6, "share", key_type=2,
           coordinator_keys=[f"{GROUP}:{_MEMBER}:0"]),
    _plain(K.JOIN_GROUP, 9, group_id=GROUP, session_timeout=1, rebalance_timeout=1, member_id="",
           group_instance_id=None, protocol_type="consumer", reason=None,
           protocols=[{"name": "range", "metadata": b""}]),
    _plain(K.HEARTBEAT, 4, group_id=GROUP, generation_id=1, member_id="m", group_instance_id=None),
    _plain(K.LEAVE_GROUP, 5, group_id=GROUP,
           members=[{"member_id": "m", "group_instance_id": None, "reason": None}]),
    _plain(K.SYNC_GROUP, 5, group_id=GROUP, generation_id=1, member_id="m",
           group_instance_id=None, protocol_type="consumer", protocol_name="range",
           assignments=[]),
    _plain(K.DESCRIBE_GROUPS, 5, groups=[GROUP, "other"], include_authorized_operations=True),
    _plain(K.LIST_GROUPS, 5, states_filter=[], types_filter=[]),
    _plain(K.API_VERSIONS, 3, client_software_name="t", client_software_version="1"),
    _plain(K.CREATE_TOPICS, 7, topics=[_new("t-new"), _new("u-new")], timeout=5000,
           validate_only=True),
    _plain(K.DELETE_TOPICS, 6, "named", topics=_named(ABSENT, "u-absent"), timeout=5000),
    Case(K.DELETE_TOPICS, 6, lambda ids: {
        "topics": [{"name": None, "topic_id": i} for i in (ids[DOOMED], ELSEWHERE)],
        "timeout": 5000}, "by id"),
    _plain(K.DELETE_RECORDS, 2, timeout=5000,
           topics=_both(partitions=[{"partition_index": 99, "offset": 0}])),
    _plain(K.INIT_PRODUCER_ID, 4, "plain", transactional_id=None, transaction_timeout=60000),
    _plain(K.INIT_PRODUCER_ID, 4, "id", transactional_id=TXN, transaction_timeout=0),
    _plain(K.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1,
           topics=_both("topic", partitions=[_EPOCH])),
    _plain(K.OFFSET_FOR_LEADER_EPOCH, 4, "follower", replica_id=1,
           topics=_both("topic", partitions=[_EPOCH])),
    _plain(K.ADD_PARTITIONS_TO_TXN, 3, **_TXN_V3,
           v3_and_below_topics=_both(partitions=[0])),
    _plain(K.ADD_PARTITIONS_TO_TXN, 3, "one", **_TXN_V3,
           v3_and_below_topics=[{"name": TOPIC, "partitions": [0]}]),
    _plain(K.ADD_OFFSETS_TO_TXN, 3, transactional_id=TXN, producer_id=1 << 40, producer_epoch=0,
           group_id=GROUP),
    _plain(K.END_TXN, 3, transactional_id=TXN, producer_id=1 << 40, producer_epoch=0,
           committed=False),
    _plain(K.WRITE_TXN_MARKERS, 1, markers=[
        {"producer_id": 1 << 40, "producer_epoch": 0, "transaction_result": False,
         "topics": [{"name": TOPIC, "partition_indexes": [99]}], "coordinator_epoch": 0}]),
    _plain(K.TXN_OFFSET_COMMIT, 3, transactional_id=TXN, group_id=GROUP, producer_id=1 << 40,
           producer_epoch=0, generation_id=-1, member_id="", group_instance_id=None,
           topics=_both(partitions=[_COMMITTED])),
    _plain(K.DESCRIBE_ACLS, 3, **_NOBODY),
    _plain(K.CREATE_ACLS, 3, creations=[
        {"resource_type": 2, "resource_name": "", "resource_pattern_type": 3,
         "principal": "User:z", "host": "*", "operation": 3, "permission_type": 3}]),
    _plain(K.DELETE_ACLS, 3, filters=[_NOBODY]),
    *(_plain(K.DESCRIBE_CONFIGS, 4, f"{kind} {name}", **_described(kind, name))
      for kind, name in ((2, TOPIC), (2, OTHER), (2, ABSENT), (4, "1"), (8, "1"), (32, GROUP))),
    *(_plain(K.INCREMENTAL_ALTER_CONFIGS, 1, f"{kind} {name}", **_settings(kind, name))
      for kind, name in ((2, TOPIC), (2, OTHER), (2, ABSENT), (4, "1"), (8, "1"), (32, GROUP))),
    *(_plain(K.ALTER_CONFIGS, 2, f"{kind} {name}", **_settings(kind, name))
      for kind, name in ((2, TOPIC), (2, OTHER), (4, "1"), (8, "1"))),
    _plain(K.ALTER_REPLICA_LOG_DIRS, 2, dirs=[
        {"path": "/nowhere", "topics": [{"name": TOPIC, "partitions": [0]}]}]),
    _plain(K.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": TOPIC, "partitions": [0]}]),
    _plain(K.CREATE_PARTITIONS, 3, topics=[
        {"name": name, "count": 1, "assignments": None} for name in (TOPIC, OTHER, ABSENT)],
        timeout=5000, validate_only=True),
    _plain(K.CREATE_DELEGATION_TOKEN, 3, owner_principal_type=None, owner_principal_name=None,
           renewers=[], max_lifetime=1000),
    _plain(K.RENEW_DELEGATION_TOKEN, 2, hmac=b"h", renew_period=1000),
    _plain(K.EXPIRE_DELEGATION_TOKEN, 2, hmac=b"h", expiry_time_period=1000),
    _plain(K.DESCRIBE_DELEGATION_TOKEN, 3, owners=[]),
    _plain(K.DELETE_GROUPS, 2, groups_names=["g-absent", "other"]),
    _plain(K.ELECT_LEADERS, 2, election_type=0, timeout=5000,
           topic_partitions=[{"topic": TOPIC, "partitions": [0]}]),
    _plain(K.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=5000, topics=[
        {"name": TOPIC, "partitions": [{"partition_index": 99, "replicas": [1]}]}]),
    _plain(K.LIST_PARTITION_REASSIGNMENTS, 0, timeout=5000, topics=None),
    _plain(K.OFFSET_DELETE, 0, group_id=GROUP,
           topics=_both(partitions=[{"partition_index": 99}])),
    _plain(K.DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False),
    _plain(K.ALTER_CLIENT_QUOTAS, 1, "none", entries=[
        {"entity": [{"entity_type": "user", "entity_name": "nobody"}],
         "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]}],
        validate_only=True),
    _plain(K.ALTER_CLIENT_QUOTAS, 0, "bad", entries=[
        {"entity": [{"entity_type": "user", "entity_name": "nobody"}],
         "ops": [{"key": "no_such_rate", "value": 1.0, "remove": False}]}],
        validate_only=False),
    _plain(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": "nobody"}]),
    _plain(K.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[{"name": "nobody", "mechanism": 1}],
           upsertions=[]),
    _plain(K.DESCRIBE_QUORUM, 2, topics=[
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]),
    _plain(K.UPDATE_FEATURES, 1, timeout=5000, validate_only=True, feature_updates=[
        {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}]),
    _plain(K.UPDATE_FEATURES, 0, "oldest", timeout=5000, feature_updates=[
        {"feature": "no.such.feature", "max_version_level": 1, "allow_downgrade": False}]),
    _plain(K.UPDATE_FEATURES, 2, "newest", timeout=5000, validate_only=True, feature_updates=[
        {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}]),
    _plain(K.UPDATE_FEATURES, 1, "none", timeout=5000, validate_only=True, feature_updates=[]),
    _plain(K.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1),
    _plain(K.DESCRIBE_PRODUCERS, 0, topics=_both(partition_indexes=[0])),
    _plain(K.UNREGISTER_BROKER, 0, broker_id=999),
    _plain(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[TXN, "other"]),
    _plain(K.LIST_TRANSACTIONS, 1, state_filters=[], producer_id_filters=[], duration_filter=-1),
    _plain(K.CONSUMER_GROUP_HEARTBEAT, 1, group_id=GROUP, member_id="m", member_epoch=5,
           instance_id=None, rack_id=None, rebalance_timeout=1000, subscribed_topic_names=[TOPIC],
           subscribed_topic_regex=None, server_assignor=None, topic_partitions=[]),
    _plain(K.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[GROUP, "other"],
           include_authorized_operations=True),
    _plain(K.STREAMS_GROUP_HEARTBEAT, 0, group_id="streams", member_id="m", member_epoch=0,
           endpoint_information_epoch=0, instance_id=None, rack_id=None, rebalance_timeout=1000,
           topology={"epoch": 0, "subtopologies": [{
               "subtopology_id": "0", "source_topics": [TOPIC, OTHER], "source_topic_regex": [],
               "state_changelog_topics": [], "repartition_sink_topics": [],
               "repartition_source_topics": [], "copartition_groups": [],
           }]}, active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id="p",
           user_endpoint=None, client_tags=[], task_offsets=None, task_end_offsets=None,
           shutdown_application=False),
    _plain(K.STREAMS_GROUP_DESCRIBE, 0, group_ids=[GROUP, "other"],
           include_authorized_operations=True),
    Case(K.SHARE_FETCH, 1, _share),
    Case(K.SHARE_ACKNOWLEDGE, 1, lambda ids: _share(ids, epoch=1, said=True)),
    _plain(K.LIST_CONFIG_RESOURCES, 1, resource_types=[2]),
    _plain(K.DESCRIBE_TOPIC_PARTITIONS, 0, "named",
           topics=[{"name": n} for n in (TOPIC, OTHER, ABSENT)],
           response_partition_limit=100, cursor=None),
    _plain(K.DESCRIBE_TOPIC_PARTITIONS, 0, "all", topics=[], response_partition_limit=100,
           cursor=None),
    _plain(K.SHARE_GROUP_HEARTBEAT, 1, group_id=GROUP, member_id=_MEMBER, member_epoch=5,
           rack_id=None, subscribed_topic_names=[TOPIC]),
    _plain(K.SHARE_GROUP_DESCRIBE, 1, group_ids=[GROUP, "other"],
           include_authorized_operations=True),
    _plain(K.DESCRIBE_SHARE_GROUP_OFFSETS, 0, "named", groups=[
        {"group_id": GROUP, "topics": _both("topic_name", partitions=[0])}]),
    _plain(K.DESCRIBE_SHARE_GROUP_OFFSETS, 0, "all",
           groups=[{"group_id": GROUP, "topics": None}]),
    _plain(K.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=GROUP, topics=_both(
        "topic_name", partitions=[{"partition_index": 99, "start_offset": 0}])),
    _plain(K.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=GROUP, topics=_both("topic_name")),
)  # fmt: skip


class Grant(NamedTuple):
    """The operations that Alice is allowed, or denied."""

    kind: Resource
    op: Op
    effect: int = 3

    @property
    def creation(self) -> dict[str, Any]:
        name = {Resource.TOPIC: "t", Resource.GROUP: GROUP, Resource.TRANSACTIONAL_ID: TXN,
                Resource.CLUSTER: "kafka-cluster"}[self.kind]  # fmt: skip
        pattern = Pattern.PREFIXED if self.kind == Resource.TOPIC else Pattern.LITERAL
        return {"resource_type": self.kind, "resource_name": name, "principal": ALICE,
                "resource_pattern_type": pattern, "host": "*", "operation": self.op,
                "permission_type": self.effect}  # fmt: skip

    def __str__(self) -> str:
        return f"{'allow' if self.effect == 3 else 'deny'} {self.op.name} {self.kind.name}"


KINDS = (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID)
_ANY = {kind: (Op.ALL, *OPERATIONS[kind]) for kind in KINDS}
SINGLE = [(Grant(kind, op),) for kind in KINDS for op in _ANY[kind]]
WITH_ALL = [
    (Grant(kind, Op.ALL), Grant(Resource.TOPIC, op))
    for kind in (Resource.GROUP, Resource.TRANSACTIONAL_ID)
    for op in _ANY[Resource.TOPIC]
]
DENIED = [
    (*(Grant(k, Op.ALL) for k in KINDS), Grant(kind, op, 2)) for kind in KINDS for op in _ANY[kind]
]
GRANTS: list[tuple[Grant, ...]] = [(), *SINGLE, *WITH_ALL, *DENIED]


def compared(case: Case, told: list[str]) -> list[str]:
    """Return the parts of an answer that are compared.

    A ShareFetch without a member finds nothing at Kafka, and says at kproxy that there is nothing.
    """
    if case.key != ApiKey.SHARE_FETCH:
        return told
    return [one for one in told if not one.endswith("passed")]


_AUTH = {29, 30, 31, 53, 55}
_SHOWN = ("name", "topic_name", "group_id", "topic", "transactional_id")


def said(answer: Any, ids: Ids, at: str = "") -> list[str]:
    """List each code about permissions in an answer, that others passed, and what is shown."""
    found: list[str] = []
    if is_dataclass(answer):
        label = next((str(v) for k in _SHOWN if (v := getattr(answer, k, None)) is not None), "")
        topic_id = getattr(answer, "topic_id", None)
        if not label and topic_id is not None:
            label = next((name for name, known in ids.items() if known == topic_id), "no id")
        here = f"{at}/{label}" if label else at
        for field in fields(answer):
            value = getattr(answer, field.name)
            if field.name.endswith("error_code"):
                code = int(value)
                found.append(f"{here}.{field.name}={code if code in _AUTH else 'passed'}")
            elif field.name.endswith("authorized_operations"):
                found.append(f"{here}.{field.name}={value}")
            elif is_dataclass(value) or isinstance(value, tuple):
                if field.name not in ("brokers", "configs", "node_endpoints", "api_keys"):
                    found += said(value, ids, here)
    elif isinstance(answer, tuple):
        for one in answer:
            found += said(one, ids, at)
    return sorted(set(found))
