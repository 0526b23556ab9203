"""The cached catalogue: announcements folded, late ones passed over, home shards believed first."""

from pathlib import Path
from typing import Any

import pytest

from kproxy.cluster.catalogue.cache import (
    CatalogueCache,
    Tombstone,
    announced,
    announcement,
    outcome_key,
)
from kproxy.metadata.catalogue import QueueIds
from kproxy.store.rocks import RocksKv
from kproxy.upstream.topic_tailer import Record
from kproxy.virtual.commands.envelope import Kind
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows.queues import Queue
from kproxy.virtual.types import LogOffset
from tests.commands import command
from tests.fakes import MemoryShard
from tests.present import present

SHARDS = 4


def queue(name: str, partitions: int = 1, changed_at: int = 5) -> Queue:
    return Queue(
        name=name, queue_id=QueueIds(SHARDS).new(shard_of(name, SHARDS)), partitions=partitions,
        wanted=partitions, created_at=LogOffset(5), changed_at=LogOffset(changed_at),
        configs={"retention.ms": "5"},
    )  # fmt: skip


@pytest.fixture
def served() -> dict[int, Any]:
    return {}


@pytest.fixture
def cache(tmp_path: Path, served: dict[int, Any]) -> CatalogueCache:
    return CatalogueCache(RocksKv(tmp_path / "queues", 1 << 20), SHARDS, served.get)


def record(offset: int, key: bytes, value: bytes | None, gone: Tombstone | None = None) -> Record:
    return Record("queues", offset, key, value, gone and gone.header()[1])


def test_announced_queues_are_found_by_name_and_id(cache: CatalogueCache) -> None:
    one = queue("one")
    assert announced("one", announcement(one)) == one
    others = [record(1, b"junk", b"x"), record(2, b"qbad", b"nonsense")]
    cache.apply([record(0, b"qone", announcement(one)), *others])
    assert cache.find("one") == one
    assert cache.find_id(one.queue_id) == one
    assert cache.find("bad") is None
    assert cache.next_offset == 3
    assert [q.name for q in cache.all()] == ["one"]
    cache.apply([record(3, b"qone", None)])
    assert cache.find("one") is None
    assert cache.find_id(one.queue_id) is None


def test_a_late_announcement_is_passed_over(cache: CatalogueCache) -> None:
    new, old = queue("one", 3, changed_at=9), queue("one", 1, changed_at=6)
    cache.apply([record(0, b"qone", announcement(new)), record(1, b"qone", announcement(old))])
    assert cache.find("one") == new


def test_a_recreated_queues_old_id_is_nobodys(cache: CatalogueCache) -> None:
    old, new = queue("one", changed_at=6), queue("one", changed_at=9)
    cache.apply([record(0, b"qone", announcement(old)), record(1, b"qone", announcement(new))])
    assert cache.find_id(old.queue_id) is None
    assert cache.find_id(new.queue_id) == new


def test_the_home_shards_state_is_believed_first(
    cache: CatalogueCache, served: dict[int, Any]
) -> None:
    home = shard_of("one", SHARDS)
    shard = served[home] = MemoryShard(home, SHARDS)
    values = {"name": "one", "partitions": 1, "configs": {}}
    made = QueueIds(SHARDS).new(shard_of("one", SHARDS))
    shard.apply(command(Kind.CREATE, made, values=values))
    assert cache.find("one") is not None
    late = queue("one", changed_at=0)
    records = [record(0, b"qone", announcement(late))]
    assert cache.apply(records) == ["one"]  # to be said again
    del served[home]
    assert present(cache.find("one")).queue_id == made


def test_a_queue_that_others_are_still_told_of_is_not_there(
    cache: CatalogueCache, served: dict[int, Any]
) -> None:
    home = shard_of("wide", SHARDS)
    shard = served[home] = MemoryShard(home, SHARDS)
    made = QueueIds(SHARDS).new(shard_of("wide", SHARDS))
    values = {"name": "wide", "partitions": 4, "configs": {}}
    assert shard.apply(command(Kind.CREATE, made, values=values)).code == 0
    assert cache.find("wide") is None
    assert shard.apply(command(Kind.CREATE, made, values=values)).code == 36  # but it is taken
    shard.apply(command(Kind.QUEUE_READY, made, number=7))  # about something else
    assert cache.find("wide") is None
    shard.apply(command(Kind.QUEUE_READY, made, number=0))
    assert present(cache.find("wide")).partitions == 4
    shard.apply(command(Kind.GROW, made, number=9))
    assert cache.find("wide") == shard.state.queue("wide")
    assert getattr(cache.find("wide"), "partitions", 0) == 4


def test_outcomes_are_for_who_asked(cache: CatalogueCache) -> None:
    mine = outcome_key(7, 3)
    other = outcome_key(8, 3)
    said = b'{"code": 0}'
    records = [record(0, mine, said), record(1, other, said), record(2, mine, None)]
    assert list(cache.outcomes(records, 7)) == [(3, {"code": 0})]


def test_a_topic_that_begins_again_is_forgotten_in_pieces(
    monkeypatch: pytest.MonkeyPatch, cache: CatalogueCache
) -> None:
    """FAULT: the keys of all queues were gathered first, however many."""
    cache.apply([record(8, f"qq{n}".encode(), announcement(queue(f"q{n}"))) for n in range(1000)])
    written, write = [], cache.kv.write

    def noted(changes: dict[bytes, bytes | None]) -> None:
        written.append(len(changes))
        write(changes)

    monkeypatch.setattr(cache.kv, "write", noted)
    cache.begin_again()
    assert max(written) <= 200
    assert not list(cache.all())


def test_a_topic_that_begins_again_is_read_anew(cache: CatalogueCache) -> None:
    cache.apply([record(8, b"qone", announcement(queue("one")))])
    cache.begin_again()
    assert cache.next_offset == 0
    assert cache.find("one") is None
