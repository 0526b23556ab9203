"""What kproxy's commands show of share groups."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kproxy import cli
from kproxy.tools import commands
from kproxy.tools.client import Client
from kproxy.tools.views import GroupDescription, describe, groups
from tests.handlers import test_handlers
from tests.handlers.test_share_groups import altered, beat


class Direct(Client):
    """Asks a worker in memory."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(("127.0.0.1", 1))
        self.served = test_handlers.Client(group_share_assignment_interval_ms=0, data_dir=data_dir)

    def call(self, key: int, version: int, values: dict[str, Any], node: int | None = None) -> Any:
        return asyncio.run(self.served.call(key, version, values))


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Share group g has started at offset 2 in partition 0 of q, and behind all in the other."""
    client = Direct(tmp_path)

    async def prepare() -> None:
        served = client.served
        await served.worker.catalogue.create("q", 2)[1].wait()
        for _ in range(5):
            await served.produce("q", b"x")
        assert not (await altered(served, ("q", 0, 2))).error_code
        assert not (await beat(served, "a", 0, "q")).error_code

    asyncio.run(prepare())
    return client


def test_share_groups_are_listed_with_what_is_left_for_them(client: Client) -> None:
    (line,) = groups(client, lambda name: True)
    assert (line.group, line.type, line.state) == ("g", "share", "Stable")
    assert (line.queues, line.lag) == (1, 3)


def test_a_queue_is_described_with_its_share_groups(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = describe(client, "q")
    assert isinstance(found, GroupDescription)
    assert (found.groups, found.share_groups) == (
        [],
        [{"group": "g", "partitions": [
            {"partition": 0, "start": 2, "lag": 3}, {"partition": 1, "start": 0, "lag": 0},
        ]}],
    )  # fmt: skip
    monkeypatch.setattr(commands, "asked", lambda address, ask: found)
    done = CliRunner().invoke(cli.cli, ["describe", "q"])
    assert [line.split() for line in done.stdout.splitlines()[-3:]] == [
        ["SHARE", "GROUP", "PARTITION", "START", "LAG"], ["g", "0", "2", "3"], ["g", "1", "0", "0"],
    ]  # fmt: skip
