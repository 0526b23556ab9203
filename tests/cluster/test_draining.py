"""Draining while nobody can take over."""

from typing import Any

import anyio
import pytest

from kproxy.cluster import draining
from kproxy.cluster.draining import Draining


class Holding:
    """Shards that nobody else claims."""

    def all(self) -> list[Any]:
        class Served:
            shard = 3

        return [Served()]


async def test_a_silent_cluster_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM was heeded after all of --drain-ms-max, though nobody could take a shard over."""
    monkeypatch.setattr(draining, "_ASK_S", 0.001)
    monkeypatch.setattr(draining, "_AWAY_S", 0.01)
    shards: Any = Holding()
    told: list[int] = []
    with anyio.fail_after(5):
        await Draining(shards, lambda: None, anyio.sleep_forever, 1000).run(told.append)  # type: ignore[arg-type]
    assert told == [1, 1]
