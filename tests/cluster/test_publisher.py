"""Publication of a shard's rows, to a cluster that takes all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproxy.cluster import publisher
from kproxy.config.server import Config
from kproxy.loop.threads import Stop
from kproxy.upstream.read_topic import Row
from kproxy.virtual.rows import queues as rows
from kproxy.virtual.rows.kinds import RowKind
from tests.shard.test_shard import QUEUES, create, running


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
