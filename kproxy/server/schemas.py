"""The import of kio's schemas of the requests that every client sends, before there are clients.

An import takes some ten milliseconds, and all connections would wait for it. The rest is loaded
when somebody asks, on a thread (`server.dispatch`): all of them take 20 MB and a second.
"""

from collections.abc import Iterable

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import load

COMMON = frozenset({
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID, ApiKey.SASL_AUTHENTICATE, ApiKey.CONSUMER_GROUP_HEARTBEAT,
})  # fmt: skip


def load_common(ranges: Iterable[tuple[int, int, int]]) -> None:
    """Load all versions of `COMMON` that are in these ranges of (API, lowest, highest)."""
    for key, low, high in ranges:
        if key in COMMON:
            for version in range(low, high + 1):
                load(key, version)
