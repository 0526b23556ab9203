"""The last hour of the workers: rings, charts, and the page that shows them."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from confluent_kafka.admin import AdminClient

from kproxy.console import history
from kproxy.console.charts import chart
from kproxy.console.history import History, Ring
from kproxy.tools.top import Source
from tests.console.serving import WAIT_S, Browser, console
from tests.console.test_pages import admin, fill, make
from tests.harness import Served, eventually

__all__ = ["admin"]


@pytest.fixture(scope="module")
def browser(server: Served) -> Iterator[Browser]:
    (listen,) = (one["listen"] for one in server.events if one["event"] == "http_ready")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history, "EVERY_S", 0.02)
        with console((server.host, server.port), http=(listen,)) as shown:
            yield shown


class Said(Source):
    """Workers that say what a test has them say."""

    def __init__(self) -> None:
        super().__init__((), None, None)
        self.pages_said: dict[str, Any] = {}

    def page(self, url: str) -> Any:
        return self.pages_said.get(url)


def page(at: float, produced: int, **more: Any) -> dict[str, Any]:
    counters = {"produced_records": produced, "connections_open": 3}
    return {
        "at": at, "address": "a:1", "health": {"ready": True, "reasons": []},
        "counters": counters, "shards": [[0, "served", 2], [1, "rebuilding", 5]],
        "loop_lag": [[0.001, 0.01], [int(at), 0, 0]],
        "produce_seconds": [[0.001, 0.01], [0, int(at), 0]],
        "groups": [{"group": "g", "commits": 1, "lag": 40, "members": 1},
                   {"group": "unknown", "commits": 1, "lag": None, "members": None}], **more,
    }  # fmt: skip


def test_rings_keep_an_hour_and_say_where_nothing_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "_POINTS", 4)
    ring = Ring()
    for look, value in ((0, 1.0), (1, 2.0), (3, 4.0)):
        ring.put(look, value)
    assert str(ring.until(3)) == "[1.0, 2.0, nan, 4.0]"
    assert str(ring.until(5)) == "[nan, 4.0, nan, nan]"
    ring.put(6, 7.0)
    assert str(ring.until(6)) == "[4.0, nan, nan, 7.0]"
    ring.put(100, 1.0)
    assert str(ring.until(100)) == "[nan, nan, nan, 1.0]"


def test_two_looks_make_rates_and_charts() -> None:
    source = Said()
    watched = History(source, ["w:1"])
    for at, produced in ((10.0, 100), (20.0, 600)):
        source.pages_said["http://w:1"] = page(at, produced)
        watched.look()
    now = watched.workers()["a:1"]
    assert (now.records_in, now.loop, now.produce, now.behind) == (50.0, 0.001, 0.01, 7)
    assert dict(now.shards) == {"served": 1, "rebuilding": 1}
    assert watched.total("records_in")[-1] == 50
    assert watched.lag("g")[-2:] == [40.0, 40.0]
    assert watched.lag("unknown") == []
    source.pages_said.clear()  # it is lost
    watched.look()
    assert watched.workers() == {}
    assert math.isnan(watched.total("records_in")[-1])
    assert math.isnan(watched.lag("g")[-1])


@pytest.mark.parametrize(
    "wrong", [{"counters": []}, {"shards": [[1]]}, {"groups": 7}, {"health": {}}, {"at": "now"},
              {"loop_lag": [[], 1]}, {"groups": [{"group": "g", "lag": {}}]}],
)  # fmt: skip
def test_a_page_that_no_worker_says_is_no_answer(wrong: dict[str, Any]) -> None:
    source = Said()
    watched = History(source, ["w:1"])
    for at in (10.0, 20.0):
        source.pages_said["http://w:1"] = page(at, 1) | wrong
        watched.look()
    assert math.isnan(watched.total("records_in")[-1])
    assert watched.workers() == {}


def test_groups_that_were_busy_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_GROUPS_MAX", 2)
    source = Said()
    watched = History(source, ["w:1"])
    for number in range(4):
        groups = [{"group": f"g{number}", "commits": 1, "lag": 1, "members": 1}]
        source.pages_said["http://w:1"] = page(number + 1.0, 0, groups=groups)
        watched.look()
    assert [name for name in ("g0", "g1", "g2", "g3") if watched.lag(name)] == ["g2", "g3"]


def test_workers_are_looked_for_where_they_say_that_they_serve() -> None:
    watched = History(Source((), None, None))
    watched.know([("a", 1), ("a", 2), ("::1", 1)])
    assert watched._urls == ["http://a:9644", "http://a:9645", "http://[::1]:9644"]


def test_a_chart_says_in_words_what_it_shows() -> None:
    values = [math.nan] * 360 + [3.0] * 354 + [6.0] * 6
    found = chart("Lag", [("records", values)], str)
    assert found is not None
    assert found.said == "Lag, the last hour. records: now 6.0, highest 6.0"
    assert len(found.lines[0].paths) == 1
    assert found.lines[0].paths[0].count(",") == 60
    assert chart("Lag", [("records", [math.nan] * 720)], str) is None
    assert chart("Lag", [("records", [])], str) is None
    flat = chart("Lag", [("records", [0.0])], str)
    assert flat is not None
    assert flat.lines[0].paths == ["0.0,119.0 0.0,119.0"]


def test_workers_are_shown_with_charts(
    browser: Browser, admin: AdminClient, server: Served, queue: str
) -> None:
    make(admin, queue)
    fill(server, queue, b"x")
    eventually(lambda: "Records a second, the last hour" in browser.get("/workers").body, WAIT_S)
    found = browser.get("/workers")
    assert {"svg", "polyline"} <= found.tags
    assert not {"script", "style"} & found.tags
    assert " style=" not in found.body
    assert "ready 1 served" in found.text


def test_figures_are_for_who_may_describe_the_cluster(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: "svg" in browser.get("/workers").tags, WAIT_S)
    monkeypatch.setattr("kproxy.tools.client.Client.disk", lambda self, node: None)
    found = browser.get("/workers")
    assert "svg" not in found.tags
    assert "Figures are for who may DESCRIBE the cluster." in found.text
    assert "not shown" in found.text
