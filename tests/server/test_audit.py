"""The lines of the audit: for requests that were done or tried, and not for refused ones."""

import asyncio
from typing import Any

import pytest
import structlog

from kproxy.loop.pace import Pace
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import RequestHeader
from kproxy.security.acls import Op, Resource
from kproxy.security.peer import Peer
from kproxy.server.api_table import APIS
from kproxy.server.audit import AUDITED, audit, only_refused
from kproxy.worker.request import Request
from tests import bodies
from tests.bodies import creation
from tests.handlers.secured import ALICE, ROOT, Secured, rule
from tests.held import HELD_S, held_by, slowness


def records(*names: str) -> dict[str, Any]:
    parts = [{"partition_index": 0, "offset": 0}]
    return {"topics": [{"name": name, "partitions": parts} for name in names], "timeout": 1000}


def offsets(group: str) -> dict[str, Any]:
    topics = [{"name": "q", "partitions": [{"partition_index": 0}]}]
    return {"group_id": group, "topics": topics}


async def audited(here: Secured, key: int, version: int, values: Any, peer: Peer = ALICE) -> int:
    """Return how many lines a request leaves."""
    with structlog.testing.capture_logs() as logs:
        await here.call(key, version, values, peer)
    return [log["event"] for log in logs].count("admin_request")


@pytest.mark.parametrize(("key", "version", "values"), [
    (ApiKey.CREATE_TOPICS, 7, creation("a", "b")),
    (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["a", "b"], "timeout": 1000}),
    (ApiKey.DELETE_RECORDS, 2, records("a", "b")),
    (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g", "h"]}),
    (ApiKey.OFFSET_DELETE, 0, offsets("g")),
    (ApiKey.OFFSET_DELETE, 0, offsets("mine")),
    (ApiKey.UPDATE_FEATURES, 1, {"timeout": 1000, "validate_only": False, "feature_updates": ()}),
])  # fmt: skip
async def test_client_without_rights_leaves_no_line(key: int, version: int, values: Any) -> None:
    """FAULT: each request that was wholly refused left a line, megabytes of them a second."""
    here = Secured()
    await here.add(rule(Op.DELETE, "mine", resource_type=Resource.GROUP))
    here.worker.catalogue.create("q")
    await here.call(ApiKey.OFFSET_COMMIT, 8, bodies.commit("mine", "q", 0), ROOT)
    assert await audited(here, key, version, values) == 0


async def test_done_or_failed_request_leaves_a_line() -> None:
    here = Secured()
    await here.add(rule(Op.CREATE, "a"))
    assert await audited(here, ApiKey.CREATE_TOPICS, 7, creation("b", "a")) == 1
    assert await audited(here, ApiKey.CREATE_TOPICS, 7, creation("b", "a")) == 1  # it is there
    assert await audited(here, ApiKey.DELETE_RECORDS, 2, records("gone"), ROOT) == 1
    assert await audited(here, ApiKey.OFFSET_DELETE, 0, offsets("g"), ROOT) == 1


@pytest.mark.parametrize(("parts", "refused"), [((), False), ([{"error_code": 29}], True)])
async def test_a_long_answer_is_looked_at_in_slices(parts: Any, refused: bool) -> None:
    answer = {"topics": [{"name": "q", "partitions": parts} for _ in range(400_000)]}
    told, held = await held_by(only_refused(answer, Pace()))
    assert told is refused
    assert held < HELD_S * slowness()


async def test_client_that_leaves_before_the_answer_is_logged() -> None:
    answer = {"topics": [{"error_code": 29}] * 500_000}
    header = RequestHeader(ApiKey.CREATE_TOPICS, 7, 1, None, 0)
    with structlog.testing.capture_logs() as logs:
        work = asyncio.create_task(audit(Request(header=header, body=None), answer, 29))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
    assert [log["event"] for log in logs] == ["admin_request"]


NOT_AUDITED = frozenset({
    # Data, groups and logins: as many as there are records.
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
    # Events of their own.
    ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    # Refused, or without effect.
    ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.UNREGISTER_BROKER, ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
})  # fmt: skip
_READS = ("DESCRIBE", "LIST", "METADATA", "FIND", "API_VERSIONS", "OFFSET_F")


def test_each_api_is_audited_or_says_why_not() -> None:
    changing = {
        api.key for api in APIS if not any(word in api.key.name for word in _READS)
    }  # fmt: skip
    assert changing == AUDITED | NOT_AUDITED
    assert not AUDITED & NOT_AUDITED
