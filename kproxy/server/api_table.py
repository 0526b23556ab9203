"""The API table: of each API the versions that are here, what answers it, and what it asks of whom.

What ApiVersions advertises is derived from the table. Produce is named from version 0 although 0 to
2 are refused: librdkafka up to 2.11.0 otherwise stops compressing (KIP-896, WIRE facts in tests).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kproxy.fetching.streamed_response import StreamedResponse
from kproxy.handlers.access import acls, quotas, sasl, users
from kproxy.handlers.access import tokens as security
from kproxy.handlers.cluster import api_versions, features
from kproxy.handlers.common import refusals
from kproxy.handlers.configs import alter as alter_configs
from kproxy.handlers.configs import describe as describe_configs
from kproxy.handlers.fetch import fetch, list_offsets
from kproxy.handlers.groups import admin as group_admin
from kproxy.handlers.groups import classic as classic_groups
from kproxy.handlers.groups import consumer as consumer_groups
from kproxy.handlers.groups import consumer_describe as consumer_group_describe
from kproxy.handlers.groups import offset_fetch, offsets
from kproxy.handlers.produce import produce
from kproxy.handlers.shares import acknowledge as share_acknowledge
from kproxy.handlers.shares import fetch as share_fetch
from kproxy.handlers.shares import groups as share_groups
from kproxy.handlers.shares import offsets as share_offsets
from kproxy.handlers.topics import metadata, operations, replicas, topic_partitions, topics
from kproxy.handlers.transactions import admin as transaction_admin
from kproxy.handlers.transactions import offsets as transaction_offsets
from kproxy.handlers.transactions import producer_ids, transactions
from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import Op
from kproxy.server.rules import OPEN, Rule, cluster, each
from kproxy.worker.worker import Request, Worker

EncodedBody = bytes | bytearray
Body = Mapping[str, Any] | EncodedBody | StreamedResponse
"""What a handler gives: values for kio, a body that is encoded, or one that is read as it is sent.

An empty encoded body is no answer at all (a Produce with acks=0).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API, the versions it has here, and what answers it."""

    key: ApiKey
    low: int
    high: int
    handle: Callable[[Worker, Request], Awaitable[Body]]
    rule: Rule
    """What it asks of who sends it. `handle` is called once that is so."""


async def _versions(worker: Worker, request: Request) -> Body:
    return await api_versions.handle(worker, request, RANGES)


APIS = (
    Api(
        key=ApiKey.PRODUCE,
        low=0,
        high=13,
        handle=produce.handle,
        rule=each("WRITE topic; of transactions WRITE id; CREATE cluster or topic to make one"),
    ),
    Api(
        key=ApiKey.FETCH, low=4, high=18, handle=fetch.handle, rule=each("READ topic, at each poll")
    ),
    Api(
        key=ApiKey.LIST_OFFSETS,
        low=1,
        high=11,
        handle=list_offsets.handle,
        rule=each("DESCRIBE topic"),
    ),
    Api(
        key=ApiKey.METADATA,
        low=0,
        high=13,
        handle=metadata.handle,
        rule=each("DESCRIBE topic; CREATE cluster or topic to make one"),
    ),
    Api(
        key=ApiKey.OFFSET_COMMIT,
        low=2,
        high=10,
        handle=offsets.commit,
        rule=each("READ group and topic"),
    ),
    Api(
        key=ApiKey.OFFSET_FETCH,
        low=1,
        high=10,
        handle=offset_fetch.handle,
        rule=each("DESCRIBE group and topic"),
    ),
    Api(
        key=ApiKey.FIND_COORDINATOR,
        low=0,
        high=6,
        handle=offsets.find_coordinator,
        rule=each("DESCRIBE group or id; of share partitions CLUSTER_ACTION"),
    ),
    Api(key=ApiKey.JOIN_GROUP, low=0, high=9, handle=classic_groups.join, rule=each("READ group")),
    Api(
        key=ApiKey.HEARTBEAT,
        low=0,
        high=4,
        handle=classic_groups.heartbeat,
        rule=each("READ group"),
    ),
    Api(
        key=ApiKey.LEAVE_GROUP, low=0, high=5, handle=classic_groups.leave, rule=each("READ group")
    ),
    Api(key=ApiKey.SYNC_GROUP, low=0, high=5, handle=classic_groups.sync, rule=each("READ group")),
    Api(
        key=ApiKey.DESCRIBE_GROUPS,
        low=0,
        high=6,
        handle=group_admin.describe,
        rule=each("DESCRIBE group"),
    ),
    Api(
        key=ApiKey.LIST_GROUPS,
        low=0,
        high=5,
        handle=group_admin.list_groups,
        rule=each("DESCRIBE cluster or group"),
    ),
    Api(key=ApiKey.SASL_HANDSHAKE, low=0, high=1, handle=sasl.handshake, rule=OPEN),
    Api(key=ApiKey.API_VERSIONS, low=0, high=4, handle=_versions, rule=OPEN),
    Api(
        key=ApiKey.CREATE_TOPICS,
        low=2,
        high=7,
        handle=topics.create,
        rule=each("CREATE cluster or topic"),
    ),
    Api(key=ApiKey.DELETE_TOPICS, low=1, high=6, handle=topics.delete, rule=each("DELETE topic")),
    Api(
        key=ApiKey.DELETE_RECORDS,
        low=0,
        high=2,
        handle=topics.delete_records,
        rule=each("DELETE topic"),
    ),
    Api(
        key=ApiKey.INIT_PRODUCER_ID,
        low=0,
        high=5,
        handle=producer_ids.handle,
        rule=each("WRITE id; without one IDEMPOTENT_WRITE cluster or WRITE any topic"),
    ),
    Api(
        key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
        low=2,
        high=4,
        handle=list_offsets.for_leader_epoch,
        rule=each("DESCRIBE topic"),
    ),
    Api(
        key=ApiKey.ADD_PARTITIONS_TO_TXN,
        low=0,
        high=5,
        handle=transactions.add_partitions,
        rule=each("WRITE id and topic"),
    ),
    Api(
        key=ApiKey.ADD_OFFSETS_TO_TXN,
        low=0,
        high=4,
        handle=transactions.add_offsets,
        rule=each("WRITE id, READ group"),
    ),
    Api(key=ApiKey.END_TXN, low=0, high=5, handle=transactions.end, rule=each("WRITE id")),
    Api(
        key=ApiKey.WRITE_TXN_MARKERS,
        low=1,
        high=2,
        handle=transaction_admin.write_markers,
        rule=cluster(refusals.write_markers, Op.ALTER, Op.CLUSTER_ACTION),
    ),
    Api(
        key=ApiKey.TXN_OFFSET_COMMIT,
        low=0,
        high=5,
        handle=transaction_offsets.commit,
        rule=each("WRITE id, READ group and topic"),
    ),
    Api(
        key=ApiKey.DESCRIBE_ACLS,
        low=1,
        high=3,
        handle=acls.describe,
        rule=cluster(refusals.whole("resources"), Op.DESCRIBE),
    ),
    Api(
        key=ApiKey.CREATE_ACLS,
        low=1,
        high=3,
        handle=acls.create,
        rule=cluster(refusals.create_acls, Op.ALTER),
    ),
    Api(
        key=ApiKey.DELETE_ACLS,
        low=1,
        high=3,
        handle=acls.delete,
        rule=cluster(refusals.delete_acls, Op.ALTER),
    ),
    Api(
        key=ApiKey.DESCRIBE_CONFIGS,
        low=1,
        high=4,
        handle=describe_configs.handle,
        rule=each("DESCRIBE_CONFIGS topic, group or cluster"),
    ),
    Api(
        key=ApiKey.ALTER_CONFIGS,
        low=0,
        high=2,
        handle=alter_configs.whole,
        rule=each("ALTER_CONFIGS topic, group or cluster"),
    ),
    Api(
        key=ApiKey.ALTER_REPLICA_LOG_DIRS,
        low=1,
        high=2,
        handle=replicas.move_directories,
        rule=cluster(refusals.move_directories, Op.ALTER),
    ),
    Api(
        key=ApiKey.DESCRIBE_LOG_DIRS,
        low=1,
        high=5,
        handle=operations.log_dirs,
        rule=cluster(refusals.describe_log_dirs, Op.DESCRIBE),
    ),
    Api(key=ApiKey.SASL_AUTHENTICATE, low=0, high=2, handle=sasl.authenticate, rule=OPEN),
    Api(
        key=ApiKey.CREATE_PARTITIONS,
        low=0,
        high=3,
        handle=topics.create_partitions,
        rule=each("ALTER topic"),
    ),
    Api(key=ApiKey.CREATE_DELEGATION_TOKEN, low=1, high=3, handle=security.create_token, rule=OPEN),
    Api(key=ApiKey.RENEW_DELEGATION_TOKEN, low=1, high=2, handle=security.prolong_token, rule=OPEN),
    Api(
        key=ApiKey.EXPIRE_DELEGATION_TOKEN, low=1, high=2, handle=security.prolong_token, rule=OPEN
    ),
    Api(key=ApiKey.DESCRIBE_DELEGATION_TOKEN, low=1, high=3, handle=security.tokens, rule=OPEN),
    Api(
        key=ApiKey.DELETE_GROUPS,
        low=0,
        high=2,
        handle=group_admin.delete,
        rule=each("DELETE group"),
    ),
    Api(
        key=ApiKey.ELECT_LEADERS,
        low=0,
        high=2,
        handle=replicas.elect_leaders,
        rule=cluster(refusals.elect_leaders, Op.ALTER),
    ),
    Api(
        key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
        low=0,
        high=1,
        handle=alter_configs.incremental,
        rule=each("ALTER_CONFIGS topic, group or cluster"),
    ),
    Api(
        key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        low=0,
        high=1,
        handle=replicas.reassign,
        rule=cluster(refusals.reassign, Op.ALTER),
    ),
    Api(
        key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
        low=0,
        high=0,
        handle=replicas.reassignments,
        rule=cluster(refusals.whole("topics"), Op.DESCRIBE),
    ),
    Api(
        key=ApiKey.OFFSET_DELETE,
        low=0,
        high=0,
        handle=offsets.delete,
        rule=each("DELETE group, READ topic"),
    ),
    Api(
        key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
        low=0,
        high=1,
        handle=quotas.describe,
        rule=cluster(refusals.describe_quotas, Op.DESCRIBE_CONFIGS),
    ),
    Api(
        key=ApiKey.ALTER_CLIENT_QUOTAS,
        low=0,
        high=1,
        handle=quotas.alter,
        rule=cluster(refusals.alter_quotas, Op.ALTER_CONFIGS),
    ),
    Api(
        key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        low=0,
        high=0,
        handle=users.describe,
        rule=cluster(refusals.describe_scram_users, Op.DESCRIBE),
    ),
    Api(
        key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        low=0,
        high=0,
        handle=users.alter,
        rule=cluster(refusals.alter_users, Op.ALTER),
    ),
    Api(
        key=ApiKey.DESCRIBE_QUORUM,
        low=0,
        high=2,
        handle=operations.quorum,
        rule=cluster(refusals.whole("topics", "nodes"), Op.DESCRIBE),
    ),
    Api(
        key=ApiKey.UPDATE_FEATURES,
        low=0,
        high=2,
        handle=features.update,
        rule=cluster(refusals.whole("results"), Op.ALTER),
    ),
    Api(key=ApiKey.DESCRIBE_CLUSTER, low=0, high=2, handle=metadata.describe_cluster, rule=OPEN),
    Api(
        key=ApiKey.DESCRIBE_PRODUCERS,
        low=0,
        high=0,
        handle=operations.producers,
        rule=each("READ topic"),
    ),
    Api(
        key=ApiKey.UNREGISTER_BROKER,
        low=0,
        high=0,
        handle=replicas.unregister,
        rule=cluster(refusals.whole(), Op.ALTER),
    ),
    Api(
        key=ApiKey.DESCRIBE_TRANSACTIONS,
        low=0,
        high=0,
        handle=transaction_admin.describe,
        rule=each("DESCRIBE id and topic"),
    ),
    Api(
        key=ApiKey.LIST_TRANSACTIONS,
        low=0,
        high=2,
        handle=transaction_admin.list_all,
        rule=each("DESCRIBE id"),
    ),
    Api(
        key=ApiKey.CONSUMER_GROUP_HEARTBEAT,
        low=0,
        high=1,
        handle=consumer_groups.heartbeat,
        rule=each("READ group, DESCRIBE topic"),
    ),
    Api(
        key=ApiKey.CONSUMER_GROUP_DESCRIBE,
        low=0,
        high=1,
        handle=consumer_group_describe.describe,
        rule=each("DESCRIBE group and topic"),
    ),
    Api(
        key=ApiKey.STREAMS_GROUP_DESCRIBE,
        low=0,
        high=0,
        handle=group_admin.describe_streams,
        rule=each("DESCRIBE group"),
    ),
    Api(
        key=ApiKey.SHARE_FETCH,
        low=1,
        high=2,
        handle=share_fetch.handle,
        rule=each("READ group and topic, at each poll"),
    ),
    Api(
        key=ApiKey.SHARE_ACKNOWLEDGE,
        low=1,
        high=2,
        handle=share_acknowledge.handle,
        rule=each("READ group and topic"),
    ),
    Api(
        key=ApiKey.LIST_CONFIG_RESOURCES,
        low=0,
        high=1,
        handle=operations.config_resources,
        rule=cluster(refusals.whole("config_resources", message=False), Op.DESCRIBE_CONFIGS),
    ),
    Api(
        key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        low=0,
        high=0,
        handle=topic_partitions.handle,
        rule=each("DESCRIBE topic"),
    ),
    Api(
        key=ApiKey.SHARE_GROUP_HEARTBEAT,
        low=1,
        high=1,
        handle=share_groups.heartbeat,
        rule=each("READ group, DESCRIBE topic"),
    ),
    Api(
        key=ApiKey.SHARE_GROUP_DESCRIBE,
        low=1,
        high=1,
        handle=share_groups.describe,
        rule=each("DESCRIBE group and topic"),
    ),
    Api(
        key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        low=0,
        high=1,
        handle=share_offsets.describe,
        rule=each("DESCRIBE group and topic"),
    ),
    Api(
        key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        low=0,
        high=0,
        handle=share_offsets.alter,
        rule=each("READ group and topic"),
    ),
    Api(
        key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        low=0,
        high=0,
        handle=share_offsets.delete,
        rule=each("DELETE group, READ topic"),
    ),
)
TABLE = {int(api.key): api for api in APIS}
RANGES = tuple((int(api.key), api.low, api.high) for api in APIS)
