"""The counts of a connection."""

from kproxy.common.counters import Counters, Histogram
from kproxy.common.errors import Code
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.server.dispatch import error_in
from tests.fakes import memory_worker
from tests.server.test_connection import said
from tests.wire import batch, produce_values


def test_each_counter_is_given_by_its_name() -> None:
    counters = Counters()
    counters.requests += 2
    counted = counters.values()
    assert counted.pop("requests") == 2
    assert set(counted.values()) == {0}
    assert {"connections", "dead_letters", "not_compacted", "writes"} <= counted.keys()


async def test_requests_and_answers_are_counted() -> None:
    worker = memory_worker()
    produce = encode_request(ApiKey.PRODUCE, 9, 1, produce_values("q", batch(b"v")))
    versions = encode_request(ApiKey.API_VERSIONS, 0, 2, {})
    answers = await said(produce + versions, worker, end=True)
    counted = worker.counters.values()
    assert 1 <= counted.pop("writes") <= 2  # the answers came in one turn, or in two
    assert {name: count for name, count in counted.items() if count} == {
        "connections": 1,
        "requests": 2,
        "request_bytes": len(produce + versions) - 8,
        "response_bytes": len(answers),
        "produced_bytes": len(batch(b"v")),
        "produced_records": 1,
    }
    assert (worker.counters.answered[0], worker.counters.answered[18]) == (1, 1)


async def test_answers_are_counted_by_their_first_error() -> None:
    worker = memory_worker()
    refused = produce_values("q", batch(b"v"))
    refused["acks"] = 7
    requests = encode_request(ApiKey.PRODUCE, 9, 1, refused)
    names = [{"name": "absent", "topic_id": None}]
    asked = {
        "topics": names, "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }  # fmt: skip
    requests += encode_request(ApiKey.METADATA, 12, 2, asked)
    await said(requests, worker, end=True)
    failed = worker.counters.failed
    assert failed[0, Code.INVALID_REQUIRED_ACKS] == 1
    assert sum(worker.counters.answered) + sum(failed.values()) == 2


def test_an_error_is_looked_for_among_the_first_parts() -> None:
    assert error_in({"throttle_time": 0, "error_code": 3, "topics": []}) == 3
    part = {"index": 0, "error_code": 6}
    assert error_in({"topics": ({"name": "q", "partitions": [{"error_code": 0}, part]},)}) == 6
    assert (
        error_in({"topics": [{"name": "q", "partitions": [{"error_code": 0}] * 9 + [part]}]}) == 0
    )
    assert error_in(b"encoded") == 0


def test_a_histogram_counts_what_is_at_or_below_a_bound() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 9):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14)
