"""The commands' searches for names, by a server that knows of them and by one that does not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kproxy.cli import cli
from kproxy.protocol.name_search import ALL, NameSearch
from kproxy.tools.client import Refused
from kproxy.tools.records import walks
from kproxy.tools.records.walks import Parts, walk
from kproxy.tools.views import some_queues
from tests.handlers.test_handlers import Client as Served
from tests.handlers.test_name_searches import committed
from tests.tools.test_share_groups import Direct

NAMES = [f"q{number:03}" for number in range(100)]


class Asking(Direct):
    """A client that asks a worker in memory, which may be of an older release."""

    def __init__(self, served: Served, *, older: bool) -> None:
        super().__init__(Path())
        self.served, self.older = served, older

    def call(
        self, key: int, version: int, values: dict[str, Any], node: int | None = None,
        search: NameSearch = ALL,
    ) -> Any:  # fmt: skip
        said = b"" if self.older or search == ALL else search.encode()
        return asyncio.run(self.served.call(key, version, values, said))


@pytest.fixture(params=[False, True], ids=["knows", "older"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Asking:
    found = Asking(Served(data_dir=tmp_path), older=request.param)
    for name in NAMES:
        found.served.worker.catalogue.create(name, 1)
    return found


def test_queues_are_searched_for(client: Asking) -> None:
    pages = list(client.pages(NameSearch(matching="q.*7", first="q05"), 3))
    assert [topic.name for page in pages for topic in page] == NAMES[57::10]


def test_some_queues_are_searched_for_and_the_name_to_go_on_from(client: Asking) -> None:
    search, seen = NameSearch("q0", "7"), list[str]()
    after: str | None = ""
    while after is not None:
        found, after = some_queues(client, search._replace(first=after), limit=6)
        assert len(found) <= 6
        seen += [line.name for line in found]
    assert seen == [name for name in NAMES if "7" in name]


def test_a_queue_of_more_partitions_than_a_page_is_shown_whole(client: Asking) -> None:
    client.served.worker.catalogue.create("wide", 1000)
    found, after = some_queues(client, NameSearch("w"), limit=2)
    assert ([line.partitions for line in found], after) == ([1000], None)


def test_a_search_ends_behind_the_last_name_that_may_be_meant(client: Asking) -> None:
    """FAULT: of an older server all names behind it were asked for."""
    pages = list(client.pages(NameSearch("q03"), 10))
    assert [topic.name for page in pages for topic in page] == NAMES[30:40]
    assert len(pages) <= 2


def test_a_walk_goes_on_behind_pages_that_show_no_name(
    client: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT: it gave the beginning as the name to go on from, and so came back to it for ever."""
    monkeypatch.setattr(walks, "_PAGES_MAX", 2)
    page = client.page

    def some(cursor: Any, partitions: int = 10, search: NameSearch = ALL) -> Any:
        topics, following = page(cursor, 10, search)
        return [topic for topic in topics if topic.name >= "q050"], following

    monkeypatch.setattr(client, "page", some)
    seen = list[str]()
    after: str | None = ""
    rounds = 0
    while after is not None and rounds < 20:
        found, after = walk(client, _sevens, first=after, prefix="q", limit=3)
        seen, rounds = seen + [name for name, _ in found], rounds + 1
    assert (seen, after) == ([name for name in NAMES[50:] if "7" in name], None)


def _sevens(parts: Parts, most: int) -> list[tuple[str, int]]:
    return [(name, len(parts[name])) for name in parts if "7" in name][:most]


def test_a_walk_takes_a_queue_of_many_pages_as_a_whole(
    client: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "_PAGES_MAX", 1)
    client.served.worker.catalogue.create("p7", 2500)
    found, after = walk(client, _sevens, first="", prefix="p", limit=3)
    assert (found, after) == ([("p7", 2500)], None)


def test_groups_are_searched_for(client: Asking) -> None:
    asyncio.run(committed(client.served, "c", "a", "d", "ba", "b", queue="q000"))
    found = client.groups(NameSearch(matching="[abc].?", first="b", limit=2))
    assert [group.group_id for group in found] == ["b", "ba"]


def test_a_text_that_is_no_expression_is_refused_before_anybody_is_asked(client: Asking) -> None:
    with pytest.raises(Refused, match="no expression of RE2"):
        client.page({"topic_name": "", "partition_index": 0}, 1, NameSearch(matching="("))


@pytest.mark.parametrize("expression", ["", "("])
@pytest.mark.parametrize("command", ["queues", "groups", "delete"])
def test_commands_refuse_what_is_no_expression(command: str, expression: str) -> None:
    done = CliRunner().invoke(cli, [command, "--matching", expression])
    assert done.exit_code == 2
    assert "--match" in done.output
