"""Records that wait, over a served kproxy: what producers, readers and administrators see."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kproxy.common.errors import Code
from kproxy.config.server import Config
from kproxy.delays import looker as looking
from kproxy.delays.delivery import make
from kproxy.delays.looker import Looker, Means
from kproxy.log.base import Ticket
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.batch import HEADER_BYTES, read_header
from kproxy.protocol.made_batches import Content, batch_of_bodies, body_of, content_of_body, header
from kproxy.protocol.records import bodies, unpacked
from kproxy.virtual.commands.envelope import Envelope
from kproxy.virtual.commands.queues import CreateQueue, DeleteQueue
from kproxy.virtual.outcome import Outcome
from kproxy.virtual.rows.delays import hidden
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId
from kproxy.worker.embedded import embedded
from tests.clients.transactions.calls import transactional
from tests.fakes import memory_worker
from tests.harness import Served, eventually, served, until
from tests.virtual.commands.delay_cases import later, mixed, waiting
from tests.wire import Wire, batch, batches, keyed, produce_values

INVALID_RECORD, INVALID_CONFIG, POLICY_VIOLATION, OUT_OF_ORDER = 87, 40, 44, 45
SOON_MS, NEVER_MS = 300, 600_000


def put(wire: Wire, queue: str, body: bytes, partition: int = 0) -> Any:
    answer = wire.call(ApiKey.PRODUCE, 9, produce_values(queue, body, partition))
    return answer.responses[0].partition_responses[0]


def saying(*delays_ms: int | str | None, name: str = "kproxy.delay-ms") -> bytes:
    """Return a batch of numbered records, with a header or without."""
    now_ms = int(time.time() * 1000)
    return batch_of_bodies(
        [
            (body_of(Content(b"k%d" % n, b"%d" % n), [header(name, str(ms))] if ms is not None
                     else []), now_ms)
            for n, ms in enumerate(delays_ms)
        ]
    )  # fmt: skip


def values(wire: Wire, queue: str, partition: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _, data in batches(wire.fetch(queue, 0, partition).records):
        if read_header(data).is_control:
            continue
        for record in bodies(read_header(data), unpacked(data), headers=False):
            found.append(content_of_body(record[3]).value)
    return found


def seen(wire: Wire, queue: str, *wanted: bytes) -> bool:
    return values(wire, queue) == list(wanted)


def test_a_fixed_delay(wire: Wire, queue: str) -> None:
    assert wire.create(queue, kproxy_delay_ms=str(SOON_MS)).error_code == 0
    began_ms = int(time.time() * 1000)
    said = put(wire, queue, batch(b"a", b"b"))
    assert (said.error_code, said.base_offset) == (0, -1)
    said = wire.fetch(queue, 0, wait_ms=15_000)  # a waiting reader is told
    ((_, found),) = batches(said.records)
    assert read_header(found).is_log_append_time
    assert read_header(found).max_timestamp >= began_ms + SOON_MS
    assert values(wire, queue) == [b"a", b"b"]
    assert said.high_watermark == 2


def test_delayed_record_is_not_seen(wire: Wire, queue: str) -> None:
    assert wire.create(queue, kproxy_delay_ms=str(NEVER_MS)).error_code == 0
    assert put(wire, queue, batch(b"a")).error_code == 0
    assert wire.list_offset(queue, -1).offset == 0
    assert wire.list_offset(queue, -3).offset == -1
    assert values(wire, queue) == []
    assert wire.fetch(queue, 0, 1 << 30).error_code == 3


def test_order_of_arrival(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay_ms=str(SOON_MS))
    for number in range(50):
        assert put(wire, queue, batch(b"%d" % number)).error_code == 0
    eventually(lambda: seen(wire, queue, *[b"%d" % number for number in range(50)]), 10)


def test_headers(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay="header")
    said = put(wire, queue, saying(900, None, 300, 0, -5, NEVER_MS))
    assert (said.error_code, said.base_offset) == (0, -1)
    assert values(wire, queue)[:3] == [b"1", b"3", b"4"]
    eventually(lambda: seen(wire, queue, b"1", b"3", b"4", b"2", b"0"), 20)
    said = put(wire, queue, saying(None, 0, "-1"))
    assert (said.error_code, said.base_offset) == (0, 5)
    said = put(wire, queue, saying("1000", name="kproxy.deliver-at"))  # long ago
    assert (said.error_code, said.base_offset) == (0, 8)


def test_a_wrong_header_is_told_by_its_record(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay="header", kproxy_delay_ms_max="1000")
    said = put(wire, queue, saying(None, "soon", 5, 1001))
    assert said.error_code == INVALID_RECORD
    assert [error.batch_index for error in said.record_errors] == [1, 3]
    assert "kproxy.delay-ms=soon" in said.record_errors[0].batch_index_error_message
    assert "kproxy.delay.ms.max" in said.record_errors[1].batch_index_error_message
    assert values(wire, queue) == []


def test_without_the_setting_a_header_says_nothing(wire: Wire, queue: str) -> None:
    wire.create(queue)
    assert put(wire, queue, saying(NEVER_MS, "x")).base_offset == 0


def test_sequences_are_judged_once_for_a_batch(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay="header")
    producer = wire.producer_id()

    def sent(sequence: int, *delays_ms: int | None) -> bytes:
        made = saying(*delays_ms)
        times = (read_header(made).base_timestamp,) * len(delays_ms)
        return batch(
            *[b""] * len(delays_ms), times=times, packed=made[61:], producer_id=producer, epoch=0,
            sequence=sequence,
        )  # fmt: skip

    first = sent(0, 300, None, 500)
    for _ in range(3):
        assert put(wire, queue, first).error_code == 0
    assert put(wire, queue, sent(9, 300)).error_code == OUT_OF_ORDER
    whole = sent(3, 300, 300)
    for _ in range(2):
        said = put(wire, queue, whole)
        assert (said.error_code, said.base_offset) == (0, -1)
    assert put(wire, queue, sent(5, None)).base_offset >= 1  # behind those that came meanwhile
    eventually(lambda: len(values(wire, queue)) >= 6, 10)
    assert sorted(v or b"" for v in values(wire, queue)) == [b"0", b"0", b"0", b"1", b"1", b"2"]


def test_records_of_a_transaction_cannot_wait(wire: Wire, queue: str) -> None:
    for name, config, delays_ms in (
        (f"{queue}-h", {"kproxy_delay": "header"}, (5, None)),
        (f"{queue}-f", {"kproxy_delay_ms": "5"}, (None,)),
    ):
        wire.create(name, **config)
        init = {"transactional_id": name, "transaction_timeout": 60000}
        producer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, init)
        made = saying(*delays_ms)
        body = batch(
            *[b""] * len(delays_ms), times=(read_header(made).base_timestamp,) * len(delays_ms),
            packed=made[61:], producer_id=producer.producer_id, epoch=producer.producer_epoch,
            sequence=0, attributes=0x10,
        )  # fmt: skip
        request = produce_values(name, body) | {"transactional_id": name}
        answer = wire.call(ApiKey.PRODUCE, 12, request)
        said = answer.responses[0].partition_responses[0]
        assert said.error_code == INVALID_RECORD
        assert "transaction" in said.error_message


def test_a_transaction_without_delays_is_as_any_other(server: Served, queue: str) -> None:
    with server.wire(queue) as wire:
        wire.create(queue, kproxy_delay="header")
        producer = transactional(server.address, queue)
        producer.begin_transaction()
        producer.produce(queue, b"v")
        producer.commit_transaction(30)
        assert seen(wire, queue, b"v")
        producer.begin_transaction()
        producer.produce(queue, b"w", headers={"kproxy.delay-ms": "1"})
        with pytest.raises(KafkaException):
            producer.commit_transaction(30)
        producer.abort_transaction(30)


def test_so_many_may_wait_and_no_more(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay_ms="60000", kproxy_delay_records_max="3")
    assert put(wire, queue, batch(b"a", b"b")).error_code == 0
    said = put(wire, queue, batch(b"c", b"d"))
    assert said.error_code == POLICY_VIOLATION
    assert "kproxy.delay.records.max" in said.error_message
    assert put(wire, queue, batch(b"c")).error_code == 0


def test_settings_that_do_not_fit_are_refused(wire: Wire, queue: str) -> None:
    refused: list[dict[str, str]] = [
        {"kproxy_delay_ms": "-1"}, {"kproxy_delay_ms": "x"}, {"kproxy_delay": "yes"},
        {"kproxy_delay_ms": "2", "kproxy_delay_ms_max": "1"}, {"kproxy_delay_records_max": "0"},
        {"kproxy_delay_ms": str(16 * 24 * 3600 * 1000)},
    ]  # fmt: skip
    for config in refused:
        assert wire.create(queue, **config).error_code == INVALID_CONFIG
    year = str(365 * 24 * 3600 * 1000)
    assert wire.create(queue, kproxy_delay_ms=year, kproxy_delay_ms_max=year).error_code == 0


def test_a_deleted_queues_records_never_come(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay_ms="500")
    assert put(wire, queue, batch(b"old")).error_code == 0
    assert wire.delete(queue).error_code == 0
    wire.create(queue, kproxy_delay_ms="500")
    assert put(wire, queue, batch(b"new")).error_code == 0
    eventually(lambda: seen(wire, queue, b"new"), 10)
    time.sleep(0.3)
    assert seen(wire, queue, b"new")


def test_a_compacted_queue(wire: Wire, queue: str) -> None:
    wire.create(queue, kproxy_delay_ms="200", cleanup_policy="compact")
    assert put(wire, queue, batch(b"no key")).error_code == INVALID_RECORD
    assert put(wire, queue, keyed((b"k", b"v"))).error_code == 0
    eventually(lambda: seen(wire, queue, b"v"), 10)


def test_an_entrances_records_are_routed_when_they_are_due(wire: Wire, queue: str) -> None:
    wire.create(f"{queue}.in", kproxy_delay="header", kproxy_route_to=queue + "-{key}",
                kproxy_route_unroutable=f"{queue}.lost")  # fmt: skip
    assert put(wire, f"{queue}.in", saying(400, None)).error_code == 0
    eventually(lambda: seen(wire, f"{queue}-k1", b"1"), 20)
    assert values(wire, f"{queue}-k0") in ([], [b"0"])
    eventually(lambda: seen(wire, f"{queue}-k0", b"0"), 20)


def test_delayed_record_outlives_the_server(data_dir: Any) -> None:
    with served(data_dir) as running, Wire(running.host, running.port) as wire:
        wire.create("fixed", kproxy_delay_ms="2000")
        wire.create("header", kproxy_delay="header")
        assert put(wire, "fixed", batch(b"a")).error_code == 0
        assert put(wire, "header", saying(1500, 3000, NEVER_MS)).error_code == 0
    with served(data_dir) as running, Wire(running.host, running.port) as wire:
        eventually(lambda: seen(wire, "fixed", b"a"), 10)
        eventually(lambda: seen(wire, "header", b"0", b"1"), 10)


@pytest.mark.parametrize("name", ["fixed", "header"])
def test_it_is_late_by_little(server: Served, wire: Wire, queue: str, name: str) -> None:
    """Some of them are no more than 100 ms late, whatever else this machine does."""
    late_ms = []
    wire.create(
        queue, **{"kproxy_delay_ms": "150"} if name == "fixed" else {"kproxy_delay": "header"}
    )
    for number in range(9):
        sent_ms = int(time.time() * 1000)
        assert put(wire, queue, batch(b"v") if name == "fixed" else saying(150)).error_code == 0
        ((_, found), *_) = batches(wire.fetch(queue, number, wait_ms=5000).records)
        late_ms.append(read_header(found).max_timestamp - sent_ms - 150)
    assert min(late_ms) >= 0
    assert sorted(late_ms)[2] <= 100, late_ms


async def test_unreadable_record_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits on, and is tried again after a while."""
    tries = 0

    def counted(*of: Any, **more: Any) -> Any:
        nonlocal tries
        tries += any(planned.key[0] == broken for planned in of[1])
        return make(*of, **more)

    monkeypatch.setattr(looking, "make", counted)
    worker = memory_worker()
    shard: Any = worker.any_shard()
    broken, sound = (QueueId(bytes([n]) * 16) for n in (1, 2))
    for number, queue in enumerate((broken, sound)):
        shard.apply(CreateQueue(queue, f"q{number}", 1, {}).envelope())
        shard.apply(later((queue, 0), mixed(10, 20) if queue == broken else waiting(10)))
    (place,) = [one for _, one in shard.state.batches(hidden((broken, 0)), 0, 9)]
    at = place.position + HEADER_BYTES
    kept, shard.segments.data[at] = shard.segments.data[at], 0
    looker = Looker(shard, Means(worker.catalogue, worker.config, worker.clock))
    for _ in range(3):
        while await looker.scan_once():
            pass
    assert shard.state.partition((sound, 0)).next_offset == 1
    assert shard.state.partition((broken, 0)).next_offset == 0
    assert 1 <= tries <= 2  # on the loop, and on a thread
    shard.apply(later((sound, 0), waiting(10)))
    while await looker.scan_once():
        pass
    assert shard.state.partition((sound, 0)).next_offset == 2
    shard.segments.data[at] = kept
    looker._set_aside[broken, 0] = 0.0
    while await looker.scan_once():
        pass
    assert shard.state.partition((broken, 0)).next_offset == 2
    assert looker.next_ms is None


async def test_record_that_the_log_refuses_holds_up_nothing_else() -> None:
    """FAULT: it did, for as long as it was too large: one of a cluster's settings was lowered."""
    worker = memory_worker()
    shard: Any = worker.any_shard()
    large, small = (QueueId(bytes([n]) * 16) for n in (1, 2))
    for number, queue in enumerate((large, small)):
        shard.apply(CreateQueue(queue, f"q{number}", 1, {}).envelope())
        shard.apply(later((queue, 0), waiting(10)))
    append = shard.append

    def some(envelopes: Sequence[Envelope]) -> Ticket:
        taken = iter(append([one for one in envelopes if one.queue_id != large]).outcomes())
        ticket = Ticket(list(envelopes))
        too_large = Outcome(Code.MESSAGE_TOO_LARGE)
        ticket.set_outcomes(
            [too_large if one.queue_id == large else next(taken) for one in envelopes]
        )
        return ticket

    shard.append = some
    looker = Looker(shard, Means(worker.catalogue, worker.config, worker.clock))
    while await looker.scan_once():
        pass
    assert shard.state.partition((small, 0)).next_offset == 1
    assert looker.next_ms is not None
    shard.append = append
    looker._set_aside[large, 0] = 0.0
    while await looker.scan_once():
        pass
    assert shard.state.partition((large, 0)).next_offset == 1


async def test_a_deleted_queue_leaves_nothing(tmp_path: Any) -> None:
    config = Config(data_dir=tmp_path, sync="never", keeper_period_ms=20)
    async with embedded(config, ("127.0.0.1", 1)) as worker:
        shard = worker.any_shard()
        queue, ticket = worker.catalogue.create("q", 1, {"kproxy.delay": "header"})
        await ticket.wait()
        made = [later((queue.queue_id, 0), waiting(1 << 50), mixed(1 << 50, 1 << 51))] * 50
        await shard.append(made).wait()
        assert shard.state.live_bytes(shard.segments.active) > 0
        await shard.append([DeleteQueue(queue.queue_id).envelope()]).wait()
        kinds = (RowKind.WAITING, RowKind.DELAY, RowKind.DELAY_ENTRY, RowKind.BATCH,
                 RowKind.PARTITION)  # fmt: skip
        await until(lambda: not any(next(shard.kv.scan(*kind.range()), None) for kind in kinds), 20)
        assert shard.state.live_bytes(shard.segments.active) == 0
