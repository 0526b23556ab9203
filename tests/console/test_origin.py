"""The guard of the console: hosts, origins, methods, headers. No server is needed."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from kproxy.console.origin import Guard, Receive, Scope, Send

HOSTS = frozenset({"localhost:8080"})


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a page"})


def answer(method: str, tls: bool = False, **headers: str) -> tuple[int, dict[str, str]]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the guard reads no body")

    given = {"host": "localhost:8080"} | {k.replace("_", "-"): v for k, v in headers.items()}
    scope = {
        "type": "http", "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }  # fmt: skip
    asyncio.run(Guard(_page, HOSTS, tls=tls)(scope, receive, send))
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"origin": "http://localhost:8080"}, 200),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:8080"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"origin": "https://localhost:8080"}, 403),
        ({"origin": "http://localhost:8081"}, 403),
        ({"origin": "null"}, 403),
        ({}, 403),
    ],
)
def test_a_form_of_another_origin_is_refused(headers: dict[str, str], status: int) -> None:
    assert answer("POST", **headers)[0] == status


def test_an_attackers_name_for_this_address_is_not_answered() -> None:
    assert answer("GET", host="attacker.example:8080")[0] == 421
    assert answer("POST", host="attacker.example", origin="http://attacker.example")[0] == 421
    assert answer("GET", host="LOCALHOST:8080")[0] == 200


def test_a_foreign_page_may_link_but_not_load() -> None:
    assert answer("GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200
    assert answer("GET", sec_fetch_site="cross-site", sec_fetch_mode="no-cors")[0] == 403
    assert answer("DELETE")[0] == 405


@pytest.mark.parametrize("host", ["localhost:8080", "attacker.example"])
def test_each_answer_says_what_a_browser_may_do_with_it(host: str) -> None:
    _, headers = answer("GET", host=host)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in headers
    assert "strict-transport-security" in answer("GET", tls=True)[1]
