"""Publication of a shard's rows, to a cluster that takes all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError as UpstreamError
from confluent_kafka import KafkaException

from kproxy.cluster import publisher
from kproxy.config.server import Config
from kproxy.loop.threads import Stop
from kproxy.upstream import rows_writer
from kproxy.upstream.read_topic import Row
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from tests.shard.test_shard import QUEUES, create, running
from tests.upstream.test_topics import UPSTREAM


class _Writer:
    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def write(self, rows: Iterator[Row], as_of: int, stop: Stop) -> None:
        self.taken += [key for key, _ in rows]


async def test_marks_of_many_published_rows_go_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: all at once, which held the loop for 163 ms for 100,000 rows."""
    nobody: Any = None
    writer, sizes = _Writer(), list[int]()
    async with running(tmp_path, sync="never") as shard:
        shard.state.unpublished = set()
        await create(shard, QUEUES[0], 20)
        settings = Config(bootstrap_servers="host:1")
        one = publisher.Publisher(shard, nobody, nobody, settings)
        commit = shard.commit
        changed = rows.queue_key("q1")

        async def fenced() -> Any:
            return writer

        def counted(changes: dict[bytes, bytes | None]) -> None:
            sizes.append(len(changes))
            commit(changes)
            if len(sizes) == 1:  # and the work goes on
                commit({changed: shard.kv.get(changed)})

        monkeypatch.setattr(one, "_fenced", fenced)
        monkeypatch.setattr(one, "_trimmed_to", 1 << 60)
        monkeypatch.setattr(publisher, "_UNMARKED_AT_ONCE", 2)
        monkeypatch.setattr(shard, "commit", counted)
        await one.publish()
        marked = [rows.published_key(key) for key, _ in shard.kv.scan(*RowKind.UNPUBLISHED.range())]
        assert len(writer.taken) > 20
        assert max(sizes) <= 2
        assert shard.state.unpublished == set(marked) == {changed}


class _Cluster:
    """Producers of rows as librdkafka's are: a commit that takes too long goes on behind."""

    def __init__(self) -> None:
        self.slow = True
        self.made = self.committed = 0

    def __call__(self, settings: dict[str, Any]) -> Any:
        self.made += 1
        return _Transactional(self)


class _Transactional:
    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._given_up = False

    def init_transactions(self, seconds: float) -> None:
        pass

    def begin_transaction(self) -> None:
        if self._given_up:
            raise KafkaException(UpstreamError(UpstreamError._CONFLICT))

    abort_transaction = init_transactions
    produce = purge = lambda self, *_, **__: None

    def commit_transaction(self, seconds: float) -> None:
        if self._cluster.slow:
            self._given_up = True
            raise KafkaException(UpstreamError(UpstreamError._TIMED_OUT))
        self._cluster.committed += 1


async def test_rows_are_published_after_a_commit_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: the writer was kept, and librdkafka refused all that came after, for ever."""
    nobody: Any = None
    cluster = _Cluster()
    monkeypatch.setattr(rows_writer, "Producer", cluster)
    monkeypatch.setattr(rows_writer, "_TIMEOUT_S", 0.0)

    async def nothing_to_read() -> None:
        pass

    async with running(tmp_path, sync="never") as shard:
        shard.state.unpublished = set()
        await create(shard, QUEUES[0], 1)
        monkeypatch.setattr(shard.log, "catch_up", nothing_to_read, raising=False)
        one = publisher.Publisher(shard, UPSTREAM, nobody, Config(bootstrap_servers="host:1"))
        monkeypatch.setattr(one, "_trimmed_to", 1 << 60)
        await one.publish()
        assert shard.state.unpublished
        cluster.slow = False
        await one.publish()
        assert (cluster.made, cluster.committed) == (2, 1)
        assert not shard.state.unpublished
