"""The log of admin requests, by whom and from where, while access rules are in force.

Changes of rules and of users have events of their own, and so has what was refused for want of
rights (`not_authorized`). `Floods` bounds what one client may have logged.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import structlog

from kproxy.common.errors import Code
from kproxy.loop.pace import Pace, slices
from kproxy.protocol.api_keys import ApiKey
from kproxy.worker.request import Request

_log = structlog.get_logger()

AUDITED = frozenset({
    ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE, ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ApiKey.UPDATE_FEATURES, ApiKey.WRITE_TXN_MARKERS,
})  # fmt: skip
_LISTS = ("topics", "topic_names", "resources", "groups_names", "feature_updates", "markers")
_LABELS = ("name", "resource_name", "topic_name", "feature", "producer_id", "topic_id")
_NAMES_MAX = 20
_REFUSALS = frozenset({
    Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
})  # fmt: skip
_CODES_AT_ONCE = 500


async def audit(request: Request, answer: Any, code: int) -> None:
    """Log one request, unless all of it was refused.

    `code`: the first error of its answer, 0 where it has none. The request of a client that leaves
    meanwhile is logged.
    """
    refused = False
    try:
        refused = await only_refused(answer, request.budget)
    finally:
        if not refused:
            _log_one(request, code)


def _log_one(request: Request, code: int) -> None:
    body, peer = request.body, request.peer
    if getattr(body, "validate_only", False):
        return
    lists = [getattr(body, label, None) or () for label in _LISTS]
    _log.info(
        "admin_request", api=ApiKey(request.header.api_key).name, principal=peer.principal,
        host=peer.host, listener=peer.listener, group=getattr(body, "group_id", None),
        count=sum(map(len, lists)), names=list(islice(_names(chain(*lists)), _NAMES_MAX)),
        error_code=code,
    )  # fmt: skip


async def only_refused(answer: Any, pace: Pace) -> bool:
    """Whether its client had no right to anything that a request asks for."""
    refused = False
    for some in slices(_codes(answer), _CODES_AT_ONCE):
        codes = {code for code in some if code is not None}
        if not codes <= _REFUSALS:
            return False
        refused = refused or bool(codes)
        await pace.step()
    return refused


def _codes(answer: Any) -> Iterator[int | None]:
    """Yield the error codes of an answer: its own, or those of its parts where it has none.

    None for each part that has parts itself: a great many may be empty.
    """
    if not isinstance(answer, Mapping):
        return
    if code := answer.get("error_code", 0):
        yield code
        return
    for value in answer.values():
        for part in value if isinstance(value, list | tuple) else ():
            if not isinstance(part, Mapping):
                break
            if "error_code" in part:
                yield part["error_code"]
            else:
                yield None
                yield from _codes(part)


def _names(items: Iterator[Any]) -> Iterator[str]:
    for item in items:
        if isinstance(item, str):
            yield item
            continue
        found = (getattr(item, label, None) for label in _LABELS)
        yield str(next((one for one in found if one is not None), "?"))
