"""The workers' state, compared with the logs: read plainly, and folded as a whole."""

from collections.abc import Mapping
from typing import Any

from kproxy.cluster.catalogue.cache import CatalogueCache
from kproxy.protocol.batch import read_header
from kproxy.shard.shard import Shard
from kproxy.virtual.counts import counted
from kproxy.virtual.partitioner import shard_of
from kproxy.virtual.rows import batches as batch_rows
from kproxy.virtual.rows import groups as group_rows
from kproxy.virtual.rows import offsets as offset_rows
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.batches import Batch
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.types import QueueId
from tests.fakes import DictKv
from tests.simulation.folded import differing, of_kinds, of_the_living
from tests.simulation.workers.cluster import World
from tests.simulation.workers.sim_worker import Life

_FOLDED = b"qipkorhwguKTUJflAGOQN#"

Appended = Mapping[tuple[QueueId, int, int], bytes]
"""The acknowledged batches, by queue, partition and base offset."""


def check(world: World, lives: Mapping[str, Life], appended: Appended) -> list[Shard]:
    """Return the shards as they are served. Raises AssertionError."""
    assert not world.faults, world.faults[:3]
    assert not world.plain.faults
    _check_catalogues(world, lives)
    served = []
    for index in range(len(world.logs)):
        found = [life.serving(index) for life in lives.values()]
        shards = [shard for shard in found if shard is not None]
        assert len(shards) == 1
        served += shards
    for shard in served:
        assert shard.log.next_offset == len(world.logs[shard.shard])
        _check_plainly(shard, world)
    for shard in served:
        _check_rows(shard, world)
        _check_batches(shard, world)
    _check_acknowledged(served, world, appended)
    return served


def _check_catalogues(world: World, lives: Mapping[str, Life]) -> None:
    plain, count = world.plain, len(world.logs)
    wanted = {
        name: (queue.queue_id, queue.partitions, queue.configs)
        for name, queue in plain.names.items()
    }
    for name, queue in plain.names.items():
        for index in range(queue.partitions):
            there = plain.shards[shard_of(name, count, index)].ends
            assert (queue.queue_id, index) in there, f"{name} lacks partition {index}"
    world.compact()
    fresh = CatalogueCache(DictKv(), count, lambda index: None)
    fresh.apply(world.queues_from(0, 10**6))
    caches = {name: life.cache for name, life in lives.items()} | {"fresh": fresh}
    for name, cache in caches.items():
        found = {q.name: (q.queue_id, q.partitions, q.configs) for q in cache.all()}
        assert found == wanted, name


def _check_plainly(shard: Shard, world: World) -> None:
    """Check all but the rows of transactions, which `txn_truth` knows better."""
    plain, folded = world.plain.shards[shard.shard], world.folded[shard.shard]
    partitions, within = folded.transactional, folded.groups
    starts, ends = {}, {}
    for key, data in shard.kv.scan(*RowKind.PARTITION.range()):
        row = rows.decode_partition(data)
        starts[rows.partition_of(key)] = row.log_start
        ends[rows.partition_of(key)] = row.next_offset
    for found, wanted in ((ends, plain.ends), (starts, plain.starts)):
        assert _without(found, partitions) == _without(wanted, partitions)
    commits = {}
    for key, data in shard.kv.scan(*RowKind.OFFSET.range()):
        length = int.from_bytes(key[1:3], "big")
        group = key[3 : 3 + length].decode()
        commits[group, *offset_rows.partition_of_offset(key)] = offset_rows.decode_committed(
            data
        ).offset
    plainly = {key: offset for key, offset in commits.items() if key[0] not in within}
    assert plainly == plain.commits
    groups = {}
    for key, data in shard.kv.scan(*RowKind.GROUP.range()):
        head = group_rows.decode_group(data)
        groups[key[1:].decode()] = head.version, head.kind, head.members
    assert _without(groups, within) == {
        g: (one.version, one.kind, one.members) for g, one in plain.groups.items()
    }


def _without(found: Mapping[Any, Any], keys: set[Any]) -> dict[Any, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def _check_rows(shard: Shard, world: World) -> None:
    wanted = world.folded[shard.shard].rows
    assert shard.state.counts.values() == counted(shard.kv).values()
    found = dict(shard.kv.scan(b"", b"\xff"))
    fault = differing(
        of_kinds(of_the_living(found, wanted), _FOLDED),
        of_kinds(of_the_living(wanted, wanted), _FOLDED),
    )
    assert not fault, (shard.shard, fault)


def _live(found: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes]) -> dict[bytes, Batch]:
    """Return the batches that can be read; others are swept some time."""
    live = {}
    for key, data in found.items():
        if key[:1] == b"b":
            row = wanted.get(rows.partition_key(*rows.partition_of(key)))
            if row is not None:
                if batch_rows.batch_key_offset(key) >= rows.decode_partition(row).log_start:
                    live[key] = batch_rows.decode_batch(data)
    return live


def _check_batches(shard: Shard, world: World) -> None:
    """Check that each readable batch is there, once, with the bytes that were appended."""
    folded, log = world.folded[shard.shard], world.logs[shard.shard]
    found = _live(dict(shard.kv.scan(*RowKind.BATCH.range())), folded.rows)
    wanted = _live(folded.rows, folded.rows)
    assert {k: b[2:8] for k, b in found.items()} == {k: b[2:8] for k, b in wanted.items()}
    seen = set()
    for key, batch in found.items():
        body = _read(shard, batch)
        appended = log[batch.log_offset].body[: batch.length]  # a MARKER begins with its batch
        assert body == appended, "other bytes than were appended"
        header = read_header(body)
        if header.producer_id >= 0 and not header.is_control:
            assert (key[:21], body) not in seen, "a batch is there twice"
            seen.add((key[:21], body))


def _read(shard: Shard, batch: Batch) -> bytes:
    buffer = bytearray(batch.length)
    assert shard.segments.read_into(memoryview(buffer), batch.segment, batch.position, True)
    return bytes(buffer)


def _check_acknowledged(served: list[Shard], world: World, appended: Appended) -> None:
    """Check that each acknowledged batch was trimmed, or lies at its acknowledged offset."""
    for (queue_id, index, base_offset), body in appended.items():
        name = world.plain.ever[bytes(queue_id)]
        shard = served[shard_of(name, len(served), index)]
        row = shard.state.partition((queue_id, index))
        last = base_offset + read_header(body).last_offset_delta
        if row is not None and last >= row.log_start:
            batch = shard.state.batch_at((queue_id, index), last)
            assert batch is not None, f"what was acknowledged at {base_offset} is not there"
            assert _read(shard, batch) == body, f"something else is at {base_offset}"
