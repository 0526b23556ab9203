"""ApiVersions (key 18), versions 0 to 5 (KIP-35, KIP-511, KIP-1242).

The API table is what is advertised.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kproxy.common.errors import Code
from kproxy.handlers.cluster import features
from kproxy.handlers.common.needs import ClusterNeeds
from kproxy.worker.request import Request

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

_FROM_WHOM = 5
"""The version from which on a client may say whom it means to talk to."""


def _elsewhere(worker: ClusterNeeds, body: Any) -> Code:
    """Return what tells a client that the node of this address is another one than it was."""
    if (body.cluster_id is None) != (body.node_id == -1):
        return Code.INVALID_REQUEST
    me = worker.cluster.cluster_id, worker.cluster.me.node_id
    if body.cluster_id is None or me == (body.cluster_id, body.node_id):
        return Code.NONE
    return Code.REBOOTSTRAP_REQUIRED


def values(ranges: Iterable[tuple[int, int, int]], code: Code = Code.NONE) -> Mapping[str, Any]:
    """Return an ApiVersionsResponse from (key, lowest version, highest version)."""
    return {
        "error_code": code,
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high} for key, low, high in ranges
        ],
    }


async def handle(
    worker: ClusterNeeds, request: Request, ranges: Iterable[tuple[int, int, int]]
) -> Mapping[str, Any]:
    """Answer with the ranges; refuse client names that Kafka would refuse."""
    body = request.body
    if request.version >= 3:
        for text in (body.client_software_name, body.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                return values((), Code.INVALID_REQUEST)
        if request.version >= _FROM_WHOM and (fault := _elsewhere(worker, body)):
            return values((), fault)
        return {**values(ranges), **features.described(worker, request.version)}
    return values(ranges)
