"""A look that one request asks for very often, or into what a client made up, holds no loop."""

import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codecs import UNPACKED_BYTES_MAX, unpacked_most
from kproxy.protocol.name_search import NameSearch
from tests.fakes import memory_worker
from tests.handlers.long.test_requests import call, make
from tests.wire import batch, produce_values

ROUTED = {"kproxy.route.to": "out-{key}", "kproxy.route.unroutable": "bad"}
BLOCKS = {
    2: (b"\x82SNAPPY\0" + (1).to_bytes(4, "big") * 2, (2).to_bytes(4, "big") + b"\0\0"),
    3: (b"\x04\x22\x4d\x18\x40\x40\xc0", b"\1\0\0\x80a"),
    4: (b"\x28\xb5\x2f\xfd\0\x58", bytes(3)),
}
"""The head of a frame and the smallest block, by codec."""


async def test_how_very_many_queues_stand_in_a_group_is_told_in_slices() -> None:
    """FAULT: all that were named were looked up and told of in one turn, for a second or more."""
    worker, count = memory_worker(), 20_000
    make(worker, "q", 1000)
    names = [f"kproxy.state.{name}" for name in ("q", *range(count))]
    resource = {"resource_type": 32, "resource_name": "g", "configuration_keys": names}
    answer = await call(worker, ApiKey.DESCRIBE_CONFIGS, 4, {
        "resources": [resource], "include_synonyms": False, "include_documentation": False,
    })  # fmt: skip
    (result,) = answer.results
    assert {entry.name for entry in result.configs} == set(names)


async def test_offsets_of_many_share_groups_are_looked_at_in_slices() -> None:
    """FAULT: all partitions of 200 groups were asked for in one turn, for half a second."""
    worker, partitions = memory_worker(), tuple(range(1000))
    make(worker, "q", len(partitions))
    topics = [{"topic_name": "q", "partitions": partitions}]
    groups = [{"group_id": f"g{number}", "topics": topics} for number in range(100)]
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    answer = await call(worker, key, 1, {"groups": groups})
    assert len(answer.groups) == len(groups)
    for group in answer.groups:
        (topic,) = group.topics
        assert [part.start_offset for part in topic.partitions] == [-1] * len(partitions)


@pytest.mark.parametrize("codec", BLOCKS)
async def test_very_many_small_blocks_for_an_entrance_are_looked_at_on_a_thread(codec: int) -> None:
    """FAULT: each was looked at in the turn that took the batch, for a third of a second."""
    worker = memory_worker()
    worker.catalogue.create("entry", 1, ROUTED)
    head, block = BLOCKS[codec]
    packed = head + block * ((900 << 10) // len(block))
    assert unpacked_most(packed, codec) == UNPACKED_BYTES_MAX
    data = batch(b"", attributes=codec, packed=packed)
    answer = await call(worker, ApiKey.PRODUCE, 9, produce_values("entry", data))
    (part,) = answer.responses[0].partition_responses
    assert part.error_code == 0, "what is unsound goes to the unroutable ones"


async def test_an_expression_that_is_slow_for_each_name_holds_no_loop() -> None:
    """Each name takes it some hundred microseconds, and no name is one that it means."""
    worker = memory_worker()
    for number in range(400):
        make(worker, f"{'ab' * 100}{number:04}")
    search = NameSearch(matching="(?:.?){400}a{800}")
    values = {"topics": (), "response_partition_limit": 10, "cursor": None}
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    answer = await call(worker, key, 0, values, search.encode())
    assert (answer.topics, answer.next_cursor) == ((), None)
