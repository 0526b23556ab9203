"""The letters of a dead-letter queue, counted by cause, origin and group."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kproxy.common.errors import Code
from kproxy.handlers.configs import letters
from kproxy.protocol.api_keys import ApiKey
from kproxy.security.acls import Op
from kproxy.tools.records.letter_counts import Letters, counted
from kproxy.worker.worker import Worker
from tests.handlers.secured import Secured, rule
from tests.handlers.test_handlers import Client
from tests.routes.test_passages import create, serving
from tests.routes.test_redrives import letter, put

pytestmark = pytest.mark.anyio


def died(cause: str, queue: str = "jobs", group: str = "crew") -> bytes:
    return letter(
        b"k", b"v", ("kproxy.dlq.cause", cause), ("__dlq.errors.topic", queue),
        ("__dlq.errors.group", group),
    )  # fmt: skip


def question(place: str, queue: str = "dlq.a") -> dict[str, Any]:
    key = f"kproxy.state.letters:{place}"
    resource = {"resource_type": 2, "resource_name": queue, "configuration_keys": [key]}
    return {"resources": [resource], "include_synonyms": False, "include_documentation": False}


async def looked(worker: Worker, place: str = "0:") -> dict[str, Any]:
    client = Client()
    client.worker = worker
    (result,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, 4, question(place))).results
    assert result.error_code == 0, result.error_message
    found: dict[str, Any] = json.loads(result.configs[0].value)
    return found


def kinds(told: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(one.values()) for one in told["letters"]]


async def test_letters_are_counted_by_cause_origin_and_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        assert (await looked(worker))["letters"] == []
        await put(worker, dead, *[died("rejected")] * 2, died("rejected", "mail"), letter(b"", b""))
        await put(worker, dead, *[died("delivery limit")] * 3)
        told = await looked(worker)
        assert kinds(told) == [
            ("delivery limit", "jobs", "crew", 3), ("rejected", "jobs", "crew", 2),
            ("rejected", "mail", "crew", 1), ("", "", "", 1),
        ]  # fmt: skip
        assert (told["looked"], told["all"], told["next"], told["others"]) == (7, 7, None, 0)


async def test_the_newest_are_looked_at_and_the_answer_says_where_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "_OFFSETS_MAX", 4)
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        for number in range(3):
            await put(worker, dead, *[died(f"cause {number}")] * 2)
        told = await looked(worker)
        assert [one[0] for one in kinds(told)] == ["cause 1", "cause 2"]
        assert (told["looked"], told["all"], told["next"]) == (4, 6, 2)
        told = await looked(worker, "0:2")
        assert [one[0] for one in kinds(told)] == ["cause 0"]
        assert (told["looked"], told["next"]) == (2, None)
        monkeypatch.setattr(letters, "_BYTES", 10)
        told = await looked(worker)
        assert ([one[0] for one in kinds(told)], told["next"]) == (["cause 2"], 4)


async def test_kinds_beyond_those_that_are_told_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "_KINDS_MAX", 2)
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        await put(worker, dead, *(died(cause) for cause in "abacad"), died("x" * 1000))
        told = await looked(worker)
        assert [one[0] for one in kinds(told)] == ["a", "b"]
        assert (told["looked"], told["others"]) == (7, 3)


async def test_the_command_looks_until_it_has_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "_OFFSETS_MAX", 4)
    async with serving(tmp_path) as worker:
        dead = await create(worker, "dlq.a", {})
        for number in range(10):
            await put(worker, dead, died("even" if number % 2 == 0 else "odd"))
        asking, loop = _Asking(worker), asyncio.get_running_loop()
        asking.loop = loop
        found: Letters = await asyncio.to_thread(counted, asking, "dlq.a", 6)  # type: ignore[arg-type]
        assert (found.looked, found.all, found.causes) == (8, 10, {"even": 4, "odd": 4})
        found = await asyncio.to_thread(counted, asking, "dlq.a", 100)  # type: ignore[arg-type]
        assert (found.looked, found.all, found.causes) == (10, 10, {"even": 5, "odd": 5})


class _Asking:
    """The part of a `tools.client.Client` that the command uses, over a worker in memory."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, worker: Worker) -> None:
        self._client = Client()
        self._client.worker = worker

    def queue(self, name: str) -> Any:
        return self._answer(self._client.metadata(name)).topics[0]

    def configs(self, names: list[str], keys: tuple[str], node: int) -> Any:
        values = question(keys[0].removeprefix("kproxy.state.letters:"), names[0])
        return self._answer(self._client.call(ApiKey.DESCRIBE_CONFIGS, 4, values)).results

    def _answer(self, asked: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self.loop).result()


async def test_a_user_that_may_not_read_the_letters_is_told_nothing_of_them() -> None:
    here = Secured()
    here.worker.catalogue.create("dlq.a", 1)
    assert await here.add(rule(Op.DESCRIBE_CONFIGS, "dlq.a"), rule(Op.DESCRIBE, "dlq.a")) == [0, 0]
    (result,) = (await here.call(ApiKey.DESCRIBE_CONFIGS, 4, question("0:"))).results
    assert (result.error_code, result.configs) == (Code.TOPIC_AUTHORIZATION_FAILED, ())


@pytest.mark.parametrize(
    "place", ["", "0", ":", "-1:", "0:-1", "0:x", "9" * 5000 + ":", "٣:", "0:1:"]
)
async def test_a_place_that_is_none_is_refused(place: str) -> None:
    client = Client()
    client.worker.catalogue.create("dlq.a", 1)
    (result,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, 4, question(place))).results
    assert result.error_code == Code.INVALID_REQUEST
