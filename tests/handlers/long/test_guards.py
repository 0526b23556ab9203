"""Very much asked for by who may do some of it: looked at in slices, and once."""

from typing import Any

import pytest

from kproxy.handlers.produce import guard as produce_guard
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.batch import TRANSACTIONAL
from kproxy.protocol.codec import decode_response, encode_request
from kproxy.security.acls import Op, Resource
from kproxy.server.dispatch import accept
from kproxy.server.dispatch import answer as respond
from kproxy.worker.request import NextRequestSignal
from tests.bodies import metadata
from tests.handlers.secured import ALICE, Secured, rule
from tests.held import HELD_S, held_by, slowness
from tests.wire import batch


async def held_long(here: Secured, key: int, version: int, values: Any) -> Any:
    """Return Alice's answer, for which the loop was never held long."""
    frame = encode_request(key, version, 1, values)[4:]
    accepted = accept(here.worker, frame, ALICE, NextRequestSignal())
    answer, held = await held_by(respond(here.worker, accepted))
    assert held < HELD_S * slowness()
    return decode_response(key, version, bytes(answer[4:]))[1]


async def test_very_many_names_of_queues_that_the_client_may_not_make() -> None:
    """FAULT: three loops without a rest went over the names, for 0.7 s of one turn."""
    here, count = Secured(), 200_000
    await here.add(rule(Op.DESCRIBE, "*"))
    here.worker.catalogue.create("there")
    names = ["there", *(f"n{number}" for number in range(count))]
    told = await held_long(here, ApiKey.METADATA, 9, metadata(names))
    codes = [int(topic.error_code) for topic in told.topics]
    assert (codes[0], set(codes[1:]), len(codes)) == (0, {29}, count + 1)


@pytest.mark.parametrize("permitted", [False, True])
async def test_very_many_batches_are_asked_once_whether_any_is_transactional(
    monkeypatch: pytest.MonkeyPatch, permitted: bool
) -> None:
    """FAULT: all batches were walked twice, each time in one turn."""
    looks, real = 0, produce_guard._is_transactional

    def slow(records: Any) -> bool:
        nonlocal looks
        looks += 1
        for _ in range(60):
            real(records)
        return real(records)

    monkeypatch.setattr(produce_guard, "_is_transactional", slow)
    here, count, data = Secured(partitions_default=1), 50_000, batch(b"")
    if permitted:
        await here.add(rule(Op.WRITE, "tx", resource_type=Resource.TRANSACTIONAL_ID))
    parts = [{"index": index, "records": data} for index in range(count)]
    told = await held_long(here, ApiKey.PRODUCE, 9, {
        "transactional_id": "tx", "acks": -1, "timeout": 1000,
        "topic_data": [{"name": "q", "partition_data": parts}],
    })  # fmt: skip
    answers = told.responses[0].partition_responses
    assert ({int(one.error_code) for one in answers}, len(answers)) == ({29}, count)
    assert looks == count


@pytest.mark.parametrize("permitted", [False, True])
async def test_a_long_produce_in_a_transaction_asks_for_its_id(permitted: bool) -> None:
    here = Secured(partitions_default=1)
    await here.add(rule(Op.WRITE), rule(Op.CREATE))
    if permitted:
        await here.add(rule(Op.WRITE, "tx", resource_type=Resource.TRANSACTIONAL_ID))
    plain = batch(b"")
    last = batch(b"v", producer_id=7, epoch=0, sequence=0, attributes=TRANSACTIONAL)
    parts = [{"index": index, "records": plain} for index in range(1000)]
    told = await held_long(here, ApiKey.PRODUCE, 9, {
        "transactional_id": "tx", "acks": -1, "timeout": 1000,
        "topic_data": [{"name": "q", "partition_data": [*parts, {"index": 1000, "records": last}]}],
    })  # fmt: skip
    codes = {int(one.error_code) for one in told.responses[0].partition_responses}
    assert codes == ({0, 3} if permitted else {53})


async def test_a_transaction_over_very_many_queues_that_are_forbidden() -> None:
    """FAULT: those that the client may not write to were passed over without a rest, for 0.3 s."""
    here, count = Secured(), 120_000
    await here.add(rule(Op.WRITE, "tx", resource_type=Resource.TRANSACTIONAL_ID))
    data = batch(b"v", producer_id=7, epoch=0, sequence=0, attributes=TRANSACTIONAL)
    told = await held_long(here, ApiKey.PRODUCE, 9, {
        "transactional_id": "tx", "acks": -1, "timeout": 1000, "topic_data": [
            {"name": f"q{number}", "partition_data": [{"index": 0, "records": data}]}
            for number in range(count)
        ],
    })  # fmt: skip
    assert {int(one.partition_responses[0].error_code) for one in told.responses} == {29}
