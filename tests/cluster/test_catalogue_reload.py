"""A worker that stood still for longer than the queues topic keeps its tombstones."""

from collections.abc import Callable
from typing import Any

from kproxy.cluster.catalogue.cache import CatalogueCache, Tombstone, announcement
from kproxy.cluster.catalogue.reload import CatalogueReload
from kproxy.common.errors import Code, KafkaError
from kproxy.metadata.catalogue import QueueIds
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import LogOffset, QueueId
from tests.fakes import DictKv

SHARDS = 4
DAY_MS = 24 * 3600 * 1000


def queue(name: str, at: int) -> Queue:
    return Queue(
        name=name, queue_id=QueueIds(SHARDS).new(shard_of(name, SHARDS)), partitions=1, wanted=1,
        created_at=LogOffset(at), changed_at=LogOffset(at), configs={},
    )  # fmt: skip


class Site:
    """A worker's catalogue over a topic that is compacted; its clock, and its way to the topic."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.end = 0
        self.now_ms = DAY_MS
        self.away = False
        self.gone: list[QueueId] = []
        self.reads = 0
        self.cache = CatalogueCache(DictKv(), SHARDS, lambda index: None)
        self.cache.gone = self.gone.append
        self.rereading = CatalogueReload(
            self.cache, self.again, self.settle, DAY_MS, lambda: self.now_ms
        )

    def say(self, name: str, word: Queue | Tombstone) -> None:
        key = b"q" + name.encode()
        value = announcement(word) if isinstance(word, Queue) else None
        note = None if isinstance(word, Queue) else word.header()[1]
        self.records = [record for record in self.records if record.key != key]
        self.records.append(Record("queues", self.end, key, value, note))
        self.end += 1

    def compact(self) -> None:
        """Drop the tombstones: they are kept no longer."""
        self.records = [record for record in self.records if record.value is not None]
        self.say("last", queue("last", 1))

    async def again(self, began: Callable[[], None]) -> None:
        self.reads += 1
        began()

    async def settle(self) -> None:
        if self.away:
            raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
        self.cache.apply([r for r in self.records if r.offset >= self.cache.next_offset])

    async def round(self) -> None:
        await self.rereading.round()

    def names(self) -> list[str]:
        return [found.name for found in self.cache.all()]


async def long_still() -> tuple[Site, Queue]:
    """Return a worker that stood still while a queue was deleted, which nobody says any more."""
    site, doomed = Site(), queue("doomed", 5)
    site.say("kept", queue("kept", 3))
    site.say("doomed", doomed)
    await site.round()
    assert site.names() == ["doomed", "kept"]
    site.say("doomed", Tombstone(9, doomed.queue_id))
    site.say("new", queue("new", 11))
    site.compact()
    site.now_ms += 2 * DAY_MS
    return site, doomed


async def test_queue_deleted_meanwhile_is_forgotten() -> None:
    site, doomed = await long_still()
    await site.round()
    assert site.names() == ["kept", "last", "new"]
    assert site.cache.find_id(doomed.queue_id) is None
    assert site.gone == [doomed.queue_id]
    assert not site.cache.reading_again
    rows: Any = site.cache.kv
    assert not [key for key in rows.rows if key[:1] == b"s"]
    site.now_ms += DAY_MS // 2
    await site.round()
    assert site.reads == 1


async def test_it_is_used_while_it_is_read_again_and_once_is_enough() -> None:
    site, _ = await long_still()
    site.away = True
    await site.round()
    await site.round()
    assert site.reads == 1
    assert site.names() == ["doomed", "kept"]
    site.away = False
    site.say("late", queue("late", 20))
    await site.round()
    assert site.names() == ["kept", "last", "late", "new"]


async def test_pause_during_a_reload_reloads_once_more() -> None:
    site, _ = await long_still()
    site.away = True
    await site.round()
    site.now_ms += 2 * DAY_MS
    site.away = False
    await site.round()
    assert site.reads == 1
    await site.round()
    await site.round()
    assert site.reads == 2


async def test_awake_worker_reads_nothing_again() -> None:
    site = Site()
    site.say("one", queue("one", 1))
    for _ in range(5):
        await site.round()
        site.now_ms += DAY_MS // 2
    assert site.reads == 0
