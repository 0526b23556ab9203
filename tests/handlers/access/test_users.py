"""Users by their APIs, where no Kafka beside it can tell: bounds, and what fails half way."""

from typing import Any

import pytest
import structlog

from kproxy.common.errors import Code, KafkaError
from kproxy.handlers.access import acls, users
from kproxy.handlers.access.users import Change
from kproxy.protocol.api_keys import ApiKey
from kproxy.security import cache
from kproxy.security.acls import Op
from tests.handlers.secured import ROOT, Secured, rule
from tests.held import HELD_S, held_by, slowness


def upsertion(user: str, mechanism: int = 1) -> dict[str, Any]:
    return {
        "name": user, "mechanism": mechanism, "iterations": 4096, "salt": b"salt",
        "salted_password": b"p" * 32,
    }  # fmt: skip


async def altered(here: Secured, deletions: Any = (), upsertions: Any = ()) -> dict[str, int]:
    values = {"deletions": deletions, "upsertions": upsertions}
    told = await here.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, values, ROOT)
    return {one.user: int(one.error_code) for one in told.results}


async def test_there_is_a_most_of_users_and_room_is_made_by_deleting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Secured()
    monkeypatch.setattr(cache, "ROWS_MAX", 3)  # one is the secret of salts
    assert await altered(here, (), [upsertion("a"), upsertion("b")]) == {"a": 0, "b": 0}
    assert await altered(here, (), [upsertion("c")]) == {"c": Code.POLICY_VIOLATION}
    assert await here.add(rule(Op.READ)) == [Code.POLICY_VIOLATION]
    assert await altered(here, (), [upsertion("a")]) == {"a": 0}, "there already"
    monkeypatch.setattr(cache, "ROWS_MAX", 2)
    assert await altered(here, [{"name": "a", "mechanism": 1}]) == {"a": 0}
    assert len(here.worker.security) == 2


async def test_each_of_very_many_users_has_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Secured()
    secure, asked = here.worker.secure, list[int]()

    async def some_fail(rows: Any) -> None:
        asked.append(len(rows))
        if len(asked) == 2:
            raise KafkaError(Code.NOT_COORDINATOR)
        await secure(rows)

    monkeypatch.setattr(here.worker, "secure", some_fail)
    names = [f"u{number}" for number in range(130)]
    wanted = [upsertion(user, mechanism) for mechanism in (1, 2) for user in names]
    told = await altered(here, (), wanted)
    assert asked == [101, 100, 60]
    for user in names:
        credentials = here.worker.security.credentials
        there = [bool(credentials(user, name)) for name in users.MECHANISMS.values()]
        assert there == [not told[user]] * 2
    assert list(told.values()).count(Code.NOT_COORDINATOR) == 50


async def test_very_many_users_are_changed_in_slices() -> None:
    worker = Secured().worker
    changes = [Change(f"u{number}", 1, 4096, b"salt", b"p" * 32) for number in range(10_000)]
    with structlog.testing.capture_logs():
        told, held = await held_by(users.altered(worker, ROOT, changes))
    assert {code for code, _ in told.values()} == {0}
    assert held < HELD_S * slowness()


async def test_a_name_of_a_rule_has_so_many_bytes() -> None:
    here = Secured()
    assert await here.add(rule(Op.READ, "é" * 16_000), rule(Op.READ, "é" * 16_001)) == [0, 42]
    (made,) = here.worker.security.acls.rules
    assert acls._size(made) > 32_000
