"""The log of what was administered, by whom and from where, while access rules are in force.

Changes of rules and of users have events of their own.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import structlog

from kproxy.protocol.api_keys import ApiKey
from kproxy.worker.worker import Request

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


def administered(request: Request, code: int) -> None:
    """Log one request. `code`: the first error of its answer, 0 where it has none."""
    body, peer = request.body, request.peer
    if getattr(body, "validate_only", False):
        return
    lists = [getattr(body, label, None) or () for label in _LISTS]
    _log.info(
        "administered", api=ApiKey(request.header.api_key).name, principal=peer.principal,
        host=peer.host, listener=peer.listener, group=getattr(body, "group_id", None),
        count=sum(map(len, lists)), names=list(islice(_names(chain(*lists)), _NAMES_MAX)),
        error_code=code,
    )  # fmt: skip


def _names(items: Iterator[Any]) -> Iterator[str]:
    for item in items:
        if isinstance(item, str):
            yield item
            continue
        found = (getattr(item, label, None) for label in _LABELS)
        yield str(next((one for one in found if one is not None), "?"))
