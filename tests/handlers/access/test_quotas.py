"""Quotas by their APIs, and what they make of requests: throttle times, empty answers, refusals."""

import math
import time
from typing import Any
from uuid import UUID

import pytest
import structlog

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import decode_response, encode_request, throttle_at
from kproxy.security.peer import Peer
from kproxy.security.quotas import CONNECTED, CONSUMED, MUTATED, PRODUCED, WORKED, Quotas
from kproxy.server import metering
from kproxy.server.api_table import APIS
from kproxy.server.dispatch import accept, answer
from kproxy.worker.request import NextRequestSignal
from tests.bodies import creation, growth, metadata
from tests.fakes import chunks_of, memory_worker
from tests.held import slowness
from tests.wire import batch, fetch_values, produce_values

ALICE = Peer("User:alice", "10.0.0.1")
INVALID, EXCEEDED = 42, 89


class Metered:
    """A worker, a client, and a clock that is moved."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.worker = memory_worker(**settings)
        self.worker.quotas = Quotas(self.worker.security, lambda: self.now, self.worker.counters)
        self.signal = NextRequestSignal()
        self.wait_s = 0.0

    async def call(self, key: int, version: int, values: Any, peer: Peer = ALICE) -> Any:
        """Call as a connection does: return the answer, and in `wait_s` what it is muted for."""
        frame = encode_request(key, version, 1, values)[4:]
        accepted = accept(self.worker, frame, peer, self.signal)
        quotas = self.worker.quotas
        given: Any
        self.wait_s = 0.0
        if accepted.call is not None:
            if quotas.active:
                self.wait_s = metering.appended(quotas, peer, accepted, 0.0)
            given = accepted.response()
        elif quotas.active:
            work = answer(self.worker, accepted)
            given, self.wait_s = await metering.answered(quotas, peer, accepted, work)
        else:
            given = await answer(self.worker, accepted)
        if given is None:
            return None
        if not isinstance(given, bytes | bytearray):
            given = b"".join(await chunks_of(given))
        assert len(given) == 4 + int.from_bytes(given[:4], "big")
        return decode_response(key, version, bytes(given)[4:])[1]

    async def set(self, key: str, value: float | None, **entity: str | None) -> Any:
        values = {"entries": [change(entity, {key: value})], "validate_only": False}
        (entry,) = (await self.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, values)).entries
        return int(entry.error_code), entry.error_message

    async def told(self, *components: Any, strict: bool = False) -> Any:
        values = {
            "components": [
                {"entity_type": kind, "match_type": match, "match": name}
                for kind, match, name in components
            ],
            "strict": strict,
        }
        return await self.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, values)


def named(label: str) -> str:
    return "client-id" if label == "client" else label


def change(entity: dict[str, str | None], ops: dict[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [
            {"entity_type": named(kind), "entity_name": name} for kind, name in entity.items()
        ],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops.items()
        ],
    }


def shown(answer: Any) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    return sorted(
        (
            (
                {one.entity_type: one.entity_name for one in entry.entity},
                {one.key: one.value for one in entry.values},
            )
            for entry in answer.entries
        ),
        key=str,
    )


def throttle_ms(answer: Any) -> int:
    return round(answer.throttle_time.total_seconds() * 1000)


# -- the APIs


async def test_quotas_are_set_told_and_removed() -> None:
    here = Metered()
    with structlog.testing.capture_logs() as lines:
        assert await here.set(PRODUCED, 1024, user="alice") == (0, None)
    assert lines[0]["event"] == "quotas_changed"
    assert lines[0]["by"] == "User:alice"
    assert list(lines[0]["quotas"].values()) == [1024]
    assert await here.set(CONSUMED, 5.0, user="alice") == (0, None)
    assert await here.set(PRODUCED, 7, user=None, client="c") == (0, None)
    assert await here.set(CONNECTED, 3, ip="10.0.0.1") == (0, None)
    alice = ({"user": "alice"}, {PRODUCED: 1024, CONSUMED: 5})
    both = ({"client-id": "c", "user": None}, {PRODUCED: 7})
    assert shown(await here.told()) == sorted(
        [alice, both, ({"ip": "10.0.0.1"}, {CONNECTED: 3})], key=str
    )
    assert shown(await here.told(("user", 0, "alice"))) == [alice]
    assert shown(await here.told(("user", 0, "bob"))) == []
    assert shown(await here.told(("user", 1, None))) == [both]
    assert shown(await here.told(("user", 2, None))) == sorted([alice, both], key=str)
    assert shown(await here.told(("user", 2, None), strict=True)) == [alice]
    assert shown(await here.told(("user", 1, None), ("client-id", 0, "c"), strict=True)) == [both]
    assert shown(await here.told(strict=True)) == []
    assert await here.set(CONSUMED, None, user="alice") == (0, None)
    assert await here.set(CONSUMED, None, user="nobody") == (0, None)
    assert shown(await here.told(("user", 0, "alice"))) == [(alice[0], {PRODUCED: 1024})]


@pytest.mark.parametrize(("key", "value", "entity", "message"), [
    ("no_such", 1.0, {"user": "a"}, "Invalid configuration key no_such"),
    (CONNECTED, 1.0, {"user": "a"}, f"Invalid configuration key {CONNECTED}"),
    (PRODUCED, 1.0, {"ip": "10.0.0.1"}, f"Invalid configuration key {PRODUCED}"),
    (PRODUCED, 0.0, {"user": "a"}, f"Quota {PRODUCED} must be greater than 0"),
    (PRODUCED, -5.0, {"client": "a"}, f"Quota {PRODUCED} must be greater than 0"),
    (PRODUCED, 1.5, {"user": "a"}, f"{PRODUCED} cannot be a fractional value."),
    (PRODUCED, 1e19, {"user": "a"}, f"Proposed value for {PRODUCED} is too large for a LONG."),
    (CONNECTED, 3e9, {"ip": None}, f"Proposed value for {CONNECTED} is too large for an INT."),
    (WORKED, math.nan, {"user": "a"}, f"Quota {WORKED} must be greater than 0"),
    (MUTATED, math.inf, {"user": "a"}, f"Quota {MUTATED} must be greater than 0"),
    (PRODUCED, 1.0, {"user": ""}, "Empty user not supported"),
    (PRODUCED, 1.0, {"planet": "x"}, "Unhandled client quota entity type: planet"),
    (PRODUCED, 1.0, {}, "Invalid empty client quota entity"),
    (CONNECTED, 1.0, {"ip": "not an address"},
     "not an address is not a valid IP or resolvable host."),
    (PRODUCED, 1.0, {"client": "x" * 257}, "client-id has 256 characters at most"),
    (PRODUCED, 1.0, {"ip": "10.0.0.1", "user": "a"},
     "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
])  # fmt: skip
async def test_malformed_quotas_are_refused(
    key: str, value: float, entity: dict[str, str | None], message: str
) -> None:
    here = Metered()
    assert await here.set(key, value, **entity) == (INVALID, message)
    assert not here.worker.security.quotas


async def test_one_bad_change_of_an_entity_voids_the_others_of_it_alone() -> None:
    here = Metered()
    entries = [
        change({"user": "a"}, {PRODUCED: 5.0, CONSUMED: -1.0}),
        change({"user": "b"}, {PRODUCED: 5.0}),
    ]
    values = {"entries": entries, "validate_only": True}
    told = await here.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, values)
    assert [int(one.error_code) for one in told.entries] == [INVALID, 0]
    assert not here.worker.security.quotas
    values["validate_only"] = False
    await here.call(ApiKey.ALTER_CLIENT_QUOTAS, 0, values)
    assert here.worker.security.quotas == {(("user", "b"),): {PRODUCED: 5.0}}


async def test_very_many_entities_that_are_named_twice() -> None:
    """FAULT: each second one was looked for among all others."""
    here, count = Metered(), 8000
    entries = [change({"client": f"c{number}"}, {PRODUCED: 5.0}) for number in range(count)]
    values = {"entries": [*entries, *entries], "validate_only": True}
    began = time.thread_time()
    told = await here.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, values)
    assert time.thread_time() - began < 2 * slowness()
    assert [int(one.error_code) for one in told.entries] == [INVALID] * count


@pytest.mark.parametrize(("components", "code", "message"), [
    ([("", 0, "x")], INVALID, "Invalid empty entity type."),
    ([("user", 0, "x"), ("user", 2, None)], INVALID,
     "Entity type user cannot appear more than once in the filter."),
    ([("planet", 0, "x")], 35, "Unsupported entity type planet"),
    ([("user", 0, None)], INVALID,
     "Request specified MATCH_TYPE_EXACT, but set match string to null."),
    ([("user", 1, "x")], INVALID,
     "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
    ([("user", 2, "x")], INVALID,
     "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
    ([("user", 9, "x")], INVALID, "Unknown match type 9"),
    ([("user", 0, "x"), ("ip", 2, None)], INVALID,
     "Invalid entity filter component combination. IP filter component should not be used with user"
     " or clientId filter component."),
])  # fmt: skip
async def test_filters_that_are_not_sound(components: Any, code: int, message: str) -> None:
    told = await Metered().told(*components)
    assert (told.error_code, told.error_message, told.entries) == (code, message, None)


# -- produce


async def test_a_produce_is_told_to_wait_and_appended() -> None:
    here = Metered()
    await here.set(PRODUCED, 1000, user="alice")
    values = produce_values("q", batch(bytes(20_000)))
    told = await here.call(ApiKey.PRODUCE, 9, values)
    assert told.responses[0].partition_responses[0].error_code == 0
    size = len(encode_request(ApiKey.PRODUCE, 9, 1, values)) - 4
    assert throttle_ms(told) == size - 10_000
    assert here.wait_s == pytest.approx(size / 1000 - 10)
    assert await here.call(ApiKey.PRODUCE, 9, produce_values("q", batch(b"v"), acks=0)) is None
    assert here.wait_s > 10  # it is muted all the same
    bob = Peer("User:bob", "10.0.0.1")
    assert throttle_ms(await here.call(ApiKey.PRODUCE, 9, values, bob)) == 0


@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_a_long_produce_is_told_to_wait(version: int) -> None:
    here = Metered()
    await here.set(PRODUCED, 100, client=None)
    parts = [{"index": index, "records": batch(bytes(100))} for index in range(600)]
    values = produce_values("q", None) | {"topic_data": [{"name": "q", "partition_data": parts}]}
    told = await here.call(ApiKey.PRODUCE, version, values)
    codes = [part.error_code for part in told.responses[0].partition_responses]
    assert (len(codes), codes[0]) == (600, 0)
    assert throttle_ms(told) > 100_000
    assert here.wait_s > 100


async def test_client_that_makes_too_many_queues_by_writing_to_them() -> None:
    """FAULT: a Produce or Metadata that named a missing queue muted its connection for minutes."""
    here = Metered(partitions_default=4)
    await here.set(MUTATED, 1, user="alice")
    codes = []
    for number in range(6):
        told = await here.call(ApiKey.PRODUCE, 9, produce_values(f"q{number}", batch(b"v")))
        codes.append(told.responses[0].partition_responses[0].error_code)
        assert (throttle_ms(told), here.wait_s) == (0, 0)  # as of Kafka: it goes on with others
    assert codes == [0, 0, 0, 3, 3, 3]  # the third went too far
    parts = [{"index": index, "records": batch(b"v")} for index in range(600)]
    many = produce_values("q", None) | {"topic_data": [{"name": "m", "partition_data": parts}]}
    told = await here.call(ApiKey.PRODUCE, 9, many)
    assert {part.error_code for part in told.responses[0].partition_responses} == {3}
    assert (throttle_ms(told), here.wait_s) == (0, 0)
    values = metadata(["new"])
    told = await here.call(ApiKey.METADATA, 12, values)
    assert told.topics[0].error_code == 3
    assert (throttle_ms(told), here.wait_s) == (0, 0)
    here.now += 2
    told = await here.call(ApiKey.METADATA, 12, values)
    assert (told.topics[0].error_code, throttle_ms(told)) == (0, 0)


# -- fetch


async def filled(here: Metered, count: int = 10) -> None:
    for _ in range(count):
        await here.call(ApiKey.PRODUCE, 9, produce_values("q", batch(bytes(1000))))


def records(told: Any) -> int:
    return sum(len(part.records or b"") for topic in told.responses for part in topic.partitions)


async def test_a_fetch_over_the_rate_is_empty_and_its_session_goes_on() -> None:
    here = Metered()
    await filled(here)
    await here.set(CONSUMED, 500, user="alice")
    first = await here.call(ApiKey.FETCH, 12, fetch_values({("q", 0): 0}, epoch=0))
    assert 3000 < records(first) <= 5000
    assert throttle_ms(first) == 0
    sent = len(first.responses[0].partitions)
    assert sent == 1
    moved = {("q", 0): 4}
    again = fetch_values(moved, session_id=first.session_id, epoch=1)
    empty = await here.call(ApiKey.FETCH, 12, again)
    assert (int(empty.error_code), empty.session_id) == (0, first.session_id)
    assert not empty.responses
    assert 5000 < throttle_ms(empty) < 10_000
    assert here.wait_s == pytest.approx(throttle_ms(empty) / 1000, abs=0.001)
    stale = fetch_values({}, session_id=first.session_id, epoch=1)
    assert (await here.call(ApiKey.FETCH, 12, stale)).error_code == 71  # it has gone on
    here.now += 12
    goes_on = fetch_values({}, session_id=first.session_id, epoch=2)
    told = await here.call(ApiKey.FETCH, 12, goes_on)
    assert 3000 < records(told) <= 5000  # found batches are found again


async def test_a_session_is_not_begun_by_an_empty_answer() -> None:
    here = Metered()
    await filled(here)
    await here.set(CONSUMED, 500, client="kproxy")
    await here.call(ApiKey.FETCH, 12, fetch_values({("q", 0): 0}))
    for epoch in (0, -1):
        told = await here.call(ApiKey.FETCH, 12, fetch_values({("q", 0): 0}, epoch=epoch))
        assert (told.session_id, int(told.error_code), len(told.responses)) == (0, 0, 0)
        assert throttle_ms(told) > 0
    assert here.worker.sessions.count == 0


async def test_a_batch_larger_than_the_window_arrives() -> None:
    here = Metered()
    await filled(here, 2)
    await here.set(CONSUMED, 5, user=None)
    told = await here.call(ApiKey.FETCH, 4, fetch_values({("q", 0): 0}))
    assert records(told) > 1000
    assert throttle_ms(told) > 100_000
    here.now += 20
    assert records(await here.call(ApiKey.FETCH, 4, fetch_values({("q", 0): 1}))) > 1000


async def test_a_min_bytes_that_cannot_be_reached_keeps_nobody_waiting() -> None:
    here = Metered()
    await filled(here)
    await here.set(CONSUMED, 300, user="alice")
    values = fetch_values({("q", 0): 0}, min_bytes=9000, wait_ms=60_000)
    assert records(await here.call(ApiKey.FETCH, 12, values)) <= 3000


# -- changes of queues


async def test_too_many_changes_of_queues() -> None:
    here = Metered()
    await here.set(MUTATED, 1, user="alice")

    told = await here.call(ApiKey.CREATE_TOPICS, 7, creation("a", "b", "c", partitions=6))
    assert [int(one.error_code) for one in told.topics] == [0, 0, EXCEEDED]
    assert told.topics[2].error_message is None  # as Kafka's
    assert throttle_ms(told) == 1000
    assert here.wait_s == 1
    told = await here.call(ApiKey.CREATE_TOPICS, 5, creation("d", partitions=6))
    assert [int(one.error_code) for one in told.topics] == [0]  # older ones are only slowed down
    assert throttle_ms(told) == 7000
    grown = growth("a", count=8)
    assert (await here.call(ApiKey.CREATE_PARTITIONS, 3, grown)).results[0].error_code == EXCEEDED
    assert (await here.call(ApiKey.CREATE_PARTITIONS, 2, grown)).results[0].error_code == 0
    names = {"topics": [{"name": "b", "topic_id": UUID(int=0)}], "timeout": 5000}
    gone = await here.call(ApiKey.DELETE_TOPICS, 6, names)
    assert gone.responses[0].error_code == EXCEEDED
    assert gone.responses[0].name == "b"
    here.now += 30
    assert (await here.call(ApiKey.DELETE_TOPICS, 6, names)).responses[0].error_code == 0


# -- time


async def test_client_that_keeps_the_worker_busy_is_told_to_wait() -> None:
    here = Metered()
    await here.set(WORKED, 1e-9, client="kproxy")
    answers = {
        (ApiKey.METADATA, 12): metadata(None, create=False),
        (ApiKey.LIST_GROUPS, 5): {"states_filter": [], "types_filter": []},
        (ApiKey.FETCH, 12): fetch_values({("q", 0): 0}),
        (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1): {"components": (), "strict": False},
    }  # fmt: skip
    for (key, version), values in answers.items():
        told = await here.call(key, version, values)
        assert throttle_ms(told) == 1000, key
        assert here.wait_s == 1
    told = await here.call(ApiKey.LIST_GROUPS, 0, {})
    assert here.wait_s == 1  # older ones cannot tell, and wait as well
    assert here.worker.counters.throttled == {WORKED: 5}


def test_answers_have_a_throttle_time() -> None:
    """Each version of each API has it first of all, or Produce's last, or nowhere."""
    without = {
        ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.API_VERSIONS: (0, 5), ApiKey.LIST_OFFSETS: (1, 1), ApiKey.METADATA: (0, 2),
        ApiKey.OFFSET_COMMIT: (2, 2), ApiKey.OFFSET_FETCH: (1, 2), ApiKey.FIND_COORDINATOR: (0, 0),
        ApiKey.JOIN_GROUP: (0, 1), ApiKey.HEARTBEAT: (0, 0), ApiKey.LEAVE_GROUP: (0, 0),
        ApiKey.SYNC_GROUP: (0, 0), ApiKey.DESCRIBE_GROUPS: (0, 0), ApiKey.LIST_GROUPS: (0, 0),
        ApiKey.WRITE_TXN_MARKERS: (1, 2), ApiKey.DESCRIBE_QUORUM: (0, 2),
        ApiKey.CREATE_DELEGATION_TOKEN: (1, 3), ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
        ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2), ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    }  # fmt: skip
    found: dict[ApiKey, list[int]] = {}
    for api in APIS:
        low = 3 if api.key == ApiKey.PRODUCE else api.low
        for version in range(low, api.high + 1):
            if throttle_at(api.key, version) is None:
                found.setdefault(api.key, []).append(version)
    assert {key: (some[0], some[-1]) for key, some in found.items()} == without
