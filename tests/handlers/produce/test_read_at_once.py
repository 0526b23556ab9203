"""Batches of which only headers are looked for: what is read in the turn in which they come."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.delays.splitting import split
from kproxy.handlers.produce.produce import append
from kproxy.metadata.delay_settings import DelaySettings
from kproxy.protocol.batch import BadBatch, read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from kproxy.protocol.produce_request import ProduceRequest
from kproxy.protocol.records import unpacked
from kproxy.virtual.commands.queues import CreateQueue
from kproxy.virtual.types import QueueId
from tests.fakes import memory_worker

PARTITIONS = 40


def batch_of(count: int, name: str = "kproxy.delay-ms", text: str = "60000") -> bytes:
    headers = [header(name, text)]
    return batch_of_bodies([(body_of(Content(b"%d" % n, b"v"), headers), 1) for n in range(count)])


def is_taken_at_once(*batches: bytes) -> bool:
    """Whether a Produce is appended in the turn in which it comes."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    configs = {"kproxy.delay": "header", "kproxy.delay.replace": "key"}
    shard.apply(CreateQueue(QueueId(b"q" * 16), "q", PARTITIONS, configs).envelope())
    request = ProduceRequest(None, -1, [("q", list(enumerate(batches)))])
    return append(worker, 9, request) is not None


async def test_many_batches_are_not_read_in_one_turn() -> None:
    """FAULT: each of 500 was small, and all of them together held the loop for seconds."""
    assert is_taken_at_once(batch_of(500))
    assert is_taken_at_once(*[batch_of(5)] * PARTITIONS)
    assert not is_taken_at_once(*[batch_of(500)] * PARTITIONS)


async def test_many_schedules_are_not_read_in_one_turn() -> None:
    assert is_taken_at_once(batch_of(20, "kproxy.cron", "0 0 29 2 1#5"))
    assert not is_taken_at_once(batch_of(500, "kproxy.cron", "0 0 29 2 1#5"))


def test_a_batch_with_too_many_schedules_is_refused_early() -> None:
    """FAULT: a third of a millisecond for each of a million lines, before its keys were counted."""
    several = [
        body_of(Content(b"k", b"v"), [header("kproxy.every", str(1000 + n))]) for n in range(1001)
    ]
    by_key = DelaySettings(0, True, 1 << 40, 1 << 40, True)
    few, many = (batch_of_bodies([(one, 1) for one in several[:n]]) for n in (1000, 1001))
    assert split(read_header(few), few, unpacked(few), by_key, 1, 1 << 20)
    with pytest.raises(BadBatch) as refused:
        split(read_header(many), many, unpacked(many), by_key, 1, 1 << 20)
    assert refused.value.code == Code.MESSAGE_TOO_LARGE
