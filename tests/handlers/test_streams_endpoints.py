"""Members of a streams group are told of each other's endpoints."""

import time
from itertools import chain
from typing import Any

import pytest

from kproxy.handlers.groups import streams_endpoints
from kproxy.protocol.api_keys import ApiKey
from tests.handlers.access.test_streams_topics import beat, secured
from tests.handlers.secured import ROOT, Secured

MEMBERS = ("one", "two", "three")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the members whose lines were made, in order."""
    found: list[str] = []
    real = streams_endpoints._line

    def noted(counts: Any, group: Any, member: Any, unseen: Any) -> Any:
        found.append(member.id)
        return real(counts, group, member, unseen)

    monkeypatch.setattr(streams_endpoints, "_line", noted)
    return found


async def ask(here: Secured, member: str) -> dict[str, list[int]]:
    """Return the partitions that all are told to have, by endpoint."""
    told = await beat(here, ROOT, member, "q")
    lines = told.partitions_by_user_endpoint
    assert lines[-1].user_endpoint.host == member, "one's own line is the last"
    return {
        one.user_endpoint.host: sorted(p for part in one.active_partitions for p in part.partitions)
        for one in lines
    }


async def settled(here: Secured) -> dict[str, list[int]]:
    while True:
        told = [await ask(here, member) for member in MEMBERS * 2]
        if all(one == told[0] for one in told):
            return told[0]


async def test_a_line_is_made_once_for_all_who_are_told_it(made: list[str]) -> None:
    here = await secured()
    before = await settled(here)
    made.clear()
    assert [await ask(here, member) for member in MEMBERS] == [before] * 3
    assert made == []


async def test_a_line_is_made_anew_where_there_are_more_partitions(made: list[str]) -> None:
    here = await secured()
    assert sorted(map(len, (await settled(here)).values())) == [0, 0, 1]
    more = {"name": "q", "count": 6, "assignments": None}
    await here.call(
        ApiKey.CREATE_PARTITIONS, 3, {"topics": [more], "timeout": 1000, "validate_only": False},
        ROOT,
    )  # fmt: skip
    made.clear()
    end = time.monotonic() + 20
    while sorted(chain(*(await settled(here)).values())) != list(range(6)):
        assert time.monotonic() < end
    assert set(made) == set(MEMBERS)
