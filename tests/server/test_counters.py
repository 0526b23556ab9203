"""What a connection counts."""

from kproxy.counters import Counters
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from tests.fakes import memory_worker
from tests.server.test_connection import said
from tests.wire import batch, produce_values


def test_each_counter_is_given_by_its_name() -> None:
    counters = Counters()
    counters.requests += 2
    assert counters.values() == {
        "compaction_passes": 0, "connections": 0, "dead_letters": 0, "dead_letters_blocked": 0,
        "dead_letters_dropped": 0, "dead_letters_refused": 0, "not_compacted": 0, "requests": 2,
        "request_bytes": 0, "response_bytes": 0, "writes": 0,
    }  # fmt: skip


async def test_requests_and_answers_are_counted() -> None:
    worker = memory_worker()
    produce = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(b"v")))
    versions = encode_request(ApiKey.API_VERSIONS, 0, 2, {})
    answers = await said(produce + versions, worker, end=True)
    counted = worker.counters.values()
    assert 1 <= counted.pop("writes") <= 2  # the answers came in one turn, or in two
    assert counted == {
        "compaction_passes": 0,
        "not_compacted": 0,
        "dead_letters": 0,
        "dead_letters_blocked": 0,
        "dead_letters_dropped": 0,
        "dead_letters_refused": 0,
        "connections": 1,
        "requests": 2,
        "request_bytes": len(produce + versions) - 8,
        "response_bytes": len(answers),
    }
