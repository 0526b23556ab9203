"""Queues and groups that are searched for by their names, a page at a time."""

from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.handlers.topics import topic_partitions
from kproxy.protocol.api_keys import ApiKey
from kproxy.protocol.name_search import NameSearch
from kproxy.security.acls import Op, Pattern, Resource
from tests.handlers.secured import ROOT, Secured, rule
from tests.handlers.test_handlers import Client

NAMES = [f"q{number:03}" for number in range(100)]
LISTED = {"states_filter": (), "types_filter": ()}


def asked(first: str = "", limit: int = 2000) -> dict[str, Any]:
    cursor = {"topic_name": first, "partition_index": 0} if first else None
    return {"topics": (), "response_partition_limit": limit, "cursor": cursor}


async def page(
    client: Client, search: NameSearch, first: str = "", limit: int = 2000
) -> tuple[list[str], str | None]:
    """Return the names of a page, and the one of its cursor."""
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    answer = await client.call(key, 0, asked(first, limit), search.encode())
    after = answer.next_cursor
    return [topic.name for topic in answer.topics], after and after.topic_name


def with_queues(*names: str) -> Client:
    client = Client()
    for name in names or NAMES:
        client.worker.catalogue.create(name, 1)
    return client


async def test_queues_are_found_by_their_names_a_page_at_a_time() -> None:
    client = with_queues()
    fives = [name for name in NAMES if name.endswith("5")]
    assert await page(client, NameSearch(matching=".*5")) == (fives, None)
    assert await page(client, NameSearch(matching=".*5"), limit=3) == (fives[:3], fives[3])
    assert await page(client, NameSearch(matching=".*5"), fives[3], 3) == (fives[3:6], fives[6])
    assert await page(client, NameSearch("q01", "5")) == (["q015"], None)
    assert await page(client, NameSearch("q09")) == (NAMES[90:], None)
    assert await page(client, NameSearch(contains="09")) == (["q009", *NAMES[90:]], None)
    assert await page(client, NameSearch(matching="5")) == ([], None)
    assert await page(client, NameSearch(matching="q098|q05."), "q055") == (
        [*NAMES[55:60], "q098"], None,
    )  # fmt: skip


async def test_a_page_ends_where_many_names_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_partitions, "_LOT", 10)
    monkeypatch.setattr(topic_partitions, "_LOOKED_MAX", 40)
    monkeypatch.setattr(topic_partitions, "_LOOKED_S", 500)
    client, search = with_queues(), NameSearch(matching=".09.")
    assert await page(client, search) == ([], "q040")
    assert await page(client, search, "q040") == ([], "q080")
    assert await page(client, search, "q080") == (NAMES[90:], None)


async def test_a_page_of_all_queues_is_as_it_was() -> None:
    client = with_queues()
    assert await page(client, NameSearch(), limit=3) == (NAMES[:3], "q003")
    named = asked() | {"topics": [{"name": "q007"}]}
    answer = await client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, named, b'{"prefix":"q01"}')
    assert [topic.name for topic in answer.topics] == ["q007"]


@pytest.mark.parametrize(
    ("said", "code"),
    [(b'{"matching":"("}', Code.INVALID_REGULAR_EXPRESSION), (b"[", Code.INVALID_REQUEST)],
)
async def test_a_search_that_is_none_is_an_error(said: bytes, code: Code) -> None:
    client = with_queues("q")
    answer = await client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asked(), said)
    (topic,) = answer.topics
    assert (topic.error_code, answer.next_cursor) == (code, None)
    answer = await client.call(ApiKey.LIST_GROUPS, 5, LISTED, said)
    assert (answer.error_code, answer.groups) == (code, ())


async def test_a_user_finds_only_the_queues_that_it_may_know_of() -> None:
    here = Secured()
    for name in NAMES:
        here.worker.catalogue.create(name, 1)
    assert await here.add(rule(Op.DESCRIBE, "q05", resource_pattern_type=Pattern.PREFIXED)) == [0]
    search = NameSearch(matching=".*[0-5]").encode()
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    answer = await here.call(key, 0, asked(), search=search)
    assert [topic.name for topic in answer.topics] == NAMES[50:56]
    answer = await here.call(key, 0, asked(), ROOT, search)
    assert len(answer.topics) == 60


# -- groups


async def joined(client: Any, *groups: str, **more: Any) -> None:
    """Have a member begin to join each: it stands in memory alone."""
    for group in groups:
        answer = await client.call(ApiKey.JOIN_GROUP, 9, {
            "group_id": group, "member_id": "", "group_instance_id": None, "reason": None,
            "session_timeout": 6000, "rebalance_timeout": 6000, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }, **more)  # fmt: skip
        assert answer.error_code == Code.MEMBER_ID_REQUIRED


async def committed(client: Any, *groups: str, queue: str = "q", **more: Any) -> None:
    for group in groups:
        answer = await client.call(ApiKey.OFFSET_COMMIT, 9, {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None, "topics": [{"name": queue, "partitions": [{
                "partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1,
                "committed_metadata": None,
            }]}],
        }, **more)  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == 0


async def listed(client: Any, search: NameSearch, *states: str, **more: Any) -> list[str]:
    values = LISTED | {"states_filter": states}
    answer = await client.call(ApiKey.LIST_GROUPS, 5, values, search=search.encode(), **more)
    assert answer.error_code == 0
    return [group.group_id for group in answer.groups]


async def test_groups_are_listed_by_name_a_page_at_a_time() -> None:
    client = with_queues("q")
    await committed(client, "d", "b", "f", "ü")
    await joined(client, "e", "b", "a")
    assert await listed(client, NameSearch(limit=3)) == ["a", "b", "d"]
    assert await listed(client, NameSearch(first="d", limit=3)) == ["d", "e", "f"]
    assert await listed(client, NameSearch(first="e\0", limit=3)) == ["f", "ü"]
    assert await listed(client, NameSearch(matching="[a-e]")) == ["a", "b", "d", "e"]
    assert await listed(client, NameSearch("ü")) == ["ü"]
    assert await listed(client, NameSearch("b", limit=1)) == ["b"]
    assert await listed(client, NameSearch(contains="x")) == []
    assert await listed(client, NameSearch(limit=1), "stable") == []


async def test_a_user_finds_only_the_groups_that_it_may_know_of() -> None:
    here = Secured()
    here.worker.catalogue.create("q", 1)
    await committed(here, *NAMES[:20], peer=ROOT)
    rights = {"resource_type": Resource.GROUP, "resource_pattern_type": Pattern.PREFIXED}
    assert await here.add(rule(Op.DESCRIBE, "q01", **rights)) == [0]
    assert await listed(here, NameSearch(matching="q0.[0-5]", limit=4)) == NAMES[10:14]
    assert await listed(here, NameSearch(limit=2), peer=ROOT) == NAMES[:2]
