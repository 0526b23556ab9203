"""No request imports its schemas on the loop: the first of its API version held all connections."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kproxy.protocol import codec
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.security.peer import Peer
from kproxy.server.api_table import RANGES
from kproxy.server.dispatch import accept, answer
from kproxy.server.schemas import load_common
from kproxy.worker.request import NextRequestSignal
from tests.bodies import metadata
from tests.fakes import memory_worker


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, threading.Thread]]]:
    """Yield (API key, thread) of each schema that is loaded, where none is at first."""
    found: list[tuple[int, threading.Thread]] = []
    for name in ("load_request_schema", "load_response_schema"):
        real = getattr(codec, name)

        def noted(key: int, version: int, real: Any = real) -> Any:
            found.append((key, threading.current_thread()))
            return real(key, version)

        monkeypatch.setattr(codec, name, noted)
    monkeypatch.setattr(codec, "_flexible", {})
    codec._loaded.cache_clear()
    yield found
    codec._loaded.cache_clear()


METADATA = metadata(None)
CLUSTER = {"include_cluster_authorized_operations": False, "endpoint_type": 1}


FRAMES = {
    ApiKey.METADATA: encode_request(ApiKey.METADATA, 12, 1, METADATA)[4:],
    ApiKey.DESCRIBE_CLUSTER: encode_request(ApiKey.DESCRIBE_CLUSTER, 1, 1, CLUSTER)[4:],
}


async def ask(key: ApiKey) -> None:
    worker = memory_worker()
    assert await answer(worker, accept(worker, FRAMES[key], Peer(), NextRequestSignal()))


async def test_schemas_of_common_requests_are_loaded_before(loaded: list[Any]) -> None:
    load_common(RANGES)
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA} <= {key for key, _ in loaded}
    loaded.clear()
    await ask(ApiKey.METADATA)
    assert not loaded


async def test_schemas_of_rare_requests_are_loaded_on_a_thread(loaded: list[Any]) -> None:
    await ask(ApiKey.DESCRIBE_CLUSTER)
    assert {key for key, _ in loaded} == {ApiKey.DESCRIBE_CLUSTER}
    assert threading.main_thread() not in {thread for _, thread in loaded}
