"""Two who believe that a shard is theirs: the log decides, and everyone agrees with it."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import to_thread
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kproxy.cluster import lost_end
from kproxy.cluster import rebuild as rebuilding
from kproxy.common.errors import Code, KafkaError
from kproxy.common.progress import Progress
from kproxy.config.server import Config
from kproxy.log.base import Deliver
from kproxy.log.disk_space import DiskSpace
from kproxy.log.shared import SharedLog
from kproxy.loop.clock import Clock
from kproxy.loop.threads import Stop
from kproxy.metadata.levels import Level
from kproxy.shard.shard import Shard
from kproxy.store.rocks import RocksKv
from kproxy.store.segments import Segments
from kproxy.upstream.link import DataLink
from kproxy.upstream.read_topic import read_to_end
from kproxy.upstream.rows_writer import NotPublished, RowsWriter
from kproxy.upstream.settings import Connectivity, Upstream
from kproxy.upstream.topics import Topics
from kproxy.virtual.commands.envelope import Envelope, Kind, record_key
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.snapshot import AS_OF_KEY, decode_as_of
from kproxy.virtual.types import QueueId, ShardId
from tests.commands import command
from tests.harness import eventually
from tests.on_kafka.test_storage import EAGER, contents, fill, log_trimmed_beyond, trim
from tests.real_kafka import Kafka
from tests.wire import Wire, batch
from tests.workers import Workers

CONFIG = Config(disk_free_bytes_min=1, bootstrap_servers="-", segment_bytes=1 << 30)


def upstream(kafka: Kafka, prefix: str, shards: int = 1) -> Upstream:
    made = Upstream(
        servers=kafka.address, prefix=prefix, client={}, connectivity=Connectivity(kafka.address)
    )  # fmt: skip
    Topics(
        AdminClient(made.settings()), made, shards=shards,
        message_bytes_max=CONFIG.data_message_bytes_max, create=True, single_replica=True,
    ).prepare()  # fmt: skip
    return made


@contextmanager
def opened(directory: Path, link: DataLink, index: int = 0, shards: int = 1) -> Iterator[Shard]:
    """Open an empty shard on a partition of the data topic."""
    segments = Segments(directory / "log")
    disk_space = DiskSpace(directory, 1)

    def log(deliver: Deliver) -> SharedLog:
        return SharedLog(
            index, segments, deliver, link, segment_bytes=1 << 30, disk_space=disk_space
        )

    shard = Shard(
        shard=ShardId(index), shards=shards, kv=RocksKv(directory / "rows", 1 << 20),
        segments=segments, disk_space=disk_space, config=CONFIG, log=log, shared=True,
    )  # fmt: skip
    try:
        yield shard
    finally:
        shard.close()


async def test_two_workers_appending_to_one_shard_agree_byte_for_byte(
    kafka: Kafka, tmp_path: Path
) -> None:
    site = upstream(kafka, "two-writers")
    queues = [QueueId(bytes([i]) * 16) for i in range(1, 5)]

    async def work(shard: Shard, seed: int, taken: set[int]) -> None:
        rng = random.Random(seed)
        sequences: dict[QueueId, int] = {}
        for _ in range(60):
            envelopes = []
            for _ in range(rng.randrange(1, 30)):
                queue = rng.choice(queues)
                if rng.random() < 0.05:
                    envelopes.append(command(Kind.TRIM, queue, 0, number=rng.randrange(-1, 50)))
                    continue
                sequence = sequences.get(queue, 0)
                sequences[queue] = sequence + 1
                body = batch(rng.randbytes(20), producer_id=seed, epoch=0, sequence=sequence)
                envelopes.append(Envelope(Kind.APPEND, queue, 0, body=body))
            outcomes = await shard.append(envelopes).wait()
            for envelope, outcome in zip(envelopes, outcomes, strict=True):
                if envelope.kind == Kind.APPEND:
                    assert outcome.code == Code.NONE
                    place = (envelope.queue_id[0] << 32) + outcome.number
                    assert place not in taken  # no offset is given twice
                    taken.add(place)

    links = [DataLink(site, CONFIG, Level()), DataLink(site, CONFIG, Level())]
    with opened(tmp_path / "a", links[0]) as one, opened(tmp_path / "b", links[1]) as two:
        async with anyio.create_task_group() as tasks:
            for link, shard in zip(links, (one, two), strict=True):
                assert isinstance(shard.log, SharedLog)
                shard.log.next_offset = 0
                shard.segments.start(0)
                link.follow(0, shard.log)
                tasks.start_soon(shard.log.run)
                tasks.start_soon(link.watch_ends)
            for queue in queues:
                values = {"name": f"q{queue[0]}", "partitions": 1, "configs": {}}
                await one.append([command(Kind.CREATE, queue, values=values)]).wait()
            await two.log.catch_up()
            taken: set[int] = set()
            async with anyio.create_task_group() as both:
                both.start_soon(work, one, 1, taken)
                both.start_soon(work, two, 2, taken)
            await one.log.catch_up()
            await two.log.catch_up()
            assert len(taken) > 1000
            assert one.log.next_offset == two.log.next_offset
            assert dict(one.kv.scan(b"", b"\xff")) == dict(two.kv.scan(b"", b"\xff"))
            logs = [s.segments.path(0).read_bytes() for s in (one, two)]
            assert logs[0] == logs[1]
            tasks.cancel_scope.cancel()
    for link in links:
        await link.close()


def test_a_fenced_writers_rows_are_not_published(kafka: Kafka) -> None:
    site = upstream(kafka, "fenced")
    zombie, owner = (
        RowsWriter(site, 0, CONFIG.data_message_bytes_max),
        RowsWriter(site, 0, CONFIG.data_message_bytes_max),
    )
    zombie.fence(Stop())
    zombie.write(iter([(b"pa", b"1"), (b"pb", b"1")]), 10, Stop())
    owner.fence(Stop())
    with pytest.raises(NotPublished) as refused:
        zombie.write(iter([(b"pa", b"late")]), 11, Stop())
    assert refused.value.fenced
    owner.write(iter([(b"pa", b"2"), (b"pb", None)]), 20, Stop())
    found = dict(row for chunk in read_to_end(site, site.offset) for row in chunk)
    assert (found[b"pa"], found[b"pb"]) == (b"2", None)
    assert decode_as_of(found[AS_OF_KEY] or b"") == 20
    zombie.close()
    owner.close()


def write_raw(kafka: Kafka, workers: Workers, shard: int, *envelopes: Envelope) -> None:
    """Append envelopes as another worker."""
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 0})
    for counter, envelope in enumerate(envelopes):
        envelope.writer, envelope.counter = 7, counter
        producer.produce(
            f"{workers.prefix}-data", envelope.body, key=record_key(envelope), partition=shard
        )
    producer.flush()


def queue_id(wire: Wire, name: str) -> QueueId:
    return QueueId(wire.metadata(name).topics[0].topic_id.bytes)


def test_a_consumer_ahead_of_the_owner_is_not_sent_back(kafka: Kafka, tmp_path: Path) -> None:
    """Offsets that another owner showed are looked for in the log, not called out of range."""
    with Workers(kafka, tmp_path, count=1, shards=2).running() as workers:
        with workers.wire("q") as wire:
            assert wire.produce("q", batch(b"0")).base_offset == 0
            its_id, shard = queue_id(wire, "q"), shard_of("q", 2)
            for offset in range(2, 12):
                theirs = Envelope(Kind.APPEND, its_id, 0, body=batch(b"%d" % offset))
                write_raw(kafka, workers, shard, theirs)
                found = wire.fetch("q", offset)
                assert (found.error_code, found.high_watermark) == (0, offset)
            assert wire.fetch("q", 12).error_code == 1  # no such record in the log either
            assert len(contents(wire, "q")) == 11


def test_a_late_claim_is_claimed_back(kafka: Kafka, tmp_path: Path) -> None:
    with Workers(kafka, tmp_path, count=1, shards=2).running() as workers:
        worker, shard = workers.workers[0], shard_of("q", 2)
        with worker.wire("q") as wire:
            assert wire.produce("q", batch(b"0")).base_offset == 0
            write_raw(kafka, workers, shard, Envelope(Kind.CLAIM))
            eventually(lambda: any(e["event"] == "shard_left" for e in worker.events))
            workers.wait_served()
            assert wire.produce("q", batch(b"1")).base_offset == 1
            claims = [e["claim"] for e in worker.events if e["event"] == "shard_served"
                      and e["shard"] == shard]  # fmt: skip
            assert len(claims) == 2
            assert claims[1] > claims[0]


async def test_a_rebuild_while_the_owner_trims_begins_again(kafka: Kafka, tmp_path: Path) -> None:
    """Between the rows and the log both go on: what was read first is not enough then."""
    workers = Workers(kafka, tmp_path, *EAGER, count=1, shards=1)
    with workers.running():
        with workers.wire("q") as wire:
            fill(wire, "q", 60)
            trim(wire, "q", 55)
            log_trimmed_beyond(kafka, workers, 0, 20)
            site = upstream(kafka, workers.prefix)
            read = rebuilding._read_rows

            async def read_and_wait(shard: Shard, site: Upstream) -> int:
                as_of = await read(shard, site)
                if not moved:
                    moved.append(await to_thread.run_sync(go_on))
                return as_of

            def go_on() -> int:
                fill(wire, "q", 60)
                trim(wire, "q", 115)
                return log_trimmed_beyond(kafka, workers, 0, 70)

            moved: list[int] = []

            async def main() -> None:
                link = DataLink(site, CONFIG, Level())
                means: Any = SimpleNamespace(
                    upstream=site,
                    link=link,
                    config=CONFIG,
                    progress=Progress(),
                    clock=Clock(now_ms=lambda: 0),
                )
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(rebuilding, "_read_rows", read_and_wait)
                    with opened(tmp_path / "first", link) as shard, pytest.raises(KafkaError):
                        await rebuilding.rebuild(shard, means)
                    with opened(tmp_path / "again", link) as shard:
                        await rebuilding.rebuild(shard, means)
                        rows: Any = shard.state.partition((queue_id(wire, "q"), 0))
                        assert (rows.log_start, rows.next_offset) == (115, 120)
                link.forget(0)
                await link.close()

            await main()
            assert moved


def test_rows_too_far_ahead_of_the_log_are_refused(kafka: Kafka, tmp_path: Path) -> None:
    """A cluster loses no such part of a log: somebody else has written to it, or made it anew."""
    workers = Workers(kafka, tmp_path, count=1, shards=1)
    with workers.running():
        site = upstream(kafka, workers.prefix)
        workers.workers[0].kill()
        writer = RowsWriter(site, 0, CONFIG.data_message_bytes_max)
        writer.fence(Stop())
        writer.write(iter([]), lost_end.LOST_MAX + 1000, Stop())
        writer.close()
        for path in (tmp_path / "worker-0").glob("shard-*"):
            path.rename(path.with_name(f"old-{path.name}"))
        again = workers.again(0).wait_ready()
        refused = eventually(lambda: again.event("shard_refused"), 30)
        assert "the log ends at" in refused["reason"]
        with Wire(again.host, again.port) as wire:
            assert wire.produce("q", batch(b"v")).error_code in (3, 6, 7)
        time.sleep(0.1)


async def test_command_in_anothers_log_is_settled_when_it_is_durable(kafka: Kafka) -> None:
    """Nobody follows the log here, and nobody need to: the report is enough."""
    site = upstream(kafka, "landing")
    too_large = Envelope(Kind.APPEND, body=bytes(CONFIG.data_message_bytes_max + 1))

    link = DataLink(site, CONFIG, Level())
    first = await link.land(0, [Envelope(Kind.CLAIM), Envelope(Kind.CLAIM)]).wait()
    assert [(o.code, o.number) for o in first] == [(Code.NONE, 0), (Code.NONE, 1)]
    then = await link.land(0, [too_large, Envelope(Kind.CLAIM)]).wait()
    assert [(o.code, o.number) for o in then] == [(Code.MESSAGE_TOO_LARGE, -1), (Code.NONE, 2)]
    assert await link.end(0) == 3
    await link.close()
    calls = [row for chunk in read_to_end(site, site.queues) for row in chunk]
    assert calls[-1] == (b"k" + bytes(4), (3).to_bytes(8, "big"))
