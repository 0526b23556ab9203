"""`kproxy top`: what it makes of two looks, and what it shows of served workers."""

from typing import Any

import pytest

from kproxy.counters import Busiest
from kproxy.tools.top import differences, quantile, ranges, rate
from tests.forked import run_kproxy as kproxy
from tests.harness import Served, eventually
from tests.observe.test_prometheus import FLAGS, endpoints, load
from tests.workers import Workers

__all__ = ["FLAGS"]  # of the `site`


def test_a_rate_is_made_of_two_looks() -> None:
    before: dict[str, Any] = {"at": 10.0, "counters": {"requests": 5}}
    after: dict[str, Any] = {"at": 12.0, "counters": {"requests": 25}}
    assert rate(before, after, "requests") == 10
    assert rate(after, after, "requests") == 0
    assert rate(after, before | {"at": 14.0}, "requests") == 0  # it was started again


def test_a_quantile_is_of_what_came_between() -> None:
    before: dict[str, Any] = {"h": [[1, 2], [100, 0, 0]]}
    assert quantile(before, {"h": [[1, 2], [100, 99, 1]]}, "h", 0.99) == 2
    assert quantile(before, {"h": [[1, 2], [100, 98, 2]]}, "h", 0.99) == float("inf")
    assert quantile(before, before, "h", 0.99) is None


def test_the_busiest_of_two_looks() -> None:
    before: dict[str, Any] = {"at": 0.0, "queues": [["a", 10, 0]]}
    after: dict[str, Any] = {"at": 2.0, "queues": [["a", 30, 0], ["b", 0, 8]]}
    assert differences(before, after, "queues", 2) == [("a", (10, 0)), ("b", (0, 4))]


@pytest.mark.parametrize(
    ("numbers", "shown"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2 5 7-8")]
)
def test_shards_are_shown_as_ranges(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown


def test_the_busiest_are_kept_and_their_number_is_bounded() -> None:
    busiest = Busiest(10)
    for number in range(1000):
        busiest.add("busy", 5)
        busiest.add(f"q{number}", 1)
    assert busiest.top(1) == [("busy", 5000)]
    assert len(busiest.amounts) <= 10


def test_it_shows_rates_queues_groups_and_shards(site: Served | Workers) -> None:
    where = [part for address in endpoints(site) for part in ("--http", address)]
    with load(site.address):

        def shown() -> bool:
            text = kproxy("top", *where, "--once", "--every", "1.5").stdout
            busy = "seen-0" in text and "seen-group" in text
            workers = 2 if isinstance(site, Workers) else 1
            shards = "8 of 8 served" if workers == 2 else "1 of 1 served"
            return busy and shards in text and text.count("ready") == workers

        eventually(shown, 30)


def test_it_says_where_nobody_answers() -> None:
    done = kproxy("top", "--http", "127.0.0.1:1", "--once")
    assert done.returncode == 1
    assert "no kproxy answers at http://127.0.0.1:1" in done.stderr
