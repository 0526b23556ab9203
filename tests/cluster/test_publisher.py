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
from kproxy.virtual.commands.envelope import NUMBERED
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from kproxy.virtual.rows.writers import WRITERS
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


async def test_news_of_writers_alone_are_not_published(tmp_path: Path) -> None:
    """The log still has them: each envelope without effect would have its own publication."""
    nobody: Any = None
    async with running(tmp_path, sync="never") as shard:
        shard.state.unpublished = set()
        one = publisher.Publisher(shard, nobody, nobody, Config(bootstrap_servers="host:1"))
        shard.state.writers.passed(5, NUMBERED | 1, 0)
        shard.commit({})
        assert shard.state.unpublished == {WRITERS.key(5)}
        assert one._changed() == 0
        await create(shard, QUEUES[0], 2)
        assert one._changed() == len(shard.state.unpublished) - 1 > 0


class _Librdkafka:
    """A producer of a cluster that is away; a call that was too late bars all others but itself."""

    away = False
    made: list["_Librdkafka"]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.made.append(self)
        self.under_way = ""
        self.committed = self.purged = 0

    def _call(self, name: str) -> None:
        if self.under_way not in ("", name):
            raise KafkaException(UpstreamError(UpstreamError._CONFLICT))
        self.under_way = name if self.away else ""
        if self.away:
            raise KafkaException(UpstreamError(UpstreamError._TIMED_OUT))

    def init_transactions(self, seconds: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        if self.under_way:
            raise KafkaException(UpstreamError(UpstreamError._CONFLICT))

    def commit_transaction(self, seconds: float) -> None:
        self._call("commit")
        self.committed += 1

    def abort_transaction(self, seconds: float) -> None:
        self._call("abort")

    def produce(self, *_: Any, **__: Any) -> None:
        pass

    def purge(self) -> None:
        self.purged += 1


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[_Librdkafka]:
    """Return the producers that are made; no call is waited for."""
    made = _Librdkafka.made = list[_Librdkafka]()
    monkeypatch.setattr(rows_writer, "Producer", _Librdkafka)
    monkeypatch.setattr(rows_writer, "_TIMEOUT_S", -1.0)
    return made


@pytest.mark.parametrize("at", ["commit", "fence"])
async def test_rows_are_published_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producers: list[_Librdkafka], at: str
) -> None:
    """FAULT: a commit that was too late was never published, nor anything of the shard after it."""
    nobody: Any = None

    async def caught_up() -> None:
        pass

    async with running(tmp_path, sync="never") as shard:
        shard.state.unpublished = set()
        await create(shard, QUEUES[0], 2)
        monkeypatch.setattr(shard.log, "catch_up", caught_up, raising=False)
        one = publisher.Publisher(shard, UPSTREAM, nobody, Config(bootstrap_servers="host:1"))
        monkeypatch.setattr(one, "_trimmed_to", 1 << 60)
        if at == "commit":
            await one._fenced()
        monkeypatch.setattr(_Librdkafka, "away", True)
        await one.publish()
        assert shard.state.unpublished
        monkeypatch.setattr(_Librdkafka, "away", False)
        await one.publish()
        assert not shard.state.unpublished
    assert [producer.purged for producer in producers] == [1, 0]
    assert producers[-1].committed == 1
