"""Each page as axe-core judges it, in light and dark."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kproxy.console.app import PAGES
from tests.browser.chromium import Chromium
from tests.clients.transactions.calls import transactional
from tests.console.serving import Browser
from tests.console.test_dead import ENABLE, bury
from tests.console.test_groups import commit
from tests.console.test_pages import fill, make
from tests.harness import ROOT, Served, need

AXE = ROOT / ".tools" / "axe-core" / "axe.min.js"
QUERIES = {"/group": "?id=crew", "/share": "?id=none"}


@pytest.fixture(scope="module")
def filled(own: Served, shown: Browser) -> Iterator[Browser]:
    """Return a console with something on each page."""
    admin = AdminClient({"bootstrap.servers": own.address, "log_level": 0})
    make(admin, "jobs", partitions=2)
    make(admin, "dlq.jobs", **ENABLE)
    make(admin, "later", kproxy_delay_replace="key", kproxy_delay_ms="86400000")
    make(admin, "routed", kproxy_route_to="jobs-{key}", kproxy_route_unroutable="jobs")
    fill(own, "jobs", b'{"id": 17}', b"\xff\x00", b"x" * 1000)
    fill(own, "later", b"later")
    bury(own, "dlq.jobs", "jobs", 5)
    commit(admin, "crew", "jobs", 1)
    producer = transactional(own.address, "cashier-1", **{"transaction.timeout.ms": 900_000})
    producer.begin_transaction()
    producer.produce("jobs", b"open")
    producer.flush()
    shown.post("/dead/dlq.jobs/redrive", to="jobs", rate="1/h")
    yield shown
    producer.abort_transaction()


def addresses() -> list[str]:
    found = []
    for path in PAGES:
        queue = "dlq.jobs" if path.startswith("/dead") else "jobs"
        if path.endswith("/waiting"):
            queue = "later"
        found.append(path.replace("{queue}", queue) + QUERIES.get(path, ""))
    return [*found, "/queues/later/waiting", "/no-such-page", "/queues/no-such-queue"]


def faults(window: Chromium) -> list[Any]:
    """Return what axe-core calls serious or critical."""
    found = window.run_later(
        AXE.read_text() + "; const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then("
        "found => done(found.violations), error => done([{impact: 'critical', id: '' + error}]))"
    )
    return [
        (one["id"], [node["html"][:200] for node in one.get("nodes", ())][:3])
        for one in found if one["impact"] in ("serious", "critical")
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_wrong_with_any_page(
    window: Chromium, filled: Browser, scheme: str
) -> None:
    need(AXE.exists(), "axe-core: make axe-core")
    window.scheme(scheme)
    assert window.run(f"return matchMedia('(prefers-color-scheme: {scheme})').matches")
    wrong = {}
    for path in addresses():
        window.open(f"http://localhost:{filled.port}{path}")
        if found := faults(window):
            wrong[path] = found
    assert not wrong


def test_each_page_fits_a_narrow_window(window: Chromium, filled: Browser) -> None:
    """Only tables scroll sideways."""
    window.narrow(360)
    try:
        wide = []
        for path in addresses():
            window.open(f"http://localhost:{filled.port}{path}")
            if window.run("return document.documentElement.scrollWidth > innerWidth"):
                wide.append(path)
        assert not wide
    finally:
        window.narrow(None)
