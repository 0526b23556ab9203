"""The output of kproxy's commands about share groups."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kproxy import cli
from kproxy.protocol.name_search import ALL, NameSearch
from kproxy.tools import commands
from kproxy.tools.client import Client
from kproxy.tools.views import GroupDescription, describe, groups
from tests.handlers import test_handlers
from tests.handlers.test_share_groups import altered, beat
from tests.shares.test_polls import REJECT, Member


class Direct(Client):
    """A client that asks a worker in memory."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(("127.0.0.1", 1))
        self.served = test_handlers.Client(group_share_assignment_interval_ms=0, data_dir=data_dir)

    def call(
        self, key: int, version: int, values: dict[str, Any], node: int | None = None,
        search: NameSearch = ALL,
    ) -> Any:  # fmt: skip
        return asyncio.run(self.served.call(key, version, values))


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Return a client; share group g starts at offset 2 in partition 0 of q, and at the end of the
    other.
    """
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
    (line,) = groups(client)
    assert (line.group, line.type, line.state) == ("g", "share", "Stable")
    assert (line.queues, line.lag) == (1, 3)


def test_a_queue_is_described_with_its_share_groups(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> None:
        member = Member(client.served, "a")  # type: ignore[attr-defined]
        assert await member.given() == [(2, 4, 1)]
        assert await member.says((3, 3, (REJECT,))) == 0

    asyncio.run(read())
    found = describe(client, "q")
    assert isinstance(found, GroupDescription)
    assert (found.groups, found.share_groups) == (
        [],
        [{"group": "g", "dead_letters_waiting": 0, "partitions": [
            {"partition": 0, "start": 2, "lag": 2} | found.share_groups[0]["partitions"][0],
            {"partition": 1, "start": 0, "lag": 0, "in_flight": 0, "deliveries": {},
             "acknowledged": 0, "archived": 0, "oldest_ms": -1},
        ]}],
    )  # fmt: skip
    (line, _) = found.share_groups[0]["partitions"]
    assert (line["in_flight"], line["deliveries"]) == (2, {"1": 2})
    assert (line["acknowledged"], line["archived"]) == (0, 1)
    assert line["oldest_ms"] > 0
    monkeypatch.setattr(commands, "asked", lambda address, ask: found)
    done = CliRunner().invoke(cli.cli, ["describe", "q"])
    assert [line.split()[:7] for line in done.stdout.splitlines()[-2:]] == [
        ["g", "0", "2", "2", "2", "1x:2", "1"], ["g", "1", "0", "0", "0", "-", "0"],
    ]  # fmt: skip
