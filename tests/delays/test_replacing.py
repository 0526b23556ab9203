"""Waiting records that are replaced and cancelled by their keys, over a served kproxy."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kproxy.common.errors import CannotStart
from kproxy.delays import listing
from kproxy.handlers.produce.produce import append
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.produce_request import ProduceRequest, Topic
from kproxy.tools.records import waiting as waiting_tool
from kproxy.virtual.commands.queues import ConfigureQueue, CreateQueue
from kproxy.virtual.rows.delays import waiting_in
from kproxy.virtual.types import QueueId
from kproxy.worker.worker import Worker
from tests.delays.test_delays import INVALID_CONFIG, INVALID_RECORD, put, saying, seen
from tests.fakes import memory_worker
from tests.forked import run_kproxy
from tests.harness import Served, eventually
from tests.virtual.commands.delay_cases import later, mixed, waiting
from tests.wire import Wire, keyed

POLICY_VIOLATION = 44


def test_a_reminder_is_replaced_cancelled_and_delivered_once(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_delay="header", kproxy_delay_replace="key")
    assert made.error_code == 0
    assert put(wire, queue, saying(600_000, 600_000)).base_offset == -1  # k0 and k1
    assert put(wire, queue, saying(100)).base_offset == -1  # k0 comes soon instead
    assert put(wire, queue, keyed((b"k1", None))).error_code == 0
    eventually(lambda: seen(wire, queue, b"0"))
    late = put(wire, queue, keyed((b"k0", None)))
    assert late.error_code == INVALID_RECORD
    assert "it was delivered, or cancelled" in late.error_message
    assert put(wire, queue, keyed((b"k1", None), codec=4)).error_code == INVALID_RECORD
    assert put(wire, queue, keyed((None, b"v"))).error_code == INVALID_RECORD
    assert wire.fetch(queue, 0).high_watermark == 1


def test_a_fixed_delay_debounces(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_delay_ms="700", kproxy_delay_replace="key")
    assert made.error_code == 0
    for value in (b"1", b"2", b"3"):
        assert put(wire, queue, keyed((b"k", value))).error_code == 0
    eventually(lambda: seen(wire, queue, b"3"))


def test_replacing_without_a_delay_is_refused(wire: Wire, queue: str) -> None:
    made = wire.create(queue, kproxy_delay_replace="key")
    assert made.error_code == INVALID_CONFIG
    assert "has no effect without" in made.error_message


def test_waiting_records_are_listed_by_time_and_cancelled_by_key(
    server: Served, wire: Wire, queue: str
) -> None:
    wire.create(queue, kproxy_delay="header", kproxy_delay_replace="key")
    put(wire, queue, saying(900_000, 600_000, 700_000))
    at = ("--bootstrap-server", server.address)
    done = run_kproxy("waiting", queue, "--json", *at)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [bytes.fromhex(one["key"]) for one in found] == [b"k1", b"k2", b"k0"]
    cut = run_kproxy("waiting", queue, "--limit", "2", *at)
    assert [line.split()[2] for line in cut.stdout.splitlines()] == ["KEY", "k1", "k2"]
    assert f"--from {found[2]['due_ms']} goes on" in cut.stderr
    assert run_kproxy("waiting", queue, "--cancel", "k2", *at).stdout == "cancelled 1\n"
    again = run_kproxy("waiting", queue, "--cancel", "k2", *at)
    assert "nothing waits under k2" in again.stderr
    rest = run_kproxy("waiting", queue, "--from", str(found[2]["due_ms"]), *at)
    assert len(rest.stdout.splitlines()) == 2


async def test_a_list_goes_on_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = memory_worker()
    shard: Any = worker.any_shard()
    queue_id = QueueId(bytes(16))
    shard.apply(CreateQueue(queue_id, "q", 1, {}).envelope())
    key = (queue_id, 0)
    shard.apply(later(key, mixed(50, 51, 52), waiting(60, b"a", b"b"), waiting(60, b"c")))
    monkeypatch.setattr(listing, "_RECORDS_MAX", 2)
    monkeypatch.setattr(listing, "_BATCHES_MAX", 2)
    place, due = listing.Place(0, 0, 0), []
    while place is not None:
        told, place = await listing.page_of(shard, key, place, worker.delays.readers)
        due += [one["due_ms"] for one in told]
    assert due == [50, 51, 52, 60, 60, 60]
    for wrong in ("", "1:2", "a:b:c", "-1:0:0", f"{1 << 63}:0:0"):
        with pytest.raises(ValueError, match=r".*"):
            listing.read_place(wrong)


class Losing:
    """A client of a worker; the answer to its first Produce is lost."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.answers = worker, 0

    def settings(self, name: str, keys: tuple[str, ...]) -> dict[str, str]:
        return dict.fromkeys(keys, "key")

    def queue(self, name: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition_index=0, leader_id=1)])

    def call(self, key: int, version: int, values: dict[str, Any], node: int = -1) -> Any:
        if key == ApiKey.INIT_PRODUCER_ID:
            return SimpleNamespace(error_code=0, producer_id=7 + self.answers, producer_epoch=0)
        (topic,) = values["topic_data"]
        parts = [(part["index"], part["records"]) for part in topic["partition_data"]]
        taken = append(
            self.worker, version, ProduceRequest(None, -1, [Topic(topic["name"], parts)])
        )
        assert taken is not None
        taken.body()
        self.answers += 1
        if self.answers == 1:
            raise CannotStart("the connection ended")
        told = SimpleNamespace(error_code=taken.code, error_message=None)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[told])])


async def test_a_cancellation_whose_answer_is_lost_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULT: it was sent again without a sequence, and its sender heard that nothing waits."""
    monkeypatch.setattr(waiting_tool, "_AGAIN_S", 0.0)
    worker = memory_worker()
    shard: Any = worker.any_shard()
    configs = {"kproxy.delay.ms": "60000", "kproxy.delay.replace": "key"}
    shard.apply(CreateQueue(QueueId(bytes(16)), "q", 1, configs).envelope())
    put = append(worker, 9, ProduceRequest(None, -1, [Topic("q", [(0, keyed((b"k", b"v")))])]))
    assert put is not None
    client: Any = Losing(worker)
    assert waiting_tool.cancel_waiting(client, "q", b"k")
    assert client.answers == 2
    assert not waiting_tool.cancel_waiting(client, "q", b"never")


async def test_a_record_is_cancelled_where_too_many_wait() -> None:
    """FAULT: once a queue's kproxy.delay.records.max was lowered nothing could be cancelled."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    queue_id = QueueId(bytes(16))
    configs = {"kproxy.delay.ms": "60000", "kproxy.delay.replace": "key"}
    shard.apply(CreateQueue(queue_id, "q", 1, configs).envelope())

    def code(*records: tuple[bytes, bytes | None]) -> int:
        call = append(worker, 9, ProduceRequest(None, -1, [Topic("q", [(0, keyed(*records))])]))
        assert call is not None
        call.body()
        return call.code

    assert code((b"a", b"v"), (b"b", b"v")) == 0
    lowered = {"kproxy.delay.records.max": "1"}
    shard.apply(ConfigureQueue(queue_id, lowered, [], False).envelope())
    assert code((b"c", b"v")) == POLICY_VIOLATION
    assert code((b"a", None)) == 0
    assert code((b"a", None)) == INVALID_RECORD


async def test_a_full_queue_takes_what_replaces_a_waiting_record() -> None:
    """FAULT: it was refused, though as many wait afterwards as before."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    queue_id = QueueId(bytes(16))
    configs = {"kproxy.delay.ms": "60000", "kproxy.delay.replace": "key"}
    full = {"kproxy.delay.records.max": "2"}
    shard.apply(CreateQueue(queue_id, "q", 1, configs | full).envelope())

    def code(*records: tuple[bytes, bytes | None]) -> int:
        call = append(worker, 9, ProduceRequest(None, -1, [Topic("q", [(0, keyed(*records))])]))
        assert call is not None
        call.body()
        return call.code

    assert code((b"a", b"1"), (b"b", b"1")) == 0
    assert code((b"a", b"2")) == 0
    assert code((b"a", b"3"), (b"b", b"3")) == 0
    assert code((b"c", b"1")) == POLICY_VIOLATION
    assert code((b"a", b"4"), (b"c", b"1")) == POLICY_VIOLATION
    assert code((b"a", None), (b"c", b"1")) == 0, "it takes the place of the one that is cancelled"
    assert waiting_in(shard.state.get, (queue_id, 0)).records == 2
    shard.apply(ConfigureQueue(queue_id, {"kproxy.delay.records.max": "1"}, [], False).envelope())
    assert code((b"b", b"5")) == 0
    assert code((b"b", b"6"), (b"d", b"1")) == POLICY_VIOLATION
