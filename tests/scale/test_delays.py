"""Records that wait for a year: they cost disk and no memory, and nothing while they wait."""

import random
import time
from pathlib import Path

import psutil
import pytest

from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.codec import encode_request
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, header
from tests.harness import served
from tests.wire import Wire, produce_values

MIB = 1 << 20
YEAR_MS = 365 * 24 * 3600 * 1000
RECORDS, IN_FLIGHT = 64, 4
"""The records of a batch: each is due at another time, and so is a batch of its own until then."""


def wait_for_a_year(wire: Wire, queue: str, count: int) -> None:
    rng = random.Random(1)
    requests = 0
    for start in range(0, count, RECORDS):
        now_ms = int(time.time() * 1000)
        pieces = [
            (body_of(Content(b"%d" % number, b"x" * 60), [
                header("kproxy.deliver-at", str(now_ms + rng.randrange(YEAR_MS // 2, YEAR_MS)))
            ]), now_ms)
            for number in range(start, start + RECORDS)
        ]  # fmt: skip
        body = produce_values(queue, batch_of_bodies(pieces))
        wire.socket.sendall(encode_request(ApiKey.PRODUCE, 9, 1, body))
        requests += 1
        if requests > IN_FLIGHT:
            answered(wire)
            requests -= 1
    for _ in range(requests):
        answered(wire)


def answered(wire: Wire) -> None:
    part = wire.receive(0, 9)[1].responses[0].partition_responses[0]
    assert part.error_code == 0, part


@pytest.mark.parametrize("count", [40_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_memory_does_not_grow_with_what_waits(data_dir: Path, count: int) -> None:
    with served(data_dir) as server:
        with Wire(server.host, server.port, seconds=60) as wire:
            wire.create("year", kproxy_delay="header", kproxy_delay_ms_max=str(YEAR_MS))
            began = time.monotonic()
            wait_for_a_year(wire, "year", count)
            took = time.monotonic() - began
            print(f"{count} wait after {took:.0f} s: {server.rss() / MIB:.0f} MB")  # noqa: T201
            assert server.rss() < 280 * MIB
            process = psutil.Process(server.process.pid)
            before, began = process.cpu_times().user, time.monotonic()
            time.sleep(2)
            busy = (process.cpu_times().user - before) / (time.monotonic() - began)
            assert wire.list_offset("year", -1).offset == 0
        server.kill()
    with served(data_dir) as again:
        print(f"after a kill: {again.rss() / MIB:.0f} MB, {busy:.1%} busy")  # noqa: T201
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        print(f"after a stop: {again.rss() / MIB:.0f} MB")  # noqa: T201
        assert again.rss() < 120 * MIB
        assert wire.list_offset("year", -1).offset == 0
        assert wire.delete("year").error_code == 0
    assert busy < 0.2 + (count > 100_000)  # a million are flushed, and swept into levels, still
