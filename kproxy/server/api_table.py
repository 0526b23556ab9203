"""The API table: the versions of each API, its handler, and its rule for the client's rights.

The answer to ApiVersions is derived from the table. Produce is named from version 0 although 0 to 2
are refused: librdkafka up to 2.11.0 otherwise stops compressing (KIP-896, WIRE facts in tests).
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
from kproxy.handlers.groups import offset_fetch, offsets, streams_describe
from kproxy.handlers.groups import streams as streams_groups
from kproxy.handlers.produce import produce
from kproxy.handlers.shares import acknowledge as share_acknowledge
from kproxy.handlers.shares import fetch as share_fetch
from kproxy.handlers.shares import groups as share_groups
from kproxy.handlers.shares import offsets as share_offsets
from kproxy.handlers.topics import metadata, operations, records, replicas, topic_partitions, topics
from kproxy.handlers.transactions import admin as transaction_admin
from kproxy.handlers.transactions import offsets as transaction_offsets
from kproxy.handlers.transactions import producer_ids, transactions
from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import Op
from kproxy.server.rules import OPEN, Rule, cluster, each
from kproxy.worker.request import Request
from kproxy.worker.worker import Worker

EncodedBody = bytes | bytearray
Body = Mapping[str, Any] | EncodedBody | StreamedResponse
"""The result of a handler: values for kio, an encoded body, or one that is read as it is sent.

An empty encoded body is no answer at all (a Produce with acks=0).
"""


@dataclass(frozen=True, slots=True)
class Api:
    """One API, the versions it has here, and what answers it."""

    key: ApiKey
    low: int
    high: int
    handle: Callable[[Worker, Request], Awaitable[Body]]
    rule: Rule
    """The rights that it needs of its sender. `handle` is called once the sender has them."""


async def _versions(worker: Worker, request: Request) -> Body:
    return await api_versions.handle(worker, request, RANGES)


APIS = (
    Api(ApiKey.PRODUCE, 0, 13, produce.handle,
        each("WRITE topic; of transactions WRITE id; CREATE cluster or topic to make one")),
    Api(ApiKey.FETCH, 4, 18, fetch.handle, each("READ topic, at each poll")),
    Api(ApiKey.LIST_OFFSETS, 1, 11, list_offsets.handle, each("DESCRIBE topic")),
    Api(ApiKey.METADATA, 0, 13, metadata.handle,
        each("DESCRIBE topic; CREATE cluster or topic to make one")),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, offsets.commit, each("READ group and topic")),
    Api(ApiKey.OFFSET_FETCH, 1, 10, offset_fetch.handle, each("DESCRIBE group and topic")),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, offsets.find_coordinator,
        each("DESCRIBE group or id; of share partitions CLUSTER_ACTION")),
    Api(ApiKey.JOIN_GROUP, 0, 9, classic_groups.join, each("READ group")),
    Api(ApiKey.HEARTBEAT, 0, 4, classic_groups.heartbeat, each("READ group")),
    Api(ApiKey.LEAVE_GROUP, 0, 5, classic_groups.leave, each("READ group")),
    Api(ApiKey.SYNC_GROUP, 0, 5, classic_groups.sync, each("READ group")),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, group_admin.describe, each("DESCRIBE group")),
    Api(ApiKey.LIST_GROUPS, 0, 5, group_admin.list_groups, each("DESCRIBE cluster or group")),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, sasl.handshake, OPEN),
    Api(ApiKey.API_VERSIONS, 0, 5, _versions, OPEN),
    Api(ApiKey.CREATE_TOPICS, 2, 7, topics.create, each("CREATE cluster or topic")),
    Api(ApiKey.DELETE_TOPICS, 1, 6, topics.delete, each("DELETE topic")),
    Api(ApiKey.DELETE_RECORDS, 0, 2, records.delete, each("DELETE topic")),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, producer_ids.handle,
        each("WRITE id; without one IDEMPOTENT_WRITE cluster or WRITE any topic")),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, list_offsets.for_leader_epoch,
        each("DESCRIBE topic")),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, transactions.add_partitions,
        each("WRITE id and topic")),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, transactions.add_offsets, each("WRITE id, READ group")),
    Api(ApiKey.END_TXN, 0, 5, transactions.end, each("WRITE id")),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, transaction_admin.write_markers,
        cluster(refusals.write_markers, Op.ALTER, Op.CLUSTER_ACTION)),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, transaction_offsets.commit,
        each("WRITE id, READ group and topic")),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, acls.describe,
        cluster(refusals.whole("resources"), Op.DESCRIBE)),
    Api(ApiKey.CREATE_ACLS, 1, 3, acls.create, cluster(refusals.create_acls, Op.ALTER)),
    Api(ApiKey.DELETE_ACLS, 1, 3, acls.delete, cluster(refusals.delete_acls, Op.ALTER)),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, describe_configs.handle,
        each("DESCRIBE_CONFIGS topic, group or cluster")),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, alter_configs.whole,
        each("ALTER_CONFIGS topic, group or cluster")),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, replicas.move_directories,
        cluster(refusals.move_directories, Op.ALTER)),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, operations.log_dirs,
        cluster(refusals.describe_log_dirs, Op.DESCRIBE)),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, sasl.authenticate, OPEN),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, topics.create_partitions, each("ALTER topic")),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, security.create_token, OPEN),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, security.prolong_token, OPEN),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, security.prolong_token, OPEN),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, security.tokens, OPEN),
    Api(ApiKey.DELETE_GROUPS, 0, 3, group_admin.delete, each("DELETE group")),
    Api(ApiKey.ELECT_LEADERS, 0, 2, replicas.elect_leaders,
        cluster(refusals.elect_leaders, Op.ALTER)),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, alter_configs.incremental,
        each("ALTER_CONFIGS topic, group or cluster")),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, replicas.reassign,
        cluster(refusals.reassign, Op.ALTER)),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, replicas.reassignments,
        cluster(refusals.whole("topics"), Op.DESCRIBE)),
    Api(ApiKey.OFFSET_DELETE, 0, 0, offsets.delete, each("DELETE group, READ topic")),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, quotas.describe,
        cluster(refusals.describe_quotas, Op.DESCRIBE_CONFIGS)),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, quotas.alter,
        cluster(refusals.alter_quotas, Op.ALTER_CONFIGS)),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, users.describe,
        cluster(refusals.describe_scram_users, Op.DESCRIBE)),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, users.alter,
        cluster(refusals.alter_users, Op.ALTER)),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, operations.quorum,
        cluster(refusals.whole("topics", "nodes"), Op.DESCRIBE)),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, features.update,
        cluster(refusals.whole("results"), Op.ALTER)),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, metadata.describe_cluster, OPEN),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, operations.producers, each("READ topic")),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, replicas.unregister, cluster(refusals.whole(), Op.ALTER)),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, transaction_admin.describe,
        each("DESCRIBE id and topic")),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, transaction_admin.list_all, each("DESCRIBE id")),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_groups.heartbeat,
        each("READ group, DESCRIBE topic")),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer_groups.describe,
        each("DESCRIBE group and topic")),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, streams_groups.heartbeat,
        each("READ group, DESCRIBE topic; CREATE cluster or topic to make internal ones")),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, streams_describe.describe,
        each("DESCRIBE group and topic")),
    Api(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0, streams_describe.update,
        each("READ group")),
    Api(ApiKey.SHARE_FETCH, 1, 2, share_fetch.handle, each("READ group and topic, at each poll")),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, share_acknowledge.handle, each("READ group and topic")),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, operations.config_resources,
        cluster(refusals.whole("config_resources", message=False), Op.DESCRIBE_CONFIGS)),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, topic_partitions.handle, each("DESCRIBE topic")),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, share_groups.heartbeat,
        each("READ group, DESCRIBE topic")),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, share_groups.describe, each("DESCRIBE group and topic")),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, share_offsets.describe,
        each("DESCRIBE group and topic")),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, share_offsets.alter, each("READ group and topic")),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, share_offsets.delete,
        each("DELETE group, READ topic")),
)  # fmt: skip
TABLE = {int(api.key): api for api in APIS}
RANGES = tuple((int(api.key), api.low, api.high) for api in APIS)
